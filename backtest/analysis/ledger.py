"""What the ledger of a book says: exposures, contributions to its profit, drawdowns and who lost most.

Contributions by sector, side, name and factor are four partitions of the same total, the sum of the ledger:
profit before costs, costs, and their difference, which is the last NAV less the starting capital of 1 (less
the shortfall of a ruined book as well).

Shape suffixes: T sessions, N firms, R rows of the ledger (one for each session and position), K styles, J
market and styles, S sectors, X any columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from backtest.accounts.result import over
from backtest.analysis.styles import FactorReturns, StyleScores, sum_by
from features.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class LedgerRows:
    """Rows by session and firm; amounts are in units of the starting capital."""

    # `session_R`, `firm_R`: indices of the book's sessions and of the panel's firms
    session_R: IntArray
    firm_R: IntArray
    # `before_R`, `position_R`: value at the previous close after its trades, and at this close after trades
    before_R: FloatArray
    position_R: FloatArray
    trade_R: FloatArray  # value that was bought; negative for a sale
    # profit before costs, earned by ``before_R``, and in executions before the close by ``trade_R``
    pnl_R: FloatArray
    cost_R: FloatArray  # costs of all kinds
    # the part of them that ``before_R`` pays: borrow fee and interest. Trades pay the rest.
    holding_cost_R: FloatArray


def ledger_rows(ledger: pl.DataFrame) -> LedgerRows:
    """Take the arrays of a ledger (`backtest.accounts.result.SCHEMA`), and the positions before each session.

    ``position[t-1] = position[t] - pnl - trade + released``; a remainder of rounding counts as no position.
    """
    column = {name: ledger[name].to_numpy() for name in ledger.columns}
    before_R = column["position"] - column["pnl"] - column["trade"] + column["released"]
    size_R = np.abs(column["position"]) + np.abs(column["trade"]) + np.abs(column["released"])
    before_R[np.abs(before_R) <= 1e-12 * size_R] = 0.0
    return LedgerRows(
        session_R=column["session"].astype(np.intp),
        firm_R=column["firm"].astype(np.intp),
        before_R=before_R,
        position_R=column["position"],
        trade_R=column["trade"],
        pnl_R=column["pnl"],
        cost_R=column["cost"],
        holding_cost_R=column["borrow"] + column["financing"],
    )


def style_exposures(rows: LedgerRows, scores: StyleScores, nav_T: FloatArray) -> FloatArray:
    """Weighted style scores after the trades of each session, ``sum_i position_i x_ik / NAV``, shape (T, K).

    0 in sessions without a NAV.
    """
    return over(factor_amounts(rows, rows.position_R, scores, len(nav_T))[:, 1:], nav_T[:, None])


def factor_amounts(  # noqa: PLR0917  # what is summed, and where its scores lie
    rows: LedgerRows,
    amount_R: FloatArray,
    scores: StyleScores,
    sessions: int,
    first: int = 0,
    sessions_ago: int = 0,
) -> FloatArray:
    """Sum the amounts of the rows, and amounts times scores, by session of the book, shape (T, J).

    ``first`` is the session of the scores that is session 0 of the book. ``sessions_ago`` is the age of the
    scores: 1 takes those of the previous close, for amounts that are 0 where there is none.
    """
    known_R = np.maximum(first + rows.session_R - sessions_ago, 0)
    scored = (amount_R * score_TN[known_R, rows.firm_R] for score_TN in scores.score_KTN)
    return np.column_stack([sum_by(rows.session_R, one_R, sessions) for one_R in (amount_R, *scored)])


def sector_exposures(rows: LedgerRows, group_TN: IntArray, n_groups: int, nav_T: FloatArray) -> FloatArray:
    """Net weight of each sector after the trades of each session, shape (T, 1 + n_groups).

    Columns are those of `backtest.analysis.ledger.sector_names`; 0 in sessions without a NAV.
    """
    T, S = len(nav_T), n_groups + 1
    code_R = group_TN[rows.session_R, rows.firm_R].astype(np.intp) + 1
    total_TS = sum_by(rows.session_R.astype(np.intp) * S + code_R, rows.position_R, T * S).reshape(T, S)
    return over(total_TS, nav_T[:, None])


UNKNOWN_SECTOR = "unknown"
SPECIFIC = "specific"
COSTS = "costs"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one part of a book earned, in fractions of the starting capital."""

    by: str  # partition: ``sector``, ``side``, ``factor`` or ``name``
    key: str  # part, such as a sector's name
    # `gross`, `cost`: profit before costs, and costs
    gross: float
    cost: float

    @property
    def net(self) -> float:
        """Profit after costs."""
        return self.gross - self.cost


