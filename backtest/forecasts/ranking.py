"""Selection of the highest or lowest values of a date. Books and metrics share it, so they select alike.

Firms with equal values are tied. Tied firms at the edge of a selection share the remaining ranks equally,
which is the expectation over a random order of the tied firms. The order of the columns has no effect.

Shape suffixes: T dates, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.parallel import for_each
from features.arrays import AnyFloatArray, FloatArray, IntArray, frozen

_CELLS = 2**17  # per block: 1 MiB as float64, so that its arrays stay in a core's cache


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
    highest, lowest = (of.reduce(out_TN, axis=None, initial=0.0) for of in (np.fmax, np.fmin))  # not NaN
    if np.isinf(highest) or np.isinf(lowest):
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
        from backtest.forecasts.order_kernels import count_ties  # imports numba

        self._x_TN = frozen(np.ascontiguousarray(x_TN))
        sorted_TN = np.empty(x_TN.shape)
        self.count_T: IntArray = np.empty(len(x_TN), dtype=np.int64)
        self._tied_T: IntArray = np.empty(len(x_TN), dtype=np.int64)

        def sort(rows: slice) -> None:
            sorted_TN[rows] = self._x_TN[rows]
            sorted_TN[rows].sort(axis=1)  # NaN last
            count_ties(frozen(sorted_TN[rows]), self.count_T[rows], self._tied_T[rows])

        for_each(sort, date_blocks(*x_TN.shape))
        self._sorted_TN = frozen(sorted_TN)

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
        return self._selected(size_T, np.zeros(len(size_T)), np.ones(len(size_T)))

    def highest(self, size_T: IntArray) -> FloatArray:
        """Return each firm's share in the ``size`` highest values of its date; see `lowest`."""
        return self._selected(size_T, np.ones(len(size_T)), np.zeros(len(size_T)))

    def long_short(self, size_T: IntArray) -> FloatArray:
        """Return ``(highest - lowest) / size`` in one pass: +1 in the highest and -1 in the lowest values.

        Parameters
        ----------
        size_T : ndarray of int, shape (T,)
            Number of firms on each side, 0 to ``count_T``.

        Returns
        -------
        ndarray of shape (T, N)
            0 for a firm on neither side and on dates with a size of 0. A firm that is tied at both edges gets
            the difference of its shares.
        """
        scale_T = 1.0 / np.maximum(size_T, 1)
        return self._selected(size_T, scale_T, -scale_T)

    def tied(self) -> IntArray:
        """Count the known values of each date that equal another value of the date. Shape (T,)."""
        return self._tied_T

    def _selected(self, size_T: IntArray, high_T: FloatArray, low_T: FloatArray) -> FloatArray:
        """Return ``high`` times each firm's share in the highest values, plus ``low`` times in the lowest."""
        from backtest.forecasts.order_kernels import select

        size_T = np.ascontiguousarray(size_T, dtype=np.int64)
        out_TN = np.empty(self._x_TN.shape)

        def work(rows: slice) -> None:
            scales = (high_T[rows], low_T[rows])
            select(self._x_TN[rows], self._sorted_TN[rows], size_T[rows], *scales, out_TN[rows])

        for_each(work, date_blocks(*self._x_TN.shape))
        return out_TN


def date_blocks(n_dates: int, n_firms: int) -> list[slice]:
    """Split the dates into contiguous blocks whose rows fit the processor's cache, in order."""
    height = max(1, _CELLS // max(n_firms, 1))
    return [slice(start, min(start + height, n_dates)) for start in range(0, n_dates, height)]
