"""The result of a book: its NAV, returns, costs and turnover, and its ledger.

Shape suffixes: T sessions, L rows of the ledger, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from backtest.costs import COST_KINDS
from features.arrays import FloatArray
from features.panel.periods import SESSIONS_PER_YEAR

if TYPE_CHECKING:
    from backtest.accounts.positions import LaneAccounts


@dataclass(frozen=True, slots=True, eq=False)
class BookResult:
    """The accounts of one book; every array has shape (T,) and is known at the close of t.

    Examples
    --------
    >>> from backtest.accounts.accounting import run_book
    >>> index, traded = np.array([[1.0], [1.1]]), np.ones((2, 1), dtype=bool)
    >>> from backtest.costs import CostModel
    >>> result = run_book(np.array([[1.0], [np.nan]]), index, traded, CostModel(5.0), delay=0)
    >>> result.costs_T["half_spread"]
    array([0.0005, 0.    ])
    """

    return_net_T: FloatArray
    """``nav_net[t] / nav_net[t-1] - 1``, from weights and returns."""
    return_gross_T: FloatArray
    """Profit before costs over ``nav_net[t-1]``. Gross minus net return is the sum of the five costs below,
    except in the session of ruin, whose net return is -1."""
    costs_T: Mapping[str, FloatArray]
    """Costs by kind (`backtest.costs.COST_KINDS`) over ``nav_net[t-1]``."""
    nav_ledger_T: FloatArray
    """NAV from positions: cash plus units times total-return index. Equal to `nav_net_T` up to rounding."""
    turnover_T: FloatArray
    """One-way: half of the traded notional over the NAV that the orders are sized on, which is the NAV before
    trading costs (at execution before the close: ``nav_net[t-1]``). Replacing a whole long-only book is a
    turnover of 1; buying it from cash is a turnover of 0.5. So trades pay the half-spread on twice the
    turnover."""
    unfilled_T: FloatArray
    """Orders of the session that were not traded, in the same unit as turnover. With a participation cap
    these orders stay open, and count in every session until they are filled."""
    unpriced_T: FloatArray
    """Gross value of positions without a known price, over NAV."""
    leverage_T: FloatArray
    """Gross value of positions over NAV, after trades."""
    cash_T: FloatArray
    """Cash over NAV, after trades and costs."""
    kept_ledger: pl.DataFrame | None
    """The rows of `backtest.accounts.result.SCHEMA`; None unless `run_book` was called with
    ``keep_ledger=True``."""
    first_trade: int | None
    """First session with a trade; None if there was none."""
    ruined_at: int | None
    """Session at which NAV reached zero or less."""
    shortfall: float
    """Amount owed beyond the capital at ruin; 0 otherwise."""
    periods_per_year: float = SESSIONS_PER_YEAR
    """Sessions in a year, which annual figures use."""

    @property
    def nav_net_T(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """NAV after costs, compounded from the returns. The capital before session 0 is 1."""
        return np.cumprod(1.0 + self.return_net_T, dtype=np.float64)

    @property
    def nav_gross_T(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """``cumprod(1 + return_gross)``, not below 0."""
        return np.cumprod(np.maximum(1.0 + self.return_gross_T, 0.0), dtype=np.float64)

    @property
    def net_exposure_T(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """Long minus short value over NAV after trades: 1 - cash; 0 after ruin."""
        return np.where(self.nav_ledger_T > 0, 1.0 - self.cash_T, 0.0)

    @property
    def identity_gap(self) -> float:
        """Largest relative difference of the two NAVs; rounding only, unless NAV came close to zero."""
        net_T = self.nav_net_T
        gap_T = (np.abs(self.nav_ledger_T - net_T) / np.where(net_T > 0, net_T, 1.0))[net_T > 0]
        return float(gap_T.max(initial=0.0))

    @property
    def ledger(self) -> pl.DataFrame:
        """The recorded ledger; ValueError if it was not kept."""
        if self.kept_ledger is None:
            raise ValueError("The ledger of this book was not kept; run it with keep_ledger=True.")
        return self.kept_ledger


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


def over(amount: FloatArray, base: FloatArray) -> FloatArray:
    """Quotient of amounts and their base; 0 where the base is not above zero."""
    return np.divide(amount, base, out=np.zeros_like(amount), where=base > 0)


def lane_result(  # noqa: PLR0917  # the accounts, then what they lack
    books: LaneAccounts,
    v: int,
    return_net_T: FloatArray,
    return_gross_T: FloatArray,
    periods_per_year: float,
    ledger: pl.DataFrame | None = None,
) -> BookResult:
    """Return the accounts of lane v of `backtest.accounts.positions.run_lanes`."""
    nav_T, base_T, traded_T = books.nav_TV[:, v].copy(), books.base_TV[:, v], books.traded_TV[:, v]
    start_T = np.concatenate([[1.0], nav_T[:-1]])
    trades, ruined = np.flatnonzero(traded_T), int(books.ruined_V[v])
    return BookResult(
        return_net_T=return_net_T,
        return_gross_T=return_gross_T,
        costs_T={kind: over(getattr(books, f"{kind}_TV")[:, v], start_T) for kind in COST_KINDS},
        nav_ledger_T=nav_T,
        turnover_T=over(0.5 * traded_T, base_T),
        unfilled_T=over(0.5 * books.unfilled_TV[:, v], base_T),
        unpriced_T=over(books.unpriced_TV[:, v], nav_T),
        leverage_T=over(books.gross_TV[:, v], nav_T),
        cash_T=over(books.cash_TV[:, v], nav_T),
        kept_ledger=ledger,
        first_trade=int(trades[0]) if len(trades) else None,
        ruined_at=ruined if ruined < len(nav_T) else None,
        shortfall=float(books.shortfall_V[v]),
        periods_per_year=periods_per_year,
    )


def ledger_frame(rows_LC: FloatArray) -> pl.DataFrame:
    """Build the ledger from the rows of `backtest.accounts.positions.run_lanes`."""
    names = ("session", "firm", "position", "trade", "released", *COST_KINDS)
    frame = pl.DataFrame({name: rows_LC[:, at] for at, name in enumerate(names)})
    before = pl.col("position").shift(1).over("firm", order_by="session").fill_null(0.0)
    return frame.with_columns(
        cost=pl.sum_horizontal(COST_KINDS),
        pnl=pl.col("position") - before - pl.col("trade") + pl.col("released"),
    ).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
