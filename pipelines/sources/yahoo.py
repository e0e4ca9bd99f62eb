"""Yahoo Finance through yfinance: prices, splits, dividends, classifications and statements, in batches.

yfinance's bulk ``download`` is a thread pool over ``Ticker.history`` that discards the currency, the time
zone and the errors; the pool here keeps them. `pipelines.sources.yahoo_answers` decides what counts as an
answer, and interprets Yahoo's numbers.
"""

import datetime as dt
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import polars as pl
import yfinance

from pipelines.errors import ConfigError
from pipelines.format import abbreviate
from pipelines.sources import yahoo_answers
from pipelines.sources.base import (
    SourceTables,
    StoredData,
    TickerStatus,
    raise_if_refused,
    read_tickers,
    remarks_of,
)
from pipelines.sources.files.opening import resolve
from pipelines.sources.files.reading import GivenFiles, day
from pipelines.sources.files.tables import read_renames
from pipelines.sources.settings import YFinanceSourceConfig

WORKERS: Final = 4
_OVERLAP: Final = dt.timedelta(days=10)  # stored days requested again: Yahoo corrects closes and volumes
_RECENT_SESSIONS: Final = 5
_SAME_CLOSE: Final = 1.2
_ONE_LETTER_EXCHANGES: Final = frozenset("FLTV")  # Frankfurt, London, Tokyo, Toronto's venture exchange
_MAX_NAMED: Final = 5

