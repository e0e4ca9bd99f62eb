"""A book's accounts: NAV from target weights, computed in two ways, and on request a ledger of positions.

At each close t, in this order:

1. Positions earn the session's return, `features.panel.holder_returns.held_return`; shorts pay the borrow fee
   on the market value that they had after the trades of ``t-1``.
2. A position whose firm has ``delisted_TN`` has earned the delisting return by then. It turns into cash
   without costs, and does not count as turnover.
3. If the decision of ``t - delay`` exists, every firm that can be traded is moved to its target weight
   times the NAV of this moment (after 1 and 2, before trading costs). Without a decision positions drift.
4. Half-spread and commission on the traded notional are paid from cash. Cash may be negative; it earns
   nothing.

`features.panel.holder_returns` defines which firms can be traded at t, what a position earns in halts, gaps
and delistings, and when it is paid out. Labels use the same functions: before costs a book earns the labels
of its delay.

**Positions that cannot be traded stay.** An order that cannot be traded is dropped and not queued; the next
decision tries again. The other firms still move to their targets, so leverage can exceed the target's
leverage while a position is stuck.

**Unknown prices.** A position whose total-return index is NaN (a gap in the data) keeps its last known value,
is reported in ``unpriced_T``, and earns the whole move when a price returns. Until then its value is unknown:
check ``unpriced_T`` before relying on the last sessions.

**Ruin.** If NAV is zero or less, before or after trading costs, the account is closed at that close.
Positions and NAV are zero from then on, and the net return of that session is -1. ``ruined_at`` is the
session, and ``shortfall`` the amount owed beyond the capital. The capital at the start is 1.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from backtest.accounts.ledger import Ledger
from backtest.accounts.result import BookResult
from backtest.costs.model import CostModel
from features.arrays import BoolArray, FloatArray, require_shape
from features.panel.holder_returns import HolderMarket, held_return, holder_market


@dataclass(frozen=True, slots=True, eq=False)
class _Market:
    """The inputs of both computations: the market from a holder's view, and the target weights."""

    holder: HolderMarket
    target_TN: FloatArray
    decided_T: BoolArray
    delay: int

    def order(self, t: int) -> FloatArray | None:
        """The target weights that are traded at the close of t; None without a decision."""
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
    keep_ledger: bool = False,
) -> BookResult:
    """Trade the target weights of session t at the close of ``t + delay``, and compute the accounts.

    The module's docstring lists the steps of a session in their order. Before costs, a book that decides
    every ``horizon`` sessions earns the labels of that horizon and the same delay.

    Parameters
    ----------
    target_TN : ndarray of shape (T, N)
        Fractions of NAV decided at the close of t; a row of NaN means no decision.
    total_return_index_TN : ndarray of shape (T, N)
        A holder's total-return index (`features.panel.panel.Panel.total_return_index_TN`), in any unit; NaN
        means unknown.
    traded_TN : ndarray of bool, shape (T, N)
        Whether the firm trades at t; False in halts and after a delisting.
    costs : CostModel
        Rates.
    delay : int
        Sessions between decision and trade, at least 0.
    delisted_TN : ndarray of bool, shape (T, N), optional
        Whether a delisting has paid holders out by the close of t (`features.panel.panel.Panel.delisted_TN`).
        None: nothing is ever paid out, and a position in a firm that no longer trades stays.
    keep_ledger : bool
        Whether to record every position (`BookResult.ledger`). Without it nothing is recorded.

    Returns
    -------
    BookResult
        Both NAVs, returns, costs, turnover, and the ledger if it is kept.

    Raises
    ------
    ValueError
        If shapes differ, there is no session, the delay is negative, the total-return index is negative or
        infinite, or a row of targets is infinite or only partly NaN.
    """
    market = _market(target_TN, total_return_index_TN, traded_TN, delay, delisted_TN)
    account = _Account(market, costs, Ledger() if keep_ledger else None)
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
        msg = f"delay is {delay}; it must be at least 0, since a decision cannot be traded before it is made."
        raise ValueError(msg)
    if np.any(total_return_index_TN < 0) or np.isinf(total_return_index_TN).any():
        msg = "The total-return index has a negative or infinite value; use NaN where it is unknown."
        raise ValueError(msg)
    unknown_T = np.isnan(target_TN).sum(axis=1)
    wrong_T = ((unknown_T > 0) & (unknown_T < N)) | np.isinf(target_TN).any(axis=1)
    if wrong_T.any():
        msg = (
            f"The target of session {int(np.argmax(wrong_T))} is infinite or partly NaN; use weight 0 for a "
            "firm that is not held, and a whole row of NaN for no decision."
        )
        raise ValueError(msg)
    if delisted_TN is None:
        delisted_TN = np.zeros((T, N), dtype=np.bool_)
    require_shape("delisted", delisted_TN, (T, N))
    return _Market(
        holder=holder_market(total_return_index_TN, traded_TN, delisted_TN),
        target_TN=target_TN,
        decided_T=unknown_T == 0,
        delay=delay,
    )


