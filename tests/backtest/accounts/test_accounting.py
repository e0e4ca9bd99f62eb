"""Accounts by hand, agreement of the two NAVs, and firms that cannot be traded."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from book_weights import quantile_long_short, top_k_long_only
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from backtest.accounts.accounting import Account, account_book, roll_forward, run_book
from backtest.accounts.execution import Execution, ParticipationCap
from backtest.accounts.market import BookMarket, prepare_market
from backtest.accounts.positions import run_lanes
from backtest.accounts.result import SCHEMA, BookResult
from backtest.costs import CostModel

NAN = np.nan
FREE = CostModel()
# 15 bps of the traded notional, 10 bps of the short value per session
DEAR = CostModel(half_spread_bps=10, commission_bps=5, borrow_bps_per_year=2520)
HOLD = [NAN, NAN]


@pytest.mark.slow(14)
def test_three_days_two_firms_by_hand() -> None:
    """Buy 60% of A and short 40% of B, hold for a day, then move to 50% of A and 0% of B."""
    total_return_index_TN = np.array([[50.0, 20.0], [55.0, 18.0], [49.5, 21.6]])  # A +10% -10%, B -10% +20%
    target_TN = np.array([[0.6, -0.4], HOLD, [0.5, 0.0]])
    book = run_book(target_TN, total_return_index_TN, np.ones((3, 2), bool), DEAR, delay=0, keep_ledger=True)

    # day 0: trades 0.6 + 0.4 = 1.0, costs 0.0015; cash 1 - 0.6 + 0.4 - 0.0015 = 0.7985; NAV 0.9985
    # day 1: A 0.66, B -0.36; borrow 0.4 * 0.001; cash 0.7981; NAV 0.7981 + 0.66 - 0.36 = 1.0981
    # day 2: A 0.594, B -0.432; borrow 0.36 * 0.001; cash 0.79774; NAV 0.95974 before trading
    #        A to 0.47987 (sells 0.11413), B to 0 (buys 0.432): traded 0.54613, costs 0.000819195
    #        cash 0.79774 + 0.11413 - 0.432 - 0.000819195 = 0.479050805; NAV 0.958920805
    nav_T = np.array([0.9985, 1.0981, 0.958920805])
    np.testing.assert_allclose(book.nav_ledger_T, nav_T, rtol=1e-14)
    np.testing.assert_allclose(book.nav_net_T, nav_T, rtol=1e-14)
    before_T = np.array([1.0, 0.9985, 1.0981])
    np.testing.assert_allclose(book.return_net_T, nav_T / before_T - 1, rtol=1e-12)
    # gross: 0; 0.06 + 0.04; -0.066 - 0.072
    np.testing.assert_allclose(book.return_gross_T, [0, 0.10 / 0.9985, -0.138 / 1.0981], rtol=1e-12)
    np.testing.assert_allclose(
        book.nav_gross_T, np.cumprod([1, 1 + 0.10 / 0.9985, 1 - 0.138 / 1.0981]), rtol=1e-13
    )
    np.testing.assert_allclose(book.costs_T["half_spread"], [0.001, 0, 0.00054613 / 1.0981], rtol=1e-12)
    np.testing.assert_allclose(book.costs_T["commission"], [0.0005, 0, 0.000273065 / 1.0981], rtol=1e-12)
    np.testing.assert_allclose(book.costs_T["borrow"], [0, 0.0004 / 0.9985, 0.00036 / 1.0981], rtol=1e-12)
    np.testing.assert_allclose(book.turnover_T, [0.5, 0, 0.54613 / 2 / 0.95974], rtol=1e-12)
    np.testing.assert_allclose(book.leverage_T, [1.0 / 0.9985, 1.02 / 1.0981, 0.47987 / nav_T[2]], rtol=1e-12)
    np.testing.assert_allclose(
        book.cash_T, [0.7985 / 0.9985, 0.7981 / 1.0981, 0.479050805 / nav_T[2]], rtol=1e-12
    )
    assert (book.first_trade, book.ruined_at, book.shortfall) == (0, None, 0.0)
    expected = pl.DataFrame(
        [
            # position, trade, released, half-spread, commission, impact, borrow, financing, cost, pnl
            (0, 0, 0.6, 0.6, 0.0, 0.0006, 0.0003, 0.0, 0.0, 0.0, 0.0009, 0.0),
            (0, 1, -0.4, -0.4, 0.0, 0.0004, 0.0002, 0.0, 0.0, 0.0, 0.0006, 0.0),
            (1, 0, 0.66, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.06),
            (1, 1, -0.36, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0004, 0.0, 0.0004, 0.04),
            (2, 0, 0.47987, -0.11413, 0.0, 0.00011413, 0.000057065, 0.0, 0.0, 0.0, 0.000171195, -0.066),
            (2, 1, 0.0, 0.432, 0.0, 0.000432, 0.000216, 0.0, 0.00036, 0.0, 0.000648 + 0.00036, -0.072),
        ],
        schema=book.ledger.schema,
        orient="row",
    )
    assert_frame_equal(book.ledger, expected, abs_tol=1e-15, rel_tol=1e-12)


@pytest.mark.parametrize("goals", [(1.0, 1.0), (1.5, 1.4), (0.0, 0.0)])
def test_an_account_that_is_rolled_forward_is_that_of_one_run(goals: tuple[float, float]) -> None:
    """Capped orders go on while a firm is halted: of books with and without leverage, and of shorts."""
    T, cut, rng = 12, 5, np.random.default_rng(0)
    index_TN = np.exp(np.cumsum(rng.normal(0.0, 0.02, (T, 4)), axis=0))
    traded_TN = np.ones((T, 4), dtype=np.bool_)
    traded_TN[3:9, 0] = False
    target_TN = np.full((T, 4), np.nan)
    for at, goal, share in ((0, goals[0], [0.5, 0.3, 0.2, 0.0]), (3, goals[1], [0.0, 0.1, 0.4, 0.5])):
        target_TN[at] = np.asarray(share) * goal if goal else np.asarray(share) - 0.25
    cap = ParticipationCap(0.1, 1.0, np.ones((T, 4)))
    market = prepare_market(index_TN, traded_TN)

    def rolled(account: Account, first: int, last: int) -> Account:
        rows = slice(first, last + 1)
        part = BookMarket(market.value_TN[rows], market.state_TN[rows])
        execution = Execution(cap=dataclasses.replace(cap, dollar_volume_TN=cap.dollar_volume_TN[rows]))
        return roll_forward(account, target_TN[rows], part, CostModel(5.0), execution).account

    cash = Account(np.zeros(4), np.zeros(4), 1.0)
    whole, half = rolled(cash, 0, T - 1), rolled(cash, 0, cut)
    parts = rolled(half, cut, T - 1)
    np.testing.assert_allclose(parts.value_N, whole.value_N, rtol=1e-12)
    np.testing.assert_allclose(parts.open_N, whole.open_N, atol=1e-12)
    assert parts.nav == pytest.approx(whole.nav, rel=1e-12)
    assert np.abs(half.open_N).max() > 0.1, "orders were open at the cut"


def random_market(rng: np.random.Generator, T: int, N: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index, traded and delisted cells with late listings, halts, gaps, delistings and relistings."""
    total_return_index_TN = np.exp(np.cumsum(rng.normal(0, 0.02, (T, N)), axis=0)) * rng.uniform(1, 500, N)
    traded_TN = rng.random((T, N)) > 0.1
    delisted_TN = np.zeros((T, N), dtype=bool)
    for n in range(N):
        kind = rng.integers(0, 6)
        listed = int(rng.integers(0, T // 3 + 1)) if kind == 1 else 0
        traded_TN[listed, n] = True
        for t in range(listed + 1, T):  # halts keep the last close
            if not traded_TN[t, n]:
                total_return_index_TN[t, n] = total_return_index_TN[t - 1, n]
        total_return_index_TN[:listed, n], traded_TN[:listed, n] = NAN, False
        end = int(rng.integers(listed, T))
        if kind in {2, 3}:  # delisted: pays -100% to +20%, then cash; some trade again, and jump back
            until = T if kind == 2 else int(rng.integers(end + 1, T + 1))
            traded_TN[end, n], delisted_TN[end + 1 : until, n] = True, True
            total_return_index_TN[end + 1 : until, n] = total_return_index_TN[end, n] * (
                1 + rng.choice([-1.0, -0.55, -0.3, 0.2])
            )
            traded_TN[end + 1 : until, n] = False
        if kind == 4:  # unknown value
            total_return_index_TN[end + 1 :, n], traded_TN[end + 1 :, n] = NAN, False
        if kind == 5:  # a data gap, followed by a price
            total_return_index_TN[end : end + 3, n] = NAN
    return total_return_index_TN, traded_TN, delisted_TN


def assert_ledger_adds_up(book: BookResult, T: int, N: int) -> None:
    """Rebuild NAV, cash and positions from the ledger's rows only."""
    sums = (
        pl.DataFrame({"session": pl.Series(range(T), dtype=pl.Int32)})
        .join(book.ledger.group_by("session").sum(), on="session", how="left", maintain_order="left")
        .fill_null(0.0)
    )
    nav_T = 1 + (sums["pnl"] - sums["cost"]).to_numpy().cumsum()
    cash_T = 1 + (sums["released"] - sums["trade"] - sums["cost"]).to_numpy().cumsum()
    np.testing.assert_allclose(nav_T, book.nav_ledger_T, rtol=1e-11)
    np.testing.assert_allclose(cash_T + sums["position"].to_numpy(), book.nav_ledger_T, rtol=1e-11)
    position_N = np.zeros(N)
    for (_,), rows in book.ledger.partition_by("session", as_dict=True, maintain_order=True).items():
        firm = rows["firm"].to_numpy()
        assert set(np.flatnonzero(position_N)) <= set(firm)  # no position is lost
        position_N[firm] += (rows["pnl"] + rows["trade"] - rows["released"]).to_numpy()
        np.testing.assert_allclose(rows["position"].to_numpy(), position_N[firm], atol=1e-12)
        position_N = np.zeros(N)
        position_N[firm] = rows["position"].to_numpy()


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10_000),
    T=st.integers(1, 60),
    N=st.integers(2, 12),
    delay=st.integers(0, 3),
    every=st.integers(1, 5),
    long_only=st.booleans(),
    with_delistings=st.booleans(),
)
def test_both_navs_agree_to_1e_12(  # noqa: PLR0917  # hypothesis names them
    seed: int, T: int, N: int, delay: int, every: int, long_only: bool, with_delistings: bool
) -> None:
    rng = np.random.default_rng(seed)
    total_return_index_TN, traded_TN, delisted_TN = random_market(rng, T, N)
    signal_TN = np.where(rng.random((T, N)) > 0.2, rng.normal(size=(T, N)), NAN)
    signal_TN[0] = rng.normal(size=N)
    build = top_k_long_only if long_only else quantile_long_short
    target_TN = build(signal_TN, 2, rebalance_every=every)
    book = run_book(
        0.7 * target_TN,
        total_return_index_TN,
        traded_TN,
        DEAR,
        delay,
        delisted_TN=delisted_TN if with_delistings else None,
        keep_ledger=True,
    )
    assert book.ruined_at is None
    np.testing.assert_allclose(book.nav_net_T, book.nav_ledger_T, rtol=1e-12)
    assert book.identity_gap <= 1e-12
    assert_ledger_adds_up(book, T, N)
    costs_T = book.costs_T["half_spread"] + book.costs_T["commission"] + book.costs_T["borrow"]
    np.testing.assert_allclose(book.return_gross_T - book.return_net_T, costs_T, atol=1e-13)
    ledger = book.ledger
    trades = ledger.filter(pl.col("trade") != 0)
    assert traded_TN[trades["session"], trades["firm"]].all()
    assert np.isfinite(total_return_index_TN[trades["session"], trades["firm"]]).all()
    if delay < T and (traded_TN & np.isfinite(total_return_index_TN))[delay].all():
        assert book.first_trade == delay


