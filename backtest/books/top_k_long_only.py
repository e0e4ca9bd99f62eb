"""The top-k book: hold the k highest signals.

Shape suffixes: N firms, D decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from backtest.books.ranked import RankedBook
from backtest.forecasts.daily import RankSelector
from features.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class TopKLongOnly(RankedBook):
    """Hold the k highest signals at weight ``1/k`` each (gross 1, net 1); ties at the edge share equally.

    Attributes
    ----------
    k : int
        Number of firms held, at least 1; a date needs at least k signals (with exactly k, all are held).

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    kind: ClassVar[str] = "top_k_long_only"
    formula: ClassVar[str] = "1/k for the k highest signals; ties share"
    k: int = 20

    def __post_init__(self) -> None:
        RankedBook.__post_init__(self)
        if self.k < 1:
            msg = f"k is {self.k}; a book must hold at least 1 firm."
            raise ValueError(msg)

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions: yes."""
        return True

    @property
    def needed(self) -> int:
        """Number of eligible firms that a decision needs."""
        return self.k

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return ``1/k`` for the highest and 0 for the other firms."""
        weight_DN = RankSelector(signal_DN).highest(np.full(len(signal_DN), self.k))
        weight_DN /= self.k
        return weight_DN
