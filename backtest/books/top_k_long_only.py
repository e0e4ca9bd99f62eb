"""The top-k book: hold the k highest signals.

Shape suffixes: T sessions, N firms, D decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from backtest.books.inputs import BookInputs, BookTargets, Need, spread_over_sessions
from backtest.forecasts.ranking import RankSelector, as_signal


@dataclass(frozen=True, slots=True)
class TopKLongOnly:
    """Hold the k highest signals at weight ``1/k`` each (gross 1, net 1); ties at the edge share equally.

    Attributes
    ----------
    k : int
        Number of firms held, at least 1; a date needs at least k signals (with exactly k, all are held).

    Raises
    ------
    ValueError
        If k is less than 1.
    """

    kind: ClassVar[str] = "top_k_long_only"
    formula: ClassVar[str] = "1/k for the k highest signals; ties share"
    k: int = 20

    def __post_init__(self) -> None:
        if self.k < 1:
            msg = f"k is {self.k}; a book must hold at least 1 firm."
            raise ValueError(msg)

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions: yes."""
        return True

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal: none."""
        return frozenset()

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = as_signal("signal", inputs.signal_TN)
        decides_T = inputs.schedule.decisions((~np.isnan(signal_TN)).sum(axis=1), self.k)
        selector = RankSelector(signal_TN[decides_T])
        weight_DN = selector.highest(np.full(len(selector.count_T), self.k))
        weight_DN /= self.k
        return BookTargets(spread_over_sessions(weight_DN, decides_T))
