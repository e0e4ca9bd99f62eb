"""Compiled loops that sort the firms of a date and select among them.

The rules of `features.arithmetic.kernels` apply: arrays are C-contiguous, a kernel starts no threads, and
sums are not reordered. Importing this module imports numba, so it is imported inside functions.

The order of a date is the columns of its known values, lowest value first and equal values in column order.

Shape suffixes: R dates, N firms.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from features.arithmetic.kernels import compiled
from features.arrays import FloatArray, IntArray

UInt64Array = npt.NDArray[np.uint64]


@compiled
def pack_values(bits_RN: UInt64Array, column: np.uint64, packed_RN: UInt64Array) -> None:
    """Pack each value's leading bits and its column into one integer, so that one sort orders both.

    The bits of a float64, read as an unsigned integer, sort like the values after the sign bit is flipped
    and, for negative values, all other bits are inverted. The lowest bits make room for the column;
    `unpack_order` puts values that differ only there in order.

    Parameters
    ----------
    bits_RN : ndarray of uint64, shape (R, N)
        The bits of float64 values; NaN is unknown.
    column : uint64
        The bits that hold a column: ``2^b - 1 >= N - 1``.
    packed_RN : ndarray of uint64, shape (R, N)
        Output; the largest integer where unknown.
    """
    minus, infinite = np.uint64(1 << 63), np.uint64(0x7FF0000000000000)
    for r in range(bits_RN.shape[0]):
        bits, packed = bits_RN[r], packed_RN[r]
        for i in range(len(bits)):
            known = bits[i] & ~minus <= infinite
            ordered = ~bits[i] if bits[i] > minus else bits[i] | minus  # -0 is 0
            packed[i] = (ordered & ~column) | np.uint64(i) if known else ~np.uint64(0)


@compiled
def unpack_order(
    x_RN: FloatArray, packed_RN: UInt64Array, column: np.uint64, order_RN: IntArray, count_R: IntArray
) -> None:
    """Read each row's order from its sorted packed values, and count the known values.

    ``order_RN`` holds nothing of use beyond the count. Values whose packed digits are equal are sorted here.
    """
    unknown = ~np.uint64(0)
    for r in range(packed_RN.shape[0]):
        packed, x, order = packed_RN[r], x_RN[r], order_RN[r]
        count, close = 0, False
        while count < len(packed) and packed[count] != unknown:
            order[count] = packed[count] & column
            close |= count > 0 and (packed[count] ^ packed[count - 1]) <= column
            count += 1
        count_R[r] = count
        first = 0 if close else count
        for j in range(first + 1, count + 1):
            if j == count or (packed[j] ^ packed[first]) > column:
                if j - first > 1:
                    _sort_run(x, order[first:j])
                first = j


@compiled
def _sort_run(x: FloatArray, run: IntArray) -> None:
    """Sort columns by value and then by column (Shell sort); equal values, the usual case, are in order."""
    gap = 0
    for j in range(1, len(run)):
        if x[run[j]] < x[run[j - 1]]:
            gap = len(run)
    while gap > 1:
        gap = max(gap * 5 // 11, 1)
        for j in range(gap, len(run)):
            moved, k = run[j], j
            while k >= gap:
                other = run[k - gap]
                if x[other] < x[moved] or (x[other] == x[moved] and other < moved):
                    break
                run[k] = other
                k -= gap
            run[k] = moved


@compiled
def _tied(sorted_N: FloatArray, at: int) -> tuple[int, int]:
    """First and end of the sorted values that equal the one at a place."""
    first, end = at, at + 1
    while first > 0 and sorted_N[first - 1] == sorted_N[at]:
        first -= 1
    while end < len(sorted_N) and sorted_N[end] == sorted_N[at]:
        end += 1
    return first, end


@compiled
def select(  # noqa: PLR0917  # a compiled loop takes arrays and numbers
    x_RN: FloatArray,
    sorted_RN: FloatArray,
    size_R: IntArray,
    high_R: FloatArray,
    low_R: FloatArray,
    out_RN: FloatArray,
) -> None:
    """Compute ``high * share in the size highest values + low * share in the size lowest values``.

    Parameters
    ----------
    x_RN, sorted_RN : ndarray of shape (R, N)
        Values, and the same values sorted, NaN last.
    size_R : ndarray of int, shape (R,)
        Firms to select, at most the number of known values; 0 selects none.
    high_R, low_R : ndarray of shape (R,)
        Factors of the shares.
    out_RN : ndarray of shape (R, N)
        Output.
    """
    for r in range(x_RN.shape[0]):
        x, ordered, out = x_RN[r], sorted_RN[r], out_RN[r]
        count = len(ordered)
        while count > 0 and np.isnan(ordered[count - 1]):
            count -= 1
        size = min(size_R[r], count)
        if size <= 0:
            out[:] = 0.0
            continue
        known = ordered[:count]
        top, bottom, high, low = known[count - size], known[size - 1], high_R[r], low_R[r]
        first, end = _tied(known, count - size)
        at_top = (size - (count - end)) / (end - first) * high
        first, end = _tied(known, size - 1)
        at_bottom = (size - first) / (end - first) * low
        for i in range(len(x)):
            up = high if x[i] > top else (at_top if x[i] == top else 0.0)
            down = low if x[i] < bottom else (at_bottom if x[i] == bottom else 0.0)
            out[i] = up + down


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
