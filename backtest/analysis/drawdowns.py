"""Drawdowns and worst days of a book, with the firms that lost most.

Shape suffixes: T sessions, N firms, R rows of the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backtest.analysis.rows import LedgerRows, sum_by
from features.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Drawdown:
    """A fall of NAV below an earlier peak.

    Attributes
    ----------
    peak, trough : int
        Sessions of the peak and of the lowest NAV. -1 is the starting capital, before the first session.
    recovered : int or None
        First session on which NAV is at the peak's level again; None if there is none.
    depth : float
        ``1 - NAV[trough] / NAV[peak]``.
    sessions : int
        From the peak to the recovery, or to the last session.
    """

    peak: int
    trough: int
    recovered: int | None
    depth: float
    sessions: int


def largest_drawdowns(return_T: FloatArray, count: int = 5) -> list[Drawdown]:
    """Find the deepest drawdowns of compounded returns; they do not overlap.

    Parameters
    ----------
    return_T : ndarray of shape (T,)
        Return of each session.
    count : int
        Number of drawdowns at most.

    Returns
    -------
    list of Drawdown
        The deepest first; of equal ones the first first. Empty if NAV never falls.
    """
    nav_T = np.concatenate([[1.0], np.cumprod(np.maximum(1.0 + return_T, 0.0))])
    high_T = np.maximum.accumulate(nav_T)
    under_T = nav_T < high_T
    found = []
    for start in np.flatnonzero(under_T & ~np.concatenate([[False], under_T[:-1]])).tolist():
        above = np.flatnonzero(~under_T[start:])
        recovered = start + int(above[0]) if len(above) else None
        peak, last = start - 1, len(nav_T) - 1 if recovered is None else recovered
        trough = start + int(np.argmin(nav_T[start : last + 1]))
        depth = float(1.0 - nav_T[trough] / nav_T[peak])
        back = None if recovered is None else recovered - 1  # nav_T begins before session 0
        found.append(Drawdown(peak - 1, trough - 1, back, depth, last - peak))
    return sorted(found, key=lambda one: -one.depth)[:count]


def worst_days(return_T: FloatArray, count: int = 10) -> list[int]:
    """Sessions with the lowest negative returns, the lowest first."""
    order = np.argsort(return_T, kind="stable")[:count]
    return [int(t) for t in order if return_T[t] < 0]


def losers(
    rows: LedgerRows, sessions: range, n_firms: int, capital: float, count: int = 5
) -> list[tuple[int, float]]:
    """Find the firms that lost most over some sessions.

    Parameters
    ----------
    rows : LedgerRows
        Of the book, by session.
    sessions : range
        Consecutive sessions of the book.
    n_firms : int
        Firms of the panel.
    capital : float
        NAV before the first of these sessions.
    count : int
        Number of firms at most.

    Returns
    -------
    list of (int, float)
        Firm, and its profit after costs over the capital; the largest loss first. The profits of all firms
        add up to the book's return over these sessions.
    """
    first, last = np.searchsorted(rows.session_R, [sessions.start, sessions.stop])
    span = slice(int(first), int(last))
    net_N = sum_by(rows.firm_R[span], rows.pnl_R[span] - rows.cost_R[span], n_firms) / capital
    worst = np.argsort(net_N, kind="stable")[:count]
    return [(int(firm), float(net_N[firm])) for firm in worst if net_N[firm] < 0]
