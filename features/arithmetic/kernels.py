"""Compiled loops over tiles of a panel, for what numpy cannot do or does with too many passes over memory.

All arrays are C-contiguous. A kernel releases the GIL and starts no threads of its own.
`features.arithmetic.parallel` runs it on several tiles at once, so results do not depend on the number of
threads. Sums are not reordered (``fastmath`` is off): a result is a fixed sequence of operations.

Importing this module imports numba, so it is imported inside functions. Machine code is cached in
``__pycache__`` next to this file, or in the user's cache folder if that is read-only.

Loops over tiles of firms come first, then those across the firms of a date, then those over two series at a
lead.

Shape suffixes: T sessions, R some of the sessions, N firms (of a tile), S groups, P parts of the sample.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray

Loop = TypeVar("Loop", bound=Callable[..., object])

ZERO = cast("int", np.int64(0))
"""Start of a counter that is passed to another loop. That loop would be compiled for the constant 0 too."""


def compiled(loop: Loop) -> Loop:
    """Compile a loop on its first call. Division by zero follows IEEE 754."""
    try:
        return cast("Loop", numba.njit(nogil=True, cache=True, error_model="numpy")(loop))
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        warnings.warn(
            f"Neither {Path(__file__).parent} nor the user's cache folder is writable, so every process "
            "recompiles its loops, which takes some seconds: set NUMBA_CACHE_DIR to a writable folder.",
            RuntimeWarning,
            stacklevel=2,
        )
        return cast("Loop", numba.njit(nogil=True, error_model="numpy")(loop))


@compiled
def keep_traded(x_TN: FloatArray, idle_TN: FloatArray, warmup: int, halt: float, out_TN: FloatArray) -> None:
    """Keep finite values of firms that trade at t and have been priced since the start of their warm-up.

    That is, a firm must have a price on one of the sessions t-warmup-halt..t-warmup. NaN elsewhere. ``idle``
    counts the sessions since a firm's last price.
    """
    out_TN[:warmup] = np.nan
    for t in range(warmup, x_TN.shape[0]):
        x, now, then, out = x_TN[t], idle_TN[t], idle_TN[t - warmup], out_TN[t]
        for i in range(len(x)):
            known = (then[i] <= halt) & (now[i] == 0.0) & (np.abs(x[i]) < np.inf)
            out[i] = x[i] if known else np.nan


@compiled
def store_float32(x_TN: FloatArray, out_TN: Float32Array) -> None:
    """Round to float32; NaN outside of its range."""
    for t in range(x_TN.shape[0]):
        x, out = x_TN[t], out_TN[t]
        for i in range(len(x)):
            single = np.float32(x[i])
            out[i] = single if np.abs(single) < np.inf else np.float32(np.nan)


@compiled
def carry(x_TN: FloatArray, longest: float, out_TN: FloatArray, idle_TN: FloatArray) -> None:
    """Carry each firm's last known value for at most ``longest`` sessions; count the sessions since then."""
    last_N, age_N = np.full(x_TN.shape[1], np.nan), np.full(x_TN.shape[1], np.inf)
    for t in range(x_TN.shape[0]):
        x, out, idle = x_TN[t], out_TN[t], idle_TN[t]
        for i in range(len(x)):
            known = not np.isnan(x[i])
            last_N[i] = x[i] if known else last_N[i]
            age_N[i] = 0.0 if known else age_N[i] + 1.0
            out[i] = last_N[i] if age_N[i] <= longest else np.nan
            idle[i] = age_N[i]


@compiled
def rolling_count(x_TN: FloatArray, window: int, out_TN: FloatArray) -> None:
    """Count known values. A running count is exact, because integers do not round."""
    T, N = x_TN.shape
    count_N = np.zeros(N)
    for t in range(T):
        entering, out = x_TN[t], out_TN[t]
        if t >= window:
            leaving = x_TN[t - window]
            for i in range(N):
                count_N[i] -= 0.0 if np.isnan(leaving[i]) else 1.0
        for i in range(N):
            count_N[i] += 0.0 if np.isnan(entering[i]) else 1.0
            out[i] = count_N[i]


@compiled
def _add(to: FloatArray, other: FloatArray) -> None:
    for i in range(len(to)):
        to[i] += other[i]


@compiled
def _sum_windows(block: FloatArray, window: int, N: int, total: FloatArray) -> None:
    """Sum windows of sessions by doubling: the sum over 2m sessions is the sum of two adjacent sums over m.

    ``block`` has T rows of N values without NaN and is overwritten. Rows before the first count as zero.
    """
    total[:] = 0.0
    end, size, offset, left = len(block), N, 0, window
    while True:
        if left & 1:  # this power of two is part of the window: its block starts `offset` cells back
            if offset < end:
                _add(total[offset:], block[: end - offset])
            offset += size
        left >>= 1
        if left == 0:
            return
        high = end  # from the last row to the first, so that rows are read before they change
        while high > size:
            low = max(high - size, size)
            _add(block[low:high], block[low - size : high - size])
            high = low
        size *= 2