def by_name(rows: LedgerRows, tickers_N: tuple[str, ...]) -> Iterator[Contribution]:
    """Split the profit by firm; firms that were never held are left out."""
    return _by_key("name", tickers_N, rows, rows.firm_R)


def by_sector(rows: LedgerRows, group_TN: IntArray, groups_S: tuple[str, ...]) -> Iterator[Contribution]:
    """Split the profit by the sector that a firm has in the session; sectors without a position are left out.

    ``group_TN`` holds the codes of the sectors on the book's sessions, -1 where unknown, and ``groups_S``
    their names.
    """
    code_R = group_TN[rows.session_R, rows.firm_R].astype(np.intp) + 1
    return _by_key("sector", sector_names(groups_S), rows, code_R)


def _by_key(by: str, names: tuple[str, ...], rows: LedgerRows, key_R: IntArray) -> Iterator[Contribution]:
    """Split the profit by the keys that occur, which are positions in the names."""
    gross, cost = (sum_by(key_R, amount_R, len(names)) for amount_R in (rows.pnl_R, rows.cost_R))
    for key in np.unique(key_R):
        yield Contribution(by, names[key], float(gross[key]), float(cost[key]))


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
    The rest of the profit is specific. A factor whose return is unknown earns 0 in that session. Scores and
    factor returns are those of the book's sessions, the returns from the scores one session before (delay 0).
    """
    held_TJ = factor_amounts(rows, rows.before_R, scores, len(factors.return_TJ), sessions_ago=1)
    earned_J = (held_TJ * np.nan_to_num(factors.return_TJ)).sum(axis=0)
    return explained("factor", dict(zip(factors.names, earned_J.tolist(), strict=True)), rows)


def explained(by: str, earned: Mapping[str, float], rows: LedgerRows) -> Iterator[Contribution]:
    """Say what factors earned, and what is left: specific profit, and costs."""
    for name, gross in earned.items():
        yield Contribution(by, name, gross, 0.0)
    yield Contribution(by, SPECIFIC, float(rows.pnl_R.sum() - sum(earned.values())), 0.0)
    yield Contribution(by, COSTS, 0.0, float(rows.cost_R.sum()))


@dataclass(frozen=True, slots=True)
class Drawdown:
    """A fall of NAV below an earlier peak.

    Examples
    --------
    >>> largest_drawdowns(np.array([0.1, -0.2, 0.3]))[0].trough
    1
    """

    peak: int
    trough: int
    """`peak`, `trough`: sessions of the peak and of the lowest NAV. -1 is the starting capital, before the
    first session."""
    recovered: int | None
    """First session on which NAV is at the peak's level again; None if there is none."""
    depth: float
    """``1 - NAV[trough] / NAV[peak]``."""
    sessions: int
    """From the peak to the recovery, or to the last session."""


def largest_drawdowns(return_T: FloatArray, count: int = 5) -> list[Drawdown]:
    """Find the deepest drawdowns of compounded returns; they do not overlap.

    At most ``count``, the deepest first; of equal ones the first first. Empty if NAV never falls.

    Examples
    --------
    >>> [round(one.depth, 3) for one in largest_drawdowns(np.array([0.1, -0.2, 0.3, -0.05]))]
    [0.2, 0.05]
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
    """Sessions with the lowest negative returns, the lowest first.

    Examples
    --------
    >>> worst_days(np.array([0.01, -0.02, -0.01]), count=1)
    [1]
    """
    order = np.argsort(return_T, kind="stable")[:count]
    return [int(t) for t in order if return_T[t] < 0]


def losers(
    rows: LedgerRows, sessions: range, n_firms: int, capital: float, count: int = 5
) -> list[tuple[int, float]]:
    """Find the firms that lost most over some consecutive sessions of a book, the largest loss first.

    Each has its profit after costs over ``capital``, the NAV before the first of these sessions. The profits
    of all firms add up to the book's return over them.
    """
    first, last = np.searchsorted(rows.session_R, [sessions.start, sessions.stop])
    span = slice(int(first), int(last))
    net_N = sum_by(rows.firm_R[span], rows.pnl_R[span] - rows.cost_R[span], n_firms) / capital
    worst = np.argsort(net_N, kind="stable")[:count]
    return [(int(firm), float(net_N[firm])) for firm in worst if net_N[firm] < 0]
