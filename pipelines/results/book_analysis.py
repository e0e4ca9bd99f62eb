"""What the books of an evaluation earn, from what, with whom, and at what size: tables, book by book.

Shape suffixes: T sessions of the book, N firms, S sectors, K styles.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.performance import counted_sessions
from backtest.accounts.variants import SparseTargets, Variant
from backtest.analysis.capacity import capacity
from backtest.analysis.ledger import (
    LedgerRows,
    by_factor,
    by_name,
    by_sector,
    by_side,
    largest_drawdowns,
    ledger_rows,
    losers,
    sector_exposures,
    sector_names,
    style_exposures,
    worst_days,
)
from backtest.analysis.regression import FactorRegression, describe_regression, factor_regression
from backtest.analysis.styles import FactorData, FactorReturns, StyleScores, factor_data
from features.arrays import FloatArray
from features.panel.panel import Panel
from pipelines.columns import table
from pipelines.config.backtest import BacktestConfig
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.results.books import MeasuredBook, book_costs, book_execution, book_market, dollar_volumes
from pipelines.results.comparisons import tradable_delay

Row = dict[str, Any]
_TABLES = ("figures", "capacity", "factor_alpha", "contributions", "exposures", "drawdowns", "worst_days")


@dataclass(frozen=True, slots=True, eq=False)
class BookView:
    """One book with its parts of the panel; factors are those of the scores one session before."""

    panel: Panel
    held: slice
    rows: LedgerRows
    return_T: FloatArray
    nav_T: FloatArray
    counted: slice
    scores: StyleScores
    factors: FactorReturns

    def date(self, t: int) -> dt.date:
        """Date of a session of the book; -1 is the session before the first one."""
        day: dt.date = self.panel.dates_T[max(self.held.start + t, 0)].astype("datetime64[D]").item()
        return day

    def nav_before(self, t: int) -> float:
        """NAV at the close before session t."""
        return float(self.nav_T[t - 1]) if t else 1.0


def figure_row(book: MeasuredBook) -> Row:
    """Return the usual figures, and how many of the dates with signals the book used."""
    used = {"signal_dates": book.orders.signal_dates, "decisions": book.orders.decisions}
    return asdict(book.metrics) | used


def alpha_rows(regression: FactorRegression) -> Iterator[Row]:
    """Yield alpha and the betas of a factor regression; what they say stands in ``reading`` of alpha."""
    for term in regression.terms:
        reading = describe_regression(regression) if term is regression.alpha else None
        of_all = {"r2": regression.r2, "sessions": regression.n, "reading": reading}
        yield {**asdict(term), "term": term.name, **of_all}


def capacity_rows(
    book: MeasuredBook, rows: LedgerRows, panel: Panel, settings: BacktestConfig
) -> Iterator[Row]:
    """Yield the book's net figures at growing amounts of capital; the prices must have volumes."""
    held, orders = book.orders.held, book.orders
    market = book_market(panel, held)
    with_capital = settings.model_copy(
        update={
            "capital": 1.0,  # amounts of money, which would be of another capital, are left out
            "costs": settings.costs.model_copy(update={"commission_min": 0.0}),
            "execution": settings.execution.model_copy(update={"lot": None}),
        }
    )
    variant = Variant(
        SparseTargets.from_targets(orders.target_TN),
        book_costs(with_capital, panel, held),
        orders.delay,
        book_execution(with_capital, panel, held, orders.delay),
    )
    volume_TN = dollar_volumes(panel, settings.execution.window)[held]
    for point in capacity(variant, rows, market, volume_TN, book.rate_T):
        yield asdict(point)


def contribution_rows(view: BookView) -> Iterator[Row]:
    """Yield what each sector, side, factor and name earned; without sectors, that partition is left out."""
    panel = view.panel
    parts = [*by_side(view.rows), *by_factor(view.rows, view.scores, view.factors)]
    if panel.groups_S:
        parts += by_sector(view.rows, panel.group_TN[view.held], panel.groups_S)
    for part in (*parts, *by_name(view.rows, panel.tickers_N)):
        yield asdict(part) | {"net": part.net}


