"""An account that goes on from recorded positions: what it holds some sessions later.

`backtest.accounts.accounting` begins with cash. Here the account begins with positions, open orders and cash
at a close, so that what is held never has to be derived from its history again.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backtest.accounts.decisions import Decisions
from backtest.accounts.execution import Execution
from backtest.accounts.flags import TRADABLE
from backtest.accounts.lanes import Variant, empty_books, kernel_inputs, lanes_with_cash
from backtest.accounts.market import BookMarket
from backtest.costs.model import CostModel
from features.arrays import FloatArray, frozen


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Positions, open orders and cash at a close, in units of the capital before the first session.

    Attributes
    ----------
    value_N : ndarray of shape (N,)
        Value of each position.
    open_N : ndarray of shape (N,)
        Value of what is still to be bought of earlier orders; negative for sales
        (`backtest.accounts.execution.Execution.carry`).
    cash : float
        Cash; negative if money is borrowed.
    """

    value_N: FloatArray
    open_N: FloatArray
    cash: float

    @property
    def nav(self) -> float:
        """Value of the account; 0 once it was ruined."""
        return self.cash + float(self.value_N.sum())


def roll_forward(
    account: Account, target_TN: FloatArray, market: BookMarket, costs: CostModel, execution: Execution
) -> Account:
    """Continue an account from the close of row 0 to the close of the last row.

    The steps of a session are those of `backtest.accounts.accounting`; nothing happens in row 0. A rolled
    account equals the account of one run over all sessions up to rounding.

    Parameters
    ----------
    account : Account
        The account at the close of row 0, after its trades.
    target_TN : ndarray of shape (T, N)
        Row t: target weights that are traded in row ``t + 1``, as fractions of the NAV before the trades; a
        row of NaN means no decision. The last row is not traded.
    market : BookMarket
        Values and states of the T sessions.
    costs, execution : CostModel, Execution
        Of the same sessions. Open orders are not filled in row 0.

    Returns
    -------
    Account
        At the close of the last row, after its trades.

    Raises
    ------
    ValueError
        If shapes differ, or a position or an open order has no value in row 0.
    """
    from backtest.accounts.kernels.positions import run_lanes

    price_N = market.value_TN[0]
    lost = np.flatnonzero(((account.value_N != 0) | (account.open_N != 0)) & ~(price_N > 0))
    if len(lost):
        msg = f"Firm {lost[0]} is held or ordered, but it has no price at the start of the account."
        raise ValueError(msg)
    state_TN = market.state_TN.copy()
    state_TN[0] &= ~np.uint8(TRADABLE)  # open orders are not filled again in row 0
    market = BookMarket(market.value_TN, frozen(state_TN))
    variant = Variant(Decisions.from_targets(target_TN), costs, 1, execution)
    variant.require(market)
    inputs = kernel_inputs([variant], market)
    lanes = lanes_with_cash(*inputs)
    held_N = price_N > 0
    np.divide(account.value_N, price_N, out=lanes.units_NV[:, 0], where=held_N)
    lanes.listed_N[:] = account.value_N != 0
    if len(lanes.left_NV):
        np.divide(account.open_N, price_N, out=lanes.left_NV[:, 0], where=held_N)
        lanes.listed_N[:] |= account.open_N != 0
        lanes.goal_1[0] = float((account.value_N + account.open_N).min() >= 0)  # long-only, without leverage
    lanes.cash_V[0], lanes.nav_V[0] = account.cash, account.nav
    run_lanes(*inputs, lanes, empty_books(market.n_sessions, 1), False)
    value_N = market.value_TN[-1]
    open_N = lanes.left_NV[:, 0] * value_N if len(lanes.left_NV) else np.zeros_like(value_N)
    return Account(lanes.units_NV[:, 0] * value_N, open_N, float(lanes.cash_V[0]))
