"""Overlapping decisions: each is held for a number of sessions, side by side with the ones after it.

Shape suffixes: N firms, D decisions.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray, IntArray


def average_held(weight_DN: FloatArray, session_D: IntArray, holding: int) -> FloatArray:
    """Average the decisions that are held at each decision: those of the last ``holding`` sessions.

    A decision of session s is held over the sessions s to ``s + holding - 1``. With a decision every m
    sessions, ``holding / m`` of them (rounded up) overlap, and each decision replaces the oldest one. In the
    first ``holding`` sessions the average is of those that exist, so the book is fully invested from the
    start. Weights are those that were decided; drift between decisions is not followed.

    Parameters
    ----------
    weight_DN : ndarray of shape (D, N)
        Weights of each decision.
    session_D : ndarray of int, shape (D,)
        Sessions of the decisions, ascending.
    holding : int
        Sessions for which a decision is held, at least 1.

    Returns
    -------
    ndarray of shape (D, N)
        Row d depends only on decisions up to d.

    Notes
    -----
    Jegadeesh and Titman 1993, section I: overlapping portfolios with a holding period of K months.
    """
    first_D = np.searchsorted(session_D, session_D - holding, side="right")
    average_DN = np.empty_like(weight_DN)
    for d, first in enumerate(first_D):
        weight_DN[first : d + 1].mean(axis=0, out=average_DN[d])
    return average_DN