def test_a_long_book_agrees_to_1e_12() -> None:
    rng = np.random.default_rng(5)
    total_return_index_TN, traded_TN, delisted_TN = random_market(rng, 1500, 60)
    target_TN = quantile_long_short(rng.normal(size=(1500, 60)), 5, rebalance_every=3)
    book = run_book(0.3 * target_TN, total_return_index_TN, traded_TN, DEAR, 1, delisted_TN=delisted_TN)
    assert book.identity_gap <= 1e-12
    assert book.nav_net_T[-1] > 0.01


def test_ledger_is_optional_and_its_absence_raises() -> None:
    rng = np.random.default_rng(4)
    total_return_index_TN, traded_TN, delisted_TN = random_market(rng, 60, 8)
    target_TN = 0.3 * quantile_long_short(rng.normal(size=(60, 8)), 4)
    kept, plain = (
        run_book(
            target_TN,
            total_return_index_TN,
            traded_TN,
            DEAR,
            1,
            delisted_TN=delisted_TN,
            keep_ledger=keep_ledger,
        )
        for keep_ledger in (True, False)
    )
    assert kept.ledger.height > 60
    for field in dataclasses.fields(plain):
        if field.name not in ("kept_ledger", "costs_T"):
            np.testing.assert_array_equal(getattr(plain, field.name), getattr(kept, field.name))
    for kind, cost_T in plain.costs_T.items():
        np.testing.assert_array_equal(cost_T, kept.costs_T[kind])
    with pytest.raises(ValueError, match="keep_ledger=True"):
        _ = plain.ledger


