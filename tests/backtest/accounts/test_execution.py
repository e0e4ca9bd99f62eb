"""Execution before the close, participation caps, and every kind of cost, in the accounts."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from account_cases import CAPITAL, NAN, Case, random_case
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backtest.accounts.accounting import run_book
from backtest.accounts.execution import (
    NEEDED,
    Execution,
    ParticipationCap,
    Price,
    at_price_limit,
    price_over_close,
)
from backtest.costs import COST_KINDS, CostModel, SquareRootImpact
from features.arithmetic.rolling import carry

FREE = CostModel()
HOLD = [NAN, NAN]
seeds = st.integers(0, 100_000)


@settings(max_examples=60)
@given(seed=seeds, delay=st.integers(1, 3), early=st.booleans(), capped=st.booleans(), per_firm=st.booleans())
def test_both_navs_and_the_ledger_agree(
    seed: int, *, delay: int, early: bool, capped: bool, per_firm: bool
) -> None:
    case = random_case(seed)
    book = case.run(case.costs(per_firm=per_firm), delay, case.execution(early=early, capped=capped))
    assume(book.ruined_at is None)  # at ruin, gross less net return is not the sum of the costs
    assert book.identity_gap <= 1e-12
    costs_T = sum(book.costs_T.values())
    np.testing.assert_allclose(book.return_gross_T - book.return_net_T, costs_T, atol=1e-13)
    assert all(cost_T.min() >= 0 for cost_T in book.costs_T.values())
    start_T = np.concatenate([[1.0], book.nav_ledger_T[:-1]])
    sums = pl.DataFrame({"session": np.arange(len(start_T), dtype=np.int32)}).join(
        book.ledger.group_by("session").sum(), on="session", how="left", maintain_order="left"
    )
    sums = sums.fill_null(0.0)
    for kind in COST_KINDS:
        np.testing.assert_allclose(sums[kind], book.costs_T[kind] * start_T, atol=1e-15, rtol=1e-12)
    np.testing.assert_allclose(sums["cost"], costs_T * start_T, atol=1e-15, rtol=1e-12)
    nav_T = 1.0 + (sums["pnl"] - sums["cost"]).to_numpy().cumsum()
    np.testing.assert_allclose(nav_T, book.nav_ledger_T, rtol=1e-12)


@settings(max_examples=40)
@given(seed=seeds, early=st.booleans(), capped=st.booleans())
def test_nothing_trades_in_a_halted_or_unlisted_firm_and_caps_hold(
    seed: int, *, early: bool, capped: bool
) -> None:
    case = random_case(seed)
    book = case.run(case.costs(per_firm=False), 1, case.execution(early=early, capped=capped))
    trades = book.ledger.filter(pl.col("trade") != 0)
    at = (trades["session"].to_numpy(), trades["firm"].to_numpy())
    assert len(trades) > 10
    assert case.traded_TN[at].all()
    assert not case.delisted_TN[at].any()
    assert np.isfinite(case.index_TN[at]).all()
    assert (case.volume_TN[at] > 0).all()
    if early:
        assert np.isfinite(case.fill_TN[at]).all()
    if capped:
        limit = 0.05 * case.volume_TN[at] / CAPITAL
        assert (np.abs(trades["trade"].to_numpy()) <= limit * (1 + 1e-12)).all()


def test_random_cases_cover_every_cost_and_caps_that_bind() -> None:
    totals = dict.fromkeys([*COST_KINDS, "open orders"], 0)
    for seed in range(20):
        case = random_case(seed)
        book = case.run(case.costs(per_firm=True), 1, case.execution(early=True, capped=True))
        for kind, cost_T in book.costs_T.items():
            totals[kind] += int((cost_T > 0).sum())
        totals["open orders"] += int((book.unfilled_T > 0.01).sum())
    assert min(totals.values()) > 50, totals


@settings(max_examples=40)
@given(seed=seeds, early=st.booleans())
def test_half_of_the_capital_never_raises_impact(seed: int, *, early: bool) -> None:
    case = random_case(seed)
    execution = case.execution(early=early, capped=False)
    whole, half = (
        case.run(case.costs(per_firm=False, capital=capital), 1, execution)
        for capital in (CAPITAL, CAPITAL / 2)
    )
    assert whole.costs_T["impact"].sum() > 0
    assert half.costs_T["impact"].sum() <= whole.costs_T["impact"].sum()
    first = whole.first_trade
    assert half.first_trade == first  # the first trades are the same: the root of one half
    np.testing.assert_allclose(
        half.costs_T["impact"][first], np.sqrt(0.5) * whole.costs_T["impact"][first], rtol=1e-12
    )


def test_costs_add_up_from_one_way_turnover() -> None:
    case = random_case(5)
    book = case.run(CostModel(7, 3, 0), 1, Execution())
    before_T = (
        1.0 + book.return_gross_T - book.costs_T["borrow"] - book.costs_T["financing"]
    )  # NAV before trades, over start
    np.testing.assert_allclose(book.costs_T["half_spread"], 2 * book.turnover_T * 7e-4 * before_T, rtol=1e-12)
    np.testing.assert_allclose(book.costs_T["commission"], 2 * book.turnover_T * 3e-4 * before_T, rtol=1e-12)
    assert book.turnover_T.sum() > 1
    early = case.run(CostModel(7, 3, 0), 1, case.execution(early=True, capped=False))
    np.testing.assert_allclose(early.costs_T["half_spread"], 2 * early.turnover_T * 7e-4, rtol=1e-12)


def test_next_open_by_hand() -> None:
    """Decide 50% of A at the close of 0, buy at the open of 1, decide to sell at 1, sell at the open of 2."""
    index_TN = np.array([[100.0, 10], [110, 10], [99, 10]])
    price_TN = np.array([[NAN, NAN], [104 / 110, 1], [112 / 99, 1]])
    target_TN = np.array([[0.5, 0], [0.0, 0], HOLD])
    costs = CostModel(100.0)
    book = run_book(
        target_TN,
        index_TN,
        np.ones((3, 2), bool),
        costs,
        1,
        execution=Execution(price_TN),
        keep_ledger=True,
    )
    # 0.5 / 100 = 0.005 units, ordered at the close of 0; bought at 104 for 0.52, cost 0.0052
    # close of 1: 0.005 * 110 = 0.55; cash 1 - 0.52 - 0.0052; sold at 112 for 0.56, cost 0.0056
    nav_T = [1.0, 1 - 0.52 - 0.0052 + 0.55, 1 - 0.52 - 0.0052 + 0.56 - 0.0056]
    np.testing.assert_allclose(book.nav_net_T, nav_T, rtol=1e-14)
    np.testing.assert_allclose(book.nav_ledger_T, nav_T, rtol=1e-14)
    np.testing.assert_allclose(book.return_gross_T, [0, 0.03, 0.01 / nav_T[1]], rtol=1e-12)
    np.testing.assert_allclose(book.turnover_T, [0, 0.26, 0.28 / nav_T[1]], rtol=1e-12)
    assert book.ledger["trade"].to_list() == pytest.approx([0.52, -0.56])
    assert book.ledger["pnl"].to_list() == pytest.approx([0.03, 0.01])


def test_capped_orders_continue_until_filled_replaced_or_gone_by_hand() -> None:
    """An order for 0.8 of each firm at 0.3 a session; B halts; a new decision; B is delisted."""
    index_TN = np.array([[10.0, 10], [10, 10], [20, 10], [20, 10], [20, 10], [20, 5]])
    traded_TN = np.array([[1, 1], [1, 0], [1, 1], [1, 1], [1, 0], [1, 0]], dtype=bool)
    delisted_TN = np.zeros((6, 2), bool)
    delisted_TN[5, 1] = True
    target_TN = np.array([[0.8, 0.8], HOLD, HOLD, [0.5, 0.8], HOLD, HOLD])
    cap = ParticipationCap(0.1, 100.0, np.full((6, 2), 300.0))  # 30 of 100: 0.3 of the capital
    book = run_book(
        target_TN,
        index_TN,
        traded_TN,
        FREE,
        0,
        delisted_TN=delisted_TN,
        execution=Execution(cap=cap),
        keep_ledger=True,
    )
    trades = book.ledger.pivot("firm", index="session", values="trade").fill_null(0.0)
    # A: 0.08 units: 0.03, 0.03, then 0.3 / 20 = 0.015 of the last 0.02 units; NAV 1.6 at session 2;
    # the decision of 3 wants 0.5 * 1.6 = 0.8 and holds 0.075 * 20 = 1.5: sells 0.3, 0.3, 0.1
    np.testing.assert_allclose(trades["0"], [0.3, 0.3, 0.3, -0.3, -0.3, -0.1], atol=1e-14)
    # B: 0.3, a halt, 0.3, then the decision of 3 wants 0.8 * 1.6 = 1.28 and holds 0.6: 0.3, a halt, gone
    np.testing.assert_allclose(trades["1"], [0.3, 0, 0.3, 0.3, 0, 0], atol=1e-14)
    # left: 0.5 + 0.5; 0.2 + 0.5; 0.1 + 0.2; 0.4 + 0.38; 0.1 + 0.38; 0 (B is gone)
    left_T = np.array([1.0, 0.7, 0.3, 0.78, 0.48, 0.0])
    np.testing.assert_allclose(
        book.unfilled_T, left_T / 2 / np.array([1, 1, 1.6, 1.6, 1.6, 1.15]), atol=1e-14
    )
    np.testing.assert_allclose(book.nav_net_T, [1, 1, 1.6, 1.6, 1.6, 1.15], rtol=1e-14)


def test_impact_borrow_and_financing_by_hand() -> None:
    """Buy 150% of A and short 50% of B with a capital of 100, then hold for a session."""
    index_TN = np.ones((2, 2))
    rate_TN = np.array([[0.02, 0.01], [0.02, 0.01]]) / np.sqrt(400.0)  # volatility 2% and 1%, volume 400
    costs = CostModel(
        impact=SquareRootImpact(0.8, 100.0, rate_TN),
        borrow_bps_per_year=np.array([[9999.0, 2520.0]]),
        financing_bps_per_year=252.0,
    )
    book = run_book(
        np.array([[1.5, -0.5], HOLD]), index_TN, np.ones((2, 2), bool), costs, 0, keep_ledger=True
    )
    # notional 150 and 50: 0.8 * 2% * sqrt(150 / 400) * 1.5 and 0.8 * 1% * sqrt(50 / 400) * 0.5
    a, b = 0.8 * 0.02 * np.sqrt(0.375) * 1.5, 0.8 * 0.01 * np.sqrt(0.125) * 0.5
    nav = 1 - a - b
    np.testing.assert_allclose(book.costs_T["impact"], [a + b, 0], rtol=1e-13)
    np.testing.assert_allclose(book.costs_T["borrow"], [0, 0.5 * 0.001 / nav], rtol=1e-13)
    np.testing.assert_allclose(book.costs_T["financing"], [0, (1.5 - nav) * 0.0001 / nav], rtol=1e-13)
    np.testing.assert_allclose(book.ledger["impact"], [a, b, 0, 0], atol=1e-16)
    np.testing.assert_allclose(book.ledger["financing"], [0, 0, (1.5 - nav) * 0.0001, 0], atol=1e-16)
    np.testing.assert_allclose(book.ledger["borrow"], [0, 0, 0, 0.0005], atol=1e-16)


def test_unknown_costs_or_volume_prevent_the_trade() -> None:
    target_TN, index_TN = np.array([[0.5, 0.5]]), np.ones((1, 2))
    unknown = SquareRootImpact(1.0, 1.0, np.array([[NAN, 0.0]]))
    cap = ParticipationCap(0.1, 1.0, np.array([[NAN, 100.0]]))
    for costs, execution in (
        (CostModel(impact=unknown), Execution()),
        (CostModel(np.array([[NAN, 0.0]])), Execution()),
        (FREE, Execution(cap=cap)),
    ):
        book = run_book(target_TN, index_TN, np.ones((1, 2), bool), costs, 0, execution=execution)
        assert book.turnover_T[0] == 0.25
        assert book.unfilled_T[0] == 0.25


def test_flat_rates_equal_the_same_rates_of_every_firm() -> None:
    case = random_case(8)
    execution = case.execution(early=False, capped=True)
    flat = case.run(CostModel(9, 1, 300), 1, execution)
    rates = CostModel(np.full(case.index_TN.shape, 9.0), 1, np.full((1, 9), 300.0))
    firms = case.run(rates, 1, execution)
    np.testing.assert_allclose(firms.nav_net_T, flat.nav_net_T, rtol=1e-13)
    np.testing.assert_allclose(firms.nav_ledger_T, flat.nav_ledger_T, rtol=1e-13)
    assert flat.costs_T["borrow"].sum() > 0


def test_prices_of_execution() -> None:
    close_TN = np.array([[10.0, 20.0]])
    bars = {
        "open_TN": np.array([[9.0, NAN]]),
        "high_TN": np.array([[12.0, 21.0]]),
        "low_TN": np.array([[8.0, 19.0]]),
    }
    expected = {
        "open": [[0.9, NAN]],
        "typical": [[1.0, 1.0]],  # (12 + 8 + 10) / 3 and (21 + 19 + 20) / 3
        "ohlc": [[39 / 40, NAN]],
    }
    assert price_over_close("close", close_TN) is None
    for price, ratio in expected.items():
        name: Price = price  # type: ignore[assignment]  # keys of the dictionary above
        actual = price_over_close(name, close_TN, **bars)
        assert actual is not None
        np.testing.assert_allclose(actual, np.array(ratio), rtol=1e-15)
        for needed in NEEDED[name]:
            fewer = {key: bar for key, bar in bars.items() if key != f"{needed}_TN"}
            with pytest.raises(ValueError, match=f"needs the field {needed}"):
                price_over_close(name, close_TN, **fewer)


def test_execution_before_the_close_needs_a_delay_and_arrays_must_fit() -> None:
    case = random_case(1)
    with pytest.raises(ValueError, match="delay is 0, but orders are executed before the close"):
        case.run(FREE, 0, case.execution(early=True, capped=False))
    short_TN = np.ones((3, 9))
    wrong = {
        "price of execution": (FREE, Execution(short_TN)),
        "dollar volume": (FREE, Execution(cap=ParticipationCap(0.1, 1.0, short_TN))),
        "impact rate": (CostModel(impact=SquareRootImpact(1, 1, short_TN)), Execution()),
        "half_spread_bps": (CostModel(short_TN), Execution()),
        "borrow_bps_per_year": (CostModel(borrow_bps_per_year=np.ones((1, 3))), Execution()),
    }
    for name, (costs, execution) in wrong.items():
        with pytest.raises(ValueError, match=f"shape of (the )?{name} is"):
            case.run(costs, 1, execution)
    for fraction in (0.0, NAN):
        with pytest.raises(ValueError, match="participation cap is"):
            ParticipationCap(fraction, 1.0, short_TN)


def loop(  # noqa: PLR0917
    case: Case,
    target_TN: np.ndarray,
    execution: Execution,
    minimum: float,
    room: float,
    fill_TN: np.ndarray | None,
) -> list[float]:
    """NAV from units and cash in plain Python: orders of delay 1, 10 bps of commission, and no other cost."""
    T, N = target_TN.shape
    value_TN = np.nan_to_num(carry(case.index_TN))
    gone_TN = (case.delisted_TN & (value_TN == value_TN[-1])) | (carry(case.index_TN) == 0)  # paid out
    navs: list[float] = []
    cash, units, left, goal = 1.0, np.zeros(N), np.zeros(N), None
    for t in range(T):
        row = target_TN[t - 1] if t else np.full(N, NAN)
        decided = not np.isnan(row).any()
        goal = row if decided else goal
        early = fill_TN is not None

        def trade(
            price: np.ndarray, t: int = t, decided: bool = decided, goal: np.ndarray | None = goal
        ) -> None:
            nonlocal cash, units, left
            if not decided and not execution.carries:
                return
            nav = nav_before if early else cash + float(units @ price)  # noqa: B023  # called at once
            if decided:
                assert goal is not None
                left = np.where(price > 0, goal * nav / np.where(price > 0, price, 1) - units, 0.0)
            ratio = (
                np.ones(N) if fill_TN is None else value_TN[t] * fill_TN[t] / np.where(price > 0, price, NAN)
            )
            can = case.traded_TN[t] & ~np.isnan(case.index_TN[t]) & ~gone_TN[t] & (price > 0) & (ratio > 0)
            if execution.bar_TN is not None:
                can &= ~(execution.bar_TN[t] * left > 0)

            def part(share: float) -> np.ndarray:
                fill = np.zeros(N)
                for n in np.flatnonzero(can):
                    most = room * case.volume_TN[t, n] / (price[n] * ratio[n]) if room else np.inf
                    size = min(max(left[n], -most), most) if most > 0 else 0.0
                    size *= share if size > 0 else 1.0
                    if execution.lot_TN is not None and not (size == left[n] == -units[n]):
                        size = math.copysign(math.floor(abs(size) / execution.lot_TN[t, n] + 1e-9), size)
                        size *= execution.lot_TN[t, n]
                    fill[n] = size
                return fill

            fill = part(1.0)
            if goal is not None and goal.min() >= 0 and goal.sum() > 0:
                spent = np.nan_to_num(fill * price * ratio)
                stuck = float((np.maximum(-left, 0) * (fill == 0) * price).sum())
                lacking = min(min(nav * (1 - goal.sum()), 0.0) - (cash - spent.sum()), stuck)
                if lacking > 0 and np.maximum(spent, 0).sum() > 0:
                    fill = part(max(1 - lacking / np.maximum(spent, 0).sum(), 0.0))
            paid = np.nan_to_num(fill * price * ratio)
            fees = [max(0.001 * abs(x), minimum) for x in paid if x != 0]
            cash, units, left = cash - paid.sum() - sum(fees), units + fill, left - fill

        nav_before = navs[-1] if navs else 1.0
        if early and t:
            trade(value_TN[t - 1])
        for n in np.flatnonzero(gone_TN[t]):
            cash, units[n], left[n] = cash + units[n] * value_TN[t, n], 0.0, 0.0
        if not early:
            trade(value_TN[t])
        navs.append(cash + float(units @ value_TN[t]))
    return navs


@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_limits_lots_minimum_fees_and_open_orders_equal_a_plain_loop(carries: bool, early: bool) -> None:
    cut = trades = 0
    for seed in range(60):
        case = random_case(seed)
        shape = case.index_TN.shape
        target_TN = np.abs(case.target_TN) if seed % 2 else case.target_TN
        gross_T1 = np.abs(target_TN).sum(axis=1, keepdims=True)
        target_TN = target_TN / np.maximum(gross_T1, 1.0)
        bar_TN = case.rng.choice([-1.0, 0.0, 0.0, 0.0, 1.0], shape) if seed % 3 else None
        lot_TN = 0.013 / np.maximum(carry(case.index_TN), 1e-3) if seed % 4 > 1 else None
        room = 0.05 / CAPITAL * (seed % 5 == 0)
        cap = ParticipationCap(0.05, CAPITAL, case.volume_TN) if room else None
        minimum = 0.0004 * (seed % 2)
        fill_TN = case.fill_TN if early else None
        execution = Execution(fill_TN, cap, carries, bar_TN, lot_TN)
        costs = CostModel(commission_bps=10.0, commission_minimum=minimum)
        book = run_book(
            target_TN,
            case.index_TN,
            case.traded_TN,
            costs,
            1,
            delisted_TN=case.delisted_TN,
            execution=execution,
            keep_ledger=True,
        )
        nav_T = loop(case, target_TN, execution, minimum, room, fill_TN)
        np.testing.assert_allclose(book.nav_ledger_T, nav_T, rtol=1e-10, err_msg=f"seed {seed}")
        np.testing.assert_allclose(book.nav_net_T, nav_T, rtol=1e-10, err_msg=f"seed {seed}")
        ledger = book.ledger
        assert (ledger["pnl"] - ledger["cost"]).sum() == pytest.approx(nav_T[-1] - 1, abs=1e-10)
        if seed % 2 and not room:  # costs make it negative, and sales that were open at a delisting
            assert book.cash_T.min() > -0.15
        cut += int((book.unfilled_T > 0).sum())
        trades += int((ledger["trade"] != 0).sum())
    assert cut > 300
    assert trades > 3000


def test_price_limits_by_hand() -> None:
    reference_TN = np.array([[10.0, 10.0, 3.33, 10.0, NAN]])
    # 3.33 * 1.1 = 3.663 is rounded to 3.66; a firm without a limit; one without a reference
    limit_TN = np.array([[0.1, 0.1, 0.1, NAN, 0.1]])
    for price, expected in (
        ([11.0, 9.0, 3.66, 20.0, 9.0], [1, -1, 1, 0, 0]),
        ([10.99, 9.01, 3.65, 5.0, 9.0], [0, 0, 0, 0, 0]),
        ([10.5, 9.5, 3.0, 10.0, NAN], [0, 0, -1, 0, 0]),
    ):
        assert at_price_limit(np.array([price]), reference_TN, limit_TN)[0].tolist() == expected


def test_a_firm_at_its_upper_limit_can_be_sold_and_not_bought() -> None:
    index_TN, traded_TN = np.array([[10.0, 10], [11, 9], [11, 9]]), np.ones((3, 2), bool)
    target_TN = np.array([[0.5, 0.5], [0.2, 0.2], HOLD])
    bar_TN = np.array([[1.0, 0], [0, -1], [0, 0]])
    for keep, expected in (
        (False, ([0, 0, 0], [0.5, 0.45, 0.45])),
        (True, ([0, 0.19, 0.19], [0.5, 0.45, 0.19])),
    ):
        execution = Execution(carry=keep, bar_TN=bar_TN)
        targets = target_TN if keep else np.array([target_TN[0], [0.0, 0.2], HOLD])
        book = run_book(targets, index_TN, traded_TN, FREE, 0, execution=execution, keep_ledger=True)
        positions = book.ledger.pivot("firm", index="session", values="position").fill_null(0.0)
        held = positions["0"].to_list() if "0" in positions.columns else [0.0] * 3
        np.testing.assert_allclose(held, expected[0], atol=1e-14)
        np.testing.assert_allclose(positions["1"], expected[1], atol=1e-14)
