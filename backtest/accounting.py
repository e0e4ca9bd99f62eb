r"""A book's accounts: from target weights to NAV, twice, and a ledger of every position.

At each close t, in this order:

1. Positions earn the session's return, `features.panel.holder_returns.held_return`; shorts pay the borrow fee
   on the market value that they had after the trades of ``t-1``.
2. A position whose firm has ``delisted_TN`` has by then earned the delisting return: it turns into cash, free
   of cost and not counted as turnover.
3. If the decision of ``t - delay`` exists, every firm that can be traded is moved to its target weight
   times the NAV of this moment (after 1 and 2, before trading costs). Without a decision positions drift.
4. Half-spread and commission on the traded notional are paid from cash. Cash may be negative; it earns
   nothing.

`features.panel.holder_returns` says which firms can be traded at t, what a position earns in halts, gaps and
endings, and when it is paid out. Labels use the same functions, so before costs a book earns what the labels
of its delay say.

**What cannot be traded stays.** The rest of its order is dropped, not queued: the next decision tries again.
The other firms still go to their targets, so leverage can exceed the target's while a position is stuck.

**NaN wealth.** A position whose wealth is NaN (a gap in the data) stays at its last known value, is reported
in ``unpriced_T``, and earns the whole move if its price returns. Until then its value is not known: read
``unpriced_T`` before trusting the last sessions.

**Ruin.** If NAV is zero or less, before or after trading costs, the account is closed at that close:
positions and NAV are zero from then on, that session's net return is -1, ``ruined_at`` says when and
``shortfall`` what is owed beyond the capital. The capital at the start is 1.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.costs import CostModel
from features.arrays import BoolArray, FloatArray, require_shape
from features.panel.holder_returns import HolderMarket, held_return, holder_market

LEDGER_SCHEMA = {
    "session": pl.Int32,
    "firm": pl.Int32,
    "position": pl.Float64,
    "trade": pl.Float64,
    "released": pl.Float64,
    "cost": pl.Float64,
    "pnl": pl.Float64,
}


@dataclass(frozen=True, slots=True, eq=False)
class BookResult:
    """The accounts of one book; every array has shape (T,) and is known at the close of t.

    Attributes
    ----------
    nav_net_T : ndarray
        NAV after costs, compounded from weights and returns. The capital before session 0 is 1.
    nav_ledger_T : ndarray
        The same NAV from the ledger: cash plus units times wealth. Agrees with `nav_net_T` to rounding.
    nav_gross_T : ndarray
        ``cumprod(1 + return_gross)``.
    return_net_T : ndarray
        ``nav_net[t] / nav_net[t-1] - 1``.
    return_gross_T : ndarray
        Profit before costs over ``nav_net[t-1]``: gross minus net return is the three costs below (but for
        the session of ruin, whose net return is -1).
    half_spread_T, commission_T, borrow_T : ndarray
        Costs by kind over ``nav_net[t-1]``.
    turnover_T : ndarray
        One-way: half the traded notional over NAV before trading costs. Replacing a whole long-only book is
        1, buying it from cash 0.5.
    unfilled_T : ndarray
        Orders that could not be traded, measured as turnover is.
    unpriced_T : ndarray
        Gross value of positions without a known price, over NAV.
    leverage_T : ndarray
        Gross value of positions over NAV, after trades.
    cash_T : ndarray
        Cash over NAV, after trades and costs.
    ledger : polars.DataFrame
        One row a session and firm with a position before or after trades: session, firm (indices), position
        (after trades), trade, released (paid out after a delisting), cost (all kinds), pnl (before costs);
        in units of the starting capital. ``position[t] = position[t-1] + pnl + trade - released``.
    first_trade : int or None
        First session with a trade; None if there was none.
    ruined_at : int or None
        Session at which NAV reached zero or less.
    shortfall : float
        What was owed beyond the capital at ruin; 0 otherwise.
    """

    nav_net_T: FloatArray
    nav_ledger_T: FloatArray
    nav_gross_T: FloatArray
    return_net_T: FloatArray
    return_gross_T: FloatArray
    half_spread_T: FloatArray
    commission_T: FloatArray
    borrow_T: FloatArray
    turnover_T: FloatArray
    unfilled_T: FloatArray
    unpriced_T: FloatArray
    leverage_T: FloatArray
    cash_T: FloatArray
    ledger: pl.DataFrame
    first_trade: int | None
    ruined_at: int | None
    shortfall: float

    @property
    def identity_gap(self) -> float:
        """Largest relative difference of the two NAVs; rounding only, unless NAV came close to zero."""
        alive_T = self.nav_net_T > 0
        gap_T = np.abs(self.nav_ledger_T - self.nav_net_T)[alive_T] / self.nav_net_T[alive_T]
        return float(gap_T.max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Market:
    """What both computations are given: the firms as a holder sees them, and what is wanted."""

    holder: HolderMarket
    target_TN: FloatArray
    decided_T: BoolArray
    delay: int

    def order(self, t: int) -> FloatArray | None:
        """Give the target weights that are traded at the close of t, or None."""
        decision = t - self.delay
        return self.target_TN[decision] if decision >= 0 and self.decided_T[decision] else None


def run_book(
    target_TN: FloatArray,
    total_return_index_TN: FloatArray,
    traded_TN: BoolArray,
    costs: CostModel,
    delay: int,
    *,
    delisted_TN: BoolArray | None = None,
) -> BookResult:
    """Trade target weights decided at t at the close of ``t + delay`` and keep the accounts.

    The module's head says what happens in which order. With the label of the same delay, a book that decides
    every ``horizon`` sessions earns what the label says, before costs.

    Parameters
    ----------
    target_TN : ndarray of shape (T, N)
        Fractions of NAV decided at the close of t; a row of NaN = no decision.
    total_return_index_TN : ndarray of shape (T, N)
        A holder's total-return index (`features.panel.panel.Panel.total_return_index_TN`), in any unit; NaN =
        not known.
    traded_TN : ndarray of bool, shape (T, N)
        Whether the firm trades at t; False in halts and after a delisting.
    costs : CostModel
        Rates.
    delay : int
        Sessions between decision and trade, at least 0.
    delisted_TN : ndarray of bool, shape (T, N), optional
        Whether a delisting has paid holders out by the close of t (`features.panel.panel.Panel.delisted_TN`).
        None: nobody is ever paid out; a position in a firm that trades no more stays.

    Returns
    -------
    BookResult
        Both NAVs, returns, costs, turnover and the ledger.

    Raises
    ------
    ValueError
        If shapes differ or there is no session, the delay is negative, wealth is negative or infinite, or a
        row of targets is partly NaN or infinite.
    """
    market = _market(target_TN, total_return_index_TN, traded_TN, delay, delisted_TN)
    account = _Account(market, costs)
    account.run()
    return account.result(*_compound(market, costs, account.alive))


def _market(
    target_TN: FloatArray,
    total_return_index_TN: FloatArray,
    traded_TN: BoolArray,
    delay: int,
    delisted_TN: BoolArray | None,
) -> _Market:
    if total_return_index_TN.ndim != 2 or not len(total_return_index_TN):
        msg = (
            f"The total-return index has shape {total_return_index_TN.shape}: it needs at least one "
            "row (session) and one column per firm."
        )
        raise ValueError(msg)
    require_shape("the target", target_TN, total_return_index_TN.shape)
    require_shape("traded", traded_TN, total_return_index_TN.shape)
    T, N = total_return_index_TN.shape
    if delay < 0:
        msg = f"delay is {delay}: a decision cannot be traded before it is made, use at least 0."
        raise ValueError(msg)
    if np.any(total_return_index_TN < 0) or np.isinf(total_return_index_TN).any():
        msg = "wealth has a negative or infinite value: give a total-return index, NaN where it is not known."
        raise ValueError(msg)
    unknown_T = np.isnan(target_TN).sum(axis=1)
    wrong_T = ((unknown_T > 0) & (unknown_T < N)) | np.isinf(target_TN).any(axis=1)
    if wrong_T.any():
        msg = (
            f"The target of session {int(np.argmax(wrong_T))} is partly NaN or infinite: use weight 0 for a "
            "firm that is not wanted, and a whole row of NaN for no decision."
        )
        raise ValueError(msg)
    if delisted_TN is None:
        delisted_TN = np.zeros((T, N), dtype=np.bool_)
    require_shape("ended", delisted_TN, (T, N))
    return _Market(
        holder=holder_market(total_return_index_TN, traded_TN, delisted_TN),
        target_TN=target_TN,
        decided_T=unknown_T == 0,
        delay=delay,
    )


class _Flows(NamedTuple):
    """What moved each position in a session, in units of the starting capital."""

    trade_N: FloatArray
    released_N: FloatArray
    borrow_N: FloatArray
    pnl_N: FloatArray


class _Account:
    """NAV from the ledger: units held, cash, and a row for every position."""

    def __init__(self, market: _Market, costs: CostModel) -> None:
        T, N = market.target_TN.shape
        self.market, self.costs = market, costs
        self.alive = T  # sessions before ruin
        self.ruined_at: int | None = None
        self.shortfall = 0.0
        self.cash = 1.0
        self.position_N = np.zeros(N)
        self.nav_T, self.before_T = np.zeros(T), np.zeros(T)  # after costs; before trading costs
        self.traded_T, self.unfilled_T, self.borrow_T = np.zeros(T), np.zeros(T), np.zeros(T)
        self.gross_T, self.unpriced_T, self.cash_T = np.zeros(T), np.zeros(T), np.zeros(T)
        self.rows: list[tuple[npt.NDArray[Any], ...]] = []  # the ledger's columns, a session at a time

    def run(self) -> None:
        """Go through the sessions until the end or ruin."""
        market, holder, costs = self.market, self.market.holder, self.costs
        value_TN = np.nan_to_num(holder.value_TN)  # before the first price there is no position
        units_N = np.zeros_like(self.position_N)
        zero_N = np.zeros_like(self.position_N)
        for t, wealth_N in enumerate(value_TN):
            value_N = units_N * wealth_N
            pnl_N = value_N - self.position_N
            borrow_N = costs.borrow_per_session * np.maximum(-self.position_N, 0.0)
            self.borrow_T[t] = borrow_N.sum()
            self.cash -= self.borrow_T[t]
            nav = self.before_T[t] = self.cash + value_N.sum()
            if nav <= 0:
                self._close(t, nav, _Flows(zero_N, value_N, borrow_N, pnl_N))
                return
            released_N = np.where(holder.delisted_TN[t], value_N, 0.0)
            trade_N = zero_N
            target_N = market.order(t)
            if target_N is not None:
                wanted_N = target_N * nav - (value_N - released_N)
                trade_N = np.where(holder.tradable_TN[t], wanted_N, 0.0)
                self.traded_T[t] = np.abs(trade_N).sum()
                self.unfilled_T[t] = np.abs(wanted_N).sum() - self.traded_T[t]
            paid = (costs.half_spread + costs.commission) * self.traded_T[t]
            self.cash += released_N.sum() - trade_N.sum() - paid
            if nav - paid <= 0:
                self._close(t, nav - paid, _Flows(trade_N, value_N + trade_N, borrow_N, pnl_N))
                return
            flows = _Flows(trade_N, released_N, borrow_N, pnl_N)
            self._write(t, value_N - released_N + trade_N, flows)
            np.divide(self.position_N, wealth_N, out=units_N, where=trade_N != 0)
            units_N[self.position_N == 0] = 0.0
            self.nav_T[t] = self.cash + self.position_N.sum()
            self.gross_T[t] = np.abs(self.position_N).sum()
            self.unpriced_T[t] = np.abs(self.position_N[~holder.known_TN[t]]).sum()
            self.cash_T[t] = self.cash

    def _write(self, t: int, position_N: FloatArray, flows: _Flows) -> None:
        """Add the session's rows to the ledger and take over its positions."""
        rows = np.flatnonzero((self.position_N != 0) | (flows.trade_N != 0))
        cost_N = (self.costs.half_spread + self.costs.commission) * np.abs(flows.trade_N) + flows.borrow_N
        columns = (position_N, flows.trade_N, flows.released_N, cost_N, flows.pnl_N)
        self.rows.append((np.full(len(rows), t), rows, *(column[rows] for column in columns)))
        self.position_N = position_N

    def _close(self, t: int, nav: float, flows: _Flows) -> None:
        """Close the ruined account: all positions are paid out, the rest is owed."""
        self._write(t, np.zeros_like(self.position_N), flows)
        self.alive, self.ruined_at, self.shortfall = t, t, -nav

    def result(self, return_net_T: FloatArray, return_gross_T: FloatArray) -> BookResult:
        """Put the account next to the returns computed apart from it."""
        start_T = np.concatenate([[1.0], self.nav_T[:-1]])
        costs = self.costs

        def over(amount_T: FloatArray, base_T: FloatArray) -> FloatArray:
            return np.divide(amount_T, base_T, out=np.zeros_like(amount_T), where=base_T > 0)

        nav_net_T: FloatArray = np.cumprod(1.0 + return_net_T, dtype=np.float64)
        nav_gross_T: FloatArray = np.cumprod(np.maximum(1.0 + return_gross_T, 0.0), dtype=np.float64)
        columns = [np.concatenate(parts) for parts in zip(*self.rows, strict=True)]
        trades = np.flatnonzero(self.traded_T)
        return BookResult(
            nav_net_T=nav_net_T,
            nav_ledger_T=self.nav_T,
            nav_gross_T=nav_gross_T,
            return_net_T=return_net_T,
            return_gross_T=return_gross_T,
            half_spread_T=over(costs.half_spread * self.traded_T, start_T),
            commission_T=over(costs.commission * self.traded_T, start_T),
            borrow_T=over(self.borrow_T, start_T),
            turnover_T=over(0.5 * self.traded_T, self.before_T),
            unfilled_T=over(0.5 * self.unfilled_T, self.before_T),
            unpriced_T=over(self.unpriced_T, self.nav_T),
            leverage_T=over(self.gross_T, self.nav_T),
            cash_T=over(self.cash_T, self.nav_T),
            ledger=pl.DataFrame(dict(zip(LEDGER_SCHEMA, columns, strict=True)), schema=LEDGER_SCHEMA),
            first_trade=int(trades[0]) if len(trades) else None,
            ruined_at=self.ruined_at,
            shortfall=self.shortfall,
        )