def test_accounts_do_not_depend_on_later_sessions() -> None:
    rng = np.random.default_rng(9)
    total_return_index_TN, traded_TN, delisted_TN = random_market(rng, 40, 8)
    target_TN = top_k_long_only(rng.normal(size=(40, 8)), 3)
    before = run_book(target_TN, total_return_index_TN, traded_TN, DEAR, 1, delisted_TN=delisted_TN)
    total_return_index_TN[25:] *= rng.uniform(0.5, 2, (15, 8))
    traded_TN[25:] = rng.random((15, 8)) > 0.5
    delisted_TN[25:] = ~traded_TN[25:]
    target_TN[25:] = 0.0
    after = run_book(target_TN, total_return_index_TN, traded_TN, DEAR, 1, delisted_TN=delisted_TN)
    np.testing.assert_array_equal(before.costs_T["borrow"][:25], after.costs_T["borrow"][:25])
    for name in ("nav_net_T", "nav_ledger_T", "turnover_T", "leverage_T"):
        np.testing.assert_array_equal(getattr(before, name)[:25], getattr(after, name)[:25])
    assert (before.nav_net_T[25:] != after.nav_net_T[25:]).all()


def test_arrays_that_can_be_written_use_the_same_compiled_loops() -> None:
    index_TN, traded_TN, delisted_TN = random_market(np.random.default_rng(3), 12, 4)
    frozen = prepare_market(index_TN, traded_TN, delisted_TN)
    target_TN = np.full(index_TN.shape, 0.25)
    expected = account_book(target_TN, frozen, CostModel(), 1)
    loops = cast("Any", run_lanes)
    compiled = len(loops.signatures)
    written = account_book(
        target_TN, BookMarket(frozen.value_TN.copy(), frozen.state_TN.copy()), CostModel(), 1
    )
    assert len(loops.signatures) == compiled > 0
    np.testing.assert_array_equal(written.nav_net_T, expected.nav_net_T)


