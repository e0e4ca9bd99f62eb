"""Sector- and beta-neutral weights.

Shape suffixes: N firms, D decisions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from features.arrays import FloatArray, IntArray

Exposure = Literal["sector", "beta"]
"""An exposure that a book can be neutral to."""

_ROUNDING = 1e-9  # a residual below this share of the gross exposure is rounding


def neutralise(
    weight_DN: FloatArray, group_DN: IntArray | None = None, beta_DN: FloatArray | None = None
) -> FloatArray:
    """Remove the exposure to sectors, to the market's beta, or to both, and keep the gross exposure.

    The result is the residual of a least-squares regression of a decision's weights on a constant, on
    indicators of the sectors and on beta, over the firms that are held (weight not 0). Of all books whose
    weights sum to 0 in total and in each sector, and whose beta is 0, it is the closest one in squared
    weights. Then the residual is scaled to the gross exposure of the weights. A sector that is held on one
    side only, with equal weights, drops out. If nothing but rounding is left, the decision is to hold
    nothing.

    Parameters
    ----------
    weight_DN : ndarray of shape (D, N)
        Weights of each decision.
    group_DN : ndarray of int, shape (D, N), or None
        Sector of each firm at the decision, at least 0 for every firm that is held. None: only the total is
        neutral.
    beta_DN : ndarray of shape (D, N) or None
        Trailing beta at the decision, known for every firm that is held. None: beta is not removed.

    Returns
    -------
    ndarray of shape (D, N)
        Neutral weights at the decision. Weights drift away from neutrality until the next one.

    Notes
    -----
    The regression is solved by the theorem of Frisch, Waugh and Lovell: weights and betas are demeaned within
    sectors, and the demeaned weights are regressed on the demeaned betas.
    """
    out_DN = np.zeros_like(weight_DN)
    for d, weight_N in enumerate(weight_DN):
        held = np.flatnonzero(weight_N)
        if not len(held):
            continue
        group_M = None if group_DN is None else group_DN[d, held]
        residual_M = _demeaned(weight_N[held], group_M)
        if beta_DN is not None:
            beta_M = _demeaned(beta_DN[d, held], group_M)
            spread = float(beta_M @ beta_M)
            if spread > _ROUNDING * float(beta_DN[d, held] @ beta_DN[d, held]):
                residual_M = residual_M - beta_M * (float(beta_M @ residual_M) / spread)
        gross, left = np.abs(weight_N).sum(), np.abs(residual_M).sum()
        if left > _ROUNDING * gross:
            out_DN[d, held] = residual_M * (gross / left)
    return out_DN


def _demeaned(x_M: FloatArray, group_M: IntArray | None) -> FloatArray:
    """Subtract the mean, or each group's mean."""
    if group_M is None:
        centred_M: FloatArray = x_M - x_M.mean()
        return centred_M
    total_S, count_S = np.bincount(group_M, weights=x_M), np.bincount(group_M)
    demeaned_M: FloatArray = x_M - (total_S / np.maximum(count_S, 1))[group_M]
    return demeaned_M
