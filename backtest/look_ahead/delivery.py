"""A delivery: data as a source gave them, and the panel that was built from them.

Shape suffixes: T sessions, N firms.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, cast

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Finding, Result, conclude, skipped
from backtest.look_ahead.news import demeaned
from backtest.look_ahead.returns import session_returns
from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray
from features.panel.derived import daily_return
from features.panel.panel import Panel, to_panel

_LARGEST: Final = 0.6  # largest |log return| that is taken for a return
_NAMED: Final = 3


@dataclass(frozen=True)
class Delivery:
    """What the checks of data examine. A check must not modify its arrays and tables."""

    panel: Panel
    universe_TN: BoolArray  # which firms may be forecast
    tables: Mapping[str, pl.DataFrame]  # lake tables by name
    inputs: tuple[str, ...]  # names of the user's own inputs
    columns: IntArray  # of the firms whose data are looked at where looking at all would take long
    horizon: int  # sessions of the label
    # features that the pipeline computed, by name: values of one session, and values that look back
    channels: Mapping[str, AnyFloatArray] = field(default_factory=dict)
    characteristics: Mapping[str, AnyFloatArray] = field(default_factory=dict)
    membership: str | None = None  # the list of members that the universe is taken from, if there is one
    rejected: pl.DataFrame | None = None  # rows kept out, with the rule that each broke, if known
    older: Mapping[str, pl.DataFrame] | None = None  # tables of an earlier delivery of the same data

    def day(self, t: int) -> dt.date:
        """Date of a session."""
        return cast("dt.date", self.panel.dates_T[t].item())

    def rows(self, table: str) -> pl.DataFrame:
        """Rows of a table of the firms whose data are looked at."""
        if len(self.columns) == self.panel.n_firms:
            return self.tables[table]
        kept = pl.Series([self.panel.tickers_N[n] for n in self.columns], dtype=pl.String)
        return self.tables[table].filter(pl.col("ticker").is_in(kept.implode()))

    def input(self, name: str) -> FloatArray:
        """Values [T, N] of an input as delivered, of all firms; NaN = not known."""
        return to_panel(self.tables["inputs"].filter(pl.col("name") == name), "value", self.panel)

    def ask(
        self,
        question: Callable[[str, FloatArray], Iterable[Finding]],
        passed: str,
        *,
        strongest: bool = False,
    ) -> Result:
        """Ask a question of every input, by its name ``input NAME`` and the values of all firms; conclude.

        The subject of a finding is the input's name, and ``passed`` is the sentence if nothing was found
        (`conclude`). With ``strongest``, the finding with the largest value speaks for all; else the first.
        """
        if not self.inputs:
            return skipped("The config has no inputs.")
        named = ((f"input {name}", self.input(name)) for name in self.inputs)
        found = [replace(one, subject=name) for name, x_TN in named for one in question(name, x_TN)]
        if strongest:
            found.sort(key=lambda one: -abs(one.value or 0.0))
        return conclude(found, passed)

    @cached_property
    def return_TN(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """Returns of single sessions of the firms that are looked at; NaN beside a missing price."""
        chosen = self.columns
        return session_returns(self.panel.total_return_index_TN[:, chosen], self.panel.traded_TN[:, chosen])

    @cached_property
    def residual_TN(self) -> FloatArray:  # noqa: N802
        """Daily returns less their mean over the firms of the date; NaN without a return or with an error.

        Moves beyond -45% and +82% are left out: nearly all are errors, which jump back.
        """
        return_TN = daily_return(self.panel)
        with np.errstate(divide="ignore", invalid="ignore"):
            usual_TN = np.abs(np.log1p(return_TN)) <= _LARGEST
        return demeaned(np.where(usual_TN, return_TN, np.nan))

    @cached_property
    def member_TN(self) -> BoolArray:  # noqa: N802
        """Whether a firm is on the list of members."""
        member_TN = np.zeros(self.panel.close_TN.shape, dtype=np.bool_)
        for ticker, since, until in self.spells:
            if ticker in self.place:
                member_TN[since:until, self.place[ticker]] = True
        return member_TN

    @property
    def spells(self) -> list[tuple[str, int, int]]:
        """Ticker, first session and end of each spell on the list of members."""
        rows = self.tables["membership"].filter(pl.col("universe") == self.membership)
        starts, ends = (  # NaT, an open end, is after all dates
            np.searchsorted(self.panel.dates_T, rows[name].to_numpy()).tolist()
            for name in ("from_date", "to_date")
        )
        return list(zip(rows["ticker"], starts, ends, strict=True))

    @cached_property
    def place(self) -> dict[str, int]:
        """Ticker -> column."""
        return {ticker: n for n, ticker in enumerate(self.panel.tickers_N)}

    def firms(self, columns: Iterable[int]) -> str:
        """Count and name some firms: ``4 firms (A, B, C, ...)``."""
        named = [self.panel.tickers_N[n] for n in columns]
        more = ", ..." if len(named) > _NAMED else ""
        return f"{len(named)} firm{'s' if len(named) > 1 else ''} ({', '.join(named[:_NAMED])}{more})"