@pytest.mark.parametrize("delay", [0, 1])
def test_delay_of_one_removes_the_gain_of_a_look_ahead_signal(delay: int) -> None:
    rng = np.random.default_rng(1)
    returns_TN = rng.normal(0, 0.02, (400, 50))
    total_return_index_TN = np.cumprod(1.0 + returns_TN, axis=0, dtype=np.float64)
    signal_TN = np.vstack([returns_TN[1:], rng.normal(size=(1, 50))])  # at t: the return of t+1
    target_TN = quantile_long_short(signal_TN, 5)
    book = run_book(target_TN, total_return_index_TN, np.ones((400, 50), bool), FREE, delay)
    earned_T = book.return_gross_T[1 + delay :]
    if delay == 0:
        assert earned_T.min() > 0.02
    else:
        assert abs(earned_T.mean()) < 3 * earned_T.std() / np.sqrt(len(earned_T))
    label_TN = (
        total_return_index_TN[delay + 1 :] / total_return_index_TN[delay : len(total_return_index_TN) - 1] - 1
    )  # the label of this delay
    np.testing.assert_allclose(earned_T, (target_TN[: len(label_TN)] * label_TN).sum(axis=1), atol=1e-14)


@pytest.mark.parametrize(("weight", "final"), [(1.0, 0.7), (-1.0, 1.3)])
def test_delisting_pays_minus_30_percent_then_cash(weight: float, final: float) -> None:
    total_return_index_TN = np.array([[10.0, 5], [10, 5], [7, 5], [7, 5], [7, 5]])
    traded_TN = np.array([[1, 1], [1, 1], [0, 1], [0, 1], [0, 1]], dtype=bool)
    target_TN = np.array([[weight, 0.0], HOLD, HOLD, [weight, 0.0], HOLD])
    delisted_TN = ~traded_TN
    book = run_book(
        target_TN, total_return_index_TN, traded_TN, FREE, 0, delisted_TN=delisted_TN, keep_ledger=True
    )
    np.testing.assert_allclose(book.nav_net_T, [1, 1, final, final, final], rtol=1e-14)
    np.testing.assert_allclose(book.leverage_T, [1, 1, 0, 0, 0], atol=1e-14)
    np.testing.assert_allclose(book.cash_T, [1 - weight, 1 - weight, 1, 1, 1], atol=1e-14)
    np.testing.assert_allclose(book.turnover_T, [0.5, 0, 0, 0, 0])  # paid out, not sold
    np.testing.assert_allclose(book.unfilled_T, [0, 0, 0, 0.5, 0])  # it is not sold after its delisting
    assert book.ledger.filter(session=2)["released"].to_list() == pytest.approx([0.7 * weight])
    assert (
        run_book(target_TN, total_return_index_TN, traded_TN, DEAR, 0, delisted_TN=delisted_TN).costs_T[
            "borrow"
        ][3]
        == 0
    )


