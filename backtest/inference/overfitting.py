"""How far the best of many backtests can be believed.

Probabilistic and deflated Sharpe ratios, the effective number of trials, the probability of backtest
overfitting, and Rademacher bounds.

A Sharpe ratio is annualised here, as in `backtest.accounts.performance`; the formulas of the papers are for
ratios per session, and are applied to those.

Shape suffixes: T sessions, V variants (trials), S blocks of sessions, M combinations of blocks, R draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import ndtr, ndtri

from backtest.inference.means import LEVEL, bartlett_bias, mean_test_lags, newey_west_error, require_level
from features.arrays import FloatArray
from features.information_coefficient import average_ranks
from features.panel.periods import SESSIONS_PER_YEAR

DRAWS = 1000
"""Draws of random signs. The mean of the best of them is known to about 0.01 standard deviations."""

_PERSISTENT = 0.97
"""Largest autocorrelation that is removed before the long-run variance is measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Overfitting:
    """Result of `probability_of_overfitting`.

    Attributes
    ----------
    probability : float
        Share of the combinations whose best variant in sample is at or below the median out of sample.
    loss_probability : float
        Share of the combinations whose best variant in sample has a negative Sharpe ratio out of sample.
    logit_M : ndarray of shape (M,)
        ``ln(w / (1 - w))`` for each combination, with w the relative rank out of sample, in (0, 1), of the
        variant that was best in sample.
    in_sample_M, out_of_sample_M : ndarray of shape (M,)
        Sharpe ratios per session of that variant on the two halves.

    Examples
    --------
    >>> returns = np.random.default_rng(0).normal(0.0, 0.01, (320, 10))
    >>> 0.0 <= probability_of_overfitting(returns, blocks=8).probability <= 1.0
    True
    """

    probability: float
    loss_probability: float
    logit_M: FloatArray
    in_sample_M: FloatArray
    out_of_sample_M: FloatArray


def probabilistic_sharpe(return_T: FloatArray, benchmark: float = 0.0) -> float:
    """Probability that a book's true Sharpe ratio exceeds a benchmark, given its history.

    ``PSR = Z((sr - sr*) sqrt(n - 1) / sqrt(1 - g3 sr + (g4 - 1) / 4 sr^2))`` with the Sharpe ratio ``sr``
    and the benchmark ``sr*`` per session, the skewness g3 and the kurtosis g4 (3 for a normal distribution)
    of the returns, and the normal distribution function Z (Bailey and Lopez de Prado 2012). n is
    `effective_sessions`: with the number of sessions, 9% and 16% instead of 5% of books without skill exceed
    0.95 at autocorrelations of 0.2 and 0.5.

    Parameters
    ----------
    return_T : ndarray of shape (T,)
        Excess return per session, a fraction; NaN values are dropped.
    benchmark : float
        Annualised Sharpe ratio to exceed.

    Returns
    -------
    float
        In [0, 1]. NaN with fewer than 3 returns, without variation, or if the term under the root is not
        above zero.

    Raises
    ------
    ValueError
        If a return is infinite.

    Examples
    --------
    >>> round(probabilistic_sharpe(np.random.default_rng(0).normal(0.001, 0.01, 500)), 2)
    0.94
    """
    known_T = return_T[~np.isnan(return_T)]
    if np.isinf(known_T).any():
        msg = "A return is infinite; use NaN for an unknown return."
        raise ValueError(msg)
    if len(known_T) < 3 or (known_T == known_T[0]).all():
        return math.nan
    n = effective_sessions(known_T)
    error_T = known_T - known_T.mean()
    variance = float(np.mean(error_T**2))
    skewness = float(np.mean(error_T**3)) / variance**1.5
    kurtosis = float(np.mean(error_T**4)) / variance**2
    sharpe = float(known_T.mean() / known_T.std(ddof=1))
    scale = 1.0 - skewness * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2
    if not scale > 0:
        return math.nan
    excess = sharpe - benchmark / math.sqrt(SESSIONS_PER_YEAR)
    return float(ndtr(excess * math.sqrt((n - 1) / scale)))


