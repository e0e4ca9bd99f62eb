"""Compiled loops across the firms of a date; see `features.kernels` for what holds for all of them.

Shape suffixes: T sessions, R some of the sessions, N firms, S groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray
from features.kernels import compiled

_DIGIT = 11  # bits of a key that one pass of the sort looks at
_PASSES = 6


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
def rank_rows(
    bits_RN: npt.NDArray[np.uint64], place_RN: IntArray, count_R: IntArray, tied_R: BoolArray
) -> None:
    """Rank the known values of each row; ties share the mean of their places.

    A radix sort: float64 as unsigned integers of the same order, from the lowest digit to the highest.

    Parameters
    ----------
    bits_RN : ndarray of uint64, shape (R, N)
        The bits of float64 values; NaN is unknown, and -0 is 0.
    place_RN : ndarray of int64, shape (R, N)
        Is given twice the place, counted from 0; -1 where unknown.
    count_R : ndarray of int64, shape (R,)
        Is given the number of known values.
    tied_R : ndarray of bool, shape (R,)
        Is given whether some values tie; without ties all places are even.
    """
    R, N = bits_RN.shape
    minus, infinite, mask = np.uint64(1 << 63), np.uint64(0x7FF << 52), np.uint64(2**_DIGIT - 1)
    key, next_key = np.empty(N, np.uint64), np.empty(N, np.uint64)
    firm, next_firm = np.empty(N, np.int32), np.empty(N, np.int32)
    start = np.empty(2**_DIGIT, np.int32)
    for r in range(R):
        n, some, every = 0, np.uint64(0), ~np.uint64(0)
        for i in range(N):
            place_RN[r, i] = -1
            bits = bits_RN[r, i]
            if bits & ~minus <= infinite:
                ordered = ~bits if bits > minus else bits | minus
                key[n], firm[n] = ordered, i
                some, every = some | ordered, every & ordered
                n += 1
        count_R[r], tied_R[r] = n, False
        for p in range(_PASSES):
            shift = np.uint64(_DIGIT * p)
            if ((some ^ every) >> shift) & mask == 0 or n == 0:
                continue  # all have the same digit, as the lowest ones of what was float32
            start[:] = 0
            for j in range(n):
                start[(key[j] >> shift) & mask] += 1
            total = 0
            for digit in range(2**_DIGIT):
                total, start[digit] = total + start[digit], total
            for j in range(n):
                digit = (key[j] >> shift) & mask
                to = start[digit]
                start[digit] = to + 1
                next_key[to], next_firm[to] = key[j], firm[j]
            key, next_key = next_key, key
            firm, next_firm = next_firm, firm
        first = 0
        for j in range(1, n + 1):
            if j == n or key[j] != key[first]:
                tied_R[r] |= j > first + 1
                for tied in range(first, j):
                    place_RN[r, firm[tied]] = first + j - 1
                first = j
