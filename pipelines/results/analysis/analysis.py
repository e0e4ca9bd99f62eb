"""The analysis of an evaluation's books, book by book, as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import polars as pl

from backtest.accounts.performance import counted_sessions
from backtest.analysis.ledger import ledger_rows
from backtest.analysis.regression import factor_regression
from backtest.analysis.styles import FactorReturns
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.results.analysis.book_rows import (
    COUNTS,
    FIGURES,
    BookView,
    Row,
    alpha_rows,
    capacity_rows,
    contribution_rows,
    drawdown_rows,
    exposure_rows,
    figure_row,
    position_frame,
    worst_day_rows,
)
from pipelines.results.analysis.factor_data import FactorData, factor_data
from pipelines.results.analysis.measured import MeasuredBook
from pipelines.results.comparisons import tradable_delay

Columns = dict[str, type[pl.DataType] | pl.DataType]
_KEYS: Columns = {"model": pl.String, "book": pl.String, "delay": pl.Int64}
_COLUMNS: dict[str, Columns] = {
    "figures": {
        **{column: pl.Int64 if column == "n_sessions" else pl.Float64 for column in FIGURES},
        **dict.fromkeys(COUNTS, pl.Int64),
    },
    "capacity": {
        "capital": pl.Float64,
        "sharpe_net": pl.Float64,
        "annual_return_net": pl.Float64,
        "impact_bps_per_year": pl.Float64,
        "participation_p95": pl.Float64,
        "unfilled": pl.Float64,
    },
    "factor_alpha": {
        "term": pl.String,
        "coefficient": pl.Float64,
        "t": pl.Float64,
        "p_value": pl.Float64,
        "variance_share": pl.Float64,
        "per_year": pl.Float64,
        "r2": pl.Float64,
        "sessions": pl.Int64,
        "reading": pl.String,
    },
    "contributions": {
        "by": pl.String,
        "key": pl.String,
        "gross": pl.Float64,
        "cost": pl.Float64,
        "net": pl.Float64,
    },
    "exposures": {
        "kind": pl.String,
        "key": pl.String,
        "mean": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
    },
    "drawdowns": {
        "rank": pl.Int64,
        "peak": pl.Date,
        "trough": pl.Date,
        "recovered": pl.Date,
        "depth": pl.Float64,
        "sessions": pl.Int64,
        "names": pl.List(pl.String),
    },
    "worst_days": {
        "rank": pl.Int64,
        "date": pl.Date,
        "return_net": pl.Float64,
        "names": pl.List(pl.String),
    },
}
SCHEMAS = {name: pl.Schema({**_KEYS, **columns}) for name, columns in _COLUMNS.items()}
"""Columns of the tables. ``positions`` has date, ticker, weight, trade, pnl and cost after model and book."""


class BookAnalysis:
    """Analyses books one by one, so that only one ledger is in memory, and collects the tables.

    Parameters
    ----------
    market
        Prices, universe and groups.
    config
        Books and delays. Capacity is measured at the first delay that can be traded, and positions are kept
        for the first book at that delay.
    """

    def __init__(self, market: Market, config: Config) -> None:
        self._market = market
        self._settings = config.backtest
        self._has_volume = market.panel.volume_TN is not None
        self._first_book = next(iter(config.backtest.books))
        self._main_delay = tradable_delay(config.label.delays)
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._positions: list[pl.DataFrame] = []

    @cached_property
    def _factors(self) -> FactorData:
        return factor_data(self._market)

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for everything that the data do not allow."""
        no_volume = "These data have no volume: the capacity of books is unknown."
        return (*self._factors.scores.left_out, *(() if self._has_volume else (no_volume,)))

    def add(self, book: MeasuredBook) -> None:
        """Analyse a book; its result must hold the ledger."""
        held, result = book.orders.held, book.result
        view = BookView(
            panel=self._market.panel,
            held=held,
            rows=ledger_rows(result.ledger),
            return_T=result.return_net_T,
            nav_T=result.nav_ledger_T,
            counted=counted_sessions(result),
            scores=self._factors.scores_on(held),
            factors=self._factors.returns_on(held, delay=0),
        )
        traded = self._factors.returns_on(held, book.orders.delay)
        excess_TJ = traded.return_TJ.copy()
        excess_TJ[:, 0] -= book.rate_T  # the market is held with capital, the styles finance themselves
        regression = factor_regression(
            book.excess_T, FactorReturns(traded.names, excess_TJ), result.periods_per_year
        )
        found = {
            "figures": [figure_row(book)],
            "factor_alpha": [] if regression is None else alpha_rows(regression),
            "contributions": contribution_rows(view),
            "exposures": exposure_rows(view),
            "drawdowns": drawdown_rows(view),
            "worst_days": worst_day_rows(view),
        }
        for table, rows in found.items():
            self._keep(table, book, rows)
        if book.delay == self._main_delay and self._has_volume:
            self._keep("capacity", book, capacity_rows(book, view.rows, view.panel, self._settings))
        if book.orders.name == self._first_book and book.delay == self._main_delay:
            keys = [pl.lit(book.model).alias("model"), pl.lit(book.orders.name).alias("book")]
            self._positions.append(position_frame(view).select(*keys, pl.all()))

    def _keep(self, table: str, book: MeasuredBook, rows: Iterable[Row]) -> None:
        keys = {"model": book.model, "book": book.orders.name, "delay": book.delay}
        self._rows[table] += ({**keys, **row} for row in rows)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of all books that were added; see `SCHEMAS`. NaN is null.

        Without volumes there is no table ``capacity``, and without a book at the first delay that can be
        traded no table ``positions``.
        """
        tables = {
            name: pl.DataFrame(self._rows[name], schema=schema, orient="row").fill_nan(None)
            for name, schema in SCHEMAS.items()
            if name != "capacity" or self._has_volume
        }
        return tables | ({"positions": pl.concat(self._positions)} if self._positions else {})