def effective_sessions(return_T: FloatArray) -> float:
    """Number of independent returns whose mean would be known as well as that of autocorrelated ones.

    ``n var / S`` with the long-run variance S. The first autocorrelation is removed before S is measured and
    put back (Andrews and Monahan 1992): ``S = S_u / (1 - r)^2`` with ``u_t = e_t - r e_{t-1}`` and S_u by
    Newey and West with the lags of `backtest.inference.means.mean_test_lags`, over the share of it that is
    expected with that many lags. r is corrected for its bias of ``-(1 + 3 r) / n``.

    Parameters
    ----------
    return_T : ndarray of shape (T,)
        Return per session; NaN values are dropped, and their neighbours are treated as adjacent.

    Returns
    -------
    float
        Between 2 and the number of known values n: negative autocorrelation is not counted as more evidence.
        n itself below 3 values or without variation.
    """
    known_T = return_T[~np.isnan(return_T)]
    n = len(known_T)
    if n < 3 or (known_T == known_T[0]).all():
        return float(n)
    e_T = known_T - known_T.mean()
    variance = float(e_T @ e_T) / n
    r = float(e_T[1:] @ e_T[:-1]) / (n * variance)
    r = min(max(r + (1.0 + 3.0 * r) / n, 0.0), _PERSISTENT)
    u_T, lags = e_T[1:] - r * e_T[:-1], mean_test_lags(n - 1)
    innovations = (n - 1) * newey_west_error(u_T, lags) ** 2 / bartlett_bias(n - 1, lags)
    return (
        float(min(max(n * variance * (1.0 - r) ** 2 / innovations, 2.0), n)) if innovations > 0 else float(n)
    )


def expected_best_sharpe(trials: float, deviation: float) -> float:
    """Sharpe ratio that the best of several trials without skill is expected to have.

    ``deviation * ((1 - g) Zinv(1 - 1/N) + g Zinv(1 - 1/(N e)))`` with N independent trials whose Sharpe
    ratios are normal around zero, and g = 0.5772 (Bailey and Lopez de Prado 2014).

    Parameters
    ----------
    trials : float
        Number of trials, at least 1. An `effective_trials` is not a whole number; between 1 and 2, where the
        formula becomes negative, the result is interpolated.
    deviation : float
        Standard deviation of the Sharpe ratios of the trials. The result has its unit.

    Returns
    -------
    float
        0 for one trial.

    Raises
    ------
    ValueError
        If ``trials`` is below 1 or ``deviation`` is negative.

    Examples
    --------
    >>> round(expected_best_sharpe(100, 0.05), 3)
    0.127
    """
    if trials < 1:
        msg = f"trials is {trials}; count at least the trial itself."
        raise ValueError(msg)
    if not deviation >= 0:
        msg = f"deviation is {deviation}; a standard deviation cannot be negative."
        raise ValueError(msg)
    if trials < 2:
        return (trials - 1.0) * expected_best_sharpe(2, deviation)
    high, higher = ndtri(1.0 - 1.0 / trials), ndtri(1.0 - 1.0 / (trials * math.e))
    return deviation * float((1.0 - np.euler_gamma) * high + np.euler_gamma * higher)


