"""Confidence sequences: intervals of a mean that hold at every time, however often one looks.

An ordinary interval holds for a number of sessions that was fixed before. Someone who looks every night and
stops when zero is excluded will exclude it sooner or later, even where the mean is zero. A confidence
sequence covers the mean on all nights together with its level.

Shape suffix: T sessions.
"""

from __future__ import annotations

import math

import numpy as np

from backtest.inference.means import LEVEL, known_values, require_level
from features.arrays import FloatArray

BURN_IN = 40
"""Independent values from which a sequence has bounds: with fewer, the variance is too uncertain."""


def confidence_sequence(
    x_T: FloatArray, *, overlap: int = 1, level: float = LEVEL, tightest: int = 250
) -> tuple[FloatArray, FloatArray]:
    """Bounds of the mean of a series at every session, which hold together for all sessions.

    The asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024, Annals of
    Statistics 52): after n values,

    ``mean_n +- s_n sqrt(2 (n r^2 + 1) / (n^2 r^2) log(sqrt(n r^2 + 1) / level))``,

    Robbins' (1970) normal mixture with an estimated variance. ``r^2 = (log(1 / level^2) + log(1 +
    log(1 / level^2))) / tightest`` makes it tightest after ``tightest`` values. ``s_n^2`` is the Newey-West
    long-run variance of the first n values with ``L = 6 (overlap - 1)`` lags, divided by its expectation for
    independent values, ``1 - b + b^2/3`` with ``b = (L + 1) / n``. An interval for a fixed n is about two
    thirds as wide.

    Parameters
    ----------
    x_T : ndarray of shape (T,)
        The series in the order of time; NaN values are dropped, and their neighbours treated as adjacent.
    overlap : int
        Number of consecutive values that share data, such as the sessions that a daily label spans.
    level : float
        Probability that any of the intervals misses the mean.
    tightest : int
        Number of values after which the interval is narrowest in relation to a fixed one.

    Returns
    -------
    lower_T, upper_T : ndarray of shape (T,)
        In the unit of the series, known with the value of the session. NaN before ``overlap`` times
        `BURN_IN` values; at a NaN, the bounds of the value before.

    Raises
    ------
    ValueError
        If ``overlap`` or ``tightest`` is below 1, ``level`` is not between 0 and 1, or a value is infinite.

    Examples
    --------
    >>> lower_T, upper_T = confidence_sequence(np.random.default_rng(0).normal(0.3, 1.0, 400))
    >>> bool(lower_T[-1] > 0), bool((lower_T < 0.3)[BURN_IN:].all())
    (True, True)
    """
    require_level(level)
    for name, value in (("overlap", overlap), ("tightest", tightest)):
        if value < 1:
            msg = f"{name} is {value}; it must be at least 1."
            raise ValueError(msg)
    known_N = known_values("the series", x_T)
    n_N = np.arange(1.0, len(known_N) + 1.0)
    mean_N = np.cumsum(known_N) / n_N
    log_level = -2.0 * math.log(level)
    scale = (log_level + math.log1p(log_level)) / tightest
    variance_N = _long_run_variance(known_N, mean_N, 6 * (overlap - 1))
    width_N = 2.0 * (n_N * scale + 1.0) / (n_N**2 * scale) * (0.5 * np.log1p(n_N * scale) - math.log(level))
    half_N = np.sqrt(variance_N * width_N)
    half_N[: BURN_IN * overlap - 1] = np.nan
    newest_T = np.cumsum(~np.isnan(x_T))  # 0 before the first known value
    lower_N, upper_N = (np.append(np.nan, mean_N + sign * half_N) for sign in (-1.0, 1.0))
    return lower_N[newest_T], upper_N[newest_T]


def _long_run_variance(x_N: FloatArray, mean_N: FloatArray, lags: int) -> FloatArray:
    """Newey-West long-run variance of the first n values, for every n, each around its own mean."""
    n_N, sum_N = np.arange(1.0, len(x_N) + 1.0), np.cumsum(x_N)
    variance_N = np.cumsum(x_N**2) / n_N - mean_N**2
    for lag in range(1, min(lags, len(x_N) - 1) + 1):
        of_pairs = slice(lag, None)
        product_N = np.cumsum(x_N[lag:] * x_N[:-lag])
        both_N = (sum_N[of_pairs] - sum_N[lag - 1]) + sum_N[:-lag]
        centred_N = product_N - mean_N[of_pairs] * both_N + (n_N[of_pairs] - lag) * mean_N[of_pairs] ** 2
        variance_N[of_pairs] += 2.0 * (1.0 - lag / (lags + 1.0)) * centred_N / n_N[of_pairs]
    share_N = np.minimum((lags + 1.0) / n_N, 1.0)
    return np.maximum(variance_N, 0.0) / (1.0 - share_N + share_N**2 / 3.0)
