"""Yahoo Finance through yfinance: prices, splits, dividends, classes and quarterly statements, in batches.

yfinance's bulk ``download`` is a pool of threads over ``Ticker.history`` that throws away the currency, the
time zone and what went wrong; here the pool is our own and keeps them. What Yahoo's numbers mean is settled
in `yfinance_prices` and `yfinance_firms`, what counts as an answer in `yfinance_session`.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import polars as pl
import yfinance

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import Known, SourceTables, TickerStatus
from pipelines.sources.settings import YFinanceSourceConfig
from pipelines.sources.tickers import read_tickers
from pipelines.sources.yfinance.firms import read_class, read_statements, statements_due
from pipelines.sources.yfinance.prices import Chart, read_chart
from pipelines.sources.yfinance.session import (
    NoAnswerError,
    NothingThereError,
    Patience,
    ThrottledError,
    YahooError,
    YahooSession,
    yahoo_client,
)

WORKERS: Final = 4
_OVERLAP: Final = dt.timedelta(days=10)
"""Asked again before the last stored price: Yahoo corrects the volume and the close of the last sessions."""

_RECENT_SESSIONS: Final = 5
_SAME_CLOSE: Final = 1.2
_FEW_SILENT: Final = 0.05
"""Share of the tickers that may go without an answer before the source counts as refusing."""

_ONE_LETTER_EXCHANGES: Final = frozenset("FLTV")  # Frankfurt, London, Tokyo, Toronto's venture exchange
_MENDED_NAMED: Final = 5

_NOTES: Final = (
    "Closes are as quoted on their day, recovered from Yahoo's, which are adjusted for every later split; a "
    "volume that Yahoo leaves out comes as 0.",
    "Yahoo gives no index membership, no listing dates and no delistings: a ticker that is unknown or empty "
    "keeps its history, and nothing is recorded as delisted.",
)
_HAZARDS: Final = (
    "Survivorship: the tickers were chosen as of today, so firms that failed or were taken over before are "
    "missing, and a symbol's history may be that of the firm which has it now.",
    "Sector and industry are Yahoo's on the day on which a firm was first asked for, applied to all dates "
    "before: nobody knew them then; later changes hold from the day on which they were learnt.",
)


@dataclass(frozen=True, slots=True)
class _Delivery:
    """What one ticker's questions gave."""

    status: TickerStatus
    prices: pl.DataFrame | None = None
    securities: pl.DataFrame | None = None
    fundamentals: pl.DataFrame | None = None
    remarks: tuple[str, ...] = field(default=())
    refused: bool = False


