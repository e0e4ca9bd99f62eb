"""Comparison of two networks over the same firms, with the interval that unrelated networks would give.

Two networks over the same firms are not two samples of independent pairs: all edges of a firm move together.
The null is therefore that of the quadratic assignment procedure (Krackhardt 1988): one network keeps its
structure and its firms change names at random.

Legend: N firms of the panel, V compared pairs.  Matrices are [target i, source j].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray

DRAWS = 100


@dataclass(frozen=True, slots=True)
class AgainstNull:
    """A measure of a network with its distribution under a null.

    Attributes
    ----------
    value
        The measure; NaN if it is not defined.
    null_mean, null_low, null_high
        Mean, 2.5% and 97.5% quantiles under the null.
    number
        Number of pairs or edges that the measure is computed from.
    """

    value: float
    null_mean: float
    null_low: float
    null_high: float
    number: int


def rank_correlation(
    first_NN: FloatArray,
    second_NN: FloatArray,
    valid_NN: BoolArray,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> AgainstNull:
    """Spearman correlation of two networks over the valid pairs, with its null of exchanged names.

    Parameters
    ----------
    first_NN, second_NN
        Weights; finite where valid.
    valid_NN
        Pairs to compare; the diagonal is excluded.
    rng
        Draws the names.
    draws
        Number of draws of names.
    """
    from scipy import stats

    valid_NN = valid_NN & ~np.eye(len(valid_NN), dtype=np.bool_)
    number = int(valid_NN.sum())
    if number < 3:
        return undefined(number)
    ranks = []
    for weight_NN in (first_NN, second_NN):
        rank_NN = np.zeros_like(weight_NN, dtype=np.float64)
        rank_NN[valid_NN] = stats.rankdata(weight_NN[valid_NN])
        rank_NN[valid_NN] -= rank_NN[valid_NN].mean()
        ranks.append(rank_NN)
    one_NN, two_NN = ranks
    # names are exchanged among the firms of at least one valid pair
    firms = np.flatnonzero(valid_NN.any(axis=0) | valid_NN.any(axis=1))
    null = []
    for _ in range(draws):
        name_N = np.arange(len(valid_NN))
        name_N[firms] = rng.permutation(firms)
        at = np.ix_(name_N, name_N)
        null.append(_correlation(one_NN, two_NN[at], valid_NN & valid_NN[at]))
    return against(_correlation(one_NN, two_NN, valid_NN), np.array(null), number)


def against(value: float, null_B: FloatArray, number: int) -> AgainstNull:
    """A value with the mean and the 95% interval of its draws under the null."""
    low, high = np.quantile(null_B, (0.025, 0.975))
    return AgainstNull(float(value), float(null_B.mean()), float(low), float(high), number)


def undefined(number: int = 0) -> AgainstNull:
    """A measure that the network does not define, such as the reciprocity of no edges."""
    nan = float("nan")
    return AgainstNull(nan, nan, nan, nan, number)


def same_group(group_N: IntArray) -> tuple[FloatArray, BoolArray]:
    """The industry network: 1 for firms of the same group, 0 otherwise; and the pairs of known groups."""
    known_N = group_N >= 0
    same_NN = (group_N[:, None] == group_N[None, :]).astype(np.float64)
    return same_NN, known_N[:, None] & known_N[None, :]


def return_correlations(return_TN: FloatArray, min_sessions: int = 60) -> FloatArray:
    """The correlation network: absolute correlation of the firms' returns over T sessions.

    NaN for pairs with fewer than ``min_sessions`` common returns, or with a constant return.
    """
    known_TN = np.isfinite(return_TN).astype(np.float64)
    r_TN = np.where(known_TN > 0.0, return_TN, 0.0)
    count_NN = known_TN.T @ known_TN
    with np.errstate(divide="ignore", invalid="ignore"):
        sum_NN = r_TN.T @ known_TN / count_NN  # mean of the row's firm over the common sessions
        square_NN = (r_TN**2).T @ known_TN / count_NN - sum_NN**2
        covariance_NN = r_TN.T @ r_TN / count_NN - sum_NN * sum_NN.T
        correlation_NN = covariance_NN / np.sqrt(square_NN * square_NN.T)
    correlation_NN[(count_NN < min_sessions) | (square_NN <= 0.0) | (square_NN.T <= 0.0)] = np.nan
    return np.abs(correlation_NN)


def _correlation(first_NN: FloatArray, second_NN: FloatArray, valid_NN: BoolArray) -> float:
    a, b = first_NN[valid_NN], second_NN[valid_NN]
    if len(a) < 3:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread > 0.0 else 0.0
