"""Rolling statistics of two series: correlation, and skewness of regression residuals.

All are fixed sequences of operations on rows t-W+1..t (`features.arithmetic.rolling`), so causal to the bit.
Moments are computed as differences of rolling means. They are accurate for returns, whose means are small
relative to their deviations, and not for price levels.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import map_tiles, require_window, rolling_mean
from features.arrays import FloatArray

FLAT = 1e-14  # of the mean square: a variance below it is rounding


def rolling_correlation(y_TN: FloatArray, x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Correlate two series over the sessions of the window on which both are known.

    Parameters
    ----------
    y_TN : ndarray of shape (T, N)
        Values with gaps; their deviations must not be small relative to their means.
    x_TN : ndarray of shape (T, N) or (T, 1)
        The same.
    window : int
        Sessions, t included.
    min_count : int
        Minimum number of sessions; below it the result is NaN, as for a series without variation.

    Returns
    -------
    ndarray of shape (T, N)
        Pearson's correlation, within [-1, 1].
    """
    require_window(window)
    from features.arithmetic import kernels

    least = float(max(min_count, 1))
    return map_tiles(
        lambda x, out: kernels.rolling_correlation(x[0], x[1], window, least, out[0]),
        y_TN,
        np.broadcast_to(x_TN, y_TN.shape),
    )[0]


def residual_skewness(
    y_TN: FloatArray, x_TN: FloatArray, window: int, min_count: int
) -> tuple[FloatArray, FloatArray]:
    r"""Compute the skewness and coskewness of the residuals of a regression of y on x.

    With ``e`` the residuals of the regression with an intercept over the window and ``d = x - mean(x)``:
    skewness ``E[e^3] / E[e^2]^1.5``, coskewness ``E[e d^2] / (E[e^2]^0.5 E[d^2])`` (Harvey and Siddique
    2000).

    Parameters
    ----------
    y_TN : ndarray of shape (T, N)
        Returns of each firm.
    x_TN : ndarray of shape (T, N) or (T, 1)
        Returns of the regressor.
    window : int
        Sessions, t included.
    min_count : int
        Minimum number of sessions with both known; below it the result is NaN, as where x or the residuals
        do not vary.

    Returns
    -------
    skewness_TN, coskewness_TN : ndarray of shape (T, N)
        Pure numbers.
    """
    both_TN = ~(np.isnan(y_TN) | np.isnan(x_TN))
    y_TN, x_TN = np.where(both_TN, y_TN, np.nan), np.where(both_TN, x_TN, np.nan)

    def mean(values_TN: FloatArray) -> FloatArray:
        return rolling_mean(values_TN, window, min_count)

    y, x, yy, yx, xx = mean(y_TN), mean(x_TN), mean(y_TN * y_TN), mean(y_TN * x_TN), mean(x_TN * x_TN)
    var_y, cov, var_x = yy - y * y, yx - y * x, xx - x * x
    # third central moments, from raw moments
    yyy = mean(y_TN * y_TN * y_TN) - 3.0 * y * yy + 2.0 * y * y * y
    yyx = mean(y_TN * y_TN * x_TN) - 2.0 * y * yx - x * yy + 2.0 * y * y * x
    yxx = mean(y_TN * x_TN * x_TN) - 2.0 * x * yx - y * xx + 2.0 * y * x * x
    xxx = mean(x_TN * x_TN * x_TN) - 3.0 * x * xx + 2.0 * x * x * x
    moves = var_x > FLAT * xx
    slope = cov / np.where(moves, var_x, 1.0)
    var_e = var_y - slope * cov
    known = moves & (var_y > FLAT * yy) & (var_e > 1e-9 * var_y)
    var_e = np.where(known, var_e, 1.0)
    third = yyy - 3.0 * slope * yyx + 3.0 * slope * slope * yxx - slope * slope * slope * xxx
    skewness_TN = np.where(known, third / (var_e * np.sqrt(var_e)), np.nan)
    joint = yxx - slope * xxx
    coskewness_TN = np.where(known, joint / (np.sqrt(var_e) * np.where(known, var_x, 1.0)), np.nan)
    return skewness_TN, coskewness_TN