def deflated_sharpe(return_T: FloatArray, trials: float, *, deviation: float | None = None) -> float:
    """Probability that a book has skill, given that it is the best of many trials.

    `probabilistic_sharpe` against the benchmark `expected_best_sharpe`: 0.95 or more means that the best of
    ``trials`` books without skill would reach this Sharpe ratio only rarely (Bailey and Lopez de Prado 2014).

    Parameters
    ----------
    return_T : ndarray of shape (T,)
        Excess return per session of the selected trial, a fraction; NaN values are dropped.
    trials : float
        Number of trials that it was selected from, itself included. If trials that resemble each other count
        in full, the result is too low rather than too high; `effective_trials` allows for that.
    deviation : float, optional
        Standard deviation of the trials' annualised Sharpe ratios. None: ``sqrt(252 / (n - 1))``, the
        sampling error of a Sharpe ratio of zero over n `effective_sessions`. That is the spread of trials
        without skill, and needs no record of their results.

    Returns
    -------
    float
        In [0, 1]; NaN as in `probabilistic_sharpe`. With one trial it is `probabilistic_sharpe`.

    Raises
    ------
    ValueError
        If ``trials`` is below 1, ``deviation`` is negative, or a return is infinite.

    Examples
    --------
    >>> round(deflated_sharpe(np.random.default_rng(0).normal(0.001, 0.01, 500), trials=20), 2)
    0.39
    """
    if deviation is None:
        n = effective_sessions(return_T)
        deviation = math.sqrt(SESSIONS_PER_YEAR / (n - 1)) if n > 1 else 0.0
    return probabilistic_sharpe(return_T, expected_best_sharpe(trials, deviation))


def effective_trials(return_TV: FloatArray, *, draws: int = DRAWS, seed: int = 0) -> float:
    """Number of independent trials whose best is as good, by luck alone, as the best of correlated ones.

    The Sharpe ratios of trials without skill are correlated as their returns are. Their expected best is
    ``b = E max_v sum_t s_t x_tv / |x_v|`` with random signs s and centred returns x, and the effective number
    is the N of independent normal values whose expected maximum is b. Ten copies of one trial count as one,
    and trials that do not resemble each other count in full. A formula of the mean correlation does not do
    that: ten groups of ten copies have the mean correlation of many independent trials.

    Parameters
    ----------
    return_TV : ndarray of shape (T, V)
        Return per session of every trial. NaN where it has none; trials resemble each other on the sessions
        that they share. Trials without variation do not count.
    draws, seed
        Number and seed of the draws of signs.

    Returns
    -------
    float
        Between 1 and V; 0 without a trial that varies.

    Examples
    --------
    >>> returns = np.random.default_rng(0).normal(size=(250, 1)) * np.ones(5)
    >>> round(effective_trials(returns + 1e-3 * np.random.default_rng(1).normal(size=(250, 5))), 1)
    1.0
    """
    centred_TV = np.nan_to_num(return_TV - _column_means(return_TV))
    norm_V = np.sqrt((centred_TV**2).sum(axis=0))
    varies_V = norm_V > 0
    count = int(varies_V.sum())
    if count < 2:
        return float(count)
    best = _best_by_sign(centred_TV[:, varies_V] / norm_V[varies_V], draws, seed)
    low, high = 1.0, float(count)
    if _expected_maximum(high) <= best:
        return high
    for _ in range(40):  # the expected maximum grows with the number
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _expected_maximum(middle) > best else (middle, high)
    return low


def _expected_maximum(number: float) -> float:
    """Expected maximum of independent standard normal values: ``int_0 (1 - Z(x)^N - Z(-x)^N) dx``."""
    x_G = np.linspace(0.0, 9.0, 2001)
    return float(np.trapezoid(1.0 - ndtr(x_G) ** number - ndtr(-x_G) ** number, x_G))


@dataclass(frozen=True, slots=True, eq=False)
class RademacherBound:
    """Result of `rademacher_bound`. All figures are annualised Sharpe ratios.

    Attributes
    ----------
    snooping : float
        What is taken off because the best of all trials is looked at: twice the Rademacher complexity.
    estimation : float
        What is taken off for the length of the history.
    lower_V : ndarray of shape (V,)
        Lower bound of each trial's true Sharpe ratio. All bounds hold together.

    Examples
    --------
    >>> returns = np.random.default_rng(0).normal(0.0, 0.01, (500, 10))
    >>> rademacher_bound(returns).lower_V.shape
    (10,)
    """

    snooping: float
    estimation: float
    lower_V: FloatArray