def test_halted_position_stays_until_a_decision_can_trade_it_and_its_money_is_not_spent() -> None:
    total_return_index_TN = np.array([[10.0, 5], [10, 5], [8, 5], [8, 5]])
    traded_TN = np.array([[1, 1], [0, 1], [1, 1], [1, 1]], dtype=bool)
    target_TN = np.array([[1.0, 0], [0, 1], HOLD, [0, 1]])
    book = run_book(target_TN, total_return_index_TN, traded_TN, FREE, 0, keep_ledger=True)
    positions = book.ledger.pivot("firm", index="session", values="position").fill_null(0.0)
    np.testing.assert_allclose(positions["0"], [1, 1, 0.8, 0])
    np.testing.assert_allclose(positions["1"], [0, 0, 0, 0.8])
    np.testing.assert_allclose(book.leverage_T[1], 1.0)
    np.testing.assert_allclose(book.unfilled_T, [0, 1.0, 0, 0])
    np.testing.assert_allclose(book.nav_net_T, [1, 1, 0.8, 0.8])


def test_unpriced_firms_are_not_bought_and_positions_keep_their_last_value() -> None:
    total_return_index_TN = np.array([[10.0, NAN], [11, NAN], [NAN, 5], [NAN, 5]])
    target_TN = np.array([[0.5, 0.5], HOLD, [0.0, 0.5], HOLD])
    book = run_book(target_TN, total_return_index_TN, np.ones((4, 2), bool), FREE, 0, keep_ledger=True)
    positions = book.ledger.pivot("firm", index="session", values="position").fill_null(0.0)
    np.testing.assert_allclose(positions["0"], [0.5, 0.55, 0.55, 0.55])
    np.testing.assert_allclose(positions["1"], [0, 0, 0.5, 0.5])  # all its cash
    np.testing.assert_allclose(book.unpriced_T, [0, 0, 0.55 / 1.05, 0.55 / 1.05])
    np.testing.assert_allclose(book.nav_net_T, [1, 1.05, 1.05, 1.05])


