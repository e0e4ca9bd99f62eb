"""Compiled loops over tiles of a panel, for what numpy cannot do or does with too many passes over memory.

All arrays are C-contiguous. A kernel releases the GIL and starts no threads of its own.
`features.arithmetic.parallel` runs it on several tiles at once, so results do not depend on the number of
threads. Sums are not reordered (``fastmath`` is off): a result is a fixed sequence of operations.

Importing this module imports numba, so it is imported inside functions. Machine code is cached in
``__pycache__`` next to this file, or in the user's cache folder if that is read-only.

Shape suffixes: T sessions, N firms (of a tile).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np

from features.arrays import AnyFloatArray, Float32Array, FloatArray

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
def store_float32(x_TN: FloatArray, first: int, out_TN: Float32Array) -> None:
    """Write the firms of a tile to the columns from ``first`` on; NaN outside the range of float32."""
    for t in range(x_TN.shape[0]):
        x, out = x_TN[t], out_TN[t, first : first + x_TN.shape[1]]
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
def rolling_sum(x_TN: FloatArray, window: int, out_TN: FloatArray) -> None:
    """Sum known values."""
    block = x_TN.copy().reshape(-1)
    for i in range(len(block)):
        block[i] = 0.0 if np.isnan(block[i]) else block[i]
    _sum_windows(block, window, x_TN.shape[1], out_TN.reshape(-1))


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
    N = x_TN.shape[1]
    count_TN, square_TN = np.empty_like(x_TN), np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    rolling_sum(x_TN, window, out_TN)
    x, out, count, square = x_TN.reshape(-1), out_TN.reshape(-1), count_TN.reshape(-1), square_TN.reshape(-1)
    block = np.empty_like(x)
    for i in range(len(x)):
        block[i] = 0.0 if np.isnan(x[i]) else x[i] * x[i]
    _sum_windows(block, window, N, square)
    for i in range(len(x)):
        n = max(count[i], 2.0)
        mean, mean_square = out[i] / n, square[i] / n
        variance = mean_square - mean * mean
        variance = 0.0 if variance < 1e-14 * mean_square else variance
        out[i] = np.sqrt(variance * n / (n - 1.0)) if count[i] >= min_count else np.nan


@compiled
def rolling_skewness(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Compute ``m3 / m2^1.5`` of known values; NaN below ``min_count`` >= 3 of them and without variation."""
    N = x_TN.shape[1]
    count_TN, square_TN, cube_TN = np.empty_like(x_TN), np.empty_like(x_TN), np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    rolling_sum(x_TN, window, out_TN)
    x, out, count = x_TN.reshape(-1), out_TN.reshape(-1), count_TN.reshape(-1)
    square, cube = square_TN.reshape(-1), cube_TN.reshape(-1)
    block = np.empty_like(x)
    for i in range(len(x)):
        block[i] = 0.0 if np.isnan(x[i]) else x[i] * x[i]
    _sum_windows(block, window, N, square)
    for i in range(len(x)):
        block[i] = 0.0 if np.isnan(x[i]) else x[i] * x[i] * x[i]
    _sum_windows(block, window, N, cube)
    for i in range(len(x)):
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
    y, x = np.empty_like(block), np.empty_like(block)  # 0 where not both are known
    for i in range(len(block)):
        y_i, x_i = given_y[i], given_x[i]
        block[i] = y_i + x_i  # NaN where either is NaN
        y[i] = 0.0 if np.isnan(block[i]) else y_i
        x[i] = 0.0 if np.isnan(block[i]) else x_i
    rolling_count(block_TN, window, sums_6TN[0])
    for i in range(len(block)):
        block[i] = x[i]
    _sum_windows(block, window, N, sums_6TN[1].reshape(-1))
    for i in range(len(block)):
        block[i] = y[i]
    _sum_windows(block, window, N, sums_6TN[2].reshape(-1))
    for i in range(len(block)):
        block[i] = x[i] * x[i]
    _sum_windows(block, window, N, sums_6TN[3].reshape(-1))
    for i in range(len(block)):
        block[i] = y[i] * x[i]
    _sum_windows(block, window, N, sums_6TN[4].reshape(-1))
    for i in range(len(block)):
        block[i] = y[i] * y[i]
    _sum_windows(block, window, N, sums_6TN[5].reshape(-1))


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
def rolling_median(x_TN: AnyFloatArray, window: int, min_count: float, out_TN: AnyFloatArray) -> None:
    """Compute the median of known values, keeping the windows of all firms sorted.

    One pass over the ranks removes the leaving value and inserts the entering one. Without the leaving value,
    rank j holds ``s[j]`` if that is below the leaving value, else ``s[j+1]``. With the entering value, rank j
    holds the median of the entering value and two neighbours. Unknown values are stored as infinity, at the
    end.
    """
    T, N = x_TN.shape
    sorted_WN = np.full(
        (min(window, T) + 1, N), np.inf, dtype=x_TN.dtype
    )  # one extra row, which stays infinite
    below_N, entering_N, leaving_N = sorted_WN[0].copy(), sorted_WN[0].copy(), sorted_WN[0].copy()
    count_N = np.zeros(N)
    for t in range(T):
        x, out = x_TN[t], out_TN[t]
        for i in range(N):
            known = not np.isnan(x[i])
            count_N[i] += 1.0 if known else 0.0
            entering_N[i] = x[i] + 0.0 if known else np.inf  # -0 becomes 0; equal values are interchangeable
            below_N[i] = -np.inf
            leaving_N[i] = np.inf
        if t >= window:
            old = x_TN[t - window]
            for i in range(N):
                known = not np.isnan(old[i])
                count_N[i] -= 1.0 if known else 0.0
                leaving_N[i] = old[i] if known else np.inf
        for j in range(len(sorted_WN) - 1):
            this, following = sorted_WN[j], sorted_WN[j + 1]
            for i in range(N):
                other = this[i] if this[i] < leaving_N[i] else following[i]
                smaller = entering_N[i] if entering_N[i] < other else other
                this[i] = below_N[i] if below_N[i] > smaller else smaller
                below_N[i] = other
        for i in range(N):
            n = int(count_N[i])
            if n >= min_count:
                out[i] = 0.5 * (sorted_WN[(n - 1) // 2, i] + sorted_WN[n // 2, i])
            else:
                out[i] = np.nan
