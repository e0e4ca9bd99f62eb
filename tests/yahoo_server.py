"""A loopback server for the part of Yahoo Finance's protocol that yfinance uses.

It holds synthetic firms as they were quoted and answers as Yahoo does: prices, volumes and dividends per
share of today, in single precision; Yahoo's adjusted closes by its published rule (prices before a dividend
are multiplied by 1 - dividend / close of the previous session); cookies, crumbs and consent forms; 404 with
JSON for an unknown symbol. `YahooServer.now` is its clock: later data does not exist for it. Faults can be
added.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from zoneinfo import ZoneInfo

import numpy as np

FaultKind = Literal["throttle", "error", "truncate", "html", "nulls", "empty", "hang", "deny"]
COOKIE, CRUMB = "A3=d=loopback", "cRuMb/1"
CONSENT = '<html><form><input name="csrfToken" value="t"><input name="sessionId" value="s"></form></html>'


@dataclass
class Day:
    """A session as quoted on its day; None where the exchange had no price."""

    open: float | None
    high: float | None
    low: float | None
    close: float | None
    volume: int | None


@dataclass
class Firm:
    """A listed firm: sessions as quoted, splits by ex-date, dividends as paid by ex-date."""

    symbol: str
    days: dict[date, Day]
    splits: dict[date, tuple[int, int]] = field(default_factory=dict)  # new, old
    dividends: dict[date, float] = field(default_factory=dict)
    dividend_currency: str | None = None
    currency: str = "USD"
    zone: str = "America/New_York"
    opens: tuple[int, int] = (9, 30)
    closes: tuple[int, int] = (16, 0)
    profile: dict[str, str] = field(default_factory=dict)
    statements: dict[str, dict[date, float]] = field(
        default_factory=dict
    )  # Yahoo's item -> period end -> value
    splits_applied_late: bool = False  # listed among the events, but earlier prices are not adjusted yet

    def at(self, day: date, clock: tuple[int, int]) -> int:
        """Time stamp of a time of day on the exchange's clock."""
        return int(datetime(day.year, day.month, day.day, *clock, tzinfo=ZoneInfo(self.zone)).timestamp())

    def later(self, day: date, until: date) -> float:
        """Shares on ``until`` per share at the close of a day."""
        return math.prod(n / o for ex, (n, o) in self.splits.items() if day < ex <= until)


@dataclass
class Fault:
    """A fault: its kind, the symbol (or all), the endpoint, and the number of times (None: always)."""

    kind: FaultKind
    symbol: str | None = None
    root: str | None = None
    times: int | None = None


@dataclass(frozen=True)
class Request:
    """A received request for data."""

    root: str
    symbol: str
    query: Mapping[str, str]


def _error(root: str, code: str, description: str) -> str:
    return json.dumps({root: {"result": None, "error": {"code": code, "description": description}}})


_BROKEN: dict[str, tuple[int, str, str]] = {
    "throttle": (429, "Too Many Requests\r\n", "text/plain"),
    "error": (503, "<html>upstream failure</html>", "text/html"),
    "deny": (401, _error("finance", "Unauthorized", "Invalid Crumb"), "application/json"),
    "html": (200, "<!DOCTYPE html><html><body>Oops</body></html>", "text/html"),
}


