"""Yahoo's answers: the HTTP session under yfinance, and what its numbers about a firm mean.

yfinance turns most failures into an empty frame. The session decides on each request before yfinance sees it:
an answer with data is passed on, others are repeated with exponential backoff and raised as `YahooError`.

Yahoo's "raw" close, its volume and its dividends are per share of today: each is adjusted for all later
splits. With the splits of the same answer, ``later_d = product of the ratios with ex-date > d``, so that

    quoted close_d = close_d * later_d      quoted volume_d = volume_d / later_d

and a dividend on d, per share after that day's split, is ``dividend_d * later_d``. The split itself is the
row's ``split_ratio`` on its ex-date. This needs every split up to now, whatever the last requested date.

Yahoo describes the present. What the lake already holds is therefore never rewritten: a changed
classification is valid from the first close after it was learnt, and so is a restated statement item.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import polars as pl
import yfinance
from curl_cffi import requests
from yfinance.config import YfConfig
from yfinance.data import SingletonMeta, YfData
from yfinance.exceptions import YFException, YFTickerMissingError

from pipelines.lake.schemas import empty
from pipelines.sources.base import FLOWS, SHARE_COUNT, SPLIT_ITEMS, STATIC_SINCE, vendor_names

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
    """Yahoo gave no data; ``refused`` if it might have it."""

    state: Literal["throttled", "empty", "failed"] = "failed"
    refused = False


class ThrottledError(YahooError):
    """Yahoo answered "too many requests" in every retry."""

    state = "throttled"
    refused = True


class NoAnswerError(YahooError):
    """Every retry ended in a server error, a time-out or an answer that is not Yahoo's JSON."""

    refused = True


class DeniedError(NoAnswerError):
    """Yahoo requires a cookie and crumb that it does not provide; an immediate retry is useless."""


class NoDataError(YahooError):
    """Yahoo answered that it has no data; ``unknown`` if it does not know the symbol."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(f"Yahoo {'does not know it' if unknown else 'has nothing'} ({message})")
        self.state = "failed" if unknown else "empty"


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
        given = (kwargs.get("params") or {}).get("symbols")  # where the path does not end with the symbol
        symbol = given or unquote(parts.path.rsplit("/", 1)[1])
        for attempt in range(self._retries + 1):
            if self.refusing is not None:
                raise self.refusing
            try:
                response = super().request(method, target, *args, **kwargs)
                self._read(response, root, symbol)
            except requests.exceptions.RequestException as error:
                said = f"the connection failed ({type(error).__name__})"
                if isinstance(error, requests.exceptions.Timeout):
                    said = f"no answer within {self._timeout:g} s"
                reason: YahooError = NoAnswerError(said)
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


_QUARTER: Final = dt.timedelta(days=91)
_HALF_YEAR: Final = dt.timedelta(days=150)
_VALUE: Final = ["period_end", "item", "value"]
_ONE_PER_STATEMENT: Final = ("net_income", "total_assets", "operating_cash_flow")
"""One item of each statement: Yahoo often has the income statement days before the others."""

_YAHOO_NAMES: Final = vendor_names("yahoo")  # canonical item -> Yahoo's; the first in a period is used
_ROUNDING: Final = {SHARE_COUNT: 0.5, "eps": 0.005}  # error of the numbers that a split rescales
_CASH_PAID: Final = frozenset({"capital_expenditure", "dividends_paid"})  # negative in Yahoo's data


def read_classification(
    ticker: yfinance.Ticker, ours: str, chart: Chart, stored: pl.DataFrame
) -> pl.DataFrame:
    """Request a firm's classification as rows of ``securities``; a change is valid from the next close."""
    info: Mapping[str, Any] = call_yfinance(ticker.get_info)
    reported = {
        "name": info.get("longName") or info.get("shortName") or chart.name,
        "sector": info.get("sector"),
        "industry": info.get("industry"),
        "currency": chart.currency,
        "exchange": chart.exchange or info.get("fullExchangeName"),
    }
    old = stored.filter(pl.col("ticker") == ours).sort("valid_from").tail(1)
    if old.is_empty():
        rows = [{"ticker": ours, "valid_from": STATIC_SINCE, **reported}]
        return pl.DataFrame(rows, schema=empty("securities").schema)
    was = old.row(0, named=True)
    now = {**was, **{key: value for key, value in reported.items() if value is not None}}
    if all(now[key] == was[key] for key in reported):
        return empty("securities")
    now["valid_from"] = max(chart.known_on, was["valid_from"])
    ended = [] if now["valid_from"] == was["valid_from"] else [{**was, "valid_to": chart.known_on}]
    return pl.DataFrame([*ended, now], schema=empty("securities").schema)


