"""Causal rolling statistics on ``[T, N]`` arrays, NaN aware and causal to the bit.

Row t of every result is a fixed sequence of elementwise operations on rows t-W+1..t, so it can depend on
no later row and on no row outside the window, not even in its last bit. Running sums (``cumsum`` and
its differences) are avoided: they are causal but drag the rounding of all the past along, and one huge value
spoils every later window. Sums and extremes are built by doubling (the sum over 2m sessions is the sum of
two neighbouring sums over m), about 2 log2(W) passes over the array and rounding like a pairwise sum.

Windows count sessions, not prices: a halt uses up its place in the window and contributes nothing.
Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray


def lag(x_TN: FloatArray, k: int) -> FloatArray:
    """Give the value k sessions ago.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Any values.
    k : int
        Sessions to look back, at least 0.

    Returns
    -------
    ndarray of shape (T, N)
        ``x[t-k]``; NaN in the first k rows.

    Raises
    ------
    ValueError
        If k is negative: that would look ahead.
    """
    if k < 0:
        msg = f"A lag of {k} sessions looks ahead: give 0 or more."
        raise ValueError(msg)
    out_TN = np.full_like(x_TN, np.nan)
    out_TN[k:] = x_TN[: len(x_TN) - k] if k < len(x_TN) else x_TN[:0]
    return out_TN


def last_known_index(known_TN: BoolArray) -> IntArray:
    """Give the index of the last session, t included, on which a value was known; -1 before the first."""
    index_TN = np.where(known_TN, np.arange(len(known_TN))[:, None], -1)
    filled: IntArray = np.maximum.accumulate(index_TN, axis=0)
    return filled


def carry(x_TN: FloatArray) -> FloatArray:
    """Carry each firm's last known value forward over NaN.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Values with gaps.

    Returns
    -------
    ndarray of shape (T, N)
        ``x[s]`` with s the last session <= t where x is not NaN; NaN before the first.
    """
    index_TN = last_known_index(~np.isnan(x_TN))
    out_TN: FloatArray = np.take_along_axis(x_TN, np.maximum(index_TN, 0), axis=0)
    out_TN[index_TN < 0] = np.nan
    return out_TN


def sessions_since_first(x_TN: FloatArray) -> IntArray:
    """Count the sessions since a firm's first known value: 0 on that session, -1 before it."""
    started_TN = np.logical_or.accumulate(~np.isnan(x_TN), axis=0)
    age_TN: IntArray = np.cumsum(started_TN, axis=0, dtype=np.int64) - 1
    return age_TN


def _require_window(window: int) -> None:
    if window < 1:
        msg = f"A rolling window of {window} sessions is empty: give 1 or more."
        raise ValueError(msg)


def _windowed_sum(x_TN: FloatArray, window: int) -> FloatArray:
    """Sum the window by doubling; rows before the panel's start count as zero. x must hold no NaN."""
    _require_window(window)
    total_TN = np.zeros_like(x_TN)
    block_TN, size, offset, left = x_TN, 1, 0, window
    while True:
        if left & 1:  # this power of two is part of the window: its block starts `offset` sessions back
            if offset < len(x_TN):
                total_TN[offset:] += block_TN[: len(x_TN) - offset]
            offset += size
        left >>= 1
        if left == 0:
            return total_TN
        doubled_TN = block_TN.copy()
        if size < len(x_TN):
            doubled_TN[size:] += block_TN[:-size]
        block_TN, size = doubled_TN, 2 * size


def _windowed_extreme(
    x_TN: FloatArray, window: int, pick: Callable[[FloatArray, FloatArray], FloatArray]
) -> FloatArray:
    """Take the window's extreme by doubling; overlapping blocks do no harm to an extreme. x holds no NaN."""
    _require_window(window)
    block_TN, size = x_TN.copy(), 1
    while size < window:
        step = min(size, window - size)
        grown_TN = block_TN.copy()
        if step < len(x_TN):
            grown_TN[step:] = pick(block_TN[step:], block_TN[:-step])
        block_TN, size = grown_TN, size + step
    return block_TN


def rolling_count(x_TN: AnyFloatArray, window: int) -> FloatArray:
    """Count the known values among the last ``window`` sessions, t included.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Values with gaps.
    window : int
        Sessions, at least 1.

    Returns
    -------
    ndarray of shape (T, N)
        Counts as float64 (exact).

    Raises
    ------
    ValueError
        If the window is empty.
    """
    return _windowed_sum((~np.isnan(x_TN)).astype(np.float64), window)