def rademacher_bound(
    return_TV: FloatArray,
    *,
    trials: int | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
    periods_per_year: float = SESSIONS_PER_YEAR,
) -> RademacherBound:
    """Bound the true Sharpe ratios of all trials at once from below: the Rademacher anti-serum.

    ``sr_v - 2 R - 3 sqrt(2 ln(2 / a) / T) - sqrt(2 ln(2 V / a) / T)`` per session at level a, with the
    complexity ``R = E max_v (1/T) sum_t s_t x_tv`` over random signs s, and returns x in standard deviations
    (Paleologo 2024, "The Elements of Quantitative Investing", chapter on backtesting). R says how well the
    trials as a set fit noise, so copies of one trial cost nothing. The bound holds for every length of the
    history. It is therefore strict: with four years, about 6 is taken off before R is counted.

    Parameters
    ----------
    return_TV : ndarray of shape (T, V)
        Excess return per session of every trial, a fraction; NaN where it has none.
    trials : int, optional
        Number of trials if there are more than have returns; None: V.
    level : float
        Probability that one of the bounds or more is above the true value.
    draws, seed
        Number and seed of the draws of signs.
    periods_per_year : float
        Sessions in a year.

    Returns
    -------
    RademacherBound
        NaN for a trial without variation.

    Raises
    ------
    ValueError
        If ``level`` is not between 0 and 1, or ``trials`` is below V.

    Examples
    --------
    >>> returns = np.random.default_rng(0).normal(0.0, 0.01, (500, 10))
    >>> bool((rademacher_bound(returns).lower_V < 0).all())  # noise proves nothing
    True
    """
    require_level(level)
    length, columns = return_TV.shape
    count = columns if trials is None else trials
    if count < columns:
        msg = f"trials is {count}, fewer than the {columns} that have returns."
        raise ValueError(msg)
    mean_V = _column_means(return_TV)
    known_V = np.maximum((~np.isnan(return_TV)).sum(axis=0), 2)
    deviation_V = np.sqrt((np.nan_to_num(return_TV - mean_V) ** 2).sum(axis=0) / (known_V - 1))
    deviation_V[~(deviation_V > 1e-12 * np.abs(mean_V))] = np.nan
    x_TV = np.nan_to_num(return_TV / deviation_V)
    annual = math.sqrt(periods_per_year)
    snooping = 2.0 * _best_by_sign(x_TV, draws, seed) / length * annual
    estimation = 3.0 * math.sqrt(2.0 * math.log(2.0 / level) / length)
    estimation = (estimation + math.sqrt(2.0 * math.log(2.0 * count / level) / length)) * annual
    return RademacherBound(snooping, estimation, mean_V / deviation_V * annual - snooping - estimation)


def _column_means(x_TV: FloatArray) -> FloatArray:
    """Means of the known values; 0 for a column without any."""
    means_V: FloatArray = np.nan_to_num(x_TV).sum(axis=0) / np.maximum((~np.isnan(x_TV)).sum(axis=0), 1)
    return means_V