def statements_due(ours: str, stored: pl.DataFrame, today: dt.date) -> bool:
    """Return whether Yahoo may have statements that the lake lacks, or another quarter has ended."""
    own = stored.filter(pl.col("ticker") == ours)
    if own.is_empty():
        return True
    last = own.filter(pl.col("period_end") == pl.col("period_end").max())
    ended: dt.date = last["period_end"][0]
    return ended + _QUARTER < today or not set(_ONE_PER_STATEMENT) <= set(last["item"])


def read_statements(
    ticker: yfinance.Ticker,
    ours: str,
    stored: pl.DataFrame,
    chart: Chart,
    *,
    lag: dt.timedelta,
    now: dt.datetime,
) -> pl.DataFrame:
    """Request the quarterly statements, as rows of ``fundamentals`` that the lake lacks.

    Yahoo has no filing dates and overwrites restated values. A new period is therefore assumed to be known
    ``lag`` after its end; an item that differs from the stored value is a separate row, known at the next
    close of the exchange (or from the assumed date, if later). Splits, for which Yahoo restates counts and
    amounts per share, are undone, unless a number equals the stored one and is not restated yet.
    """
    values_by_period: dict[tuple[dt.date, str], float] = {}
    for method in (ticker.get_income_stmt, ticker.get_balance_sheet, ticker.get_cash_flow):
        with suppress(NoDataError):
            values_by_period |= _canonical(call_yfinance(method, freq="quarterly"))
    own = stored.filter(pl.col("ticker") == ours).sort("known_at")
    stored_values = {(period, item): value for period, item, value in own[_VALUE].iter_rows()}
    stored_periods = {period for period, _ in stored_values}
    # Yahoo files half-yearly statements as quarters
    gaps = [after - before for before, after in pairwise(sorted({period for period, _ in values_by_period}))]
    months = 6 if gaps and min(gaps) >= _HALF_YEAR else 3
    currency = _currency(ticker)
    later = {}
    if split_periods := {period for period, item in values_by_period if item in SPLIT_ITEMS}:
        first = min(split_periods)
        chart = chart if chart.since <= first else read_chart(ticker, first, None, now)
        later = {
            period: math.prod(
                ratio for ex_date, ratio in chart.splits.items() if period < ex_date <= chart.today
            )
            for period in split_periods
        }
    rows = []
    for (period, item), reported in sorted(values_by_period.items()):
        known, factor, error = stored_values.get((period, item), math.nan), 1.0, 0.0
        if item in SPLIT_ITEMS:
            factor = later[period] ** (-1 if item == SHARE_COUNT else 1)
        if factor != 1.0:  # the numbers before and after the split are both rounded
            error = _ROUNDING[item] * (1.0 + factor)
        value = reported * factor
        if any(
            math.isclose(known, same, rel_tol=1e-9, abs_tol=by)
            for same, by in ((reported, 0.0), (value, error))
        ):
            continue
        known_at = max(period + lag, chart.known_on) if period in stored_periods else period + lag
        unit = "shares" if item == SHARE_COUNT else currency
        span, stated_on = months if item in FLOWS else None, period if item in SPLIT_ITEMS else None
        rows.append((ours, period, known_at, item, value, unit, None, span, stated_on, True, None))
    return pl.DataFrame(rows, schema=empty("fundamentals").schema, orient="row")


