"""Compiled loops over tiles of a panel: what numpy cannot say, or says with too many passes over memory.

Every array is C-contiguous. A kernel holds no lock of the interpreter and starts no thread of its own:
`features.tiles` runs it on several tiles at once, so that a result depends on no number of threads. There is
no reassociation of sums (``fastmath`` is off): a result is a fixed sequence of operations.

Importing this module imports numba, so importers do it inside functions. Machine code is kept beside this
file in ``__pycache__``, or in the user's cache folder where that is read-only.

Shape suffixes: T sessions, N firms (of a tile).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from features.arrays import Float32Array, FloatArray

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a loop on its first call; division by zero gives what IEEE 754 says."""
    return cast("Loop", numba.njit(nogil=True, cache=True, error_model="numpy")(loop))


@compiled
def keep_traded(x_TN: FloatArray, quiet_TN: FloatArray, warmup: int, halt: float, out_TN: FloatArray) -> None:
    """Keep finite values of firms that trade now and were heard of ``warmup`` sessions ago; NaN elsewhere."""
    for t in range(x_TN.shape[0]):
        for i in range(x_TN.shape[1]):
            heard = t >= warmup and quiet_TN[t - warmup, i] <= halt
            known = heard and quiet_TN[t, i] == 0.0 and np.isfinite(x_TN[t, i])
            out_TN[t, i] = x_TN[t, i] if known else np.nan


@compiled
def store_float32(x_TN: FloatArray, first: int, out_TN: Float32Array) -> None:
    """Write firms of a tile to their columns, from ``first`` on; NaN beyond what float32 holds."""
    for t in range(x_TN.shape[0]):
        for i in range(x_TN.shape[1]):
            x = np.float32(x_TN[t, i])
            out_TN[t, first + i] = np.float32(np.nan) if np.isinf(x) else x


@compiled
def carry(x_TN: FloatArray, out_TN: FloatArray) -> None:
    """Repeat each firm's last known value."""
    for t in range(x_TN.shape[0]):
        for i in range(x_TN.shape[1]):
            out_TN[t, i] = out_TN[t - 1, i] if np.isnan(x_TN[t, i]) and t > 0 else x_TN[t, i]


@compiled
def rolling_count(x_TN: FloatArray, window: int, out_TN: FloatArray) -> None:
    """Count known values. Whole numbers do not round, so here a running count is exact."""
    T, N = x_TN.shape
    for t in range(T):
        for i in range(N):
            before = out_TN[t - 1, i] if t > 0 else 0.0
            gone = 1.0 if t >= window and not np.isnan(x_TN[t - window, i]) else 0.0
            come = 0.0 if np.isnan(x_TN[t, i]) else 1.0
            out_TN[t, i] = before + come - gone


@compiled
def _add(to: FloatArray, other: FloatArray) -> None:
    for i in range(len(to)):
        to[i] += other[i]