_MARKS: Final = {
    "unadjusted": "splits that earlier prices are not adjusted for",
    "disagrees": "sessions on which Yahoo's adjusted closes contradict its own splits and dividends",
}
_NOTES, _HAZARDS = remarks_of("yfinance")


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers to all requests for one ticker; ``refused`` if a request had none."""

    status: TickerStatus
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    refused: bool = False


class YFinanceSource:
    """Yahoo Finance, by batches, oldest data first; ``wait`` and ``clock`` are the machine's by default."""

    name = "yfinance"

    def __init__(
        self,
        config: YFinanceSourceConfig,
        *,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._config, self._clock, self._wait = config, clock, wait
        self._lag = dt.timedelta(days=config.reporting_lag_days)
        self._symbols = _symbols(read_tickers(config.tickers))
        given = config.renames
        self._renames = None if given is None else read_renames(GivenFiles(resolve(Path(given))))
        if config.end is not None and config.start > config.end:
            raise ConfigError(f"source.start {config.start} is after source.end {config.end}: swap them")

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        """Request every ticker since its last stored price; DataError at the end if Yahoo refused."""
        session = yahoo_answers.YahooSession(self._config.timeout_seconds, self._config.retries, self._wait)
        queue = sorted(self._symbols, key=lambda ticker: stored.last_price.get(ticker, dt.date.min))
        refused: list[TickerStatus] = []
        with yahoo_answers.yahoo_client(session):
            for i in range(0, len(queue), self._config.batch_size):
                answers = self._batch(queue[i : i + self._config.batch_size], stored, session)
                refused += [one.status for one in answers if one.refused]
                yield self._delivery(answers)
        raise_if_refused("Yahoo", refused, len(queue), "later")

    def _batch(
        self, tickers: Sequence[str], stored: StoredData, session: yahoo_answers.YahooSession
    ) -> list[_Answers]:
        pool = ThreadPoolExecutor(max_workers=min(WORKERS, len(tickers)))
        try:
            return list(pool.map(lambda ticker: self._one(ticker, stored, session), tickers))
        except KeyboardInterrupt:
            session.refusing = yahoo_answers.NoAnswerError("interrupted")  # so that workers stop retrying
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _delivery(self, answers: Sequence[_Answers]) -> SourceTables:
        tables: dict[str, pl.DataFrame] = {}
        for table in ("prices", "securities", "fundamentals"):
            frames = [one.tables[table] for one in answers if table in one.tables]
            if any(frame.height for frame in frames):
                tables[table] = pl.concat(frames)
        if self._renames is not None:
            tables["renames"] = self._renames
        notes, hazards = [*_NOTES], [*_HAZARDS]
        if remarks := [f"{one.status.ticker}: {', '.join(one.remarks)}" for one in answers if one.remarks]:
            notes.append(f"Corrections of Yahoo's answers: {abbreviate(remarks, _MAX_NAMED, '; ')}.")
        if self._config.statements:
            hazards.append(
                f"Statements have no filing dates: they are assumed to be known {self._lag.days} days after "
                "the end of their period, with the values on the day of the first request, including "
                "restatements until then."
            )
        return SourceTables(tables, tuple(notes), tuple(hazards), tuple(one.status for one in answers))

    def _one(self, ticker: str, stored: StoredData, session: yahoo_answers.YahooSession) -> _Answers:
        """Request a ticker's prices and what else is due; what arrived before a refusal is kept."""
        if session.refusing is not None:
            return _refusal(ticker, session.refusing)
        handle, last = yfinance.Ticker(self._symbols[ticker], session=session), stored.last_price.get(ticker)
        try:
            chart, remarks = self._chart(handle, ticker, stored)
        except yahoo_answers.YahooError as error:
            return _refusal(ticker, error)
        newest = chart.rows["date"].max()
        if not isinstance(newest, dt.date):
            return _Answers(TickerStatus(ticker, "empty", "no session has a close"), remarks=remarks)
        state: Literal["ok", "unchanged"] = "ok" if last is None or newest > last else "unchanged"
        prices = chart.rows.drop("unadjusted", "disagrees").insert_column(1, pl.lit(ticker).alias("ticker"))
        tables = {"prices": prices}
        today, securities = self._clock().date(), stored.securities
        is_new = securities.filter(pl.col("ticker") == ticker).is_empty()
        try:
            if last is None or last.month != newest.month or is_new:
                with suppress(yahoo_answers.NoDataError):  # an index or a currency pair, say
                    tables["securities"] = yahoo_answers.read_classification(
                        handle, ticker, chart, securities
                    )
            if self._config.statements and yahoo_answers.statements_due(ticker, stored.assumed, today):
                tables["fundamentals"] = yahoo_answers.read_statements(
                    handle, ticker, stored.assumed, chart, lag=self._lag, now=self._clock()
                )
        except yahoo_answers.YahooError as error:
            refusal = _refusal(ticker, error, "only prices were received: ")
            return replace(refusal, tables=tables, remarks=remarks)
        return _Answers(TickerStatus(ticker, state, "; ".join(remarks)), tables, remarks)

    def _chart(
        self, handle: yfinance.Ticker, ticker: str, stored: StoredData
    ) -> tuple[yahoo_answers.Chart, tuple[str, ...]]:
        """Request the prices that the lake lacks, or all of them if the stored ones no longer match."""
        start, end, now = self._config.start, self._config.end, self._clock()
        last, remarks = stored.last_price.get(ticker), []
        since = start if last is None else max(start, last - _OVERLAP)
        chart = yahoo_answers.read_chart(handle, since, end, now)
        if last is not None and chart.first_trade is not None and last < chart.first_trade:
            self._refuse_another_firm(ticker, last, chart.first_trade)
        announced = chart.rows.tail(_RECENT_SESSIONS).filter("unadjusted")
        if announced.height:
            raise yahoo_answers.YahooError(
                f"a split on {announced['date'][0]} is announced, but the prices before it are not yet "
                "adjusted for it"
            )
        if last is not None and (why := self._reason_to_refetch(chart, ticker, stored)) is not None:
            chart = yahoo_answers.read_chart(handle, start, end, now)
            remarks.append(why)
        elif last is not None and chart.rows.height and chart.rows["date"][0] <= last:
            # its split or dividend may come from a date before the window; the row is stored already
            chart = replace(chart, rows=chart.rows.tail(-1))
        for mark, what in _MARKS.items():
            if (marked := chart.rows.filter(mark)).height:
                remarks.append(f"{what}: {marked.height:,}, the first on {marked['date'][0]}")
        return chart, (*remarks, *chart.remarks)

    def _refuse_another_firm(self, ticker: str, last: dt.date, first: dt.date) -> None:
        """Raise YahooError if no former firm gave up the ticker between its last price and Yahoo's first."""
        if self._renames is not None:
            since = day(self._renames, "from_date").is_between(last, first, closed="right")
            if self._renames.filter(since, pl.col("ticker") == ticker).height:
                return
        raise yahoo_answers.YahooError(
            f"its first price at Yahoo is of {first}, after the last one in the lake, {last}, so it is "
            f"another firm's: name the former firm in source.renames, such as {ticker},{first},{ticker}.1"
        )

    def _reason_to_refetch(self, chart: yahoo_answers.Chart, ticker: str, stored: StoredData) -> str | None:
        """Return why these prices cannot extend the stored ones; None if they can."""
        first, last = stored.first_price.get(ticker), stored.last_price[ticker]
        old_close, now = stored.last_close.get(ticker), chart.rows.filter(pl.col("date") == last)["close"]
        if old_close and now.len() and abs(math.log(now[0] / old_close)) > math.log(_SAME_CLOSE):
            return (
                f"the close of {last} was {old_close:g} and is now {now[0]:g}, which no split explains: the "
                "whole history was requested again"
            )
        earliest = max(self._config.start, chart.first_trade or dt.date.max)
        if first is not None and earliest < first - _OVERLAP:
            return f"there are prices before {first}: the whole history was requested"
        return None


def _refusal(ticker: str, error: yahoo_answers.YahooError, before: str = "") -> _Answers:
    """Return the status of a ticker without an answer; it never says that the firm is delisted."""
    return _Answers(TickerStatus(ticker, error.state, f"{before}{error}"), refused=error.refused)


def _symbols(tickers: Sequence[str]) -> dict[str, str]:
    """Return Yahoo's symbols, BRK-B for BRK.B but VOD.L as it is; ConfigError if two are the same."""
    symbols: dict[str, str] = {}
    for ticker in tickers:
        stem, dot, last = ticker.upper().rpartition(".")
        is_exchange = bool(dot) and (len(last) > 1 or last in _ONE_LETTER_EXCHANGES)
        head = stem if is_exchange else ticker.upper()
        symbols[ticker] = head.replace(".", "-") + (f".{last}" if is_exchange else "")
    symbol, count = Counter(symbols.values()).most_common(1)[0]
    if count > 1:
        same = " and ".join(ticker for ticker in symbols if symbols[ticker] == symbol)
        raise ConfigError(
            f"source.tickers has {same}, which have the same symbol at Yahoo, {symbol}: keep one of them"
        )
    return symbols