def _best_by_sign(x_TV: FloatArray, draws: int, seed: int) -> float:
    """Mean, over draws of random signs, of the largest of the columns' signed sums; signs come in pairs."""
    sign_RT = np.random.default_rng(seed).integers(2, size=((draws + 1) // 2, len(x_TV))) * 2.0 - 1.0
    sum_RV = sign_RT @ x_TV
    return float((sum_RV.max(axis=1) - sum_RV.min(axis=1)).mean()) / 2.0


def probability_of_overfitting(return_TV: FloatArray, *, blocks: int = 16) -> Overfitting:
    """Probability of backtest overfitting by combinatorially symmetric cross-validation (CSCV).

    The sessions are cut into S consecutive blocks of equal length. For every choice of S/2 blocks, the
    variant with the highest Sharpe ratio on these blocks is ranked by its Sharpe ratio on the other blocks:
    ``w = rank / (V + 1)``, rank 1 being the lowest. The probability is the share of choices with a logit
    ``ln(w / (1 - w))`` of at most 0 (Bailey, Borwein, Lopez de Prado and Zhu 2017). About one half is what
    variants without skill give; more means that selection picks what then disappoints.

    Parameters
    ----------
    return_TV : ndarray of shape (T, V)
        Return per session of every variant that was tried, a fraction. If T is not a multiple of S, the
        oldest sessions are left out.
    blocks : int
        S: even, at least 2. There are ``S! / (S/2)!^2`` choices: 12,870 for 16.

    Returns
    -------
    Overfitting
        Ties share their mean rank. A variant without variation on some blocks has a Sharpe ratio of 0 there.

    Raises
    ------
    ValueError
        If there are fewer than 2 variants, a return is NaN or infinite, ``blocks`` is odd or below 2, or a
        block would have fewer than 2 sessions.

    Examples
    --------
    >>> returns = np.random.default_rng(0).normal(0.0, 0.01, (320, 10))
    >>> probability_of_overfitting(returns, blocks=8).probability > 0.2  # noise is overfitted
    True
    """
    if return_TV.ndim != 2 or return_TV.shape[1] < 2:
        msg = f"The returns have shape {return_TV.shape}; give sessions x variants, with 2 variants or more."
        raise ValueError(msg)
    if not np.isfinite(return_TV).all():
        msg = "A return is NaN or infinite; keep the sessions on which every variant has a return."
        raise ValueError(msg)
    if blocks < 2 or blocks % 2:
        msg = f"blocks is {blocks}; it must be even and at least 2."
        raise ValueError(msg)
    length = len(return_TV) // blocks
    if length < 2:
        msg = f"{len(return_TV)} sessions are too few for {blocks} blocks; use at least {2 * blocks}."
        raise ValueError(msg)
    used_TV = return_TV[len(return_TV) - blocks * length :]
    centre_V = used_TV.mean(axis=0)  # moments around the mean lose fewer digits
    block_SLV = (used_TV - centre_V).reshape(blocks, length, -1)
    sum_SV, square_SV = block_SLV.sum(axis=1), (block_SLV**2).sum(axis=1)
    chosen_MS = np.zeros((math.comb(blocks, blocks // 2), blocks))
    for row, choice in zip(chosen_MS, combinations(range(blocks), blocks // 2), strict=True):
        row[list(choice)] = 1.0
    n = length * blocks // 2

    def sharpes(part_MS: FloatArray) -> FloatArray:
        """Sharpe ratios per session on some of the blocks, shape (M, V)."""
        mean_MV = part_MS @ sum_SV / n
        variance_MV = np.maximum(part_MS @ square_SV / n - mean_MV**2, 0.0)
        varies_MV = variance_MV > 1e-24 * (1.0 + centre_V**2)
        out_MV: FloatArray = np.zeros_like(mean_MV)
        np.divide(mean_MV + centre_V, np.sqrt(variance_MV), out=out_MV, where=varies_MV)
        return out_MV

    in_MV, out_MV = sharpes(chosen_MS), sharpes(1.0 - chosen_MS)
    best_M1 = in_MV.argmax(axis=1)[:, None]
    rank_MV = average_ranks(out_MV)
    w_M = np.take_along_axis(rank_MV, best_M1, axis=1)[:, 0] / (return_TV.shape[1] + 1.0)
    logit_M = np.log(w_M / (1.0 - w_M))
    out_M = np.take_along_axis(out_MV, best_M1, axis=1)[:, 0]
    return Overfitting(
        probability=float((logit_M <= 0).mean()),
        loss_probability=float((out_M < 0).mean()),
        logit_M=logit_M,
        in_sample_M=np.take_along_axis(in_MV, best_M1, axis=1)[:, 0],
        out_of_sample_M=out_M,
    )
