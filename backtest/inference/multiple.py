"""Tests of several books at once: SPA, StepM and the model confidence set, computed by arch.

A test at 5% calls one of twenty useless books good. These tests allow for the number of books that are
compared, and for what they have in common, because they resample the same sessions of all books.

Shape suffixes: T sessions, V books.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from backtest.inference.bootstrap import bootstrap_block
from backtest.inference.means import LEVEL, require_level
from features.arrays import BoolArray, FloatArray

REPETITIONS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class SuperiorBooks:
    """Result of `superior_books`.

    Attributes
    ----------
    p_value : float
        Of the null hypothesis that no book is better than the benchmark (SPA, consistent version).
    superior_V : ndarray of bool, shape (V,)
        Books that StepM finds better than the benchmark.

    Examples
    --------
    >>> excess = np.random.default_rng(0).normal(0.0, 0.01, (300, 4)) + [0.0, 0.0, 0.0, 0.005]
    >>> superior_books(excess, repetitions=200).superior_V
    array([False, False, False,  True])
    """

    p_value: float
    superior_V: BoolArray


def superior_books(
    excess_TV: FloatArray, *, level: float = LEVEL, repetitions: int = REPETITIONS, seed: int = 0
) -> SuperiorBooks:
    """Test whether any of several books beats a benchmark, and find out which ones do.

    SPA tests the largest mean of all books against its distribution if no book were better (Hansen 2005).
    StepM applies this repeatedly to find the books that are better; the probability that it names a single
    wrong one is at most ``level`` (Romano and Wolf 2005). Both resample the sessions of all books together
    with the stationary bootstrap, in blocks of `bootstrap_block` sessions, rounded up.

    Each column is divided by its standard deviation first, so that a book is not favoured by its leverage.

    Parameters
    ----------
    excess_TV : ndarray of shape (T, V)
        Return per session of each book over that of the benchmark, a fraction.
    level : float
        Error rate of StepM.
    repetitions : int
        Number of bootstrap samples.
    seed : int
        Seed of the samples.

    Returns
    -------
    SuperiorBooks
        Columns without variation count as not better. Without any other column the p-value is NaN.

    Raises
    ------
    ValueError
        If a return is NaN or infinite, there are fewer than 10 sessions, or ``level`` is not between 0 and 1.

    Examples
    --------
    >>> excess = np.random.default_rng(0).normal(0.0, 0.01, (300, 4))
    >>> superior_books(excess, repetitions=200).p_value > 0.1
    True
    """
    require_level(level)
    loss_TV, varies_V = _losses(excess_TV)
    superior_V = np.zeros(excess_TV.shape[1], dtype=np.bool_)
    if not varies_V.any():
        return SuperiorBooks(math.nan, superior_V)
    from arch.bootstrap import SPA  # imports for more than a second

    benchmark_T, block = np.zeros(len(loss_TV)), math.ceil(bootstrap_block(len(loss_TV)))
    spa = SPA(benchmark_T, loss_TV, block_size=block, reps=repetitions, seed=seed)
    spa.compute()
    p_value = float(spa.pvalues["consistent"])
    # the loop of arch's StepM, which fails if the last books are named in a later step than the first
    left_V = np.ones(loss_TV.shape[1], dtype=np.bool_)
    named = np.asarray(spa.better_models(level), dtype=np.int64)
    while len(named):
        left_V[named] = False
        if not left_V.any():
            break
        spa.subset(left_V)
        spa.compute()
        named = np.flatnonzero(left_V & np.isin(np.arange(len(left_V)), spa.better_models(level)))
    superior_V[varies_V] = ~left_V
    return SuperiorBooks(p_value, superior_V)


def confidence_set(return_TV: FloatArray, *, repetitions: int = REPETITIONS, seed: int = 0) -> FloatArray:
    """Compute p-values of books for being in the model confidence set (Hansen, Lunde and Nason 2011).

    The set of all books with a p-value of at least ``a`` contains the best book with probability
    ``1 - a``. A wide set means that the data cannot tell the books apart. Books are eliminated one after the
    other by the range statistic, which compares all pairs, on samples of the stationary bootstrap.

    Each column is divided by its standard deviation first, so that the best book is the one with the highest
    Sharpe ratio.

    Parameters
    ----------
    return_TV : ndarray of shape (T, V)
        Excess return per session of each book, a fraction.
    repetitions : int
        Number of bootstrap samples.
    seed : int
        Seed of the samples.

    Returns
    -------
    ndarray of shape (V,)
        Identical books share a p-value. NaN for a book without variation, and for all books if fewer than two
        of the others differ.

    Raises
    ------
    ValueError
        If a return is NaN or infinite, or there are fewer than 10 sessions.

    Examples
    --------
    >>> returns = np.random.default_rng(0).normal(0.0, 0.01, (300, 3)) + [0.0, 0.0, 0.02]
    >>> confidence_set(returns, repetitions=200).round(2)
    array([0., 0., 1.])
    """
    loss_TV, varies_V = _losses(return_TV)
    p_V = np.full(return_TV.shape[1], np.nan)
    _, first, same = np.unique(loss_TV, axis=1, return_index=True, return_inverse=True)
    if len(first) < 2:
        return p_V
    from arch.bootstrap import MCS  # imports for more than a second

    block = math.ceil(bootstrap_block(len(loss_TV)))
    order = np.argsort(first)  # in the order of the columns
    mcs = MCS(loss_TV[:, first[order]], size=LEVEL, reps=repetitions, block_size=block, seed=seed)
    mcs.compute()
    p_by_column = mcs.pvalues["Pvalue"].sort_index().to_numpy()
    p_V[varies_V] = p_by_column[np.argsort(order)][same.ravel()]
    return p_V


def _losses(return_TV: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Negative returns in standard deviations of the columns that vary, and a mask of these columns."""
    if not np.isfinite(return_TV).all():
        msg = "A return is NaN or infinite; keep the sessions on which every book has a return."
        raise ValueError(msg)
    if len(return_TV) < 10:
        msg = f"{len(return_TV)} sessions are too few to compare books; use at least 10."
        raise ValueError(msg)
    deviation_V = return_TV.std(axis=0)
    varies_V: BoolArray = deviation_V > 1e-12 * (1.0 + np.abs(return_TV.mean(axis=0)))
    loss_TV: FloatArray = -return_TV[:, varies_V] / deviation_V[varies_V]
    return loss_TV, varies_V
