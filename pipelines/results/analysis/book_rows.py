"""Rows of the analysis tables for one book.

Shape suffixes: T sessions of the book, N firms, S sectors, K styles.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.performance import BookMetrics
from backtest.accounts.variants import Decisions, Variant
from backtest.analysis.capacity import capacity
from backtest.analysis.ledger import (
    LedgerRows,
    by_factor,
    by_name,
    by_sector,
    by_side,
    largest_drawdowns,
    losers,
    sector_exposures,
    sector_names,
    style_exposures,
    worst_days,
)
from backtest.analysis.regression import FactorRegression, describe_regression
from backtest.analysis.styles import FactorReturns, StyleScores
from features.arrays import FloatArray
from features.panel.panel import Panel
from pipelines.config.backtest import BacktestConfig
from pipelines.results.analysis.measured import MeasuredBook
from pipelines.results.book_orders import book_market
from pipelines.results.trading import book_costs, book_execution, dollar_volumes

FIGURES = (
    *("n_sessions", "annual_return_gross", "annual_return_net", "annual_volatility_net", "sharpe_gross"),
    *("sharpe_net", "sortino_net", "calmar_net", "hit_rate_net", "skew_net", "worst_day_net", "best_day_net"),
    *("max_drawdown_net", "leverage", "net_exposure", "turnover", "unfilled"),
)
"""Metrics of a book that are columns of the table ``figures``."""
COUNTS = ("signal_dates", "decisions")
"""Columns of the table ``figures`` after the metrics: dates with signals, and those that the book used."""

assert set(FIGURES) <= {field.name for field in fields(BookMetrics)}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class BookView:
    """One book with the parts of the panel that it covers.

    Attributes
    ----------
    panel
        The panel.
    held
        Sessions of the panel that the book covers.
    rows
        Ledger of the book.
    return_T, nav_T
        Net return, and NAV of the ledger.
    counted
        Sessions of the book from the first trade to the last session or ruin.
    scores
        Style scores on the book's sessions.
    factors
        Factor returns on the book's sessions, from the scores one session before.
    """

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
    """Return the usual column of figures, and how many of the dates with signals the book used."""
    figures = {name: getattr(book.metrics, name) for name in FIGURES}
    return figures | {name: getattr(book.orders, name) for name in COUNTS}


def alpha_rows(regression: FactorRegression) -> Iterator[Row]:
    """Yield alpha and the betas of a factor regression; what they say stands in ``reading`` of alpha."""
    for term in regression.terms:
        yield {
            "term": term.name,
            "coefficient": term.coefficient,
            "t": term.t,
            "p_value": term.p_value,
            "variance_share": term.variance_share,
            "per_year": term.per_year,
            "r2": regression.r2,
            "sessions": regression.n,
            "reading": describe_regression(regression) if term is regression.alpha else None,
        }


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
        Decisions.from_targets(orders.target_TN),
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
        yield {"by": part.by, "key": part.key, "gross": part.gross, "cost": part.cost, "net": part.net}


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
        lost = float(view.return_T[t])
        yield {
            "rank": rank,
            "date": view.date(t),
            "return_net": lost,
            "names": _losers(view, range(t, t + 1)),
        }


def _losers(view: BookView, sessions: range) -> list[str]:
    capital = view.nav_before(sessions.start)
    found = losers(view.rows, sessions, view.panel.n_firms, capital)
    return [f"{view.panel.tickers_N[firm]} {lost:.2%}" for firm, lost in found]


def position_frame(view: BookView) -> pl.DataFrame:
    """Every holding and trade: date, ticker, weight, trade, pnl, cost.

    Weight (after trades) and trade are fractions of the day's NAV, profit before costs and costs are
    fractions of the NAV before, in float32.
    """
    rows, nav_T = view.rows, view.nav_T
    nav_R = np.where(nav_T > 0, nav_T, np.nan)[rows.session_R]
    before_R = np.concatenate([[1.0], nav_T[:-1]])[rows.session_R]
    dates_T: npt.NDArray[np.datetime64] = view.panel.dates_T[view.held].astype("datetime64[D]")
    amounts = {
        "weight": rows.position_R / nav_R,
        "trade": rows.trade_R / nav_R,
        "pnl": rows.pnl_R / before_R,
        "cost": rows.cost_R / before_R,
    }
    return pl.DataFrame(
        {
            "date": pl.Series(dates_T).gather(rows.session_R),
            "ticker": pl.Series(view.panel.tickers_N, dtype=pl.String).gather(rows.firm_R),
            **{name: amount_R.astype(np.float32) for name, amount_R in amounts.items()},
        }
    )
