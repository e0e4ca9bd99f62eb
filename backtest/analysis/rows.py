"""The rows of a ledger as arrays: what the analyses of one book share.

Shape suffixes: T sessions, R rows of the ledger, one for each session and position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class LedgerRows:
    """Rows by session and firm; amounts are in units of the starting capital.

    Attributes
    ----------
    session_R, firm_R : ndarray of int
        Indices of the book's sessions and of the panel's firms.
    before_R, position_R : ndarray
        Value at the previous close after its trades, and at this close after trades.
    trade_R : ndarray
        Value that was bought; negative for a sale.
    pnl_R : ndarray
        Profit before costs, earned by ``before_R``, and in executions before the close by ``trade_R``.
    cost_R : ndarray
        Costs of all kinds.
    holding_cost_R : ndarray
        The part of them that ``before_R`` pays: borrow fee and interest. Trades pay the rest.
    """

    session_R: IntArray
    firm_R: IntArray
    before_R: FloatArray
    position_R: FloatArray
    trade_R: FloatArray
    pnl_R: FloatArray
    cost_R: FloatArray
    holding_cost_R: FloatArray


def ledger_rows(ledger: pl.DataFrame) -> LedgerRows:
    """Take the arrays of a ledger (`backtest.accounts.ledger.SCHEMA`), and the positions before each session.

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


def sum_by(key_R: IntArray, amount_R: FloatArray, count: int) -> FloatArray:
    """Sum amounts by key, shape (count,)."""
    total: FloatArray = np.bincount(key_R, weights=amount_R, minlength=count).astype(np.float64, copy=False)
    return total


def keys_of(key_R: IntArray, count: int) -> list[int]:
    """List the keys that occur, in ascending order."""
    present: list[int] = np.flatnonzero(np.bincount(key_R, minlength=count)).tolist()
    return present