def _compound(market: _Market, costs: CostModel, alive: int) -> tuple[FloatArray, FloatArray]:
    """Compute net and gross returns from weights alone: no units, no cash, no currency."""
    holder = market.holder
    T, N = market.target_TN.shape
    earned_TN = np.nan_to_num(held_return(holder, 1))  # before the first price there is no position
    net_T, gross_T = np.zeros(T), np.zeros(T)
    trade_rate = costs.half_spread + costs.commission
    weight_N = np.zeros(N)
    for t in range(min(alive + 1, T)):
        earned_N = earned_TN[t - 1] if t else np.zeros(N)
        earned = float(weight_N @ earned_N)
        borrow = costs.borrow_per_session * float(np.maximum(-weight_N, 0.0).sum())
        growth = 1.0 + earned - borrow
        gross_T[t] = earned
        if t == alive:  # the account did not survive this session
            net_T[t] = -1.0
            break
        weight_N = np.where(holder.delisted_TN[t], 0.0, weight_N * (1.0 + earned_N) / growth)
        paid = 0.0
        target_N = market.order(t)
        if target_N is not None:
            moved_N = np.where(holder.tradable_TN[t], target_N, weight_N)
            paid = trade_rate * float(np.abs(moved_N - weight_N).sum())
            weight_N = moved_N / (1.0 - paid)
        net_T[t] = growth * (1.0 - paid) - 1.0
    return net_T, gross_T