@compiled
def _sum_powers(x_TN: FloatArray, power: int, window: int, total_TN: FloatArray) -> None:
    """Sum the known values to the power of 1, 2 or 3."""
    x, block = x_TN.reshape(-1), np.empty(x_TN.size)
    for i in range(len(x)):
        value = 0.0 if np.isnan(x[i]) else x[i]
        block[i] = value if power == 1 else value * value if power == 2 else value * value * value
    _sum_windows(block, window, x_TN.shape[1], total_TN.reshape(-1))


@compiled
def rolling_sum(x_TN: FloatArray, window: int, out_TN: FloatArray) -> None:
    """Sum known values."""
    _sum_powers(x_TN, 1, window, out_TN)


@compiled
def rolling_mean(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Average known values; NaN below ``min_count`` of them."""
    rolling_sum(x_TN, window, out_TN)
    count_TN = np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    out, count = out_TN.reshape(-1), count_TN.reshape(-1)
    for i in range(len(out)):
        out[i] = out[i] / count[i] if count[i] >= min_count else np.nan


@compiled
def rolling_std(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Compute the sample standard deviation of known values; NaN below ``min_count`` >= 2 of them."""
    count_TN, square_TN = np.empty_like(x_TN), np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    _sum_powers(x_TN, 1, window, out_TN)
    _sum_powers(x_TN, 2, window, square_TN)
    out, count, square = out_TN.reshape(-1), count_TN.reshape(-1), square_TN.reshape(-1)
    for i in range(len(out)):
        n = max(count[i], 2.0)
        mean, mean_square = out[i] / n, square[i] / n
        variance = mean_square - mean * mean
        variance = 0.0 if variance < 1e-14 * mean_square else variance
        out[i] = np.sqrt(variance * n / (n - 1.0)) if count[i] >= min_count else np.nan


@compiled
def rolling_skewness(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Compute ``m3 / m2^1.5`` of known values; NaN below ``min_count`` >= 3 of them and without variation."""
    count_TN, square_TN, cube_TN = np.empty_like(x_TN), np.empty_like(x_TN), np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    _sum_powers(x_TN, 1, window, out_TN)
    _sum_powers(x_TN, 2, window, square_TN)
    _sum_powers(x_TN, 3, window, cube_TN)
    out, count = out_TN.reshape(-1), count_TN.reshape(-1)
    square, cube = square_TN.reshape(-1), cube_TN.reshape(-1)
    for i in range(len(out)):
        n = max(count[i], 1.0)
        mean, mean_square, mean_cube = out[i] / n, square[i] / n, cube[i] / n
        variance = mean_square - mean * mean
        third = mean_cube - 3.0 * mean * mean_square + 2.0 * mean * mean * mean
        known = count[i] >= min_count and variance > 1e-14 * mean_square
        out[i] = third / (variance * np.sqrt(variance)) if known else np.nan


@compiled
def _sum_products(
    y_TN: FloatArray, x_TN: FloatArray, window: int, sums_6TN: FloatArray, block_TN: FloatArray
) -> None:
    """Sum 1, x, y, x^2, xy and y^2 over the sessions of the window on which both are known."""
    N, block = y_TN.shape[1], block_TN.reshape(-1)
    given_y, given_x = y_TN.reshape(-1), x_TN.reshape(-1)
    y, x, one = np.empty_like(block), np.empty_like(block), np.ones_like(block)  # 0 where not both are known
    for i in range(len(block)):
        y_i, x_i = given_y[i], given_x[i]
        block[i] = y_i + x_i  # NaN where either is NaN
        y[i] = 0.0 if np.isnan(block[i]) else y_i
        x[i] = 0.0 if np.isnan(block[i]) else x_i
    rolling_count(block_TN, window, sums_6TN[0])
    for k, (left, right) in enumerate(((x, one), (y, one), (x, x), (y, x), (y, y)), 1):
        for i in range(len(block)):
            block[i] = left[i] * right[i]
        _sum_windows(block, window, N, sums_6TN[k].reshape(-1))


@compiled
def rolling_regression(  # noqa: PLR0917 - a compiled loop takes its output arrays as positional arguments
    y_TN: FloatArray,
    x_TN: FloatArray,
    window: int,
    min_count: float,
    slope_TN: FloatArray,
    residual_TN: FloatArray,
) -> None:
    """Regress y on x with an intercept over the sessions with both known; NaN below ``min_count`` >= 3.

    ``slope`` is the coefficient of x, ``residual`` the standard error of the regression.
    """
    sums_6TN = np.empty((6, y_TN.shape[0], y_TN.shape[1]))
    _sum_products(y_TN, x_TN, window, sums_6TN, slope_TN)
    count, sum_x, sum_y = sums_6TN[0].reshape(-1), sums_6TN[1].reshape(-1), sums_6TN[2].reshape(-1)
    sum_xx, sum_xy, sum_yy = sums_6TN[3].reshape(-1), sums_6TN[4].reshape(-1), sums_6TN[5].reshape(-1)
    slope, residual = slope_TN.reshape(-1), residual_TN.reshape(-1)
    for i in range(len(slope)):
        n = max(count[i], 3.0)
        mean_x, mean_y = sum_x[i] / n, sum_y[i] / n
        variance_x, variance_y = sum_xx[i] / n - mean_x * mean_x, sum_yy[i] / n - mean_y * mean_y
        covariance = sum_xy[i] / n - mean_y * mean_x
        varies = variance_x > 1e-14 * (sum_xx[i] / n)  # otherwise x is constant up to rounding
        slope[i] = covariance / variance_x if count[i] >= min_count and varies else np.nan
        left = variance_y - slope[i] * covariance
        left = 0.0 if left <= 1e-14 * (sum_yy[i] / n) else left  # rounding; NaN stays
        residual[i] = np.sqrt(left * n / (n - 2.0))


@compiled
def rolling_correlation(
    y_TN: FloatArray, x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray
) -> None:
    """Correlate over the sessions with both known; NaN below ``min_count`` >= 1 and without variation."""
    sums_6TN = np.empty((6, y_TN.shape[0], y_TN.shape[1]))
    _sum_products(y_TN, x_TN, window, sums_6TN, out_TN)
    count, sum_x, sum_y = sums_6TN[0].reshape(-1), sums_6TN[1].reshape(-1), sums_6TN[2].reshape(-1)
    sum_xx, sum_xy, sum_yy = sums_6TN[3].reshape(-1), sums_6TN[4].reshape(-1), sums_6TN[5].reshape(-1)
    out = out_TN.reshape(-1)
    for i in range(len(out)):
        n = max(count[i], 1.0)
        mean_x, mean_y, square_x, square_y = sum_x[i] / n, sum_y[i] / n, sum_xx[i] / n, sum_yy[i] / n
        variance_x, variance_y = square_x - mean_x * mean_x, square_y - mean_y * mean_y
        covariance = sum_xy[i] / n - mean_y * mean_x
        varies = variance_x > 1e-14 * square_x and variance_y > 1e-14 * square_y
        ratio = covariance / np.sqrt(variance_y * variance_x)
        out[i] = min(max(ratio, -1.0), 1.0) if varies and count[i] >= min_count else np.nan


@compiled
def rolling_max(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Compute the largest known value by doubling; overlapping blocks do not change a maximum."""
    T, N = x_TN.shape
    for t in range(T):
        for i in range(N):
            out_TN[t, i] = -np.inf if np.isnan(x_TN[t, i]) else x_TN[t, i]
    size = 1
    while size < min(window, T):
        step = min(size, window - size)
        for t in range(T - 1, step - 1, -1):  # downwards, so that rows are read before they change
            for i in range(N):
                out_TN[t, i] = max(out_TN[t, i], out_TN[t - step, i])
        size += step
    count_TN = np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    for t in range(T):
        for i in range(N):
            out_TN[t, i] = out_TN[t, i] if count_TN[t, i] >= min_count else np.nan


@compiled
def _slide(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    x_TN: AnyFloatArray,
    t: int,
    window: int,
    sorted_WN: AnyFloatArray,
    work_3N: AnyFloatArray,
    count_N: FloatArray,
) -> None:
    """Move the sorted windows of all firms to session t, and count their known values.

    One pass over the ranks removes the leaving value and inserts the entering one. Without the leaving value,
    rank j holds ``s[j]`` if that is below the leaving value, else ``s[j+1]``. With the entering value, rank j
    holds the median of the entering value and two neighbours. Unknown values are stored as infinity, at the
    end; the last row stays infinite.
    """
    below_N, entering_N, leaving_N, x = work_3N[0], work_3N[1], work_3N[2], x_TN[t]
    for i in range(len(x)):
        known = not np.isnan(x[i])
        count_N[i] += 1.0 if known else 0.0
        entering_N[i] = x[i] + 0.0 if known else np.inf  # -0 becomes 0; equal values are interchangeable
        below_N[i] = -np.inf
        leaving_N[i] = np.inf
    if t >= window:
        old = x_TN[t - window]
        for i in range(len(x)):
            known = not np.isnan(old[i])
            count_N[i] -= 1.0 if known else 0.0
            leaving_N[i] = old[i] if known else np.inf
    for j in range(len(sorted_WN) - 1):
        this, following = sorted_WN[j], sorted_WN[j + 1]
        for i in range(len(x)):
            other = this[i] if this[i] < leaving_N[i] else following[i]
            smaller = entering_N[i] if entering_N[i] < other else other
            this[i] = below_N[i] if below_N[i] > smaller else smaller
            below_N[i] = other


@compiled
def rolling_median(x_TN: AnyFloatArray, window: int, min_count: float, out_TN: AnyFloatArray) -> None:
    """Compute the median of known values, keeping the windows of all firms sorted."""
    T, N = x_TN.shape
    sorted_WN = np.full((min(window, T) + 1, N), np.inf, dtype=x_TN.dtype)
    work_3N, count_N = np.empty((3, N), dtype=x_TN.dtype), np.zeros(N)
    for t in range(T):
        _slide(x_TN, t, window, sorted_WN, work_3N, count_N)
        out = out_TN[t]
        for i in range(N):
            n = int(count_N[i])
            if n >= min_count:
                out[i] = 0.5 * (sorted_WN[(n - 1) // 2, i] + sorted_WN[n // 2, i])
            else:
                out[i] = np.nan


@compiled
def rolling_quantile(
    x_TN: FloatArray, share: float, window: int, min_count: float, out_TN: FloatArray
) -> None:
    """Compute a quantile of known values, linear between order statistics; NaN below ``min_count`` >= 1."""
    T, N = x_TN.shape
    sorted_WN = np.full((min(window, T) + 1, N), np.inf)
    work_3N, count_N = np.empty((3, N)), np.zeros(N)
    for t in range(T):
        _slide(x_TN, t, window, sorted_WN, work_3N, count_N)
        out = out_TN[t]
        for i in range(N):
            n = int(count_N[i])
            if n >= min_count:
                at = share * (n - 1)
                low = int(at)
                base = sorted_WN[low, i]
                out[i] = base + (at - low) * (sorted_WN[min(low + 1, n - 1), i] - base)
            else:
                out[i] = np.nan


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
    and, for negative values, all other bits are inverted. The output has the order in the upper 32 bits and
    the column in the lower; the largest integer where the value is NaN.
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

    The first arguments are those of `pack_with_column`, sorted, and `count_places`. ``score_S`` holds the
    scores of all rows, by rank, or by twice the rank for rows with ties; ``start_R`` is the place of each
    row's first score. The output is NaN where unknown.
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


@compiled
def sums_by_firm(x_TN: Float32Array, y_TN: Float32Array, lead: int, sums_PN5: FloatArray) -> None:
    """Add up, for each part of the sample and firm: pairs, x y, x^2, y^2, and x^4.

    ``x`` is of session t and ``y`` of session ``t + lead`` in the same part. ``sums_PN5`` holds zeros.
    """
    T, N = x_TN.shape
    parts = sums_PN5.shape[0]
    for p in range(parts):
        sums = sums_PN5[p]
        for t in range(T * p // parts, T * (p + 1) // parts - lead):
            for n in range(N):
                x, y = np.float64(x_TN[t, n]), np.float64(y_TN[t + lead, n])
                if x != 0.0 and y != 0.0:
                    square = x * x
                    sums[n, 0] += 1.0
                    sums[n, 1] += x * y
                    sums[n, 2] += square
                    sums[n, 3] += y * y
                    sums[n, 4] += square * square


@compiled
def sums_by_date(x_TN: Float32Array, y_TN: Float32Array, lead: int, sums_T6: FloatArray) -> None:
    """Add up, for each session t: pairs, x, y, x y, x^2 and y^2, with ``y`` of session ``t + lead``."""
    T, N = x_TN.shape
    for t in range(T - lead):
        count = sum_x = sum_y = sum_xy = sum_xx = sum_yy = 0.0
        for n in range(N):
            x, y = np.float64(x_TN[t, n]), np.float64(y_TN[t + lead, n])
            if x != 0.0 and y != 0.0:
                count += 1.0
                sum_x += x
                sum_y += y
                sum_xy += x * y
                sum_xx += x * x
                sum_yy += y * y
        row = sums_T6[t]
        row[0], row[1], row[2] = count, sum_x, sum_y
        row[3], row[4], row[5] = sum_xy, sum_xx, sum_yy
