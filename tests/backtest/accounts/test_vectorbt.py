"""NAVs of vectorbt's `Portfolio.from_orders` and of a plain loop, on markets with every kind of event.

vectorbt is in the extra ``dev``. It knows no splits, dividends or payouts: it trades the total-return
index, and a delisted position is sold without costs at the value that holders were paid. It charges fees on
the slipped price, and the accounts on the price: its fees are divided by one plus or minus the slippage.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import polars as pl
import pytest
from ending_markets import STALE, holders_paid, raw_market

from backtest.accounts.accounting import run_book
from backtest.accounts.result import BookResult
from backtest.costs import CostModel
from features.arithmetic.rolling import carry
from features.panel.delistings import DelistingRule
from features.panel.panel import Panel, build_panel

SPREAD, FEE = 12e-4, 3e-4
CASH = 1e8  # vectorbt drops orders of less than 1e-8 units
COSTS = CostModel(half_spread_bps=12, commission_bps=3)


def market_and_targets(seed: int) -> tuple[Panel, np.ndarray]:
    """A panel with splits, dividends, halts, gaps and delistings, and random long and short weights."""
    market = raw_market(seed)
    rule = DelistingRule(STALE, unknown_return=-0.1)
    panel = build_panel(market.prices(), market.securities(), delisting_rule=rule)
    rng = np.random.default_rng(seed)
    weight_TN = rng.normal(size=panel.close_TN.shape) * (rng.random(panel.close_TN.shape) < 0.6)
    weight_TN *= 0.4 / np.maximum(np.abs(weight_TN).sum(axis=1, keepdims=True), 1)  # vectorbt lends no money
    weight_TN[rng.random(len(weight_TN)) < 0.5] = np.nan
    return panel, weight_TN


def account(panel: Panel, target_TN: np.ndarray, delay: int) -> BookResult:
    return run_book(
        target_TN,
        panel.total_return_index_TN,
        panel.traded_TN,
        COSTS,
        delay,
        delisted_TN=panel.delisted_TN,
        keep_ledger=True,
    )


def orders(panel: Panel, target_TN: np.ndarray, delay: int) -> np.ndarray:
    """Target weights on the sessions and firms where they can be traded; 0 where holders are paid out."""
    order_TN = np.full(target_TN.shape, np.nan)
    order_TN[delay:] = target_TN[: len(target_TN) - delay]
    gone_TN = holders_paid(panel)
    known_TN = np.isfinite(panel.total_return_index_TN)
    order_TN[~(panel.traded_TN & known_TN & ~gone_TN)] = np.nan
    order_TN[gone_TN] = 0.0
    return order_TN


def plain_loop(panel: Panel, target_TN: np.ndarray, delay: int) -> list[float]:
    """NAV of each session from units and cash, firm by firm in plain Python."""
    order_TN = orders(panel, target_TN, delay)
    index_TN = np.nan_to_num(carry(panel.total_return_index_TN))
    gone_TN = holders_paid(panel)
    T, N = order_TN.shape
    cash, units, navs = 1.0, [0.0] * N, []
    for t in range(T):
        nav = cash + sum(units[n] * float(index_TN[t, n]) for n in range(N))
        for n in range(N):
            price, goal = float(index_TN[t, n]), float(order_TN[t, n])
            if gone_TN[t, n]:
                cash, units[n] = cash + units[n] * price, 0.0
            elif not math.isnan(goal):
                trade = goal * nav - units[n] * price
                units[n] += trade / price
                cash -= trade + (SPREAD + FEE) * abs(trade)
        navs.append(cash + sum(units[n] * float(index_TN[t, n]) for n in range(N)))
    return navs


def test_nav_equals_that_of_a_plain_loop() -> None:
    events = 0
    for seed in range(40):
        panel, target_TN = market_and_targets(seed)
        for delay in (0, 1, 2):
            book = account(panel, target_TN, delay)
            np.testing.assert_allclose(book.nav_net_T, plain_loop(panel, target_TN, delay), rtol=1e-12)
            events += int((book.ledger["released"] != 0).sum())
    assert events > 100


@pytest.mark.slow(17)
def test_nav_equals_that_of_vectorbt() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vectorbt as vbt

        trades = released = 0
        for seed in range(60):
            panel, target_TN = market_and_targets(seed)
            delay = seed % 3
            book = account(panel, target_TN, delay)
            order_TN = orders(panel, target_TN, delay)
            slip_TN, fee_TN = np.full(order_TN.shape, SPREAD), np.full(order_TN.shape, FEE)
            traded = book.ledger.filter(pl.col("trade") != 0)
            at = (traded["session"].to_numpy(), traded["firm"].to_numpy())
            fee_TN[at] /= 1 + SPREAD * np.sign(traded["trade"].to_numpy())
            gone_TN = holders_paid(panel)
            slip_TN[gone_TN] = fee_TN[gone_TN] = 0.0
            index_TN = carry(panel.total_return_index_TN)
            if (index_TN == 0).any():
                continue  # vectorbt refuses a price of 0
            portfolio = vbt.Portfolio.from_orders(
                index_TN,
                size=order_TN,
                size_type="targetpercent",
                direction="both",
                fees=fee_TN,
                slippage=slip_TN,
                init_cash=CASH,
                cash_sharing=True,
                group_by=True,
                call_seq="auto",
                freq="1D",
            )
            nav_T = np.asarray(portfolio.value()).reshape(-1) / CASH
            np.testing.assert_allclose(book.nav_net_T, nav_T, rtol=1e-9, err_msg=f"seed {seed}")
            np.testing.assert_allclose(book.nav_ledger_T, nav_T, rtol=1e-9, err_msg=f"seed {seed}")
            trades += len(traded)
            released += int((book.ledger["released"] != 0).sum())
        assert trades > 2000
        assert released > 20