@compiled
def _sum_windows(block: FloatArray, window: int, N: int, total: FloatArray) -> None:
    """Sum windows of sessions by doubling; a block of 2m sessions is the sum of two neighbours of m.

    ``block`` holds T rows of N values without a NaN, and is used up. Rows before the first count as zero.
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
        high = end  # from the last row to the first, so that what is read was not yet added to
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
def rolling_mean(x_TN: FloatArray, window: int, least: float, out_TN: FloatArray) -> None:
    """Average known values; NaN below ``least`` of them."""
    rolling_sum(x_TN, window, out_TN)
    count_TN = np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    out, count = out_TN.reshape(-1), count_TN.reshape(-1)
    for i in range(len(out)):
        out[i] = out[i] / count[i] if count[i] >= least else np.nan


@compiled
def rolling_std(x_TN: FloatArray, window: int, least: float, out_TN: FloatArray) -> None:
    """Take the sample deviation of known values; NaN below ``least``, which is at least 2."""
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
        out[i] = np.sqrt(variance * n / (n - 1.0)) if count[i] >= least else np.nan


@compiled
def rolling_skewness(x_TN: FloatArray, window: int, least: float, out_TN: FloatArray) -> None:
    """Take ``m3 / m2^1.5`` of known values; NaN below ``least`` >= 3 and without variation."""
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
        known = count[i] >= least and variance > 1e-14 * mean_square
        out[i] = third / (variance * np.sqrt(variance)) if known else np.nan


@compiled
def rolling_regression(  # noqa: PLR0917 - a compiled loop takes places for its answers, all by position
    y_TN: FloatArray,
    x_TN: FloatArray,
    window: int,
    least: float,
    slope_TN: FloatArray,
    residual_TN: FloatArray,
) -> None:
    """Regress y on x with an intercept over the sessions on which both are known, at least ``least`` >= 3."""
    N = y_TN.shape[1]
    count_TN, sum_xx_TN, sum_xy_TN = np.empty_like(y_TN), np.empty_like(y_TN), np.empty_like(y_TN)
    sum_x_TN, sum_y_TN, block_TN = np.empty_like(y_TN), np.empty_like(y_TN), np.empty_like(y_TN)
    y, x, block, count = y_TN.reshape(-1), x_TN.reshape(-1), block_TN.reshape(-1), count_TN.reshape(-1)
    sum_x, sum_y = sum_x_TN.reshape(-1), sum_y_TN.reshape(-1)
    sum_xx, sum_xy, sum_yy = sum_xx_TN.reshape(-1), sum_xy_TN.reshape(-1), residual_TN.reshape(-1)
    slope, residual = slope_TN.reshape(-1), residual_TN.reshape(-1)
    for i in range(len(y)):
        block[i] = y[i] + x[i]  # NaN where either is
    rolling_count(block_TN, window, count_TN)
    for i in range(len(y)):
        block[i] = 0.0 if np.isnan(y[i] + x[i]) else x[i]
    _sum_windows(block, window, N, sum_x)
    for i in range(len(y)):
        block[i] = 0.0 if np.isnan(y[i] + x[i]) else y[i]
    _sum_windows(block, window, N, sum_y)
    for i in range(len(y)):
        block[i] = 0.0 if np.isnan(y[i] + x[i]) else x[i] * x[i]
    _sum_windows(block, window, N, sum_xx)
    for i in range(len(y)):
        block[i] = 0.0 if np.isnan(y[i] + x[i]) else y[i] * x[i]
    _sum_windows(block, window, N, sum_xy)
    for i in range(len(y)):
        block[i] = 0.0 if np.isnan(y[i] + x[i]) else y[i] * y[i]
    _sum_windows(block, window, N, sum_yy)
    for i in range(len(y)):
        n = max(count[i], 3.0)
        mean_x, mean_y = sum_x[i] / n, sum_y[i] / n
        variance_x, variance_y = sum_xx[i] / n - mean_x * mean_x, sum_yy[i] / n - mean_y * mean_y
        covariance = sum_xy[i] / n - mean_y * mean_x
        slope[i] = covariance / variance_x if count[i] >= least and variance_x > 0.0 else np.nan
        left = variance_y - slope[i] * covariance
        left = 0.0 if left < 0.0 else left  # rounding; NaN stays
        residual[i] = np.sqrt(left * n / (n - 2.0))


@compiled
def rolling_max(x_TN: FloatArray, window: int, least: float, out_TN: FloatArray) -> None:
    """Take the largest known value by doubling; overlapping blocks do no harm to an extreme."""
    T, N = x_TN.shape
    for t in range(T):
        for i in range(N):
            out_TN[t, i] = -np.inf if np.isnan(x_TN[t, i]) else x_TN[t, i]
    size = 1
    while size < min(window, T):
        step = min(size, window - size)
        for t in range(T - 1, step - 1, -1):  # downwards: what is read has not grown yet
            for i in range(N):
                out_TN[t, i] = max(out_TN[t, i], out_TN[t - step, i])
        size += step
    count_TN = np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    for t in range(T):
        for i in range(N):
            out_TN[t, i] = out_TN[t, i] if count_TN[t, i] >= least else np.nan


@compiled
def _place(sorted_W: FloatArray, n: int, value: float) -> int:
    """Find the first of n sorted values that is not below a value."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if sorted_W[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def rolling_median(x_TN: FloatArray, window: int, least: float, out_TN: FloatArray) -> None:
    """Take the median of known values from a sorted copy of the window, one exchange a session."""
    T, N = x_TN.shape
    sorted_W = np.empty(min(window, T))
    for i in range(N):
        n = 0
        for t in range(T):
            come = x_TN[t, i] + 0.0  # -0 becomes 0, so that which of two equal values leaves is no matter
            gone = x_TN[t - window, i] + 0.0 if t >= window else np.nan
            place = n
            if not np.isnan(gone):
                place = _place(sorted_W, n, gone)
                if np.isnan(come):
                    n -= 1
                    for j in range(place, n):
                        sorted_W[j] = sorted_W[j + 1]
            elif not np.isnan(come):
                n += 1
            if not np.isnan(come):
                while place + 1 < n and sorted_W[place + 1] < come:
                    sorted_W[place] = sorted_W[place + 1]
                    place += 1
                while place > 0 and sorted_W[place - 1] > come:
                    sorted_W[place] = sorted_W[place - 1]
                    place -= 1
                sorted_W[place] = come
            if n >= least:
                out_TN[t, i] = 0.5 * (sorted_W[(n - 1) // 2] + sorted_W[n // 2])
            else:
                out_TN[t, i] = np.nan