def test_ruin_closes_the_account() -> None:
    total_return_index_TN = np.array([[1.0, 1], [2.5, 1], [2.5, 2], [2.5, 3]])
    target_TN = np.array([[-1.0, 1.0], HOLD, [-1.0, 1.0], HOLD])
    book = run_book(target_TN, total_return_index_TN, np.ones((4, 2), bool), FREE, 0, keep_ledger=True)
    assert book.ruined_at == 1
    assert book.shortfall == pytest.approx(0.5)
    np.testing.assert_array_equal(book.nav_net_T, [1, 0, 0, 0])
    np.testing.assert_array_equal(book.nav_ledger_T, [1, 0, 0, 0])
    np.testing.assert_array_equal(book.return_net_T, [0, -1, 0, 0])
    assert book.ledger.filter(session=1)["released"].to_list() == pytest.approx([-2.5, 1.0])
    assert book.ledger["session"].max() == 1


def test_trading_costs_can_ruin() -> None:
    dearest = CostModel(half_spread_bps=6000, commission_bps=0, borrow_bps_per_year=0)
    book = run_book(np.array([[1.0, -1.0]]), np.ones((1, 2)), np.ones((1, 2), bool), dearest, 0)
    assert book.ruined_at == 0
    assert book.shortfall == pytest.approx(0.2)


def test_zero_targets_trade_nothing() -> None:
    book = run_book(np.zeros((5, 3)), np.ones((5, 3)), np.ones((5, 3), bool), DEAR, 1, keep_ledger=True)
    assert book.first_trade is None
    assert book.ledger.is_empty()
    assert book.ledger.columns == list(SCHEMA)
    np.testing.assert_array_equal(book.nav_net_T, np.ones(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_TN": np.zeros((3, 1))}, "shape of the target is"),
        ({"traded_TN": np.ones((2, 2), bool)}, "shape of traded is"),
        ({"delisted_TN": np.ones((3, 1), bool)}, "shape of delisted is"),
        ({"delay": -1}, "delay is -1"),
        ({"total_return_index_TN": -np.ones((3, 2))}, "negative or infinite"),
        ({"target_TN": np.array([[0, 0], [0, NAN], [0, 0]])}, "session 1 is infinite or partly NaN"),
        ({"target_TN": np.full((3, 2), np.inf)}, "session 0 is infinite or partly NaN"),
        ({"total_return_index_TN": np.ones((0, 2))}, "at least one row"),
    ],
)
def test_invalid_inputs_raise(change: dict[str, object], message: str) -> None:
    inputs = {
        "target_TN": np.zeros((3, 2)),
        "total_return_index_TN": np.ones((3, 2)),
        "traded_TN": np.ones((3, 2), bool),
        "costs": FREE,
        "delay": 0,
    } | change
    with pytest.raises(ValueError, match=message):
        run_book(**inputs)  # type: ignore[arg-type]  # wrong on purpose
