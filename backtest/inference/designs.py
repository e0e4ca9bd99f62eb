"""Designs of a study: a space-filling sample of its choices, and which choice moves the result.

A design takes one level of every choice. The result of a design is taken apart by functional ANOVA over
levels that all count the same (Hooker 2007): ``y = m + sum_k f_k(l_k) + sum_{k<j} f_kj(l_k, l_j) + e``, where
effects sum to zero over the levels of each of their choices. What more than two choices do together, and
noise, is the rest ``e``.

Shape suffixes: D designs, K choices, P columns of a model, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.linalg import helmert
from scipy.special import fdtrc
from scipy.stats import qmc

from backtest.inference.means import LEVEL, require_level
from features.arrays import FloatArray, IntArray, require_shape

_DRAWS = 1000  # of residuals


def sample_designs(levels: Sequence[int], count: int, seed: int = 0) -> IntArray:
    """Sample different designs that fill the space of choices evenly, from a scrambled Sobol sequence.

    Every level of a choice is taken about equally often, and so is every pair of levels. The first designs
    are the same for every ``count``, so a sample can be extended.

    Parameters
    ----------
    levels : sequence of int
        Number of levels of each of the K choices, at least 1.
    count : int
        Number of designs, at least 1. If there are not so many, all are returned.
    seed : int
        Seed of the scrambling (Owen 1998).

    Returns
    -------
    ndarray of shape (D, K)
        Level of each choice, from 0.

    Raises
    ------
    ValueError
        If there is no choice, or ``count`` or a number of levels is below 1.

    Examples
    --------
    >>> sample_designs([2, 3], 4)
    array([[0, 2],
           [1, 0],
           [1, 1],
           [0, 1]])
    """
    if not levels or min(*levels, count) < 1:
        msg = f"{count} designs of choices with {list(levels)} levels: all numbers must be at least 1."
        raise ValueError(msg)
    wanted = min(count, math.prod(levels))
    power, found = max(wanted - 1, 1).bit_length(), dict[tuple[int, ...], None]()
    while len(found) < wanted:
        point_SK = qmc.Sobol(len(levels), rng=np.random.default_rng(seed)).random_base2(power)
        found = dict.fromkeys(map(tuple, (point_SK * np.array(levels)).astype(np.int64).tolist()))
        power += 1
    return np.array(list(found)[:wanted])


@dataclass(frozen=True, slots=True)
class VarianceShare:
    """Share of the variance of a result over designs.

    Attributes
    ----------
    choices : tuple of int
        The choice whose effect it is, or the two whose interaction it is; empty for the rest.
    share, lower, upper : float
        The share, and its interval within 0 and 1. The shares sum to 1; the estimate of a share near zero may
        be negative.

    Examples
    --------
    >>> VarianceShare((0, 2), 0.2, 0.1, 0.3).choices
    (0, 2)
    """

    choices: tuple[int, ...]
    share: float
    lower: float
    upper: float


def designs_needed(levels: Sequence[int]) -> int:
    """Number of designs that `variance_shares` needs: twice the parameters of a model without interactions.

    Examples
    --------
    >>> designs_needed([2, 3, 3])
    12
    """
    return 2 * (1 + sum(levels) - len(levels))


def variance_shares(
    level_DK: IntArray, result_D: FloatArray, *, level: float = LEVEL, seed: int = 0
) -> tuple[VarianceShare, ...]:
    """Divide the variance of a result among choices, their interactions in pairs, and the rest.

    The effects are estimated by least squares in contrasts that are orthonormal over the levels, so the
    variance of an effect is the sum of its squared coefficients. Noise in these is removed:
    ``v_k = |b_k|^2 - s^2 tr C_k`` with the residual variance s^2 and the coefficients' covariance s^2 C. On
    balanced designs that is ``(SS_k - df_k MSE) / n``, as in omega squared (Hays 1963). A share is ``v_k``
    over the sum of all ``v`` and s^2.

    All pairs are in the model if that leaves half of the designs as residual degrees of freedom. Otherwise
    pairs enter in the order of their F-tests while these are significant after Bonferroni's correction, and
    other pairs belong to the rest. Intervals are percentile intervals of 1,000 draws of the residuals, given
    the pairs in the model; those of level 0.05 contain the true share in 90% to 95% of studies.

    Parameters
    ----------
    level_DK : ndarray of shape (D, K)
        Level of each choice in each design, as integers. A level that no design has does not exist.
    result_D : ndarray of shape (D,)
        Result of each design. Designs with NaN are left out.
    level : float
        Two-sided error rate of the intervals.
    seed : int
        Seed of the draws.

    Returns
    -------
    tuple of VarianceShare
        Every choice, the pairs in the model, and the rest. NaN if all results are equal.

    Raises
    ------
    ValueError
        If there are fewer designs than `designs_needed`, a result is infinite, or ``level`` is not between 0
        and 1.

    Examples
    --------
    >>> levels = sample_designs([2, 3, 3], 18)
    >>> noise = np.random.default_rng(0).normal(size=18)
    >>> shares = variance_shares(levels, 3.0 * levels[:, 0] + levels[:, 1] + 0.1 * noise)
    >>> [(one.choices, round(one.share, 2)) for one in shares[:2]]
    [((0,), 0.77), ((1,), 0.22)]
    """
    require_level(level)
    require_shape("the results", result_D, level_DK.shape[:1])
    if np.isinf(result_D).any():
        msg = "A result is infinite; use NaN for a design without one."
        raise ValueError(msg)
    known_D = ~np.isnan(result_D)
    y_D = result_D[known_D] - result_D[known_D].mean()
    parts = [_contrasts(level_D) for level_D in level_DK[known_D].T]
    sizes = [part.shape[1] + 1 for part in parts]
    if len(y_D) < designs_needed(sizes):
        msg = f"{len(y_D)} designs have a result; choices with {sizes} levels need {designs_needed(sizes)}."
        raise ValueError(msg)
    columns: dict[tuple[int, ...], FloatArray] = {(k,): part for k, part in enumerate(parts)}
    pairs: dict[tuple[int, ...], FloatArray] = {
        (k, j): (parts[k][:, :, None] * parts[j][:, None, :]).reshape(len(y_D), -1)
        for k, j in combinations(range(len(parts)), 2)
    }
    if 2 * (1 + sum(part.shape[1] for part in (columns | pairs).values())) <= len(y_D):
        columns |= pairs
    else:
        columns |= _significant(columns, pairs, y_D)
    return _shares(columns, y_D, level, seed)


def _contrasts(level_D: IntArray) -> FloatArray:
    """Columns with mean 0 and mean square 1 over the levels, and no common part; none for a single level."""
    levels, at_D = np.unique(level_D, return_inverse=True)
    contrast_LP: FloatArray = helmert(len(levels)).T * math.sqrt(len(levels))
    return contrast_LP[at_D]


Columns = Mapping[tuple[int, ...], FloatArray]  # choices of an effect -> its columns, shape (D, P)


def _significant(columns: Columns, pairs: Columns, y_D: FloatArray) -> Columns:
    """Choose pairs by forward selection, at most until the model has half as many columns as designs."""
    chosen: dict[tuple[int, ...], FloatArray] = {}
    while left := [pair for pair in pairs if pair not in chosen and pairs[pair].shape[1]]:
        basis_DP = _basis(np.column_stack([np.ones_like(y_D), *columns.values(), *chosen.values()]))
        rest_D, tests = y_D - basis_DP @ (basis_DP.T @ y_D), {}
        for pair in left:
            own_DP = _basis(pairs[pair] - basis_DP @ (basis_DP.T @ pairs[pair]))
            explained, df = float(((own_DP.T @ rest_D) ** 2).sum()), own_DP.shape[1]
            free = len(y_D) - basis_DP.shape[1] - df
            noise = (float(rest_D @ rest_D) - explained) / max(free, 1)
            if df and 2 * free >= len(y_D):
                tests[pair] = fdtrc(df, free, explained / df / noise) if noise > 0 else 0.0
        best = min(tests, key=tests.__getitem__, default=None)
        if best is None or tests[best] * len(left) > LEVEL:
            break
        chosen[best] = pairs[best]
    return {pair: chosen[pair] for pair in pairs if pair in chosen}


def _basis(x_DP: FloatArray) -> FloatArray:
    """Orthonormal basis of the columns, without directions that only rounding leaves."""
    basis_DP, size_P, _ = np.linalg.svd(x_DP, full_matrices=False)
    basis_DR: FloatArray = basis_DP[:, size_P > 1e-8 * math.sqrt(len(x_DP))]
    return basis_DR


def _shares(columns: Columns, y_D: FloatArray, level: float, seed: int) -> tuple[VarianceShare, ...]:
    x_DP = np.column_stack([np.ones_like(y_D), *columns.values()])
    inverse_PD = np.linalg.pinv(x_DP, rtol=1e-8)
    hat_DD = x_DP @ inverse_PD
    free = len(y_D) - float(np.trace(hat_DD))
    rest_D = y_D - hat_DD @ y_D
    # residuals of the variance that the errors have, and what least squares makes of them
    draw_BD = np.random.default_rng(seed).integers(len(y_D), size=(_DRAWS, len(y_D)))
    error_BD = rest_D[draw_BD] * math.sqrt(len(y_D) / free)
    part_P = np.repeat(np.arange(len(columns)), [part.shape[1] for part in columns.values()])
    within_PK = (part_P[:, None] == np.arange(len(columns))).astype(np.float64)
    noise_K = (inverse_PD[1:] ** 2).sum(axis=1) @ within_PK  # tr C of each effect

    def shares(coefficient_BP: FloatArray, rest_BD: FloatArray) -> FloatArray:
        variance_B1 = (rest_BD**2).sum(axis=1, keepdims=True) / free
        effect_BK = coefficient_BP[:, 1:] ** 2 @ within_PK - variance_B1 * noise_K
        every_BK = np.concatenate([effect_BK, variance_B1], axis=1)
        share_BK: FloatArray = every_BK / every_BK.sum(axis=1, keepdims=True)
        return share_BK

    b_P = inverse_PD @ y_D
    true_K = np.append(b_P[1:] ** 2 @ within_PK, rest_D @ rest_D / free)  # where residuals are drawn from
    with np.errstate(divide="ignore", invalid="ignore"):
        found_K = shares(b_P[None], rest_D[None])[0]
        drawn_BK = shares(b_P + error_BD @ inverse_PD.T, error_BD - error_BD @ hat_DD)
        off_BK = drawn_BK - true_K / true_K.sum()
    low_K, high_K = np.quantile(off_BK, [level / 2.0, 1.0 - level / 2.0], axis=0)
    bounds_2K = np.clip([found_K + low_K, found_K + high_K], 0.0, 1.0)
    rows = zip([*columns, ()], found_K.tolist(), *bounds_2K.tolist(), strict=True)
    return tuple(VarianceShare(*row) for row in rows)