class YahooServer:
    """The server; use `running`."""

    def __init__(self, firms: list[Firm], now: datetime) -> None:
        self.firms = {firm.symbol: firm for firm in firms}
        self.now = now
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.cookies = 0
        self.crumbs = 0
        self.errors: list[BaseException | None] = []
        self._lock = threading.Lock()
        self._released = threading.Event()

    @property
    def address(self) -> str:
        """Value of the session's `ADDRESS` that redirects Yahoo's hosts to this server."""
        return f"http://127.0.0.1:{self.port}/{{host}}"

    def add_fault(
        self,
        kind: FaultKind,
        symbol: str | None = None,
        *,
        root: str | None = None,
        times: int | None = None,
    ) -> None:
        """Add a fault."""
        self.faults.append(Fault(kind, symbol, root, times))

    def clear_faults(self) -> None:
        """Remove all faults."""
        self.faults.clear()

    def charts(self, symbol: str) -> list[Request]:
        """Return the requests for a symbol's history, without those for its time zone."""
        return [r for r in self.requests if r.root == "chart" and r.symbol == symbol and "period1" in r.query]

    @contextmanager
    def running(self) -> Iterator[YahooServer]:
        """Serve on a free port of 127.0.0.1 until the block ends."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                owner.handle(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 (the base's)
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (the base's)
                error = sys.exception()
                if not isinstance(error, ConnectionError):  # a client whose time-out has passed hangs up
                    owner.errors.append(error)

        server = Server(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._released.set()
            server.shutdown()
            server.server_close()
            thread.join()
        assert not self.errors, self.errors

    def handle(self, http: BaseHTTPRequestHandler) -> None:
        """Answer one request; the first part of the path is the intended host."""
        parts = urlsplit(http.path)
        host, _, path = parts.path[1:].partition("/")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if host == "fc.yahoo.com":
            self.cookies += 1
            return _send(http, 404, "", cookie=True)
        if path == "v1/test/getcrumb":
            self.crumbs += 1
            if self._fault("crumb", "") == "throttle":
                return _send(http, 429, "Too Many Requests\r\n", kind="text/plain")
            known = COOKIE in (http.headers.get("Cookie") or "")
            return _send(http, 200 if known else 401, CRUMB if known else "")
        if "consent" in host or "guce" in host:
            return _send(http, 200, CONSENT, kind="text/html", cookie=True)
        root, symbol = _place(path, query)
        if root is None:
            return _send(http, 404, "<html>no such page</html>", kind="text/html")
        with self._lock:
            self.requests.append(Request(root, symbol, query))
            fault = self._fault(root, symbol)
        if fault is None and root in {"quoteSummary", "quoteResponse"} and query.get("crumb") != CRUMB:
            fault = "deny"
        return self._answer(http, fault, root, symbol, query)

    def _fault(self, root: str, symbol: str) -> FaultKind | None:
        for fault in self.faults:
            if fault.symbol in {None, symbol} and fault.root in {None, root} and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault.kind
        return None

    def _answer(
        self,
        http: BaseHTTPRequestHandler,
        fault: FaultKind | None,
        root: str,
        symbol: str,
        query: Mapping[str, str],
    ) -> None:
        if fault == "hang":
            self._released.wait(30)
            http.close_connection = True
            return None
        if fault in _BROKEN:
            status, text, kind = _BROKEN[fault]
            return _send(http, status, text, kind=kind)
        firm = self.firms.get(symbol)
        if firm is None:
            return _send(http, 404, _error(root, "Not Found", "No data found, symbol may be delisted"))
        body = {
            "chart": self._chart,
            "quoteSummary": self._summary,
            "quoteResponse": self._quote,
            "timeseries": self._timeseries,
        }[root](firm, query, fault)
        text = json.dumps(body)
        return _send(http, 200, text[: len(text) // 2] if fault == "truncate" else text)

    def _chart(self, firm: Firm, query: Mapping[str, str], fault: FaultKind | None) -> dict[str, Any]:
        today = self.now.astimezone(ZoneInfo(firm.zone)).date()
        since, until = int(query.get("period1", 0)), int(query.get("period2", 2**40))
        days = [d for d in sorted(firm.days) if d <= today and since <= firm.at(d, firm.opens) < until]
        if "range" in query:
            days = days[-1:]
        known = [d for d in sorted(firm.days) if d <= today]
        meta = {
            "currency": firm.currency,
            "symbol": firm.symbol,
            "exchangeName": "TST",
            "fullExchangeName": "Test Exchange",
            "instrumentType": "EQUITY",
            "firstTradeDate": firm.at(known[0], firm.opens) if known else None,
            "exchangeTimezoneName": firm.zone,
            "longName": firm.profile.get("longName"),
            "priceHint": 2,
            "validRanges": ["1d", "5d", "1mo", "1y", "max"],
            "currentTradingPeriod": {
                part: {
                    "timezone": "X",
                    "gmtoffset": 0,
                    "start": firm.at(today, firm.opens),
                    "end": firm.at(today, firm.closes),
                }
                for part in ("pre", "regular", "post")
            },
        }
        if fault == "empty" or not days:
            bare = {"meta": meta, "indicators": {"quote": [{}], "adjclose": [{}]}}
            return {"chart": {"result": [bare], "error": None}}
        adjusted = adjusted_closes(firm, known, today)
        quote: dict[str, list[float | int | None]] = {
            name: [self._per_share_of_today(firm, d, name, today) for d in days]
            for name in ("open", "high", "low", "close", "volume")
        }
        closes: list[float | None] = [adjusted.get(d) for d in days]
        if fault == "nulls":
            quote, closes = {name: [None] * len(days) for name in quote}, [None] * len(days)
        result: dict[str, Any] = {
            "meta": meta,
            "timestamp": [firm.at(d, firm.opens) for d in days],
            "indicators": {"quote": [quote], "adjclose": [{"adjclose": closes}]},
        }
        events = self._events(firm, since, until, today)
        return {"chart": {"result": [result | ({"events": events} if events else {})], "error": None}}

    @staticmethod
    def _per_share_of_today(firm: Firm, day: date, name: str, today: date) -> float | int | None:
        value = getattr(firm.days[day], name)
        later = 1.0 if firm.splits_applied_late else firm.later(day, today)
        if value is None:
            return None
        return round(value * later) if name == "volume" else float(np.float32(value / later))

    @staticmethod
    def _events(firm: Firm, since: int, until: int, today: date) -> dict[str, Any]:
        events: dict[str, Any] = {}
        for ex, (new, old) in firm.splits.items():
            stamp = firm.at(ex, firm.opens)
            if ex <= today and since <= stamp < until:
                events.setdefault("splits", {})[str(stamp)] = {
                    "date": stamp,
                    "numerator": new,
                    "denominator": old,
                    "splitRatio": f"{new}:{old}",
                }
        for ex, cash in firm.dividends.items():
            stamp = firm.at(ex, firm.opens)
            if ex <= today and since <= stamp < until:
                amount = round(cash / firm.later(ex, today), 6)
                own = {"currency": firm.dividend_currency} if firm.dividend_currency else {}
                events.setdefault("dividends", {})[str(stamp)] = {"amount": amount, "date": stamp, **own}
        return events

    @staticmethod
    def _summary(firm: Firm, query: Mapping[str, str], fault: FaultKind | None) -> dict[str, Any]:
        asset_profile: dict[str, Any] = {
            key: firm.profile[key] for key in ("sector", "industry") if key in firm.profile
        }
        quote_type = {"symbol": firm.symbol, "quoteType": "EQUITY", "longName": firm.profile.get("longName")}
        result = {"assetProfile": asset_profile | {"maxAge": 1}, "quoteType": quote_type}
        return {"quoteSummary": {"result": [result], "error": None}}

    @staticmethod
    def _quote(firm: Firm, query: Mapping[str, str], fault: FaultKind | None) -> dict[str, Any]:
        result = {"symbol": firm.symbol, "currency": firm.currency, "longName": firm.profile.get("longName")}
        return {"quoteResponse": {"result": [result], "error": None}}

    def _timeseries(self, firm: Firm, query: Mapping[str, str], fault: FaultKind | None) -> dict[str, Any]:
        result: list[dict[str, Any]] = []
        for kind in query["type"].split(","):
            series: dict[str, Any] = {"meta": {"symbol": [firm.symbol], "type": [kind]}}
            values = firm.statements.get(kind.removeprefix("quarterly"), {}) if "quarterly" in kind else {}
            known = {end: value for end, value in sorted(values.items()) if end <= self.now.date()}
            if known:
                series["timestamp"] = [
                    int(datetime(e.year, e.month, e.day, tzinfo=UTC).timestamp()) for e in known
                ]
                series[kind] = [
                    {
                        "asOfDate": end.isoformat(),
                        "periodType": "3M",
                        "currencyCode": "USD",
                        "reportedValue": {"raw": value, "fmt": f"{value:,.0f}"},
                    }
                    for end, value in known.items()
                ]
            result.append(series)
        return {"timeseries": {"result": result, "error": None}}


def adjusted_closes(firm: Firm, days: list[date], today: date) -> dict[date, float]:
    """Yahoo's adjusted closes, computed backwards from today; a day without a close has none."""
    traded = [(d, close) for d in days if (close := firm.days[d].close) is not None]
    adjusted: dict[date, float] = {}
    factor = 1.0
    for i in range(len(traded) - 1, -1, -1):
        day, close = traded[i]
        later = 1.0 if firm.splits_applied_late else firm.later(day, today)
        adjusted[day] = close / later * factor
        if i == 0:
            break
        before, close_before = traded[i - 1]
        cash = sum(c / firm.later(ex, today) for ex, c in firm.dividends.items() if before < ex <= day)
        factor *= 1.0 - cash / (close_before / firm.later(before, today))
    return adjusted


