"""The top-k book: hold the k highest signals.

Shape suffixes: N firms, D decisions.
"""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from backtest.books.ranked import RankedBook
from backtest.forecasts.daily import SortedPanel
from features.arrays import FloatArray


class TopKLongOnly(RankedBook):
    """A long-only book: the ``k`` highest forecasts, equally weighted.

    Each of them has weight ``1/k`` (gross 1, net 1); ties at the edge share equally. A date needs at least k
    signals; with exactly k, all are held.

    Examples
    --------
    >>> TopKLongOnly(k=2).select(np.array([[0.3, 0.1, 0.2]]))
    array([[0.5, 0. , 0.5]])
    """

    long_only: ClassVar[bool] = True
    kind: Literal["top_k_long_only"] = "top_k_long_only"
    """Selects this kind of book."""
    k: int = Field(default=20, ge=1)
    """Number of positions."""

    @property
    def needed(self) -> int:
        """Number of eligible firms that a decision needs."""
        return self.k

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return ``1/k`` for the highest and 0 for the other firms."""
        weight_DN = SortedPanel("signal", signal_DN).highest(np.full(len(signal_DN), self.k))
        weight_DN /= self.k
        return weight_DN
