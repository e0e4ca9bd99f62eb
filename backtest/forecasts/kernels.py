"""Compiled loops over the firms of a date.

The rules of `features.arithmetic.kernels` apply: arrays are C-contiguous, a kernel starts no threads, and
sums are not reordered. Importing this module imports numba, so it is imported inside functions.

Shape suffixes: R some of the dates, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.kernels import compiled
from features.arrays import FloatArray, IntArray


@compiled
def select(  # noqa: PLR0917  # a compiled loop takes arrays and numbers
    x_RN: FloatArray,
    sorted_RN: FloatArray,
    size_R: IntArray,
    side: int,
    scale_R: FloatArray,
    out_RN: FloatArray,
) -> None:
    """Add each firm's share in the ``size`` highest (side 1) or lowest (side -1) values, times a scale.

    Parameters
    ----------
    x_RN, sorted_RN : ndarray of shape (R, N)
        Values, and the same values sorted, NaN last.
    size_R : ndarray of int, shape (R,)
        Firms to select, at most the number of known values; 0 selects none.
    side : int
        1 or -1.
    scale_R : ndarray of shape (R,)
        Factor of the shares.
    out_RN : ndarray of shape (R, N)
        Output, added to.
    """
    for r in range(x_RN.shape[0]):
        x, ordered, out, size = x_RN[r], sorted_RN[r], out_RN[r], size_R[r]
        if size <= 0:
            continue
        count = len(ordered)
        while count > 0 and np.isnan(ordered[count - 1]):
            count -= 1
        size = min(size, count)
        edge = ordered[count - size if side > 0 else size - 1]
        low = np.searchsorted(ordered[:count], edge, side="left")
        high = np.searchsorted(ordered[:count], edge, side="right")
        beyond = count - high if side > 0 else low
        share = (size - beyond) / (high - low) * scale_R[r]
        whole = scale_R[r]
        for i in range(len(x)):
            inside = x[i] > edge if side > 0 else x[i] < edge
            out[i] += whole if inside else (share if x[i] == edge else 0.0)


@compiled
def count_ties(sorted_RN: FloatArray, count_R: IntArray, tied_R: IntArray) -> None:
    """Count each row's known values, and those that equal another one; rows are sorted, NaN last."""
    for r in range(sorted_RN.shape[0]):
        ordered = sorted_RN[r]
        count = len(ordered)
        while count > 0 and np.isnan(ordered[count - 1]):
            count -= 1
        tied = 0
        for j in range(count):
            after = j + 1 < count and ordered[j + 1] == ordered[j]
            tied += 1 if after or (j > 0 and ordered[j - 1] == ordered[j]) else 0
        count_R[r], tied_R[r] = count, tied
