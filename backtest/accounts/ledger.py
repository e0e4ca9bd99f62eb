"""The ledger of a book: one row for every session and position.

Shape suffixes: L rows, C columns.
"""

from __future__ import annotations

import polars as pl

from backtest.costs.model import COST_KINDS
from features.arrays import FloatArray

SCHEMA = {
    "session": pl.Int32,
    "firm": pl.Int32,
    "position": pl.Float64,
    "trade": pl.Float64,
    "released": pl.Float64,
    **dict.fromkeys(COST_KINDS, pl.Float64),
    "cost": pl.Float64,
    "pnl": pl.Float64,
}
"""Columns of a ledger; amounts are in units of the starting capital.

session, firm
    Indices.
position
    Value at the close, after trades.
trade
    Value that was bought, at the price of execution; negative for a sale.
released
    Value that was paid out after a delisting, or at the ruin of the account.
half_spread, commission, impact, borrow, financing
    Costs by kind. Interest on borrowed money is shared by the long positions of the previous close, in
    proportion to their values.
cost
    Their sum.
pnl
    Profit before costs.

There is a row for every firm with a position before or after trades, and
``position[t] = position[t-1] + pnl + trade - released``. Over all rows, ``pnl - cost`` adds up to NAV - 1.
"""


def ledger_frame(rows_LC: FloatArray) -> pl.DataFrame:
    """Build the ledger from the rows of `backtest.accounts.kernels.positions.run_lanes`."""
    names = ("session", "firm", "position", "trade", "released", *COST_KINDS)
    frame = pl.DataFrame({name: rows_LC[:, at] for at, name in enumerate(names)})
    before = pl.col("position").shift(1).over("firm", order_by="session").fill_null(0.0)
    return frame.with_columns(
        cost=pl.sum_horizontal(COST_KINDS),
        pnl=pl.col("position") - before - pl.col("trade") + pl.col("released"),
    ).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
