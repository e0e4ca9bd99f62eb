"""The HTTP session under yfinance: retries, time-outs, and a separate error for each kind of failure.

yfinance turns most failures into an empty frame. This session decides on each request before yfinance sees
it: an answer with data is passed on, others are repeated with exponential backoff and raised as `YahooError`.
"""

import json
import logging
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import yfinance
from curl_cffi import requests
from yfinance.config import YfConfig
from yfinance.data import SingletonMeta, YfData

ADDRESS = "https://{host}"  # URL of Yahoo's hosts; the tests replace it by a server on loopback

_ENDPOINTS: Final = {  # path -> key of the data in its JSON; others serve cookies and crumbs
    "/v8/finance/chart/": "chart",
    "/v10/finance/quoteSummary/": "quoteSummary",
    "/v7/finance/quote": "quoteResponse",
    "/ws/fundamentals-timeseries/": "timeseries",
}
_COOKIES: Final = "fc.yahoo.com"
_TOO_MANY: Final = frozenset({429, 999})
_NOT_ALLOWED: Final = frozenset({401, 403})
_LONGEST_WAIT: Final = 60.0
_MAX_UNANSWERED_IN_A_ROW: Final = 5  # requests, retries included, after which Yahoo counts as down


class YahooError(Exception):
    """Yahoo gave no data."""


class ThrottledError(YahooError):
    """Yahoo answered "too many requests" in every retry."""


class NoAnswerError(YahooError):
    """Every retry ended in a server error, a time-out or an answer that is not Yahoo's JSON."""


class DeniedError(NoAnswerError):
    """Yahoo requires a cookie and crumb that it does not provide; an immediate retry is useless."""


class NoDataError(YahooError):
    """Yahoo answered that it has no data; ``unknown`` if it does not know the symbol."""

    def __init__(self, message: str, *, unknown: bool) -> None:
        super().__init__(message)
        self.unknown = unknown


