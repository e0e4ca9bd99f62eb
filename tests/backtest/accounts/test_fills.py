"""Accounts that follow given fills: by hand, and given the fills of a backtest they are that backtest."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from account_cases import CAPITAL, random_case

from backtest.accounts.accounting import Account, roll_forward
from backtest.accounts.fills import Fills, fills_of_positions, follow_fills, share_prices
from backtest.accounts.market import prepare_market
from backtest.costs import COST_KINDS, CostModel, SquareRootImpact

NAN = np.nan


def test_splits_dividends_a_halt_and_a_delisting_by_hand() -> None:
    """Firm 0 splits and pays; firm 1 is short, pays in a halt, and is delisted 40% below its last price."""
    close_TN = np.array([[10.0, 20.0], [5.5, 21.0], [6.0, NAN], [6.2, NAN]])
    split_TN, dividend_TN = np.ones((4, 2)), np.zeros((4, 2))
    split_TN[1, 0], dividend_TN[1, 0], dividend_TN[2, 1] = 2.0, 0.5, 1.0
    index_TN = np.array([[10.0, 20.0], [12.0, 21.0], [13.0, 21.0], [13.4, 12.6]])
    gone_TN = np.array([[False, False]] * 3 + [[False, True]])
    market = prepare_market(index_TN, ~np.isnan(close_TN), gone_TN)
    prices = share_prices(close_TN, split_TN, dividend_TN, market)
    np.testing.assert_allclose(prices.price_TN[:, 1], [20.0, 21.0, 21.0, 12.6])
    bought_TN, paid_TN, fee_TN = (np.zeros((4, 2)) for _ in range(3))
    bought_TN[0], paid_TN[0], fee_TN[0] = [60.0, -20.0], [606.0, -398.0], [0.6, 0.4]
    bought_TN[2, 0], paid_TN[2, 0], fee_TN[2, 0] = -20.0, -118.0, 0.1
    costs = CostModel(borrow_bps_per_year=252.0, financing_bps_per_year=504.0, periods_per_year=252.0)
    course = follow_fills(Fills(bought_TN, paid_TN, fee_TN), prices, costs, capital=500.0)

    cash = 500.0 - 606.0 + 398.0 - 1.0
    nav = [cash + 60 * 10.0 - 20 * 20.0]  # 491
    cash += 120 * 0.5 - 1e-4 * 20 * 20.0 - 2e-4 * (600.0 - nav[0])
    nav.append(cash + 120 * 5.5 - 20 * 21.0)
    cash += -20 * 1.0 + 118.0 - 0.1 - 1e-4 * 20 * 21.0 - 2e-4 * (660.0 - nav[1])
    nav.append(cash + 100 * 6.0 - 20 * 21.0)
    cash += -20 * 12.6 - 1e-4 * 20 * 21.0 - 2e-4 * max(600.0 - nav[2], 0.0)
    nav.append(cash + 100 * 6.2)
    np.testing.assert_allclose(course.nav_T * 500.0, nav, rtol=1e-14)
    assert course.account.value_N[1] == 0.0
    profit = course.ledger.group_by("session").agg((pl.col("pnl") - pl.col("cost")).sum()).sort("session")
    np.testing.assert_allclose(profit["pnl"], np.diff([1.0, *course.nav_T]), atol=1e-15)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("early", [False, True])
def test_the_fills_of_a_backtest_give_its_account(seed: int, early: bool) -> None:
    case = random_case(seed)
    costs = case.costs(per_firm=True)
    book = case.run(costs, 1, case.execution(early=early, capped=False))
    if book.ruined_at is not None:
        pytest.skip("a ruined book is closed, which no fill says")
    market = prepare_market(case.index_TN, case.traded_TN, case.delisted_TN)
    one_TN = np.ones(case.index_TN.shape)
    close_TN = np.where(case.traded_TN, case.index_TN, NAN)
    prices = share_prices(close_TN, one_TN, 0 * one_TN, market)
    paid_TN, fee_TN = 0 * one_TN, 0 * one_TN
    at = (book.ledger["session"].to_numpy(), book.ledger["firm"].to_numpy())
    paid_TN[at] = book.ledger["trade"] * CAPITAL
    fee_TN[at] = book.ledger.select(pl.sum_horizontal("half_spread", "commission", "impact")).to_series()
    price_TN = case.index_TN * case.fill_TN if early else case.index_TN
    bought_TN = np.divide(paid_TN, price_TN, out=np.zeros_like(paid_TN), where=paid_TN != 0)
    course = follow_fills(Fills(bought_TN, paid_TN, fee_TN * CAPITAL), prices, costs, CAPITAL)
    np.testing.assert_allclose(course.nav_T, book.nav_ledger_T, rtol=1e-10)
    key = ["session", "firm"]
    both = course.ledger.join(book.ledger, on=key, how="full", suffix="_book", coalesce=True).fill_null(0.0)
    assert both.height > 50
    for name in ("position", "pnl", "cost"):
        np.testing.assert_allclose(both[name], both[f"{name}_book"], atol=1e-11)


def test_a_rolled_account_keeps_the_ledger_of_one_run() -> None:
    case = random_case(3)
    costs, execution = case.costs(per_firm=True), case.execution(early=False, capped=True)
    book = case.run(costs, 1, execution)
    market = prepare_market(case.index_TN, case.traded_TN, case.delisted_TN)
    n = market.n_firms
    cash = Account(np.zeros(n), np.zeros(n), 1.0)
    course = roll_forward(cash, case.target_TN, market, costs, execution)
    np.testing.assert_allclose(course.nav_T, book.nav_ledger_T, rtol=1e-13)
    expected = book.ledger.filter(pl.col("session") > 0)
    assert course.ledger.select("session", "firm").equals(expected.select("session", "firm"))
    for name in ("position", "trade", "released", *COST_KINDS, "pnl"):
        np.testing.assert_allclose(course.ledger[name], expected[name], atol=1e-14)


def test_fills_of_positions_are_charged_as_the_backtest_charges() -> None:
    case = random_case(1)
    costs = case.costs(per_firm=True)
    size_N = np.linspace(0.0, 0.3, case.index_TN.shape[1])
    impact = costs.impact
    assert isinstance(impact, SquareRootImpact)
    known_N = np.nan_to_num(impact.volatility_per_root_volume_TN[7])
    spread_TN = costs.half_spread_bps
    assert isinstance(spread_TN, np.ndarray)
    by_hand_N = 1e-4 * (spread_TN[7] + 2.0) * size_N
    by_hand_N += known_N * np.sqrt(size_N * CAPITAL) * size_N
    np.testing.assert_allclose(costs.of_trades(size_N, 7), by_hand_N, rtol=1e-13)
    least = CostModel(commission_bps=1.0, commission_minimum=1e-3).of_trades(np.array([0.0, 0.5, 20.0]), 0)
    np.testing.assert_allclose(least, [0.0, 1e-3, 2e-3])


def test_positions_before_and_after_a_split_and_a_payout() -> None:
    close_TN, one_TN = np.full((4, 2), 10.0), np.ones((4, 2))
    split_TN, gone_TN = one_TN.copy(), one_TN > 1
    split_TN[2, 0], gone_TN[2:, 1] = 2.0, True
    market = prepare_market(close_TN, ~gone_TN, gone_TN)
    prices = share_prices(close_TN, split_TN, 0 * one_TN, market)
    listed = {0: np.array([5.0, 4.0]), 3: np.array([7.0, 0.0])}
    fill_TN = np.full((4, 2), 10.5)
    fill_TN[3] = NAN
    fills = fills_of_positions(listed, prices, fill_TN, CostModel(commission_bps=10.0), capital=1000.0)
    np.testing.assert_allclose(fills.bought_TN, [[5.0, 4.0], [0.0, 0.0], [0.0, 0.0], [-3.0, 0.0]])
    np.testing.assert_allclose(fills.paid_TN[[0, 3], 0], [52.5, -30.0])
    np.testing.assert_allclose(fills.fee_TN[[0, 3], 0], [0.0525, 0.03])