def _canonical(frame: Any) -> dict[tuple[dt.date, str], float]:  # noqa: ANN401 (yfinance is not typed)
    """Convert yfinance's table of items by period to (period end, canonical item) -> value."""
    values_by_period: dict[tuple[dt.date, str], float] = {}
    for item, names in _YAHOO_NAMES.items():
        sign = -1.0 if item in _CASH_PAID else 1.0
        # the preferred name last: it overwrites the others
        for name in reversed([name for name in names if name in frame.index]):
            for period, value in frame.loc[name].items():
                if math.isfinite(value):
                    values_by_period[period.date(), item] = sign * float(value)
    return values_by_period


def _currency(ticker: yfinance.Ticker) -> str | None:
    """Return the currency of the statements, which may differ from the currency of the prices."""
    for series in ticker.session.answer("timeseries", ticker.ticker).get("result") or []:
        for values in series.values():
            for value in values if isinstance(values, list) else []:
                if isinstance(value, dict) and value.get("currencyCode"):
                    return main_unit(value["currencyCode"])[0]
    return None


Floats = npt.NDArray[np.float64]

_MINOR: Final = {  # Yahoo's code of a minor unit -> currency, and value of one unit in it
    **dict.fromkeys(("GBp", "GBX"), ("GBP", 0.01)),
    **{"ZAc": ("ZAR", 0.01), "ILA": ("ILS", 0.01), "KWF": ("KWD", 0.001)},
}
_BAR: Final = ("open", "high", "low", "close")
_SINGLE: Final = 2.0**-23  # relative error of single-precision prices: 24.96 is 24.959999084472656
_CENTS: Final = 1e-6  # absolute error of its dividends, which are rounded to six decimals

_DELAY: Final = dt.timedelta(minutes=30)  # quotes are delayed by up to 20 minutes after the close
_PLAIN_SPLIT: Final = 1.5  # minimum ratio of a split that can be distinguished from a day's return

_DISAGREES: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Chart:
    """Yahoo's prices of one symbol, quoted in the main unit of ``currency``, and what Yahoo says of it."""

    # unadjusted: a split that the prices do not show; disagrees: a return unlike Yahoo's adjusted one
    rows: pl.DataFrame
    currency: str | None
    exchange: str | None
    name: str | None
    first_trade: dt.date | None
    today: dt.date  # at the exchange
    known_on: dt.date  # the first date by whose close the answer is known
    since: dt.date
    splits: Mapping[dt.date, float]  # new per old share by ex-date since then, also after the last row
    remarks: tuple[str, ...]


def read_chart(ticker: yfinance.Ticker, start: dt.date, end: dt.date | None, now: dt.datetime) -> Chart:
    """Request a symbol's prices from ``start`` to ``end`` inclusive, with the splits until ``now``."""
    frame = call_yfinance(
        ticker.history,
        start=start,
        end=now.date() + dt.timedelta(days=2),  # exclusive; the exchange may be a day ahead
        interval="1d",
        auto_adjust=False,
        actions=True,
        keepna=True,
    )
    answer: Mapping[str, Any] = ticker.session.answer("chart", ticker.ticker)["result"][0]
    meta, zone = answer["meta"], ZoneInfo(answer["meta"]["exchangeTimezoneName"])
    quotes = pl.DataFrame(
        {
            "date": list(frame.index.date),
            **{name.lower(): frame[name].to_numpy(dtype=float) for name in ("Open", "High", "Low", "Close")},
            "volume": frame["Volume"].to_numpy(dtype=float),
            "adjusted": frame["Adj Close"].to_numpy(dtype=float),
        },
        schema_overrides={"date": pl.Date},
    ).filter(pl.col("date") <= _last_finished(meta, zone, now))
    currency, scale = main_unit(meta.get("currency"))
    remarks: list[str] = []
    events: Mapping[str, Any] = answer.get("events") or {}
    splits = _splits(events.get("splits") or {}, zone, remarks)
    dividends = _dividends(events.get("dividends") or {}, zone, meta.get("currency"), remarks)
    if empty := quotes.filter(pl.col("close").is_nan()).height:
        remarks.append(f"sessions without a close, left out: {empty:,}")
    rows = unadjust_quotes(quotes.filter(pl.col("close").is_not_nan()), splits, dividends)
    rows = rows.with_columns(
        *(pl.when(pl.col(c) != 0).then(pl.col(c) * scale) for c in _BAR[:3]),
        pl.col("close", "dividend") * scale,
    )
    first = meta.get("firstTradeDate")
    return Chart(
        rows=rows if end is None else rows.filter(pl.col("date") <= end),
        currency=currency,
        exchange=meta.get("fullExchangeName") or meta.get("exchangeName"),
        name=meta.get("longName") or meta.get("shortName"),
        first_trade=None if first is None else _day(first, zone),
        today=now.astimezone(zone).date(),
        known_on=_known_on(meta, zone, now),
        since=start,
        splits=splits,
        remarks=tuple(remarks),
    )


