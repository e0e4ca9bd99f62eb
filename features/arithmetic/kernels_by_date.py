"""Compiled loops across the firms of a date. The rules in `features.arithmetic.kernels` apply.

Shape suffixes: T sessions, R some of the sessions, N firms, S groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from features.arithmetic.kernels import compiled
from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray


@compiled
def add_by_group(x_TN: FloatArray, group_TN: IntArray, total_TS: FloatArray, count_TS: IntArray) -> None:
    """Add known values to the total of their session and group, in column order; group -1 is ignored."""
    for t in range(x_TN.shape[0]):
        for i in range(x_TN.shape[1]):
            x, group = x_TN[t, i], group_TN[t, i]
            if group >= 0 and not np.isnan(x):
                total_TS[t, group] += x
                count_TS[t, group] += 1


@compiled
def expand_groups(mean_TS: FloatArray, group_TN: IntArray, out_TN: FloatArray) -> None:
    """Assign each firm the mean of its session and group; NaN for group -1."""
    for t in range(group_TN.shape[0]):
        for i in range(group_TN.shape[1]):
            group = group_TN[t, i]
            out_TN[t, i] = mean_TS[t, group] if group >= 0 else np.nan


@compiled
def keep_known(x_RN: AnyFloatArray, mask_RN: BoolArray, out_RN: AnyFloatArray) -> None:
    """Copy the finite values inside the mask; NaN elsewhere."""
    for r in range(x_RN.shape[0]):
        x, mask, out = x_RN[r], mask_RN[r], out_RN[r]
        for i in range(len(x)):
            out[i] = x[i] if mask[i] & (np.abs(x[i]) < np.inf) else np.nan


@compiled
def zscore(x_RN: AnyFloatArray, out_RN: Float32Array) -> None:
    """Subtract the row's mean and divide by its population deviation; 0 if all are equal, NaN stays NaN."""
    for r in range(x_RN.shape[0]):
        x, out = x_RN[r], out_RN[r]
        count, total, largest = 0, 0.0, 0.0
        for i in range(len(x)):
            value = np.float64(x[i])
            if not np.isnan(value):
                count += 1
                total += value
                largest = max(largest, abs(value))
        mean = total / max(count, 1)
        square = 0.0
        for i in range(len(x)):
            value = np.float64(x[i]) - mean
            square += 0.0 if np.isnan(value) else value * value
        std = np.sqrt(square / max(count, 1))
        flat = std <= 1e-14 * largest  # all equal up to rounding
        for i in range(len(x)):
            value = np.float64(x[i]) - mean
            out[i] = (0.0 if flat else value / std) if not np.isnan(value) else np.nan


@compiled
def subtract_group_means(
    x_RN: AnyFloatArray, group_RN: IntArray, n_groups: int, out_RN: Float32Array
) -> None:
    """Subtract the mean of the known values of the date's group; NaN stays NaN, and group -1 becomes NaN."""
    total_S, count_S = np.empty(n_groups), np.empty(n_groups)
    for r in range(x_RN.shape[0]):
        x, groups, out = x_RN[r], group_RN[r], out_RN[r]
        total_S[:] = 0.0
        count_S[:] = 0.0
        for i in range(len(x)):
            if groups[i] >= 0 and not np.isnan(x[i]):
                total_S[groups[i]] += x[i]
                count_S[groups[i]] += 1.0
        for i in range(len(x)):
            group = groups[i]
            out[i] = x[i] - total_S[group] / max(count_S[group], 1.0) if group >= 0 else np.nan


