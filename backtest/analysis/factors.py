"""Returns of factors built from the panel: cross-sectional regressions of returns on style scores.

In each session the returns of the universe are regressed on the scores of an earlier close:
``r_i = f_market + sum_k f_k x_ik + e_i`` (Fama and MacBeth 1973). ``f_k`` is the return of a portfolio with a
score of 1 in style k and of 0 in every other style, long and short equal amounts; ``f_market`` is the return
of the universe in equal weights, because scores have a mean of 0 (Fama 1976, chapter 9).

Shape suffixes: T sessions, N firms, K styles, R sessions of a block, J market and styles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backtest.analysis.styles import MARKET, StyleScores
from features.arrays import BoolArray, FloatArray, require_shape

_BLOCK = 64  # sessions whose regressions are set up at once
MIN_FIRMS_PER_FACTOR = 2


@dataclass(frozen=True, slots=True, eq=False)
class FactorReturns:
    """Returns of the market and of the styles.

    Attributes
    ----------
    names : tuple of str
        ``market``, then the styles.
    return_TJ : ndarray of shape (T, J)
        Return earned in session t, a fraction, known at the close of t. NaN where a factor is unknown: no
        firm had a score, or the universe was too small.
    """

    names: tuple[str, ...]
    return_TJ: FloatArray


def factor_returns(scores: StyleScores, earned_TN: FloatArray, delay: int = 0) -> FactorReturns:
    """Regress the returns of each session on the scores of ``1 + delay`` sessions before.

    A portfolio that is decided at the close of ``t - 1 - delay`` and traded ``delay`` sessions later earns
    the return of session t. A book and its factors have the same delay, so neither sees more than the other.

    Parameters
    ----------
    scores : StyleScores
        Known at the close of each session.
    earned_TN : ndarray of shape (T, N)
        Return of session t, from the close of ``t-1``; NaN is unknown and leaves the firm out.
    delay : int
        Sessions from the close that scores are known at to the close at which they are traded.

    Returns
    -------
    FactorReturns
        A session with fewer than 2 firms for each factor has no factor return. Factors that cannot be told
        apart on a session share the return (least squares of minimum norm).

    Raises
    ------
    ValueError
        If shapes differ or the delay is negative.
    """
    K, T, N = scores.score_KTN.shape
    require_shape("the returns", earned_TN, (T, N))
    if delay < 0:
        msg = f"delay is {delay}; it must be at least 0, since scores cannot be traded before they are known."
        raise ValueError(msg)
    out_TJ = np.full((T, K + 1), np.nan)
    first = 1 + delay
    for start in range(first, T, _BLOCK):
        rows = slice(start, min(start + _BLOCK, T))
        known = slice(rows.start - first, rows.stop - first)
        in_RN = scores.universe_TN[known] & np.isfinite(earned_TN[rows])
        out_TJ[rows] = _regress(scores.score_KTN[:, known], scores.known_KT[:, known], in_RN, earned_TN[rows])
    return FactorReturns((MARKET, *scores.names), out_TJ)


def _regress(
    score_KRN: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    known_KR: BoolArray,
    in_RN: BoolArray,
    earned_RN: FloatArray,
) -> FloatArray:
    """Least squares of each session, by the normal equations: scores are bounded and of mean 0."""
    K, R, N = score_KRN.shape
    x_RJN = np.empty((R, K + 1, N))
    x_RJN[:, 0] = in_RN
    for k in range(K):
        np.multiply(score_KRN[k], in_RN, out=x_RJN[:, k + 1])
    y_RN1 = np.where(in_RN, earned_RN, 0.0)[:, :, None]
    inverse_RJJ = np.linalg.pinv(x_RJN @ x_RJN.transpose(0, 2, 1), rcond=1e-9, hermitian=True)
    return_RJ = (inverse_RJJ @ (x_RJN @ y_RN1))[:, :, 0]
    enough_R = in_RN.sum(axis=1) >= MIN_FIRMS_PER_FACTOR * (K + 1)
    unknown_RJ = np.column_stack([~enough_R, *(~known_KR | ~enough_R)])
    return np.where(unknown_RJ, np.nan, return_RJ)
