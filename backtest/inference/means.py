"""Tests on daily series: Newey-West errors, tests of a mean, paired tests, Diebold-Mariano.

A series has one value per session, such as the daily IC of a model. Neighbouring values are dependent if
labels span several sessions and overlap. The tests allow for that. NaN values are dropped, and their
neighbours are treated as adjacent; two series are compared on the sessions on which both are known. For
Sharpe ratios, see `backtest.inference.bootstrap`.

A level is a two-sided error rate: level 0.05 gives intervals that cover the true value in 95% of samples, and
a test that rejects a true null hypothesis in 5% of them.

Shape suffix: T sessions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from features.arrays import FloatArray, require_shape

LEVEL = 0.05

MIN_VALUES = 3
"""Values from which a mean has a test and an interval."""


@dataclass(frozen=True, slots=True)
class MeanTest:
    """A series' mean with its Newey-West error, and the test of a mean of zero.

    Attributes
    ----------
    n : int
        Number of known values.
    lags : int
        Newey-West lags used.
    mean, error : float
        The mean and its standard error, in the unit of the series.
    t : float
        ``mean / error``.
    p_value : float
        Two-sided.
    lower, upper : float
        Interval of the mean at the level of the test.

    Examples
    --------
    >>> mean_test(np.random.default_rng(0).normal(0.5, 1.0, 100)).p_value < 0.05
    True
    """

    n: int
    lags: int
    mean: float
    error: float
    t: float
    p_value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class DieboldMariano:
    """Result of `diebold_mariano`: sessions used, mean loss difference, test statistic, two-sided p-value.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100)) ** 2
    >>> diebold_mariano(a, b + 1.0).p_value < 0.01
    True
    """

    n: int
    mean: float
    t: float
    p_value: float


def newey_west_lags(n: int) -> int:
    """Lags for n observations: ``floor(4 (n / 100)^(2/9))`` (Newey and West 1994).

    Examples
    --------
    >>> newey_west_lags(250)
    4
    """
    return math.floor(4.0 * math.pow(n / 100.0, 2.0 / 9.0))


def newey_west_error(x_T: FloatArray, lags: int | None = None) -> float:
    """Newey-West standard error of a series' mean.

    ``sqrt(S / n)`` with ``S = g_0 + 2 sum_{l=1..L} (1 - l / (L+1)) g_l`` and
    ``g_l = (1/n) sum_t e_t e_{t-l}``, no small-sample correction (Newey and West 1987).

    Parameters
    ----------
    x_T : ndarray of shape (T,)
        The series. NaN values are dropped, and their neighbours are treated as adjacent.
    lags : int or None
        L, limited to n - 1; None: `newey_west_lags`.

    Returns
    -------
    float
        In the unit of the series; NaN with fewer than 2 values.

    Examples
    --------
    >>> round(newey_west_error(np.array([1.0, -1.0, 2.0, 0.0]), 1), 3)
    0.28
    """
    known_T = x_T[~np.isnan(x_T)]
    n = len(known_T)
    if n < 2:
        return math.nan
    most = min(newey_west_lags(n) if lags is None else lags, n - 1)
    error_T = known_T - known_T.mean()
    variance = float(error_T @ error_T) / n
    for lag in range(1, most + 1):
        variance += 2.0 * (1.0 - lag / (most + 1.0)) * float(error_T[lag:] @ error_T[:-lag]) / n
    return math.sqrt(max(variance, 0.0) / n)


def newey_west_t(x_T: FloatArray, lags: int | None = None) -> float:
    """Mean of a series over its `newey_west_error`; NaN with fewer than 2 values or no variation.

    Examples
    --------
    >>> round(newey_west_t(np.array([0.02, 0.01, 0.03, 0.02]), 1), 2)
    8.0
    """
    error = newey_west_error(x_T, lags)
    return float(x_T[~np.isnan(x_T)].mean()) / error if error > 0 else math.nan


def overlap_of(horizon: int, step: float) -> int:
    """Number of consecutive labels of ``horizon`` sessions that overlap, one every ``step`` sessions.

    Examples
    --------
    >>> overlap_of(5, 1.0), overlap_of(5, 5.0), overlap_of(5, 4.0)
    (5, 1, 2)
    """
    return math.ceil(horizon / step)


def mean_test_lags(n: int, overlap: int = 1) -> int:
    """Newey-West lags of `mean_test`: the larger of ``1.3 sqrt(n)``, rounded up, and ``3 (overlap - 1)``.

    The first is the rule of Lazarus, Lewis, Stock and Watson (2018) for tests; it needs the critical values
    of `mean_test`. The second keeps the bias small if labels overlap. Limited to n - 1.
    """
    return max(min(max(math.ceil(1.3 * math.sqrt(n)), 3 * (overlap - 1)), n - 1), 0)


def mean_test(x_T: FloatArray, *, overlap: int = 1, level: float = LEVEL) -> MeanTest:
    """Test whether the mean of a dependent series is zero, with Newey-West errors and calibrated p-values.

    The statistic is ``t = mean / newey_west_error`` with L = `mean_test_lags`. With few lags and normal
    critical values this test rejects too often, because the error is estimated from few independent pieces.
    Here t is compared with its distribution for ``b = (L + 1) / n`` held fixed (Kiefer and Vogelsang 2005),
    approximated by ``t sqrt(1 - b + b^2/3)`` having a Student distribution with ``1.5 / b`` degrees of
    freedom: the first factor is the expectation of the estimated variance over the true one, the second is
    its equivalent degrees of freedom. The critical values at 5% are within 1.5% of the published ones for b
    up to 0.2.

    Parameters
    ----------
    x_T : ndarray of shape (T,)
        The series; NaN values are dropped, and their neighbours are treated as adjacent.
    overlap : int
        Number of consecutive values that share data, such as the sessions that a daily label spans.
    level : float
        Two-sided error rate of the interval.

    Returns
    -------
    MeanTest
        With fewer than 3 values, t, the p-value and both bounds are NaN. Without variation of 3 values or
        more, t and the p-value are NaN, and both bounds equal the mean.

    Raises
    ------
    ValueError
        If ``overlap`` is below 1, ``level`` is not between 0 and 1, or a value is infinite.

    Examples
    --------
    >>> round(mean_test(np.random.default_rng(0).normal(0.3, 1.0, 100)).mean, 2)
    0.38
    """
    require_level(level)
    if overlap < 1:
        msg = f"overlap is {overlap}; it must be at least 1 session."
        raise ValueError(msg)
    known_T = known_values("the series", x_T)
    n = len(known_T)
    lags = mean_test_lags(n, overlap)
    mean = float(known_T.mean()) if n else math.nan
    error = newey_west_error(known_T, lags)
    if n < MIN_VALUES:
        return MeanTest(n, lags, mean, error, math.nan, math.nan, math.nan, math.nan)
    if not error > 1e-14 * abs(mean):  # no variation, or one of rounding only
        return MeanTest(n, lags, mean, error, math.nan, math.nan, mean, mean)
    half = critical_value(n, lags, level) * error
    p_value = fixed_b_p_value(mean / error, n, lags)
    return MeanTest(n, lags, mean, error, mean / error, p_value, mean - half, mean + half)


def critical_value(n: int, lags: int, level: float = LEVEL) -> float:
    """Half-width of the interval of `mean_test` in Newey-West errors: 1.96 for many values and few lags.

    >>> round(critical_value(20, 6), 2)
    3.25
    """
    freedom, shrink = _fixed_b(n, lags)
    return float(stdtrit(freedom, 1.0 - level / 2.0)) / shrink


def fixed_b_p_value(t: float, n: int, lags: int) -> float:
    """Two-sided p-value of a t-statistic with Newey-West errors, for the number of lags as in `mean_test`.

    Parameters
    ----------
    t : float
        Estimate over its Newey-West error.
    n, lags : int
        Observations, and lags of the error.

    Returns
    -------
    float
        NaN if t is NaN.
    """
    freedom, shrink = _fixed_b(n, lags)
    return 2.0 * float(stdtr(freedom, -abs(t) * shrink))


def bartlett_bias(n: int, lags: int) -> float:
    """Expectation of the Newey-West variance over the true one: ``1 - b + b^2/3``, ``b = (lags + 1) / n``."""
    b = (lags + 1) / n
    return 1.0 - b + b * b / 3.0


def _fixed_b(n: int, lags: int) -> tuple[float, float]:
    """Degrees of freedom of Student's t, and the factor of t, for ``b = (lags + 1) / n`` held fixed."""
    return 1.5 * n / (lags + 1), math.sqrt(bartlett_bias(n, lags))