class YahooSession(requests.Session[requests.Response]):
    """A curl_cffi session for yfinance that retries, keeps the last answers, and may stop asking."""

    def __init__(self, timeout_seconds: float, retries: int, wait: Callable[[float], None]) -> None:
        super().__init__(impersonate="chrome")  # like yfinance: Yahoo refuses clients that are not browsers
        self.refusing: YahooError | None = None
        self._timeout, self._retries, self._wait = timeout_seconds, retries, wait
        self._jitter = random.Random()  # noqa: S311 (waiting times, not secrets)
        self._lock = threading.Lock()
        self._unanswered = 0
        self._cookie: requests.Response | None = None
        self._denied: set[tuple[str, str]] = set()
        self._answers: dict[tuple[str, str], Mapping[str, Any]] = {}

    def answer(self, root: str, symbol: str) -> Mapping[str, Any]:
        """Return the last successful answer of an endpoint for a symbol; empty if there was none."""
        return self._answers.get((root, symbol), {})

    def request(self, method: Any, url: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (curl_cffi's)
        """Send a request; those for data are repeated until answered, else YahooError."""
        parts = urlsplit(url)
        target = ADDRESS.format(host=parts.hostname) + url.split(parts.netloc, 1)[1]
        kwargs["timeout"] = self._timeout
        root = next((root for prefix, root in _ENDPOINTS.items() if parts.path.startswith(prefix)), None)
        if root is None:  # cookies, crumbs and consent: yfinance handles refusals of these itself
            if parts.hostname != _COOKIES:
                return super().request(method, target, *args, **kwargs)
            # without its cache, yfinance requests a cookie before every other request
            if self._cookie is None or not self.cookies.jar:
                self._cookie = super().request(method, target, *args, **kwargs)
            return self._cookie
        symbol = unquote(parts.path.rsplit("/", 1)[1])
        if root == "quoteResponse":
            given = (kwargs.get("params") or {}).get("symbols") or parse_qs(parts.query).get("symbols", [""])[
                0
            ]
            symbol = str(given)
        for attempt in range(self._retries + 1):
            if self.refusing is not None:
                raise self.refusing
            try:
                response = super().request(method, target, *args, **kwargs)
                self._read(response, root, symbol)
            except requests.exceptions.RequestException as error:
                late = isinstance(error, requests.exceptions.Timeout)
                failed = f"the connection failed ({type(error).__name__})"
                reason: YahooError = NoAnswerError(
                    f"no answer within {self._timeout:g} s" if late else failed
                )
            except (ThrottledError, NoAnswerError) as error:
                reason = error
            else:
                self._unanswered = 0
                return response
            if isinstance(reason, DeniedError):
                break
            if attempt < self._retries:  # a delay that doubles, with jitter to spread the clients
                self._wait(min(_LONGEST_WAIT, 2.0**attempt) * self._jitter.uniform(0.5, 1.5))
        with self._lock:
            self._unanswered += 1
            if isinstance(reason, ThrottledError) or self._unanswered >= _MAX_UNANSWERED_IN_A_ROW:
                self.refusing = reason
        raise reason

    def _read(self, response: requests.Response, root: str, symbol: str) -> None:
        """Store an answer that contains data; raise an error for any other."""
        status, text = response.status_code, response.text
        if status in _TOO_MANY or "Too Many Requests" in text[:200]:
            raise ThrottledError(f"HTTP {status}: too many requests")
        if status >= 500:
            raise NoAnswerError(f"HTTP {status}")
        if "consent.yahoo.com" in response.url:  # in Europe; yfinance submits the form and asks again
            return
        if status in _NOT_ALLOWED and (root, symbol) not in self._denied:
            self._denied.add((root, symbol))  # only once: yfinance then fetches a new cookie and crumb
            return
        self._denied.discard((root, symbol))
        if status in _NOT_ALLOWED:
            raise DeniedError(f"HTTP {status}, even with a new cookie and crumb")
        try:
            payload = json.loads(text)
        except ValueError:
            kind = "HTML" if text.lstrip().startswith("<") else "broken JSON"
            raise NoAnswerError(f"{kind} of {len(text):,} characters instead of JSON") from None
        if not isinstance(payload, dict):
            raise NoAnswerError(f"JSON with a {type(payload).__name__} instead of an object")
        body = payload.get(root) or payload.get("finance")
        if not isinstance(body, dict):
            raise NoAnswerError(f"HTTP {status} with JSON that lacks {root}")
        if error := body.get("error"):
            code = str(error.get("code", "")) if isinstance(error, dict) else ""
            message = str(error.get("description") or code) if isinstance(error, dict) else str(error)
            if code in {"Not Found", "Bad Request", "Unprocessable Entity"}:
                raise NoDataError(message, unknown=code == "Not Found")
            raise NoAnswerError(f"HTTP {status}: {message}")
        if status >= 400:
            raise NoAnswerError(f"HTTP {status}")
        self._answers[root, symbol] = body


@contextmanager
def yahoo_client(session: YahooSession) -> Iterator[None]:
    """Make yfinance use this session, raise its errors and store nothing (its cookie cache is a pickle)."""
    yfinance.set_tz_cache_location(os.path.join(os.devnull, "no-cache"))
    SingletonMeta._instances.pop(YfData, None)
    YfData.cache_get.cache_clear()
    hidden, logger = YfConfig.debug.hide_exceptions, logging.getLogger("yfinance")
    level = logger.level
    # pandas' own, about yfinance
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="yfinance")
    YfConfig.debug.hide_exceptions = False
    logger.setLevel(logging.CRITICAL)  # everything it logs is also raised
    try:
        YfData(session=session)
        yield
    finally:
        YfConfig.debug.hide_exceptions = hidden
        logger.setLevel(level)
        SingletonMeta._instances.pop(YfData, None)
        session.close()
