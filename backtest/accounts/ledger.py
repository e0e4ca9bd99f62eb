"""The ledger of a book: one row for every session and position.

Shape suffix: N firms.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from features.arrays import BoolArray, FloatArray

SCHEMA = {
    "session": pl.Int32,
    "firm": pl.Int32,
    "position": pl.Float64,
    "trade": pl.Float64,
    "released": pl.Float64,
    "cost": pl.Float64,
    "pnl": pl.Float64,
}
"""Columns of a ledger; amounts are in units of the starting capital.

session, firm
    Indices.
position
    Value after trades.
trade
    Value that was bought; negative for a sale.
released
    Value that was paid out after a delisting.
cost
    Half-spread, commission and borrow fee.
pnl
    Profit before costs.

There is a row for every firm with a position before or after trades, and
``position[t] = position[t-1] + pnl + trade - released``.
"""


class Ledger:
    """Collects the rows of a book, session by session."""

    def __init__(self) -> None:
        self._sessions: list[pl.DataFrame] = []

    def add(self, session: int, held_N: BoolArray, *amounts: FloatArray) -> None:
        """Add the rows of a session.

        Parameters
        ----------
        session : int
            Its index.
        held_N : ndarray of bool, shape (N,)
            Firms with a position before or after trades.
        *amounts : ndarray of shape (N,)
            position, trade, released, cost and pnl.
        """
        firms = np.flatnonzero(held_N)
        columns = (np.full(len(firms), session), firms, *(amount_N[firms] for amount_N in amounts))
        self._sessions.append(pl.DataFrame(dict(zip(SCHEMA, columns, strict=True)), schema=SCHEMA))

    def frame(self) -> pl.DataFrame:
        """All rows, by session and firm; the columns are those of `SCHEMA`."""
        return pl.concat(self._sessions)