def _place(path: str, query: Mapping[str, str]) -> tuple[str | None, str]:
    last = unquote(path.rsplit("/", 1)[-1])
    for start, root in (
        ("v8/finance/chart/", "chart"),
        ("v10/finance/quoteSummary/", "quoteSummary"),
        ("ws/fundamentals-timeseries/", "timeseries"),
    ):
        if path.startswith(start):
            return root, last
    if path.startswith("v7/finance/quote"):
        return "quoteResponse", query.get("symbols", "")
    return None, ""


def _send(
    http: BaseHTTPRequestHandler,
    status: int,
    text: str,
    *,
    kind: str = "application/json",
    cookie: bool = False,
) -> None:
    body = text.encode()
    http.send_response(status)
    http.send_header("Content-Type", kind)
    http.send_header("Content-Length", str(len(body)))
    if cookie:
        http.send_header("Set-Cookie", f"{COOKIE}; Path=/")
    http.end_headers()
    http.wfile.write(body)


def business_days(first: date, count: int) -> list[date]:
    """The weekdays from a date on; the tests handle holidays themselves."""
    days: list[date] = []
    while len(days) < count:
        if first.weekday() < 5:
            days.append(first)
        first += timedelta(days=1)
    return days


def make_firm(symbol: str, days: list[date], seed: int, **settings: Any) -> Firm:  # noqa: ANN401 (Firm's)
    """A firm whose quotes are a seeded random walk in whole cents; a split divides them on its ex-date."""
    rng = np.random.default_rng(seed)
    firm = Firm(symbol, {}, **settings)
    firm.profile = firm.profile or {"longName": f"{symbol} Inc.", "sector": "Test", "industry": "Tests"}
    level = float(rng.uniform(60, 300))
    for day in days:
        new, old = firm.splits.get(day, (1, 1))
        level = (level * old / new - firm.dividends.get(day, 0.0)) * math.exp(rng.normal(0.0003, 0.015))
        close = round(level, 2)
        spread = abs(rng.normal(0.0, 0.01, size=2)) * close
        open_ = round(close * math.exp(rng.normal(0.0, 0.004)), 2)
        firm.days[day] = Day(
            open=open_,
            high=round(max(open_, close) + spread[0], 2),
            low=round(min(open_, close) - spread[1], 2),
            close=close,
            volume=int(rng.integers(1_000, 100_000)) * 24,  # divides by small reverse splits
        )
    return firm