@compiled
def clip_tails(x_RN: AnyFloatArray, sorted_RN: AnyFloatArray, tail: float, out_RN: Float32Array) -> None:
    """Clip the row's values to its quantiles ``tail`` and ``1 - tail``; ``sorted`` is x sorted, NaN last."""
    for r in range(x_RN.shape[0]):
        x, ordered, out = x_RN[r], sorted_RN[r], out_RN[r]
        count = 0
        while count < len(x) and not np.isnan(ordered[count]):
            count += 1
        top = max(count - 1, 0)
        low_at, high_at = tail * top, (1.0 - tail) * top
        low_i, high_i = int(low_at), int(high_at)
        low = np.float64(ordered[low_i])
        low += (low_at - low_i) * (np.float64(ordered[min(low_i + 1, top)]) - low)
        high = np.float64(ordered[high_i])
        high += (high_at - high_i) * (np.float64(ordered[min(high_i + 1, top)]) - high)
        for i in range(len(x)):
            value = np.float64(x[i])
            out[i] = min(max(value, low), high) if not np.isnan(value) else np.nan


@compiled
def pack_with_column(bits_RN: npt.NDArray[np.uint32], packed_RN: npt.NDArray[np.uint64]) -> None:
    """Pack each value's order and its column into one integer, so that one sort orders both.

    The bits of a float32, read as an unsigned integer, sort like the values after the sign bit is flipped
    and, for negative values, all other bits are inverted.

    Parameters
    ----------
    bits_RN : ndarray of uint32, shape (R, N)
        The bits of float32 values; NaN is unknown.
    packed_RN : ndarray of uint64, shape (R, N)
        Output: the order in the upper 32 bits and the column in the lower; the largest integer where unknown.
    """
    minus, infinite = np.uint32(1 << 31), np.uint32(0x7F800000)
    for r in range(bits_RN.shape[0]):
        bits, packed = bits_RN[r], packed_RN[r]
        for i in range(len(bits)):
            known = bits[i] & ~minus <= infinite
            ordered = ~bits[i] if bits[i] > minus else bits[i] | minus  # -0 is 0
            packed[i] = (np.uint64(ordered) << np.uint64(32)) | np.uint64(i) if known else ~np.uint64(0)


@compiled
def count_places(packed_RN: npt.NDArray[np.uint64], count_R: IntArray, tied_R: BoolArray) -> None:
    """Count each row's known values and flag rows with ties; rows are sorted, unknown values last."""
    unknown = ~np.uint64(0)
    for r in range(packed_RN.shape[0]):
        packed = packed_RN[r]
        count = len(packed)
        while count > 0 and packed[count - 1] == unknown:
            count -= 1
        ties = 0
        for j in range(1, count):
            ties += 1 if packed[j] >> np.uint64(32) == packed[j - 1] >> np.uint64(32) else 0
        count_R[r], tied_R[r] = count, ties > 0


@compiled
def give_scores(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    packed_RN: npt.NDArray[np.uint64],
    count_R: IntArray,
    tied_R: BoolArray,
    score_S: FloatArray,
    start_R: IntArray,
    out_RN: Float32Array,
) -> None:
    """Assign each known firm the score of its rank in the row; tied firms get the score of their mean rank.

    Parameters
    ----------
    packed_RN : ndarray of uint64, shape (R, N)
        Order and column from `pack_with_column`, sorted.
    count_R, tied_R
        From `count_places`.
    score_S : ndarray, shape (S,)
        Scores of all rows: by rank, or by twice the rank for rows with ties.
    start_R : ndarray of int, shape (R,)
        Place of each row's first score.
    out_RN : ndarray of float32, shape (R, N)
        Output: the scores; NaN where unknown.
    """
    column = np.uint64(0xFFFFFFFF)
    for r in range(len(out_RN)):
        packed, out, count, start = packed_RN[r], out_RN[r], count_R[r], start_R[r]
        for i in range(len(out)):
            out[i] = np.nan
        if not tied_R[r]:
            for j in range(count):
                out[packed[j] & column] = score_S[start + j]
            continue
        first = 0
        for j in range(1, count + 1):
            if j == count or packed[j] >> np.uint64(32) != packed[first] >> np.uint64(32):
                for k in range(first, j):
                    out[packed[k] & column] = score_S[start + first + j - 1]
                first = j
