"""Selection of the highest or lowest values of a date. Books and metrics share it, so they select alike.

Firms with equal values are tied. Tied firms at the edge of a selection share the remaining ranks equally,
which is the expectation over a random order of the tied firms. The order of the columns has no effect.

Shape suffixes: T dates, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray


def as_signal(name: str, x_TN: AnyFloatArray) -> FloatArray:
    """Check a (date, firm) array and return it as float64; NaN means unknown.

    Raises
    ------
    ValueError
        If it is not two-dimensional or contains an infinite value.
    """
    if x_TN.ndim != 2:
        msg = f"The {name} has shape {x_TN.shape}; it must have one row per date and one column per firm."
        raise ValueError(msg)
    out_TN = x_TN.astype(np.float64)
    if np.isinf(out_TN).any():
        t, n = (int(i) for i in np.argwhere(np.isinf(out_TN))[0])
        msg = f"The {name} is infinite at date {t}, firm {n}: use NaN for unknown values."
        raise ValueError(msg)
    return out_TN


class RankSelector:
    """Selects the highest or lowest known values of each date.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Values. NaN is unknown and never selected. Only exactly equal values are ties.

    Attributes
    ----------
    count_T : ndarray of int, shape (T,)
        Number of known values of each date.
    """

    def __init__(self, x_TN: FloatArray) -> None:
        self._x_TN = x_TN
        self._sorted_TN: FloatArray = np.sort(x_TN, axis=1)  # NaN last
        self.count_T: IntArray = (~np.isnan(x_TN)).sum(axis=1)

    def lowest(self, size_T: IntArray) -> FloatArray:
        """Return each firm's share in the ``size`` lowest values of its date.

        Parameters
        ----------
        size_T : ndarray of int, shape (T,)
            Number of firms to select, 0 to ``count_T``.

        Returns
        -------
        ndarray of shape (T, N)
            1 inside the selection and 0 outside. Firms that are tied at its edge share the remaining places
            equally: three firms for two places get 2/3 each. A row sums to ``size``.
        """
        edge_T1 = self._at(size_T - 1)
        return self._share(self._x_TN < edge_T1, self._x_TN == edge_T1, size_T)

    def highest(self, size_T: IntArray) -> FloatArray:
        """Return each firm's share in the ``size`` highest values of its date; see `lowest`."""
        edge_T1 = self._at(self.count_T - size_T)
        return self._share(self._x_TN > edge_T1, self._x_TN == edge_T1, size_T)

    def tied(self) -> IntArray:
        """Count the known values of each date that equal another value of the date. Shape (T,)."""
        equal_TN = np.zeros((self._x_TN.shape[0], self._x_TN.shape[1] + 1), dtype=np.bool_)
        equal_TN[:, 1:-1] = self._sorted_TN[:, 1:] == self._sorted_TN[:, :-1]  # NaN equals nothing
        count_T: IntArray = (equal_TN[:, 1:] | equal_TN[:, :-1]).sum(axis=1)
        return count_T

    def _at(self, place_T: IntArray) -> FloatArray:
        """Return each date's value at a rank from below, as a column; any value for a rank out of range."""
        inside_T = np.clip(place_T, 0, self._x_TN.shape[1] - 1)
        return np.take_along_axis(self._sorted_TN, inside_T[:, None], axis=1)

    @staticmethod
    def _share(beyond_TN: BoolArray, edge_TN: BoolArray, size_T: IntArray) -> FloatArray:
        left_T = np.maximum(size_T - beyond_TN.sum(axis=1), 0)
        share_T = left_T / np.maximum(edge_TN.sum(axis=1), 1)
        share_TN: FloatArray = np.where(edge_TN, share_T[:, None], beyond_TN & (size_T > 0)[:, None])
        return share_TN
