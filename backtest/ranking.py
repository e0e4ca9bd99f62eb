"""RankSelector within a date that books and metrics share: the firms a book buys are those a metric counts.

Firms with equal values are tied, and whatever is left for a group of tied firms is shared equally among them.
This is the expectation over a random order of the tied firms, so nothing depends on the order of the columns.

Shape suffixes: T dates, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray


def as_signal(name: str, x_TN: AnyFloatArray) -> FloatArray:
    """Check a (date, firm) array and give it as float64; NaN means not known.

    Raises
    ------
    ValueError
        If it is not two-dimensional or holds an infinite value.
    """
    if x_TN.ndim != 2:
        msg = f"The {name} has shape {x_TN.shape}: give one row a date and one column a firm."
        raise ValueError(msg)
    out_TN = x_TN.astype(np.float64)
    if np.isinf(out_TN).any():
        t, n = (int(i) for i in np.argwhere(np.isinf(out_TN))[0])
        msg = f"The {name} is infinite at date {t}, firm {n}: use NaN for what is not known."
        raise ValueError(msg)
    return out_TN


class RankSelector:
    """The order of each date's known values, for selections of the highest or the lowest.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Values; NaN = not known, never selected. Ties are exact equality.

    Attributes
    ----------
    count_T : ndarray of int, shape (T,)
        Known values of each date.
    """

    def __init__(self, x_TN: FloatArray) -> None:
        self._x_TN = x_TN
        self._sorted_TN: FloatArray = np.sort(x_TN, axis=1)  # NaN last
        self.count_T: IntArray = (~np.isnan(x_TN)).sum(axis=1)

    def lowest(self, size_T: IntArray) -> FloatArray:
        """Give each firm's share in the ``size`` lowest values of its date.

        Parameters
        ----------
        size_T : ndarray of int, shape (T,)
            Firms to be selected, 0 to ``count_T``.

        Returns
        -------
        ndarray of shape (T, N)
            1 inside and 0 outside. The firms that are tied at the edge of the selection share the places
            that are left equally: with two places for three firms, 2/3 each. A row adds up to ``size``.
        """
        edge_T1 = self._at(size_T - 1)
        return self._share(self._x_TN < edge_T1, self._x_TN == edge_T1, size_T)

    def highest(self, size_T: IntArray) -> FloatArray:
        """Give each firm's share in the ``size`` highest values of its date; see `lowest`."""
        edge_T1 = self._at(self.count_T - size_T)
        return self._share(self._x_TN > edge_T1, self._x_TN == edge_T1, size_T)

    def tied(self) -> IntArray:
        """Count each date's known values that equal another one of the date. Shape (T,)."""
        equal_TN = np.zeros((self._x_TN.shape[0], self._x_TN.shape[1] + 1), dtype=np.bool_)
        equal_TN[:, 1:-1] = self._sorted_TN[:, 1:] == self._sorted_TN[:, :-1]  # NaN equals nothing
        count_T: IntArray = (equal_TN[:, 1:] | equal_TN[:, :-1]).sum(axis=1)
        return count_T

    def _at(self, place_T: IntArray) -> FloatArray:
        """Give the value at each date's place from below, as a column; any value for a place outside."""
        inside_T = np.clip(place_T, 0, self._x_TN.shape[1] - 1)
        return np.take_along_axis(self._sorted_TN, inside_T[:, None], axis=1)

    @staticmethod
    def _share(beyond_TN: BoolArray, edge_TN: BoolArray, size_T: IntArray) -> FloatArray:
        left_T = np.maximum(size_T - beyond_TN.sum(axis=1), 0)
        share_T = left_T / np.maximum(edge_TN.sum(axis=1), 1)
        share_TN: FloatArray = np.where(edge_TN, share_T[:, None], beyond_TN & (size_T > 0)[:, None])
        return share_TN
