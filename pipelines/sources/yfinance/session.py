"""The HTTP session under yfinance: retries, time-outs, and a plain word for every way of not answering.

yfinance turns most failures into an empty frame and a line of log, so that a rate limit, a broken answer and
a firm without data look alike. This session settles each request before yfinance sees it: an answer that
holds data is passed on, anything else is asked again with exponential backoff, then raised as a `YahooError`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import yfinance
from curl_cffi import requests
from yfinance.config import YfConfig
from yfinance.data import SingletonMeta, YfData

ADDRESS = "https://{host}"
"""Where Yahoo's hosts are; the tests put a server on loopback there."""

_ENDPOINTS: Final = {
    "/v8/finance/chart/": "chart",
    "/v10/finance/quoteSummary/": "quoteSummary",
    "/v7/finance/quote": "quoteResponse",
    "/ws/fundamentals-timeseries/": "timeseries",
}
"""Path -> the key under which its JSON holds the data. Every other path serves cookies and crumbs."""

_COOKIES: Final = "fc.yahoo.com"
_TOO_MANY: Final = frozenset({429, 999})
_NOT_ALLOWED: Final = frozenset({401, 403})
_LONGEST_WAIT: Final = 60.0
_SILENT_IN_A_ROW: Final = 5
"""Requests that in a row had no answer through all their retries: then Yahoo is down, not a firm."""


class YahooError(Exception):
    """Yahoo gave no data."""


class ThrottledError(YahooError):
    """Yahoo said "too many requests" through every retry."""


class NoAnswerError(YahooError):
    """A server error, a time-out or something that is not Yahoo's JSON, through every retry."""


class DeniedError(NoAnswerError):
    """Yahoo wants a cookie and crumb that it does not give: asking again at once is of no use."""


