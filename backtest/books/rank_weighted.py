"""The rank-weighted book: every firm is held, in proportion to its rank.

Shape suffixes: N firms, D decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from backtest.books.ranked import Exposure, RankedBook
from backtest.forecasts.daily import SortedPanel
from features.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class RankWeighted(RankedBook):
    """Hold every firm in proportion to its centred rank: long above the middle, short below, net 0.

    ``w_i = G (r_i - (n + 1) / 2) / sum_j |r_j - (n + 1) / 2|`` with the ranks r from 1 (lowest) to n and the
    gross exposure G. Tied firms have their mean rank, so they hold the same weight. If all signals of a date
    are equal, nothing is held.

    Attributes
    ----------
    gross : float
        Gross exposure, the sum of absolute weights; 2 is +1 long and -1 short.
    neutral : tuple of str
        Exposures to remove: sector, beta (`backtest.books.ranked.neutralise`).

    Raises
    ------
    ValueError
        If a setting is out of range.

    Notes
    -----
    Asness, Moskowitz and Pedersen 2013, "Value and momentum everywhere", equation 1.
    """

    kind: ClassVar[str] = "rank_weighted"
    formula: ClassVar[str] = "proportional to rank - (n + 1)/2, scaled to the gross exposure; ties share"
    gross: float = 2.0
    neutral: tuple[Exposure, ...] = ()

    def __post_init__(self) -> None:
        RankedBook.__post_init__(self)
        if self.gross <= 0:
            msg = f"gross is {self.gross}; it must be above 0, 2 for +1 long and -1 short."
            raise ValueError(msg)

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions: no."""
        return False

    @property
    def needed(self) -> int:
        """Number of eligible firms that a decision needs: one for each side."""
        return 2

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Exposures that the book removes."""
        return self.neutral

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return the centred ranks, scaled to the gross exposure; 0 for other firms."""
        weight_DN = centred_rank(signal_DN)  # halves, so that sums are exact
        gross_D1 = np.abs(weight_DN).sum(axis=1, keepdims=True)
        weight_DN *= np.divide(self.gross, gross_D1, out=np.zeros_like(gross_D1), where=gross_D1 > 0)
        return weight_DN


def centred_rank(signal_DN: FloatArray) -> FloatArray:
    """Return ``rank - (n + 1) / 2`` of the n known values of a date, multiples of one half.

    Parameters
    ----------
    signal_DN : ndarray of shape (D, N)
        Values; ties share their mean rank.

    Returns
    -------
    ndarray of shape (D, N)
        0 where the value is NaN. A row sums to 0.
    """
    from backtest.books.kernels import centred_ranks  # imports numba

    signals = SortedPanel("signal", signal_DN)
    rank_DN = np.empty(signals.x_TN.shape)
    centred_ranks(signals.x_TN, signals.order_TN, signals.count_T, rank_DN)
    return rank_DN
