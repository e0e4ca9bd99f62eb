"""What the books by rank share: eligible firms, decisions held side by side, neutrality and volatility.

The steps of a decision, in this order:

1. A firm is eligible if it has a signal and every exposure that the book needs.
2. The rule selects and weighs the eligible firms (`RankedBook.select`).
3. With ``holding``, the weights of all decisions that are still held are averaged. A firm that is no longer
   eligible has weight 0.
4. With ``inverse_volatility``, each side is weighted by ``1 / volatility``.
5. The exposures in ``neutral`` are removed.
6. With ``target_volatility``, the book is scaled to it.

Steps 3 to 6 are in `backtest.books.shaping`.

Only ranks of the signal enter: any increasing transform of the signal gives the same weights to the bit.

Shape suffixes: T sessions, N firms, D decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from backtest.books.inputs import BookInputs, BookNote, BookTargets, Need, spread_over_sessions
from backtest.books.limit_use import LimitUse
from backtest.books.shaping.neutral import Exposure, neutralise
from backtest.books.shaping.overlap import average_held
from backtest.books.shaping.volatility import (
    WINDOW,
    expected_volatility,
    scale_to_volatility,
    weigh_by_inverse_volatility,
)
from backtest.forecasts.ranking import as_signal
from features.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedBook(ABC):
    """Settings that all books by rank have.

    Attributes
    ----------
    holding : int or None
        Sessions for which a decision is held. The book is the average of the decisions of the last
        ``holding`` sessions. None: a decision replaces the one before.
    inverse_volatility : bool
        Whether the weights of each side are proportional to ``1 / volatility`` of the firm.
    target_volatility : float or None
        Annual volatility to which the book is scaled, a fraction. None: no scaling.
    max_leverage : float
        Largest gross exposure that the scaling may lead to.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    holding: int | None = None
    inverse_volatility: bool = False
    target_volatility: float | None = None
    max_leverage: float = 4.0

    def __post_init__(self) -> None:
        if self.holding is not None and self.holding < 1:
            msg = f"holding is {self.holding}; a decision is held for at least 1 session."
            raise ValueError(msg)
        if self.target_volatility is not None and self.target_volatility <= 0:
            msg = f"target_volatility is {self.target_volatility}; it must be above 0, 0.1 for 10% a year."
            raise ValueError(msg)
        if self.max_leverage <= 0:
            msg = f"max_leverage is {self.max_leverage}; it must be above 0."
            raise ValueError(msg)

    @property
    @abstractmethod
    def needed(self) -> int:
        """Number of eligible firms that a decision needs."""

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Exposures that the book removes."""
        return ()

    @abstractmethod
    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return the weights by rank, shape (D, N); NaN in the signal means not eligible."""

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal; see `backtest.books.book.Book.needs`."""
        wanted: dict[Need, bool] = {
            "groups": "sector" in self.exposures,
            "beta": "beta" in self.exposures,
            "volatility": self.inverse_volatility,
            "returns": self.target_volatility is not None,
        }
        return frozenset(need for need, used in wanted.items() if used)

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = self._eligible(inputs)
        decides_T = inputs.schedule.decisions(np.count_nonzero(~np.isnan(signal_TN), axis=1), self.needed)
        session_D = np.flatnonzero(decides_T)
        signal_DN = signal_TN if decides_T.all() else signal_TN[decides_T]
        weight_DN = self.select(signal_DN)
        if self.holding is not None:
            weight_DN = average_held(weight_DN, session_D, self.holding)
            weight_DN[np.isnan(signal_DN)] = 0.0
        if self.inverse_volatility:
            assert inputs.volatility_TN is not None
            weight_DN = weigh_by_inverse_volatility(weight_DN, inputs.volatility_TN[decides_T])
        if self.exposures:
            group_DN = None if inputs.group_TN is None else inputs.group_TN[decides_T]
            beta_DN = None if inputs.beta_TN is None else inputs.beta_TN[decides_T]
            weight_DN = neutralise(weight_DN, group_DN, beta_DN)
        notes: tuple[BookNote, ...] = ()
        if self.target_volatility is not None:
            assert inputs.past is not None
            limits = (self.target_volatility, self.max_leverage)
            weight_DN, notes = scale_to_volatility(weight_DN, session_D, inputs.past, *limits)
        return BookTargets(spread_over_sessions(weight_DN, decides_T), notes)

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision; see `backtest.books.book.Book.limit_uses`."""
        weight_N = target_TN[-1]
        held = np.flatnonzero(weight_N)
        uses = []
        if "sector" in self.exposures:
            assert inputs.group_TN is not None
            net_S = np.bincount(inputs.group_TN[-1, held], weights=weight_N[held])
            uses.append(LimitUse("neutral sector", float(np.abs(net_S).max(initial=0.0)), 0.0))
        if "beta" in self.exposures:
            assert inputs.beta_TN is not None
            beta = abs(float(inputs.beta_TN[-1, held] @ weight_N[held]))
            uses.append(LimitUse("neutral beta", beta, 0.0, "beta"))
        if self.target_volatility is not None:
            assert inputs.past is not None
            window_LN = inputs.past.window(len(target_TN) - 1, WINDOW)
            volatility = expected_volatility(weight_N[held], window_LN[:, held], inputs.past.periods_per_year)
            uses.append(LimitUse("target_volatility", volatility, self.target_volatility, "a year"))
            uses.append(LimitUse("max_leverage", float(np.abs(weight_N).sum()), self.max_leverage))
        return tuple(uses)

    def _eligible(self, inputs: BookInputs) -> FloatArray:
        """Return the signal, NaN where the firm lacks an exposure that the book needs."""
        signal_TN = as_signal("signal", inputs.signal_TN)
        if "groups" in self.needs:
            assert inputs.group_TN is not None
            signal_TN[inputs.group_TN < 0] = np.nan
        if "beta" in self.needs:
            assert inputs.beta_TN is not None
            signal_TN[np.isnan(inputs.beta_TN)] = np.nan
        if "volatility" in self.needs:
            assert inputs.volatility_TN is not None
            signal_TN[~(inputs.volatility_TN > 0)] = np.nan
        return signal_TN