def call_yfinance(method: Any, **arguments: Any) -> Any:  # noqa: ANN401 (yfinance is not typed)
    """Call a method of yfinance and raise a `YahooError` for whatever goes wrong."""
    try:
        return method(**arguments)
    except YahooError:
        raise
    except YFTickerMissingError as error:
        raise NoDataError(error.rationale) from error
    except Exception as error:  # it does not check answers: a missing field may raise anything
        if isinstance(error, YFException) and str(error).startswith("Empty"):
            raise NoDataError(str(error)) from error
        raise NoAnswerError(
            f"yfinance could not process the answer ({type(error).__name__}: {error})"
        ) from error


def unadjust_quotes(
    quotes: pl.DataFrame, splits: Mapping[dt.date, float], dividends: Mapping[dt.date, float]
) -> pl.DataFrame:
    """Undo the adjustment for later splits; assign splits and dividends to rows at or after their ex-dates.

    Of the numbers within Yahoo's rounding, the one with fewest decimals is the quoted one, before and after a
    later split. A volume that is no multiple of a reverse split's ratio is rounded to a new share.
    """
    days = quotes["date"].to_numpy().astype("datetime64[D]")
    ex_dates, ratios = _arrays(splits)
    later = np.append(np.cumprod(ratios[::-1])[::-1], 1.0)[np.searchsorted(ex_dates, days, side="right")]
    split, dividend = np.ones(len(days)), np.zeros(len(days))
    place = np.searchsorted(days, ex_dates)
    np.multiply.at(split, place[place < len(days)], ratios[place < len(days)])
    paid_on, amounts = _arrays(dividends)
    place = np.searchsorted(days, paid_on)
    here = place < len(days)
    np.add.at(dividend, place[here], amounts[here] * later[place[here]])
    quoted = {c: quotes[c].to_numpy() * later for c in _BAR}
    rows = quotes.with_columns(
        *(
            pl.Series(c, _fewest_decimals(price, np.abs(price) * _SINGLE)).fill_nan(None)
            for c, price in quoted.items()
        ),
        (pl.col("volume") / later).round(),
        pl.Series("split_ratio", split),
        pl.Series("dividend", _fewest_decimals(dividend, later * _CENTS)),
    )
    before, close = pl.col("close").shift(1) / pl.col("split_ratio"), pl.col("close")
    move, ratio = (close / before).log(), pl.col("split_ratio").log()
    plain = ratio.abs() >= np.log(_PLAIN_SPLIT)
    # Yahoo multiplies all prices before a dividend by 1 - dividend / close of the session before
    total = close / (before - pl.col("dividend"))
    yahoo_return = (pl.col("adjusted") / pl.col("adjusted").shift(1)).fill_nan(None)
    return rows.select(
        "date",
        *_BAR,
        "volume",
        "split_ratio",
        "dividend",
        (plain & ((move + ratio).abs() < move.abs())).fill_null(value=False).alias("unadjusted"),
        ((total / yahoo_return - 1.0).abs() > _DISAGREES).fill_null(value=False).alias("disagrees"),
    )


