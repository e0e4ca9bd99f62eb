"""Exposures of a book to sectors and styles over time.

Shape suffixes: T sessions, N firms, R rows of the ledger, K styles, S sectors, X any columns.
"""

from __future__ import annotations

import numpy as np

from backtest.analysis.rows import LedgerRows, sum_by
from backtest.analysis.styles import StyleScores
from features.arrays import FloatArray, IntArray


def style_exposures(rows: LedgerRows, scores: StyleScores, nav_T: FloatArray) -> FloatArray:
    """Weighted style scores after the trades of each session, ``sum_i position_i x_ik / NAV``, shape (T, K).

    0 in sessions without a NAV.
    """
    return _over_nav(scored_amounts(rows, rows.position_R, scores, sessions_ago=0), nav_T)


def scored_amounts(
    rows: LedgerRows, amount_R: FloatArray, scores: StyleScores, *, sessions_ago: int
) -> FloatArray:
    """Sum amounts times scores by session, shape (T, K).

    Parameters
    ----------
    rows : LedgerRows
        Sessions and firms of the amounts.
    amount_R : ndarray of shape (R,)
        Amount of each row.
    scores : StyleScores
        Scores on the book's sessions.
    sessions_ago : int
        Age of the scores: 1 takes those of the previous close. Sessions without such a close get 0.
    """
    from backtest.analysis.kernels import add_scored

    total_TK = np.zeros((scores.score_KTN.shape[1], len(scores.names)))
    add_scored(rows.session_R, rows.firm_R, amount_R, scores.score_KTN, sessions_ago, total_TK)
    return total_TK


def sector_exposures(rows: LedgerRows, group_TN: IntArray, n_groups: int, nav_T: FloatArray) -> FloatArray:
    """Net weight of each sector after the trades of each session, shape (T, 1 + n_groups).

    Columns are those of `backtest.analysis.contributions.sector_names`; 0 in sessions without a NAV.
    """
    T, S = len(nav_T), n_groups + 1
    code_R = group_TN[rows.session_R, rows.firm_R].astype(np.intp) + 1
    total_TS = sum_by(rows.session_R.astype(np.intp) * S + code_R, rows.position_R, T * S).reshape(T, S)
    return _over_nav(total_TS, nav_T)


def _over_nav(amount_TX: FloatArray, nav_T: FloatArray) -> FloatArray:
    """Divide amounts by NAV, session by session; 0 where NAV is 0."""
    out_TX = np.zeros_like(amount_TX)
    np.divide(amount_TX, nav_T[:, None], out=out_TX, where=nav_T[:, None] > 0)
    return out_TX