class _Flows(NamedTuple):
    """Changes of each position in a session, in units of the starting capital."""

    trade_N: FloatArray
    released_N: FloatArray
    borrow_N: FloatArray
    pnl_N: FloatArray


class _Account:
    """NAV from positions: units held and cash, and the ledger if it is kept."""

    def __init__(self, market: _Market, costs: CostModel, ledger: Ledger | None) -> None:
        T, N = market.target_TN.shape
        self.market, self.costs, self.ledger = market, costs, ledger
        self.alive = T  # sessions before ruin
        self.ruined_at: int | None = None
        self.shortfall = 0.0
        self.cash = 1.0
        self.position_N = np.zeros(N)
        self.nav_T, self.before_T = np.zeros(T), np.zeros(T)  # after costs; before trading costs
        self.traded_T, self.unfilled_T, self.borrow_T = np.zeros(T), np.zeros(T), np.zeros(T)
        self.gross_T, self.unpriced_T, self.cash_T = np.zeros(T), np.zeros(T), np.zeros(T)

    def run(self) -> None:
        """Process the sessions up to the end or ruin."""
        market, holder, costs = self.market, self.market.holder, self.costs
        value_TN = np.nan_to_num(holder.value_TN)  # before the first price there is no position
        units_N = np.zeros_like(self.position_N)
        zero_N = np.zeros_like(self.position_N)
        for t, index_N in enumerate(value_TN):
            value_N = units_N * index_N
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
                order_N = target_N * nav - (value_N - released_N)
                trade_N = np.where(holder.tradable_TN[t], order_N, 0.0)
                self.traded_T[t] = np.abs(trade_N).sum()
                self.unfilled_T[t] = np.abs(order_N).sum() - self.traded_T[t]
            paid = (costs.half_spread + costs.commission) * self.traded_T[t]
            self.cash += released_N.sum() - trade_N.sum() - paid
            if nav - paid <= 0:
                self._close(t, nav - paid, _Flows(trade_N, value_N + trade_N, borrow_N, pnl_N))
                return
            flows = _Flows(trade_N, released_N, borrow_N, pnl_N)
            self._move(t, value_N - released_N + trade_N, flows)
            np.divide(self.position_N, index_N, out=units_N, where=trade_N != 0)
            units_N[self.position_N == 0] = 0.0
            self.nav_T[t] = self.cash + self.position_N.sum()
            self.gross_T[t] = np.abs(self.position_N).sum()
            self.unpriced_T[t] = np.abs(self.position_N[~holder.known_TN[t]]).sum()
            self.cash_T[t] = self.cash

    def _move(self, t: int, position_N: FloatArray, flows: _Flows) -> None:
        """Take over the positions after trades, and add them to the ledger if it is kept."""
        if self.ledger is not None:
            cost_N = (self.costs.half_spread + self.costs.commission) * np.abs(flows.trade_N) + flows.borrow_N
            held_N = (self.position_N != 0) | (flows.trade_N != 0)
            self.ledger.add(t, held_N, position_N, flows.trade_N, flows.released_N, cost_N, flows.pnl_N)
        self.position_N = position_N

    def _close(self, t: int, nav: float, flows: _Flows) -> None:
        """Close the ruined account: all positions are paid out, and the shortfall is recorded."""
        self._move(t, np.zeros_like(self.position_N), flows)
        self.alive, self.ruined_at, self.shortfall = t, t, -nav

    def result(self, return_net_T: FloatArray, return_gross_T: FloatArray) -> BookResult:
        """Combine the account with the returns computed from weights."""
        start_T = np.concatenate([[1.0], self.nav_T[:-1]])
        costs = self.costs

        def over(amount_T: FloatArray, base_T: FloatArray) -> FloatArray:
            return np.divide(amount_T, base_T, out=np.zeros_like(amount_T), where=base_T > 0)

        nav_net_T: FloatArray = np.cumprod(1.0 + return_net_T, dtype=np.float64)
        nav_gross_T: FloatArray = np.cumprod(np.maximum(1.0 + return_gross_T, 0.0), dtype=np.float64)
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
            kept_ledger=None if self.ledger is None else self.ledger.frame(),
            first_trade=int(trades[0]) if len(trades) else None,
            ruined_at=self.ruined_at,
            shortfall=self.shortfall,
        )


def _compound(market: _Market, costs: CostModel, alive: int) -> tuple[FloatArray, FloatArray]:
    """Compute net and gross returns from weights only, without units or cash."""
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
