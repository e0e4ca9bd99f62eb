"""Bid-ask spreads from daily prices: Roll 1984, and Corwin and Schultz 2012.

Both are whole spreads as a fraction of the price, and both are causal: row t depends only on sessions up to
t. Windows count sessions, and need half of their values. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import lag, rolling_mean
from features.arrays import FloatArray


def roll_spread(return_TN: FloatArray, window: int) -> FloatArray:
    """Compute the spread that the autocovariance of returns implies (Roll 1984).

    ``2 sqrt(max(-cov(r[s], r[s-1]), 0))`` over ``s = t-window+1..t``, population covariance. Trades alternate
    between bid and ask, so a price that bounces is followed by its reversal.

    Parameters
    ----------
    return_TN : ndarray of shape (T, N)
        Daily returns as fractions; NaN means unknown.
    window : int
        Sessions, at least 1.

    Returns
    -------
    ndarray of shape (T, N)
        0 if the autocovariance is not negative. NaN if fewer than half of the window's pairs of neighbouring
        returns are known.
    """
    before_TN = lag(return_TN, 1)
    both_TN = return_TN * before_TN
    known_TN, least = ~np.isnan(both_TN), (window + 1) // 2
    mean_TN = rolling_mean(np.where(known_TN, return_TN, np.nan), window, least)
    mean_before_TN = rolling_mean(np.where(known_TN, before_TN, np.nan), window, least)
    covariance_TN = rolling_mean(both_TN, window, least) - mean_TN * mean_before_TN
    return 2.0 * np.sqrt(np.maximum(-covariance_TN, 0.0))


def corwin_schultz_spread(
    high_TN: FloatArray, low_TN: FloatArray, close_TN: FloatArray, window: int
) -> FloatArray:
    """Compute the spread that high-low ranges of one day and of two days imply (Corwin and Schultz 2012).

    The range of two days has twice the variance of one day but the same spread. With
    ``b = ln(H/L)^2`` of s-1 plus that of s, ``g = ln(H/L)^2`` of both days together, ``k = 3 - 2 sqrt(2)``
    and ``a = (sqrt(2b) - sqrt(b)) / k - sqrt(g / k)``, the spread of a pair of days is
    ``2 (exp(a) - 1) / (1 + exp(a))``, or 0 if that is negative. High and low of s are first shifted by the
    overnight gap: a close of s-1 outside the range of s moves the range to that close.

    Parameters
    ----------
    high_TN, low_TN, close_TN : ndarray of shape (T, N)
        Positive prices in one unit; NaN means unknown.
    window : int
        Sessions over which the spreads of neighbouring days are averaged, at least 1.

    Returns
    -------
    ndarray of shape (T, N)
        NaN if fewer than half of the window's pairs of neighbouring days are known.
    """
    high_TN, low_TN = np.log(high_TN), np.log(low_TN)
    before_high_TN, before_low_TN = lag(high_TN, 1), lag(low_TN, 1)
    before_TN = lag(np.log(close_TN), 1)
    gap_TN = np.maximum(before_TN - high_TN, 0.0) + np.minimum(before_TN - low_TN, 0.0)
    one_TN = (high_TN - low_TN) ** 2 + (before_high_TN - before_low_TN) ** 2
    high_TN, low_TN = high_TN + gap_TN, low_TN + gap_TN
    two_TN = (np.maximum(high_TN, before_high_TN) - np.minimum(low_TN, before_low_TN)) ** 2
    k = 3.0 - 2.0 * np.sqrt(2.0)
    a_TN = (np.sqrt(2.0 * one_TN) - np.sqrt(one_TN)) / k - np.sqrt(two_TN / k)
    spread_TN = np.maximum(2.0 * np.tanh(0.5 * a_TN), 0.0)
    return rolling_mean(spread_TN, window, (window + 1) // 2)
