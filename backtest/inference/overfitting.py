"""How far the best of many backtests can be believed: probabilistic and deflated Sharpe ratios, and PBO.

A Sharpe ratio is annualised here, as in `backtest.accounts.performance`; the formulas of the papers are for
ratios per session, and are applied to those.

Shape suffixes: T sessions, V variants (trials), S blocks of sessions, M combinations of blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import ndtr, ndtri

from backtest.costs.model import SESSIONS_PER_YEAR
from features.arrays import FloatArray


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
    of the returns, and the normal distribution function Z. Returns count as independent (Bailey and Lopez de
    Prado 2012).

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
    """
    known_T = return_T[~np.isnan(return_T)]
    if np.isinf(known_T).any():
        msg = "A return is infinite; use NaN for an unknown return."
        raise ValueError(msg)
    n = len(known_T)
    if n < 3 or (known_T == known_T[0]).all():
        return math.nan
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


def expected_best_sharpe(trials: int, deviation: float) -> float:
    """Sharpe ratio that the best of several trials without skill is expected to have.

    ``deviation * ((1 - g) Zinv(1 - 1/N) + g Zinv(1 - 1/(N e)))`` with N independent trials whose Sharpe
    ratios are normal around zero, and g = 0.5772 (Bailey and Lopez de Prado 2014).

    Parameters
    ----------
    trials : int
        Number of trials, at least 1.
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
    """
    if trials < 1:
        msg = f"trials is {trials}; count at least the trial itself."
        raise ValueError(msg)
    if not deviation >= 0:
        msg = f"deviation is {deviation}; a standard deviation cannot be negative."
        raise ValueError(msg)
    if trials == 1:
        return 0.0
    high, higher = ndtri(1.0 - 1.0 / trials), ndtri(1.0 - 1.0 / (trials * math.e))
    return deviation * float((1.0 - np.euler_gamma) * high + np.euler_gamma * higher)


def deflated_sharpe(return_T: FloatArray, trials: int, *, deviation: float | None = None) -> float:
    """Probability that a book has skill, given that it is the best of many trials.

    `probabilistic_sharpe` against the benchmark `expected_best_sharpe`: 0.95 or more means that the best of
    ``trials`` books without skill would reach this Sharpe ratio only rarely (Bailey and Lopez de Prado 2014).

    Parameters
    ----------
    return_T : ndarray of shape (T,)
        Excess return per session of the selected trial, a fraction; NaN values are dropped.
    trials : int
        Number of trials that it was selected from, itself included. Trials that resemble each other count in
        full, which makes the result too low rather than too high.
    deviation : float, optional
        Standard deviation of the trials' annualised Sharpe ratios. None: ``sqrt(252 / (n - 1))``, the
        sampling error of a Sharpe ratio of zero over n sessions. That is the spread of trials without skill,
        and needs no record of their results.

    Returns
    -------
    float
        In [0, 1]; NaN as in `probabilistic_sharpe`. With one trial it is `probabilistic_sharpe`.

    Raises
    ------
    ValueError
        If ``trials`` is below 1, ``deviation`` is negative, or a return is infinite.
    """
    n = int((~np.isnan(return_T)).sum())
    if deviation is None:
        deviation = math.sqrt(SESSIONS_PER_YEAR / (n - 1)) if n > 1 else 0.0
    return probabilistic_sharpe(return_T, expected_best_sharpe(trials, deviation))


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
    from scipy.stats import rankdata  # imported here because the import takes half a second

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
    rank_MV = rankdata(out_MV, axis=1)
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