def paired_test(a_T: FloatArray, b_T: FloatArray, *, overlap: int = 1, level: float = LEVEL) -> MeanTest:
    """Test whether two daily series have the same mean: `mean_test` of ``a - b``.

    For the daily ICs of two models on the same dates, the dates that are easy or hard for both cancel, so the
    difference is known far better than either IC.

    Parameters
    ----------
    a_T, b_T : ndarray of shape (T,)
        The two series, in the same unit. Sessions with a NaN in either are dropped.
    overlap, level
        As in `mean_test`.

    Returns
    -------
    MeanTest
        Of ``a - b``; see `mean_test` for NaN.

    Raises
    ------
    ValueError
        If the shapes differ, or as in `mean_test`.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100))
    >>> paired_test(a + 1.0, b).p_value < 0.01
    True
    """
    require_shape("the second series", b_T, a_T.shape)
    return mean_test(a_T - b_T, overlap=overlap, level=level)


def diebold_mariano(loss_a_T: FloatArray, loss_b_T: FloatArray, *, horizon: int = 1) -> DieboldMariano:
    """Compare the losses of two forecasts, with the small-sample correction of Harvey and others.

    ``d = loss_a - loss_b``, ``V = (g_0 + 2 sum_{k=1..h-1} g_k) / n`` with the autocovariances
    ``g_k = (1/n) sum_t (d_t - mean d)(d_{t-k} - mean d)``, and
    ``t = mean d / sqrt(V) * sqrt((n + 1 - 2h + h (h-1) / n) / n)``, compared with Student's t with n - 1
    degrees of freedom (Diebold and Mariano 1995; Harvey, Leybourne and Newbold 1997). With ``loss = 1 - IC``
    per date this is the squared error of forecasts and labels that are both standardised within the date,
    halved.

    Parameters
    ----------
    loss_a_T, loss_b_T : ndarray of shape (T,)
        Loss of each forecast per session, in the same unit. Sessions with a NaN in either are dropped.
    horizon : int
        h: number of consecutive losses whose labels overlap. Losses further apart count as uncorrelated.

    Returns
    -------
    DieboldMariano
        A positive mean says that a loses more. t and p-value are NaN if V is not above zero, which can happen
        for h > 1 because the autocovariances have equal weights, or with n <= h.

    Raises
    ------
    ValueError
        If the shapes differ, ``horizon`` is below 1, or a loss is infinite.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100)) ** 2
    >>> round(diebold_mariano(a, b).p_value, 2)
    0.93
    """
    require_shape("the second loss", loss_b_T, loss_a_T.shape)
    if horizon < 1:
        msg = f"horizon is {horizon}; it must be at least 1 session."
        raise ValueError(msg)
    d_T = known_values("the loss difference", loss_a_T - loss_b_T)
    n, h = len(d_T), horizon
    mean = float(d_T.mean()) if n else math.nan
    if n <= h or n < 2:
        return DieboldMariano(n, mean, math.nan, math.nan)
    e_T = d_T - mean
    variance = float(e_T @ e_T) + 2.0 * sum(float(e_T[k:] @ e_T[:-k]) for k in range(1, h))
    correction = (n + 1 - 2 * h + h * (h - 1) / n) / n
    if not (variance > (1e-14 * mean * n) ** 2 and correction > 0):
        return DieboldMariano(n, mean, math.nan, math.nan)
    t = mean / (math.sqrt(variance) / n) * math.sqrt(correction)
    return DieboldMariano(n, mean, t, 2.0 * float(stdtr(n - 1, -abs(t))))


def known_values(name: str, x_T: FloatArray) -> FloatArray:
    """Return the values that are not NaN; ValueError if one is infinite."""
    known_T: FloatArray = x_T[~np.isnan(x_T)]
    if np.isinf(known_T).any():
        msg = f"A value of {name} is infinite; use NaN for an unknown value."
        raise ValueError(msg)
    return known_T


def require_level(level: float) -> None:
    """Raise ValueError unless a level is between 0 and 1."""
    if not 0 < level < 1:
        msg = f"level is {level}; it must be between 0 and 1, such as 0.05."
        raise ValueError(msg)