class NothingThereError(YahooError):
    """Yahoo answered that it has nothing; ``unknown`` if it does not know the symbol."""

    def __init__(self, message: str, *, unknown: bool) -> None:
        super().__init__(message)
        self.unknown = unknown


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an answer, how often to ask again, and how to wait in between."""

    timeout_seconds: float
    retries: int
    wait: Callable[[float], None] = time.sleep


class YahooSession(requests.Session[requests.Response]):
    """A curl_cffi session (yfinance takes no other) that retries, and remembers the last answers.

    Attributes
    ----------
    refusing
        Why nothing is asked any more: a request was throttled through all its retries, or several in a row
        had no answer. None while Yahoo answers.
    """

    def __init__(self, patience: Patience) -> None:
        super().__init__(impersonate="chrome")  # as yfinance's own: Yahoo refuses clients that are no browser
        self.refusing: YahooError | None = None
        self._patience = patience
        self._jitter = random.Random()  # noqa: S311 (waiting times, not secrets)
        self._lock = threading.Lock()
        self._silent = 0
        self._cookie: requests.Response | None = None
        self._denied: set[tuple[str, str]] = set()
        self._answers: dict[tuple[str, str], Mapping[str, Any]] = {}

    def answer(self, root: str, symbol: str) -> Mapping[str, Any]:
        """Return what the last good answer of an endpoint held about a symbol; empty if there was none."""
        return self._answers.get((root, symbol), {})

    def request(self, method: Any, url: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (curl_cffi's)
        """Send a request; for Yahoo's data, until it is answered or the retries are used up.

        Raises
        ------
        YahooError
            If there is no data in the end.
        """
        parts = urlsplit(url)
        target = ADDRESS.format(host=parts.hostname) + url.split(parts.netloc, 1)[1]
        kwargs["timeout"] = self._patience.timeout_seconds
        place = _place(parts.path, parts.query, kwargs.get("params"))
        if place is None:  # cookies, crumbs and consent: yfinance has its own ways around a refusal there
            if parts.hostname != _COOKIES:
                return super().request(method, target, *args, **kwargs)
            if (
                self._cookie is None or not self.cookies.jar
            ):  # without its cache it asks before every question
                self._cookie = super().request(method, target, *args, **kwargs)
            return self._cookie
        for attempt in range(self._patience.retries + 1):
            if self.refusing is not None:
                raise self.refusing
            try:
                response = super().request(method, target, *args, **kwargs)
                self._read(response, *place)
            except requests.exceptions.RequestException as error:
                reason: YahooError = NoAnswerError(_transport(error, self._patience.timeout_seconds))
            except (ThrottledError, NoAnswerError) as error:
                reason = error
            else:
                self._silent = 0
                return response
            if isinstance(reason, DeniedError):
                break
            if attempt < self._patience.retries:
                self._patience.wait(self._delay(attempt))
        self._give_up(reason)
        raise reason

    def _delay(self, attempt: int) -> float:
        """Double the time each time, and spread it, so that many clients do not come back at once."""
        return min(_LONGEST_WAIT, 2.0**attempt) * self._jitter.uniform(0.5, 1.5)

    def _give_up(self, reason: YahooError) -> None:
        with self._lock:
            self._silent += 1
            if isinstance(reason, ThrottledError) or self._silent >= _SILENT_IN_A_ROW:
                self.refusing = reason

    def _read(self, response: requests.Response, root: str, symbol: str) -> None:
        """Pass an answer with data, and keep it; raise for any other."""
        status, text = response.status_code, response.text
        if status in _TOO_MANY or "Too Many Requests" in text[:200]:
            raise ThrottledError(f"HTTP {status}: too many requests")
        if status >= 500:
            raise NoAnswerError(f"HTTP {status}")
        if "consent.yahoo.com" in response.url:  # in Europe; yfinance fills the form in and asks again
            return
        if status in _NOT_ALLOWED and (root, symbol) not in self._denied:
            self._denied.add((root, symbol))  # once: yfinance then fetches another cookie and crumb
            return
        self._denied.discard((root, symbol))
        if status in _NOT_ALLOWED:
            raise DeniedError(f"HTTP {status}, also with a new cookie and crumb")
        payload = _parse(text)
        body = payload.get(root) or payload.get("finance")
        if not isinstance(body, dict):
            raise NoAnswerError(f"HTTP {status} with JSON that has no {root}")
        if error := body.get("error"):
            code = str(error.get("code", "")) if isinstance(error, dict) else ""
            said = str(error.get("description") or code) if isinstance(error, dict) else str(error)
            if code in {"Not Found", "Bad Request", "Unprocessable Entity"}:
                raise NothingThereError(said, unknown=code == "Not Found")
            raise NoAnswerError(f"HTTP {status}: {said}")
        if status >= 400:
            raise NoAnswerError(f"HTTP {status}")
        self._answers[root, symbol] = body


@contextmanager
def yahoo_client(session: YahooSession) -> Iterator[None]:
    """Let yfinance use this session, raise what goes wrong, and keep nothing on disk.

    Its cache of cookies is a pickle in the user's cache folder, which nothing here may load; an unusable
    folder switches its caches off. Its one shared object holds a crumb and answers of an earlier session, so
    it is made anew.
    """
    yfinance.set_tz_cache_location(os.path.join(os.devnull, "no-cache"))
    SingletonMeta._instances.pop(YfData, None)
    YfData.cache_get.cache_clear()
    hidden, logger = YfConfig.debug.hide_exceptions, logging.getLogger("yfinance")
    level = logger.level
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="yfinance")  # of pandas, about it
    YfConfig.debug.hide_exceptions = False
    logger.setLevel(logging.CRITICAL)  # what it logs is raised as well
    try:
        YfData(session=session)
        yield
    finally:
        YfConfig.debug.hide_exceptions = hidden
        logger.setLevel(level)
        SingletonMeta._instances.pop(YfData, None)
        session.close()


def _place(path: str, query: str, params: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Endpoint and symbol of a request for data; None for any other."""
    for prefix, root in _ENDPOINTS.items():
        if path.startswith(prefix):
            if root != "quoteResponse":
                return root, unquote(path.rsplit("/", 1)[1])
            return root, str((params or {}).get("symbols") or parse_qs(query).get("symbols", [""])[0])
    return None


def _parse(text: str) -> Mapping[str, Any]:
    try:
        payload = json.loads(text)
    except ValueError:
        kind = "HTML" if text.lstrip().startswith("<") else "broken JSON"
        raise NoAnswerError(f"{kind} of {len(text):,} characters where JSON was due") from None
    if not isinstance(payload, dict):
        raise NoAnswerError(f"JSON that is a {type(payload).__name__} where an object was due")
    return payload


def _transport(error: requests.exceptions.RequestException, timeout: float) -> str:
    if isinstance(error, requests.exceptions.Timeout):
        return f"no answer within {timeout:g} s"
    return f"the connection failed ({type(error).__name__})"