class YFinanceSource:
    """Yahoo Finance, asked a batch of tickers at a time, the longest unheard of first.

    Parameters
    ----------
    wanted
        Tickers, dates, batch size and patience.
    wait
        Waits for a number of seconds before a request is repeated.
    clock
        Tells the time, with a time zone.

    Raises
    ------
    ConfigError
        If there is no ticker, or one that cannot be asked for, or start is after end.
    DataError
        If the file of tickers is missing or has none.
    """

    def __init__(
        self,
        wanted: YFinanceSourceConfig,
        *,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._wanted, self._clock = wanted, clock
        self._patience = Patience(wanted.timeout_seconds, wanted.retries, wait)
        self._lag = dt.timedelta(days=wanted.reporting_lag_days)
        self._symbols = _symbols(read_tickers(wanted.tickers))
        if wanted.end is not None and wanted.start > wanted.end:
            raise ConfigError(f"source.start {wanted.start} is after source.end {wanted.end}: swap them")

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return "yfinance"

    def batches(self, known: Known) -> Iterator[SourceTables]:
        """Ask for every ticker, from a few sessions before its last stored price on.

        Raises
        ------
        DataError
            After the last batch, if Yahoo throttled any request through all its retries, or more than a few
            tickers had no answer. A ticker that Yahoo does not know is a status, not an error.
        """
        session = YahooSession(self._patience)
        unheard = sorted(self._symbols, key=lambda ticker: known.last_price.get(ticker, dt.date.min))
        refused: list[TickerStatus] = []
        with yahoo_client(session):
            for i in range(0, len(unheard), self._wanted.batch_size):
                found = self._batch(unheard[i : i + self._wanted.batch_size], known, session)
                refused += [delivery.status for delivery in found if delivery.refused]
                yield self._tables(found)
        throttled = sum(status.state == "throttled" for status in refused)
        if throttled or len(refused) > _FEW_SILENT * len(unheard):
            raise DataError(
                f"Yahoo refused {len(refused):,} of {len(unheard):,} tickers ({refused[0].detail}): what "
                "arrived is in the lake, and the same command continues from there; try again later"
            )

    def _batch(self, tickers: Sequence[str], known: Known, session: YahooSession) -> list[_Delivery]:
        pool = ThreadPoolExecutor(max_workers=min(WORKERS, len(tickers)))
        try:
            return list(pool.map(lambda ticker: self._one(ticker, known, session), tickers))
        except KeyboardInterrupt:
            session.refusing = NoAnswerError("interrupted")  # so that no worker goes on through its retries
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _tables(self, found: Sequence[_Delivery]) -> SourceTables:
        tables: dict[str, pl.DataFrame] = {}
        for table in ("prices", "securities", "fundamentals"):
            frames = [frame for delivery in found if (frame := getattr(delivery, table)) is not None]
            if any(frame.height for frame in frames):
                tables[table] = pl.concat(frames)
        mended = [f"{d.status.ticker}: {', '.join(d.remarks)}" for d in found if d.remarks]
        notes = list(_NOTES)
        if mended:
            more = f"; and {len(mended) - _MENDED_NAMED:,} more" if len(mended) > _MENDED_NAMED else ""
            notes.append(f"Of Yahoo's answers, {'; '.join(mended[:_MENDED_NAMED])}{more}.")
        hazards = list(_HAZARDS)
        if self._wanted.statements:
            hazards.append(
                f"Statements have no filing dates: they are assumed known {self._lag.days} days after the "
                "end of their period, with the values of the day on which they were first asked for, "
                "restatements by then included."
            )
        return SourceTables(tables, tuple(notes), tuple(hazards), tuple(d.status for d in found))

    def _one(self, ticker: str, known: Known, session: YahooSession) -> _Delivery:
        """Ask for one ticker's prices, then for what else is due; what came before a refusal is kept."""
        if session.refusing is not None:
            return _refusal(ticker, session.refusing)
        handle, last = yfinance.Ticker(self._symbols[ticker], session=session), known.last_price.get(ticker)
        try:
            chart, remarks = self._chart(handle, ticker, known, session)
        except YahooError as error:
            return _refusal(ticker, error)
        newest = chart.rows["date"].max()
        if not isinstance(newest, dt.date):
            return _Delivery(TickerStatus(ticker, "empty", "no session has a close"), remarks=remarks)
        state: Literal["ok", "unchanged"] = "ok" if last is None or newest > last else "unchanged"
        prices = chart.rows.drop("unadjusted", "disagrees").insert_column(1, pl.lit(ticker).alias("ticker"))
        found = _Delivery(TickerStatus(ticker, state, "; ".join(remarks)), prices, remarks=remarks)
        try:
            if last is None or last.month != newest.month or _is_new(ticker, known.securities):
                found = replace(found, securities=self._class(handle, ticker, chart, known))
            if self._wanted.statements and statements_due(ticker, known.assumed, self._today):
                found = replace(found, fundamentals=self._statements(handle, ticker, chart, known, session))
        except YahooError as error:
            refusal = _refusal(ticker, error, "prices came, the rest did not: ")
            return replace(found, status=refusal.status, refused=refusal.refused)
        return found

    def _chart(
        self, handle: yfinance.Ticker, ticker: str, known: Known, session: YahooSession
    ) -> tuple[Chart, tuple[str, ...]]:
        """Ask for the prices that the lake lacks, or for all of them if what it has no longer fits."""
        start, end, now = self._wanted.start, self._wanted.end, self._clock()
        last, remarks = known.last_price.get(ticker), []
        since = start if last is None else max(start, last - _OVERLAP)
        chart = read_chart(handle, session, since, end, now)
        announced = chart.rows.tail(_RECENT_SESSIONS).filter("unadjusted")
        if announced.height:
            raise YahooError(
                f"a split on {announced['date'][0]} is announced, and the prices before it are not adjusted "
                "for it yet"
            )
        if last is not None and (why := self._misfit(chart, ticker, known)) is not None:
            chart = read_chart(handle, session, start, end, now)
            remarks.append(why)
        elif last is not None and chart.rows.height and chart.rows["date"][0] <= last:
            # its split or dividend may have moved here from a day before the window: it is stored already
            chart = replace(chart, rows=chart.rows.tail(-1))
        for mark, what in (
            ("unadjusted", "splits that the prices before them are not adjusted for"),
            ("disagrees", "sessions on which Yahoo's adjusted closes disagree with its own actions"),
        ):
            marked = chart.rows.filter(mark)
            if marked.height:
                remarks.append(f"{what}: {marked.height:,}, the first on {marked['date'][0]}")
        return chart, (*remarks, *chart.remarks)

    def _misfit(self, chart: Chart, ticker: str, known: Known) -> str | None:
        """Say why the stored prices cannot be continued by these; None if they can."""
        first, last = known.first_price.get(ticker), known.last_price[ticker]
        stored, now = known.last_close.get(ticker), chart.rows.filter(pl.col("date") == last)["close"]
        if stored and now.len() and abs(math.log(now[0] / stored)) > math.log(_SAME_CLOSE):
            return (
                f"the close of {last} was {stored:g} and is now {now[0]:g}, which no split explains: the "
                "whole history was asked for again"
            )
        earliest = max(self._wanted.start, chart.first_trade or dt.date.max)
        if first is not None and earliest < first - _OVERLAP:
            return f"there are prices before {first}: the whole history was asked for"
        return None

    @property
    def _today(self) -> dt.date:
        return self._clock().date()

    def _class(self, handle: yfinance.Ticker, ticker: str, chart: Chart, known: Known) -> pl.DataFrame | None:
        try:
            return read_class(handle, ticker, chart, known.securities, self._today)
        except NothingThereError:  # an index or a currency pair, say
            return None

    def _statements(
        self, handle: yfinance.Ticker, ticker: str, chart: Chart, known: Known, session: YahooSession
    ) -> pl.DataFrame:
        def splits(since: dt.date) -> Mapping[dt.date, float]:
            if chart.since <= since:
                return chart.splits
            return read_chart(handle, session, since, None, self._clock()).splits

        return read_statements(
            handle, session, ticker, known.assumed, splits, lag=self._lag, today=self._today
        )


def _refusal(ticker: str, error: YahooError, before: str = "") -> _Delivery:
    """Say what a ticker's silence is: never that the firm is gone."""
    if isinstance(error, NothingThereError):
        state: Literal["throttled", "empty", "failed"] = "failed" if error.unknown else "empty"
        told = f"Yahoo does not know it ({error})" if error.unknown else f"Yahoo has nothing ({error})"
        return _Delivery(TickerStatus(ticker, state, before + told))
    state = "throttled" if isinstance(error, ThrottledError) else "failed"
    refused = isinstance(error, ThrottledError | NoAnswerError)
    return _Delivery(TickerStatus(ticker, state, f"{before}{error}"), refused=refused)


def _is_new(ticker: str, securities: pl.DataFrame | None) -> bool:
    return securities is None or securities.filter(pl.col("ticker") == ticker).is_empty()


def _symbols(tickers: Sequence[str]) -> dict[str, str]:
    """Return Yahoo's symbol of each of our tickers.

    Yahoo writes a share class with a dash (BRK.B is BRK-B there) and an exchange with a dot (VOD.L, 7203.T,
    RCI-B.TO): the last part stays if it can be an exchange, which has two letters or more, or one of F, L, T
    and V.

    Raises
    ------
    ConfigError
        If two tickers are one symbol: the firm would be there twice.
    """
    symbols: dict[str, str] = {}
    for ticker in tickers:
        stem, dot, last = ticker.upper().rpartition(".")
        is_exchange = bool(dot) and (len(last) > 1 or last in _ONE_LETTER_EXCHANGES)
        head = stem if is_exchange else ticker.upper()
        symbols[ticker] = head.replace(".", "-") + (f".{last}" if is_exchange else "")
    for symbol, count in Counter(symbols.values()).items():
        if count > 1:
            same = " and ".join(ticker for ticker in symbols if symbols[ticker] == symbol)
            raise ConfigError(f"source.tickers has {same}, which are one symbol at Yahoo, {symbol}: keep one")
    return symbols
