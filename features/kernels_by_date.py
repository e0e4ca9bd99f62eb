"""Compiled loops across the firms of a date; see `features.kernels` for what holds for all of them.

Shape suffixes: T sessions, R some of the sessions, N firms, S groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray
from features.kernels import compiled

COLUMN_BITS = 29  # of float64 that float32 does not have


@compiled
def add_by_group(x_TN: FloatArray, group_TN: IntArray, total_TS: FloatArray, count_TS: IntArray) -> None:
    """Add known values to their session's and group's total, firm after firm; group -1 is nobody's."""
    for t in range(x_TN.shape[0]):
        for i in range(x_TN.shape[1]):
            x, group = x_TN[t, i], group_TN[t, i]
            if group >= 0 and not np.isnan(x):
                total_TS[t, group] += x
                count_TS[t, group] += 1


@compiled
def spread_groups(mean_TS: FloatArray, group_TN: IntArray, out_TN: FloatArray) -> None:
    """Give each firm the mean of its session's and group's; NaN for group -1."""
    for t in range(group_TN.shape[0]):
        for i in range(group_TN.shape[1]):
            group = group_TN[t, i]
            out_TN[t, i] = mean_TS[t, group] if group >= 0 else np.nan


@compiled
def keep_known(x_RN: AnyFloatArray, mask_RN: BoolArray, out_RN: FloatArray) -> None:
    """Copy the finite values of the mask; NaN elsewhere."""
    for r in range(x_RN.shape[0]):
        x, mask, out = x_RN[r], mask_RN[r], out_RN[r]
        for i in range(len(x)):
            value = np.float64(x[i])
            out[i] = value if mask[i] & (np.abs(value) < np.inf) else np.nan


@compiled
def subtract_group_means(x_RN: FloatArray, group_RN: IntArray, n_groups: int, out_RN: FloatArray) -> None:
    """Subtract the mean of the known values of the date's group; codes count from 0, and NaN stays."""
    total_S, count_S = np.empty(n_groups), np.empty(n_groups)
    for r in range(x_RN.shape[0]):
        total_S[:] = 0.0
        count_S[:] = 0.0
        for i in range(x_RN.shape[1]):
            if not np.isnan(x_RN[r, i]):
                total_S[group_RN[r, i]] += x_RN[r, i]
                count_S[group_RN[r, i]] += 1.0
        for i in range(x_RN.shape[1]):
            group = group_RN[r, i]
            out_RN[r, i] = x_RN[r, i] - total_S[group] / max(count_S[group], 1.0)


@compiled
def pack_float32(bits_RN: npt.NDArray[np.uint64], packed_RN: npt.NDArray[np.uint64]) -> bool:
    """Put a value's order and its column into one integer, so that sorting these sorts both.

    float64 that was float32 ends in 29 zeros, which leaves room for the column. The rest, read as an unsigned
    integer, has the order of the values once the sign is turned round.

    Parameters
    ----------
    bits_RN : ndarray of uint64, shape (R, N)
        The bits of float64 values; NaN is unknown.
    packed_RN : ndarray of uint64, shape (R, N)
        Is given the integers; the largest of all for an unknown value.

    Returns
    -------
    bool
        Whether all values end in 29 zeros; if not, what was packed is of no use.
    """
    minus, infinite, low = np.uint64(1 << 63), np.uint64(0x7FF << 52), np.uint64(2**COLUMN_BITS - 1)
    seen = np.uint64(0)
    for r in range(bits_RN.shape[0]):
        bits, packed = bits_RN[r], packed_RN[r]
        for i in range(len(bits)):
            known = bits[i] & ~minus <= infinite
            ordered = ~bits[i] if bits[i] > minus else bits[i] | minus  # -0 is 0
            seen |= bits[i] & low if known else np.uint64(0)
            packed[i] = (ordered & ~low) | np.uint64(i) if known else ~np.uint64(0)
    return bool(seen == np.uint64(0))


@compiled
def rank_in_order(
    x_RN: FloatArray, order_RN: IntArray, place_RN: IntArray, count_R: IntArray, tied_R: BoolArray
) -> None:
    """Give known values their places in the order of their row; ties share the mean of theirs.

    Parameters
    ----------
    x_RN : ndarray of shape (R, N)
        Values; NaN is unknown.
    order_RN : ndarray of int64, shape (R, N)
        Columns of the known values in ascending order; the rest is not read.
    place_RN : ndarray of int64, shape (R, N)
        Is given twice the place, counted from 0; -1 where unknown.
    count_R : ndarray of int64, shape (R,)
        Is given the number of known values.
    tied_R : ndarray of bool, shape (R,)
        Is given whether some values tie; without ties all places are even.
    """
    for r in range(x_RN.shape[0]):
        x, order, place = x_RN[r], order_RN[r], place_RN[r]
        count = 0
        for i in range(len(x)):
            count += 0 if np.isnan(x[i]) else 1
            place[i] = -1
        count_R[r], tied_R[r] = count, False
        first = 0
        for j in range(1, count + 1):
            if j == count or x[order[j]] != x[order[first]]:
                tied_R[r] |= j > first + 1
                for tied in range(first, j):
                    place[order[tied]] = first + j - 1
                first = j
