"""What the books of an evaluation earn, from what, with whom, and at what size: tables, book by book.

Shape suffixes: T sessions of the book, N firms, S sectors, K styles.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.performance import counted_sessions
from backtest.accounts.variants import SparseTargets, Variant
from backtest.analysis.capacity import capacity
from backtest.analysis.ledger import (
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
from backtest.analysis.regression import describe_regression, factor_regression
from backtest.analysis.styles import FactorData, FactorReturns, factor_data
from features.panel.panel import Panel
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.market import Market
from pipelines.results.books import MeasuredBook, book_costs, book_execution, book_market, dollar_volumes
from pipelines.results.comparisons import tradable_delay

Row = dict[str, Any]


class _AnalysedBook:
    """One book with its ledger and its parts of the panel: a method yields the rows of each table.

    Factors are those of the scores one session before.
    """

    def __init__(
        self, book: MeasuredBook, panel: Panel, factors: FactorData, settings: BacktestConfig
    ) -> None:
        self.book, self.panel, self.settings, self.held = book, panel, settings, book.orders.held
        self.rows = ledger_rows(book.result.ledger)
        self.nav_T, self.counted = book.result.nav_ledger_T, counted_sessions(book.result)
        self.return_T = book.result.return_net_T[self.counted]
        self.scores, self.factors = factors.scores_on(self.held), factors.returns_on(self.held, delay=0)
        self.traded = factors.returns_on(self.held, book.orders.delay)

    def _date(self, t: int) -> dt.date:
        """Date of a counted session; -1 is the session before the first one."""
        at = max(self.held.start + self.counted.start + t, 0)
        day: dt.date = self.panel.dates_T[at].astype("datetime64[D]").item()
        return day

    def _losers(self, first: int, last: int) -> list[str]:
        """The firms that lost most from one counted session to another, over the NAV before."""
        sessions = range(self.counted.start + first, self.counted.start + last + 1)
        before = float(self.nav_T[sessions.start - 1]) if sessions.start else 1.0
        found = losers(self.rows, sessions, self.panel.n_firms, before)
        return [f"{self.panel.tickers_N[firm]} {lost:.2%}" for firm, lost in found]

    def figures(self) -> Iterator[Row]:
        """The usual figures, and how many of the dates with signals the book used."""
        orders = self.book.orders
        used = {"signal_dates": orders.signal_dates, "decisions": orders.decisions}
        yield asdict(self.book.metrics) | used

    def factor_alpha(self) -> Iterator[Row]:
        """Alpha and the betas of a factor regression; what they say stands in ``reading`` of alpha."""
        excess_TJ = self.traded.return_TJ.copy()
        excess_TJ[:, 0] -= self.book.rate_T  # the market is held with capital, the styles finance themselves
        factors, year = FactorReturns(self.traded.names, excess_TJ), self.book.result.periods_per_year
        found = factor_regression(self.book.excess_T, factors, year)
        if found is None:
            return
        for term in found.terms:
            reading = describe_regression(found) if term is found.alpha else None
            of_all = {"r2": found.r2, "sessions": found.n, "reading": reading}
            yield {**asdict(term), "term": term.name, **of_all}

    def capacity(self) -> Iterator[Row]:
        """Net figures at growing amounts of capital, if the prices have volumes."""
        panel, orders, window = self.panel, self.book.orders, self.settings.execution.window
        if panel.volume_TN is None:
            return
        settings = self.settings.model_copy(
            update={
                "capital": 1.0,  # amounts of money, which would be of another capital, are left out
                "costs": self.settings.costs.model_copy(update={"commission_min": 0.0}),
                "execution": self.settings.execution.model_copy(update={"lot": None}),
            }
        )
        variant = Variant(
            SparseTargets.from_targets(orders.target_TN),
            book_costs(settings, panel, self.held),
            orders.delay,
            book_execution(settings, panel, self.held, orders.delay),
        )
        market, volume_TN = book_market(panel, self.held), dollar_volumes(panel, window)[self.held]
        yield from map(asdict, capacity(variant, self.rows, market, volume_TN, self.book.rate_T))

    def contributions(self) -> Iterator[Row]:
        """What each sector, side, factor and name earned; without sectors, that partition is left out."""
        panel, rows = self.panel, self.rows
        parts = [*by_side(rows), *by_factor(rows, self.scores, self.factors)]
        if panel.groups_S:
            parts += by_sector(rows, panel.group_TN[self.held], panel.groups_S)
        for part in (*parts, *by_name(rows, panel.tickers_N)):
            yield asdict(part) | {"net": part.net}

    def exposures(self) -> Iterator[Row]:
        """Mean, lowest and highest exposure to each sector and style, from the first trade on."""
        panel, rows, nav_T = self.panel, self.rows, self.nav_T
        exposures = [("style", self.scores.names, style_exposures(rows, self.scores, nav_T))]
        if panel.groups_S:
            sector_TS = sector_exposures(rows, panel.group_TN[self.held], len(panel.groups_S), nav_T)
            exposures.insert(0, ("sector", sector_names(panel.groups_S), sector_TS))
        for kind, keys, exposure_TX in exposures:
            for key, exposure_T in zip(keys, exposure_TX[self.counted].T, strict=True):
                if kind == "style" or exposure_T.any():
                    mean, low, high = (float(of(exposure_T)) for of in (np.mean, np.min, np.max))
                    yield {"kind": kind, "key": key, "mean": mean, "low": low, "high": high}

    def drawdowns(self) -> Iterator[Row]:
        """The five deepest drawdowns with the firms that lost most from peak to trough."""
        for rank, one in enumerate(largest_drawdowns(self.return_T), start=1):
            yield {
                "rank": rank,
                "peak": self._date(one.peak),
                "trough": self._date(one.trough),
                "recovered": None if one.recovered is None else self._date(one.recovered),
                "depth": one.depth,
                "sessions": one.sessions,
                "names": self._losers(one.peak + 1, one.trough),
            }

    def worst_days(self) -> Iterator[Row]:
        """The ten worst days with the firms that lost most."""
        for rank, day in enumerate(worst_days(self.return_T), start=1):
            lost = {"return_net": float(self.return_T[day]), "names": self._losers(day, day)}
            yield {"rank": rank, "date": self._date(day), **lost}

    def positions(self) -> pl.DataFrame:
        """Every holding and trade, in float32."""
        rows, nav_T, session_R = self.rows, self.nav_T, self.rows.session_R
        nav_R = np.where(nav_T > 0, nav_T, np.nan)[session_R]
        before_R = np.concatenate([[1.0], nav_T[:-1]])[session_R]
        dates_T: npt.NDArray[np.datetime64] = self.panel.dates_T[self.held].astype("datetime64[D]")
        amounts = {"weight": rows.position_R / nav_R, "trade": rows.trade_R / nav_R}
        amounts |= {"pnl": rows.pnl_R / before_R, "cost": rows.cost_R / before_R}
        return pl.DataFrame(
            {
                "date": pl.Series(dates_T).gather(session_R),
                "ticker": pl.Series(self.panel.tickers_N, dtype=pl.String).gather(rows.firm_R),
                **{name: amount_R.astype(np.float32) for name, amount_R in amounts.items()},
            }
        ).select(
            pl.lit(self.book.model).alias("model"), pl.lit(self.book.orders.name).alias("book"), pl.all()
        )


_TABLES = {
    "figures": _AnalysedBook.figures,
    "capacity": _AnalysedBook.capacity,
    "factor_alpha": _AnalysedBook.factor_alpha,
    "contributions": _AnalysedBook.contributions,
    "exposures": _AnalysedBook.exposures,
    "drawdowns": _AnalysedBook.drawdowns,
    "worst_days": _AnalysedBook.worst_days,
}


class BookAnalysis:
    """Analyses books one by one, so that only one ledger is in memory, and collects the tables.

    Capacity is measured at the first delay that can be traded. Positions are kept for the first book there.
    """

    def __init__(self, market: Market, config: Config) -> None:
        self._market, self._settings = market, config.backtest
        self._main_delay = tradable_delay(config.label.delays)
        self._rows: dict[str, list[Row]] = {name: [] for name in _TABLES}
        self._positions: list[pl.DataFrame] = []

    @cached_property
    def _factors(self) -> FactorData:
        return factor_data(self._market.panel, self._market.universe_TN)

    def add(self, book: MeasuredBook) -> None:
        """Analyse a book; its result must hold the ledger."""
        one = _AnalysedBook(book, self._market.panel, self._factors, self._settings)
        keys = {"model": book.model, "book": book.orders.name, "delay": book.delay}
        for name, rows in _TABLES.items():
            if name != "capacity" or book.delay == self._main_delay:
                self._rows[name] += ({**keys, **row} for row in rows(one))
        if book.orders.name == next(iter(self._settings.books)) and book.delay == self._main_delay:
            self._positions.append(one.positions())

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of all books; those that need volumes or a tradable delay may be missing."""
        has_volume = self._market.panel.volume_TN is not None
        tables = {
            name: table(name).of(rows)
            for name, rows in self._rows.items()
            if name != "capacity" or has_volume
        }
        if self._positions:
            tables["positions"] = table("positions").frame(pl.concat(self._positions))
        return tables
