"""The rank-weighted book: every firm is held, in proportion to its rank.

Shape suffixes: N firms, D decisions.
"""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from backtest.books.ranked import LongShortBook, centred_rank
from features.arrays import FloatArray


class RankWeighted(LongShortBook):
    """A long-short book: every firm, in proportion to its rank.

    ``w_i = G (r_i - (n + 1) / 2) / sum_j |r_j - (n + 1) / 2|`` with the ranks r from 1 (lowest) to n and the
    gross exposure G. Tied firms have their mean rank, so they hold the same weight. If all signals of a date
    are equal, nothing is held.

    Notes
    -----
    Asness, Moskowitz and Pedersen 2013, "Value and momentum everywhere", equation 1.

    Examples
    --------
    >>> RankWeighted().select(np.array([[0.3, 0.1, 0.2]]))
    array([[ 1., -1.,  0.]])
    """

    needed: ClassVar[int] = 2  # one for each side
    kind: Literal["rank_weighted"] = "rank_weighted"
    """Selects this kind of book."""
    gross: float = Field(default=2.0, gt=0)
    """Gross exposure; 2 is +1 long and -1 short."""

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return the centred ranks, scaled to the gross exposure; 0 for other firms."""
        weight_DN = centred_rank(signal_DN)  # halves, so that sums are exact
        gross_D1 = np.abs(weight_DN).sum(axis=1, keepdims=True)
        weight_DN *= np.divide(self.gross, gross_D1, out=np.zeros_like(gross_D1), where=gross_D1 > 0)
        return weight_DN
