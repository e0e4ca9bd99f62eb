"""Weights by inverse volatility within the sides of a book, and scaling of a whole book to a volatility.

Shape suffixes: N firms, M firms that are held, D decisions, L sessions of a window.
"""

from __future__ import annotations

import numpy as np

from backtest.books.inputs import BookNote, PastReturns
from features.arrays import FloatArray, IntArray

WINDOW = 126
"""Sessions over which the volatility of a book is measured: half a year, as in Barroso and Santa-Clara."""
LEAST = 0.25
"""Least volatility of a firm in inverse weights, relative to the median of the firms held."""


def weigh_by_inverse_volatility(weight_DN: FloatArray, volatility_DN: FloatArray) -> FloatArray:
    """Divide weights by the firms' volatilities, and keep the gross exposure of each side.

    ``w_i = G (v_i / s_i) / sum_j (v_j / s_j)`` over the firms of a side, with the weights v before, their sum
    G on that side and the volatilities s. Each firm of a quantile then contributes the same stand-alone
    volatility. A volatility below a quarter of the median of the firms held counts as that quarter: the price
    of a fund of Treasury bills or of a takeover target hardly moves, and would otherwise take half of a side.

    Parameters
    ----------
    weight_DN : ndarray of shape (D, N)
        Weights of each decision.
    volatility_DN : ndarray of shape (D, N)
        Trailing standard deviation of returns, above 0 for every firm that is held.

    Returns
    -------
    ndarray of shape (D, N)
        Weights at the decision.
    """
    held_DN = np.where(weight_DN != 0, volatility_DN, np.nan)
    some_D = ~np.isnan(held_DN).all(axis=1)
    median_D1 = np.zeros((len(held_DN), 1))
    median_D1[some_D, 0] = np.nanmedian(held_DN[some_D], axis=1)
    volatility_DN = np.maximum(held_DN, LEAST * median_D1)
    out_DN = np.zeros_like(weight_DN)
    for side_DN in (np.maximum(weight_DN, 0.0), np.minimum(weight_DN, 0.0)):
        scaled_DN = np.divide(side_DN, volatility_DN, out=np.zeros_like(side_DN), where=side_DN != 0)
        before_D1 = side_DN.sum(axis=1, keepdims=True)
        after_D1 = scaled_DN.sum(axis=1, keepdims=True)
        out_DN += scaled_DN * np.divide(before_D1, after_D1, out=np.zeros_like(after_D1), where=after_D1 != 0)
    return out_DN


def scale_to_volatility(
    weight_DN: FloatArray, session_D: IntArray, past: PastReturns, target: float, max_leverage: float
) -> tuple[FloatArray, tuple[BookNote, ...]]:
    """Scale each decision to a target volatility, as expected from the returns of the last `WINDOW` sessions.

    The expected volatility is the standard deviation of what today's weights would have earned over these
    sessions, ``sqrt(p) std(R w)``, which is ``sqrt(p w' S w)`` with the sample covariance S and p sessions
    in a year. An unknown return counts as 0. The gross exposure is at most ``max_leverage``.

    Parameters
    ----------
    weight_DN : ndarray of shape (D, N)
        Weights of each decision.
    session_D : ndarray of int, shape (D,)
        Sessions of the decisions.
    past : PastReturns
        Returns up to each session.
    target : float
        Annual volatility, a fraction.
    max_leverage : float
        Largest gross exposure.

    Returns
    -------
    scaled_DN : ndarray of shape (D, N)
        Scaled weights. A row is NaN (no decision) if fewer than half of the window's sessions exist, or if
        the weights would have had no volatility.
    notes : tuple of BookNote
        Decisions that were not made for that reason.

    Notes
    -----
    Barroso and Santa-Clara 2015, "Momentum has its moments"; here with the covariances of today's weights
    instead of the returns of the book's own past.
    """
    scaled_DN = np.full_like(weight_DN, np.nan)
    notes = []
    for d, t in enumerate(session_D):
        window_LN = past.window(int(t), WINDOW)
        if len(window_LN) < WINDOW // 2:
            text = f"no decision: {len(window_LN)} past sessions are too few for the volatility of the book"
            notes.append(BookNote(int(t), text))
            continue
        held = np.flatnonzero(weight_DN[d])
        if not len(held):
            scaled_DN[d] = 0.0
            continue
        volatility = expected_volatility(weight_DN[d, held], window_LN[:, held], past.periods_per_year)
        if volatility <= 0:
            notes.append(BookNote(int(t), "no decision: the firms of the book had no returns that vary"))
            continue
        scaled_DN[d] = weight_DN[d] * min(target / volatility, max_leverage / np.abs(weight_DN[d]).sum())
    return scaled_DN, tuple(notes)


def expected_volatility(weight_M: FloatArray, return_LM: FloatArray, periods_per_year: float) -> float:
    """Return the annual volatility that weights would have had, ``sqrt(p) std(R w)``.

    Parameters
    ----------
    weight_M : ndarray of shape (M,)
        Weights of the firms that are held.
    return_LM : ndarray of shape (L, M)
        Their returns on past sessions, at least 2; an unknown one (NaN) counts as 0.
    periods_per_year : float
        Sessions in a year p.
    """
    earned_L = np.nan_to_num(return_LM) @ weight_M
    return float(earned_L.std(ddof=1)) * float(np.sqrt(periods_per_year))