def exposure_rows(view: BookView) -> Iterator[Row]:
    """Yield mean, lowest and highest exposure to each sector and style, from the first trade on."""
    panel = view.panel
    exposures = [("style", view.scores.names, style_exposures(view.rows, view.scores, view.nav_T))]
    if panel.groups_S:
        sector_TS = sector_exposures(view.rows, panel.group_TN[view.held], len(panel.groups_S), view.nav_T)
        exposures.insert(0, ("sector", sector_names(panel.groups_S), sector_TS))
    for kind, keys, exposure_TX in exposures:
        counted_TX = exposure_TX[view.counted]
        for key, exposure_T in zip(keys, counted_TX.T, strict=True):
            if kind == "style" or exposure_T.any():
                mean, low, high = (float(of(exposure_T)) for of in (np.mean, np.min, np.max))
                yield {"kind": kind, "key": key, "mean": mean, "low": low, "high": high}


def drawdown_rows(view: BookView) -> Iterator[Row]:
    """Yield the five deepest drawdowns with the firms that lost most from peak to trough."""
    first = view.counted.start
    for rank, one in enumerate(largest_drawdowns(view.return_T[view.counted]), start=1):
        peak, trough = one.peak + first, one.trough + first
        yield {
            "rank": rank,
            "peak": view.date(peak),
            "trough": view.date(trough),
            "recovered": None if one.recovered is None else view.date(one.recovered + first),
            "depth": one.depth,
            "sessions": one.sessions,
            "names": _losers(view, range(peak + 1, trough + 1)),
        }


def worst_day_rows(view: BookView) -> Iterator[Row]:
    """Yield the ten worst days with the firms that lost most."""
    first = view.counted.start
    for rank, day in enumerate(worst_days(view.return_T[view.counted]), start=1):
        t = day + first
        names = _losers(view, range(t, t + 1))
        yield {"rank": rank, "date": view.date(t), "return_net": float(view.return_T[t]), "names": names}


def _losers(view: BookView, sessions: range) -> list[str]:
    capital = view.nav_before(sessions.start)
    found = losers(view.rows, sessions, view.panel.n_firms, capital)
    return [f"{view.panel.tickers_N[firm]} {lost:.2%}" for firm, lost in found]


def position_frame(view: BookView) -> pl.DataFrame:
    """Every holding and trade, in float32: the table ``positions`` without model and book."""
    rows, nav_T = view.rows, view.nav_T
    nav_R = np.where(nav_T > 0, nav_T, np.nan)[rows.session_R]
    before_R = np.concatenate([[1.0], nav_T[:-1]])[rows.session_R]
    dates_T: npt.NDArray[np.datetime64] = view.panel.dates_T[view.held].astype("datetime64[D]")
    amounts = {"weight": rows.position_R / nav_R, "trade": rows.trade_R / nav_R}
    amounts |= {"pnl": rows.pnl_R / before_R, "cost": rows.cost_R / before_R}
    return pl.DataFrame(
        {
            "date": pl.Series(dates_T).gather(rows.session_R),
            "ticker": pl.Series(view.panel.tickers_N, dtype=pl.String).gather(rows.firm_R),
            **{name: amount_R.astype(np.float32) for name, amount_R in amounts.items()},
        }
    )


class BookAnalysis:
    """Analyses books one by one, so that only one ledger is in memory, and collects the tables.

    Capacity is measured at the first delay that can be traded. Positions are kept for the first book there.
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
        return factor_data(self._market.panel, self._market.universe_TN)

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
        for name, rows in found.items():
            self._keep(name, book, rows)
        if book.delay == self._main_delay and self._has_volume:
            self._keep("capacity", book, capacity_rows(book, view.rows, view.panel, self._settings))
        if book.orders.name == self._first_book and book.delay == self._main_delay:
            keys = [pl.lit(book.model).alias("model"), pl.lit(book.orders.name).alias("book")]
            self._positions.append(position_frame(view).select(*keys, pl.all()))

    def _keep(self, name: str, book: MeasuredBook, rows: Iterable[Row]) -> None:
        keys = {"model": book.model, "book": book.orders.name, "delay": book.delay}
        self._rows[name] += ({**keys, **row} for row in rows)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of all books; those that need volumes or a tradable delay may be missing."""
        names = [name for name in _TABLES if name != "capacity" or self._has_volume]
        tables = {name: table(name).of(self._rows[name]) for name in names}
        if self._positions:
            tables["positions"] = table("positions").frame(pl.concat(self._positions))
        return tables