def _fewest_decimals(value_T: Floats, error_T: Floats) -> Floats:
    """Round each value to the fewest decimals, from two to six, that stay within its error."""
    short_T, done_T = value_T.copy(), np.zeros(len(value_T), dtype=bool)
    for decimals in range(2, 7):
        rounded_T = value_T.round(decimals)
        here_T = ~done_T & (np.abs(rounded_T - value_T) <= error_T)
        short_T[here_T] = rounded_T[here_T]
        done_T |= here_T
    return short_T


def main_unit(code: str | None) -> tuple[str | None, float]:
    """Return the currency of one of Yahoo's currency codes, and the value of one unit in it."""
    return _MINOR.get(code or "", (code, 1.0))


def _arrays(events: Mapping[dt.date, float]) -> tuple[npt.NDArray[np.datetime64], Floats]:
    days = np.array(sorted(events), dtype="datetime64[D]")
    return days, np.array([events[day] for day in sorted(events)], dtype=float)


def _day(seconds: float, zone: ZoneInfo) -> dt.date:
    """Return a time stamp's date at the exchange; midnight may be early by an hour at clock changes."""
    moment = dt.datetime.fromtimestamp(seconds, tz=zone)
    late = moment.hour in {22, 23} and moment.minute == 0
    return moment.date() + dt.timedelta(days=1) if late else moment.date()


def _known_on(meta: Mapping[str, Any], zone: ZoneInfo, now: dt.datetime) -> dt.date:
    """Return today's date at the exchange if its session is still to close, otherwise tomorrow's."""
    today = now.astimezone(zone).date()
    end = _session_end(meta, zone)
    return today if end.date() == today and now < end else today + dt.timedelta(days=1)


def _session_end(meta: Mapping[str, Any], zone: ZoneInfo) -> dt.datetime:
    regular = (meta.get("currentTradingPeriod") or {}).get("regular") or {}
    return dt.datetime.fromtimestamp(regular.get("end", 0), tz=zone)


def _last_finished(meta: Mapping[str, Any], zone: ZoneInfo, now: dt.datetime) -> dt.date:
    """Return today's date at the exchange if its session is over, otherwise yesterday's."""
    today = now.astimezone(zone).date()
    end = _session_end(meta, zone)
    is_over = end.date() == today and now >= end + _DELAY
    return today if is_over else today - dt.timedelta(days=1)


def _splits(given: Mapping[str, Any], zone: ZoneInfo, remarks: list[str]) -> dict[dt.date, float]:
    parsed: dict[dt.date, float] = {}
    for event in given.values():
        new, old = event.get("numerator") or 0.0, event.get("denominator") or 0.0
        day = _day(event["date"], zone)
        if new > 0 and old > 0:
            parsed[day] = parsed.get(day, 1.0) * new / old
        else:
            remarks.append(f"a split of {new:g}:{old:g} on {day} left out")
    return parsed


def _dividends(
    given: Mapping[str, Any], zone: ZoneInfo, quoted: str | None, remarks: list[str]
) -> dict[dt.date, float]:
    """Read the dividends in the unit of the prices; dividends in London may be in pence or in pounds."""
    currency, scale = main_unit(quoted)
    parsed: dict[dt.date, float] = {}
    for event in given.values():
        day, amount = _day(event["date"], zone), event.get("amount") or 0.0
        paid_in, unit = main_unit(event.get("currency") or quoted)
        if paid_in == currency:
            parsed[day] = parsed.get(day, 0.0) + amount * unit / scale
        else:
            remarks.append(f"a dividend of {amount:g} {paid_in} on {day} left out: prices are in {currency}")
    return parsed
