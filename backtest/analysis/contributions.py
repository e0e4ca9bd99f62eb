"""Profit and loss of a book by sector, side, name and factor: four partitions of the same total.

The total is the sum of the ledger: profit before costs, costs, and their difference, which is the last NAV
less the starting capital of 1 (less the shortfall of a ruined book as well).

Shape suffixes: T sessions, N firms, R rows of the ledger, K styles, J market and styles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from backtest.analysis.exposures import scored_amounts
from backtest.analysis.factors import FactorReturns
from backtest.analysis.rows import LedgerRows, keys_of, sum_by
from backtest.analysis.styles import StyleScores
from features.arrays import IntArray

UNKNOWN_SECTOR = "unknown"
SPECIFIC = "specific"
COSTS = "costs"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one part of a book earned, in fractions of the starting capital.

    Attributes
    ----------
    by : str
        Partition: ``sector``, ``side``, ``factor`` or ``name``.
    key : str
        Part, such as a sector's name.
    gross, cost : float
        Profit before costs, and costs.
    """

    by: str
    key: str
    gross: float
    cost: float

    @property
    def net(self) -> float:
        """Profit after costs."""
        return self.gross - self.cost


def by_name(rows: LedgerRows, tickers_N: tuple[str, ...]) -> Iterator[Contribution]:
    """Split the profit by firm; firms that were never held are left out."""
    gross_N = sum_by(rows.firm_R, rows.pnl_R, len(tickers_N))
    cost_N = sum_by(rows.firm_R, rows.cost_R, len(tickers_N))
    for firm in keys_of(rows.firm_R, len(tickers_N)):
        yield Contribution("name", tickers_N[firm], float(gross_N[firm]), float(cost_N[firm]))


def by_sector(rows: LedgerRows, group_TN: IntArray, groups_S: tuple[str, ...]) -> Iterator[Contribution]:
    """Split the profit by the sector that a firm has in the session; sectors without a position are left out.

    Parameters
    ----------
    rows : LedgerRows
        Of the book.
    group_TN : ndarray of int, shape (T, N)
        Sector codes on the book's sessions; -1 is unknown.
    groups_S : tuple of str
        Names of the codes.
    """
    code_R = group_TN[rows.session_R, rows.firm_R].astype(np.intp) + 1
    gross_S = sum_by(code_R, rows.pnl_R, len(groups_S) + 1)
    cost_S = sum_by(code_R, rows.cost_R, len(groups_S) + 1)
    for code in keys_of(code_R, len(groups_S) + 1):
        yield Contribution("sector", sector_names(groups_S)[code], float(gross_S[code]), float(cost_S[code]))


def sector_names(groups_S: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the codes -1, 0, 1, ... in this order."""
    return (UNKNOWN_SECTOR, *groups_S)


def by_side(rows: LedgerRows) -> Iterator[Contribution]:
    """Split the profit into long and short positions.

    Profit belongs to the side of the position before the session's trades, or of the position after them if
    there was none. Borrow fees and interest belong to the side of the position before the trades. Costs of
    trades belong to the side of the position after them, or of the closed one.
    """
    earning_R = np.where(rows.before_R != 0, rows.before_R, rows.position_R)
    short_R = (earning_R < 0).astype(np.intp)
    paying_R = np.where(rows.position_R != 0, rows.position_R, rows.before_R)
    gross_2 = sum_by(short_R, rows.pnl_R, 2)
    cost_2 = sum_by((paying_R < 0).astype(np.intp), rows.cost_R - rows.holding_cost_R, 2)
    cost_2 += sum_by(short_R, rows.holding_cost_R, 2)
    for side, key in enumerate(("long", "short")):
        yield Contribution("side", key, float(gross_2[side]), float(cost_2[side]))


def by_factor(rows: LedgerRows, scores: StyleScores, factors: FactorReturns) -> Iterator[Contribution]:
    """Split the profit into exposure times factor return, what is specific to the firms, and costs.

    In each session factor j earns ``sum_i position_i[t-1] x_ij[t-1] f_j[t]``, with ``x = 1`` for the market.
    The rest of the profit is specific. A factor whose return is unknown earns 0 in that session.

    Parameters
    ----------
    rows : LedgerRows
        Of the book.
    scores : StyleScores
        Scores on the book's sessions.
    factors : FactorReturns
        Factor returns on the book's sessions, from the scores one session before (delay 0).
    """
    held_TJ = np.column_stack(
        [
            sum_by(rows.session_R, rows.before_R, len(factors.return_TJ)),
            scored_amounts(rows, rows.before_R, scores, sessions_ago=1),
        ]
    )
    earned_J = (held_TJ * np.nan_to_num(factors.return_TJ)).sum(axis=0)
    for name, earned in zip(factors.names, earned_J, strict=True):
        yield Contribution("factor", name, float(earned), 0.0)
    yield Contribution("factor", SPECIFIC, float(rows.pnl_R.sum() - earned_J.sum()), 0.0)
    yield Contribution("factor", COSTS, 0.0, float(rows.cost_R.sum()))