def rolling_sum(x_TN: FloatArray, window: int) -> FloatArray:
    """Sum the known values of the last ``window`` sessions; NaN counts as zero, so 0 where none is known."""
    return _windowed_sum(np.where(np.isnan(x_TN), 0.0, x_TN), window)


def rolling_mean(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Average the known values of the last ``window`` sessions.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Values with gaps.
    window : int
        Sessions, t included.
    min_count : int
        Fewer known values than this give NaN.

    Returns
    -------
    ndarray of shape (T, N)
        The mean, in x's unit.
    """
    count_TN = rolling_count(x_TN, window)
    mean_TN = rolling_sum(x_TN, window) / np.maximum(count_TN, 1.0)
    mean_TN[count_TN < max(min_count, 1)] = np.nan
    return mean_TN


def rolling_std(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Take the sample standard deviation (n - 1) of the known values of the last ``window`` sessions.

    Computed as ``E[x^2] - E[x]^2``, which is accurate where the mean is not large against the deviation:
    meant for returns, not for price levels. A deviation below 1e-7 of the root mean square is rounding: 0.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Returns, or other values that scatter around a mean of their own size or less.
    window : int
        Sessions, t included.
    min_count : int
        Fewer known values than this (or than 2) give NaN.

    Returns
    -------
    ndarray of shape (T, N)
        The deviation, in x's unit.
    """
    count_TN = rolling_count(x_TN, window)
    n_TN = np.maximum(count_TN, 2.0)
    square_TN = rolling_sum(x_TN * x_TN, window) / n_TN
    mean_TN = rolling_sum(x_TN, window) / n_TN
    variance_TN = square_TN - mean_TN * mean_TN
    variance_TN[variance_TN < 1e-14 * square_TN] = 0.0
    std_TN = np.sqrt(variance_TN * n_TN / (n_TN - 1.0))
    std_TN[count_TN < max(min_count, 2)] = np.nan
    return std_TN


def rolling_skewness(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Take the skewness ``m3 / m2^1.5`` (population moments) of the known values of the last sessions.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Returns (the remark on accuracy of `rolling_std` applies).
    window : int
        Sessions, t included.
    min_count : int
        Fewer known values than this (or than 3) give NaN; so does a window without variation.

    Returns
    -------
    ndarray of shape (T, N)
        Skewness, a pure number.
    """
    count_TN = rolling_count(x_TN, window)
    n_TN = np.maximum(count_TN, 1.0)
    mean_TN = rolling_sum(x_TN, window) / n_TN
    square_TN = rolling_sum(x_TN * x_TN, window) / n_TN
    cube_TN = rolling_sum(x_TN * x_TN * x_TN, window) / n_TN
    variance_TN = square_TN - mean_TN * mean_TN
    third_TN = cube_TN - 3.0 * mean_TN * square_TN + 2.0 * mean_TN * mean_TN * mean_TN
    unknown_TN = (count_TN < max(min_count, 3)) | (variance_TN <= 1e-14 * square_TN)
    spread_TN = np.where(unknown_TN, 1.0, variance_TN)
    return np.where(unknown_TN, np.nan, third_TN / (spread_TN * np.sqrt(spread_TN)))


def rolling_max(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Take the largest known value of the last ``window`` sessions; NaN below ``min_count`` known values."""
    known_TN = np.where(np.isnan(x_TN), -np.inf, x_TN)
    out_TN = _windowed_extreme(known_TN, window, np.maximum)
    out_TN[rolling_count(x_TN, window) < max(min_count, 1)] = np.nan
    return out_TN


def rolling_median(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Take the median of the known values of the last ``window`` sessions.

    A median selects values (and averages two of them at most), so it carries no running error.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N)
        Values with gaps.
    window : int
        Sessions, t included.
    min_count : int
        Fewer known values than this give NaN.

    Returns
    -------
    ndarray of shape (T, N)
        The median, in x's unit.
    """
    _require_window(window)
    frame = pl.DataFrame({str(i): x_TN[:, i] for i in range(x_TN.shape[1])}, nan_to_null=True)
    medians = frame.select(pl.all().rolling_median(window, min_samples=max(min_count, 1)))
    out_TN: FloatArray = np.full(x_TN.shape, np.nan)
    for i, column in enumerate(medians.iter_columns()):
        out_TN[:, i] = column.fill_null(float("nan")).to_numpy()
    return out_TN
