"""Labels equal the return of a book that orders the firm, through halts, gaps, delistings and relistings."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
from ending_markets import STALE, START, raw_market
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.accounts.accounting import run_book
from backtest.accounts.result import BookResult
from backtest.analysis import styles
from backtest.costs import CostModel
from features.panel.delistings import DelistingRule
from features.panel.holding import forward_returns
from features.panel.panel import Panel, build_panel
from features.panel.universe import UniverseRule, universe

FREE = CostModel()
NAN = np.nan


def panel_of(seed: int) -> Panel:
    market = raw_market(seed)
    return build_panel(
        market.prices(),
        market.securities(),
        delisting_rule=DelistingRule(stale_sessions=STALE, unknown_return=-0.3),
    )


def book_of_one(panel: Panel, t: int, n: int, delay: int, weight: float) -> BookResult:
    """Decide at t to hold firm n, and make no other decision."""
    target_TN = np.full(panel.close_TN.shape, NAN)
    target_TN[t] = 0.0
    target_TN[t, n] = weight
    traded_TN = ~np.isnan(panel.close_TN)
    return run_book(
        target_TN, panel.total_return_index_TN, traded_TN, FREE, delay, delisted_TN=panel.delisted_TN
    )


@settings(max_examples=40)
@given(
    seed=st.integers(0, 100_000),
    delay=st.integers(0, 3),
    horizon=st.integers(1, 25),
    weight=st.sampled_from([1.0, 0.4, -0.5]),
    first=st.integers(0, 5),
)
def test_label_equals_book_return_before_costs(
    seed: int, delay: int, horizon: int, weight: float, first: int
) -> None:
    panel = panel_of(seed)
    label_TN = forward_returns(panel, delay, horizon)
    T, N = label_TN.shape
    for t in range(first, T - delay - horizon, 6):
        end = t + delay + horizon
        for n in range(N):
            book = book_of_one(panel, t, n, delay, weight)
            seen = bool((~np.isnan(panel.close_TN[: t + delay + 1, n])).any())
            if not seen or book.unpriced_T[end] > 0:
                assert np.isnan(label_TN[t, n])
                continue
            for nav_T in (book.nav_net_T, book.nav_ledger_T):
                assert nav_T[end] - 1.0 == pytest.approx(weight * label_TN[t, n], rel=0, abs=1e-12)
    assert np.isnan(label_TN[max(T - delay - horizon, 0) :]).all()


@pytest.mark.parametrize("seed", range(6))
def test_later_rows_and_blocks_of_sessions_are_those_of_the_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = panel_of(seed)
    for delay, horizon, first in ((0, 1, 7), (2, 5, 20), (1, 30, 3), (0, 4, panel.n_sessions - 1)):
        whole_TN = forward_returns(panel, delay, horizon)
        np.testing.assert_array_equal(forward_returns(panel, delay, horizon, first), whole_TN[first:])
        assert np.isfinite(whole_TN).any()
    whole_TN = styles.earned_returns(panel)
    assert np.isfinite(whole_TN).any()
    monkeypatch.setattr(styles, "_BLOCK", 7)
    np.testing.assert_array_equal(styles.earned_returns(panel), whole_TN)


def test_random_markets_cover_all_cases() -> None:
    """Halts at purchase and sale, payouts within the span, trading after a payout, and gaps."""
    counts = dict.fromkeys(("unfilled", "unsold", "paid", "returned", "through a gap", "unknown"), 0)
    delay, horizon = 1, 8
    for seed in range(30):
        panel = panel_of(seed)
        label_TN = forward_returns(panel, delay, horizon)
        traded_TN = ~np.isnan(panel.close_TN)
        for t, n in np.argwhere(universe(panel, UniverseRule(min_history=1))):
            buy, end = t + delay, t + delay + horizon
            if end >= panel.n_sessions:
                continue
            ended_K = panel.delisted_TN[buy : end + 1, n]
            gap_K = np.isnan(panel.total_return_index_TN[buy : end + 1, n])
            held = traded_TN[buy, n]
            counts["unfilled"] += not held
            counts["unsold"] += bool(held and not traded_TN[end, n] and not ended_K.any())
            counts["paid"] += bool(held and ended_K.any())
            counts["returned"] += bool(held and ended_K.any() and traded_TN[end, n])
            counts["through a gap"] += bool(held and gap_K[:-1].any() and not gap_K[-1])
            counts["unknown"] += bool(np.isnan(label_TN[t, n]))
            if ended_K.any():
                assert np.isfinite(label_TN[t, n])  # the IC includes every delisting within the span
    assert min(counts.values()) >= 20, counts


def panel_by_hand(*closes: list[float | None], gaps: tuple[tuple[int, str], ...] = ()) -> Panel:
    """Build a panel of firms A, B, ... from their closes, and of Z, which trades on every session.

    Gaps are sessions and tickers; a session without any price needs one, or it does not exist.
    """
    series_by_ticker: dict[str, list[float | None]] = dict(zip("ABCDEFGHIJ", closes, strict=False))
    series_by_ticker["Z"] = [1.0] * len(closes[0])
    rows = [
        {"date": START + dt.timedelta(days=t), "ticker": ticker, "close": close}
        for ticker, series in series_by_ticker.items()
        for t, close in enumerate(series)
        if close is not None
    ]
    unknown = pl.lit(None, dtype=pl.Float64)
    prices = pl.DataFrame(rows).with_columns(
        *(unknown.alias(name) for name in ("open", "high", "low", "volume")),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )
    known = [{"date": START + dt.timedelta(days=t), "ticker": ticker} for t, ticker in gaps]
    missing = pl.DataFrame(known, schema={"date": pl.Date, "ticker": pl.String})
    prices = prices.join(missing, on=["date", "ticker"], how="anti")
    rule = DelistingRule(stale_sessions=2, unknown_return=-0.3)
    return build_panel(prices, delisting_rule=rule, gaps=missing)


def test_a_label_across_a_known_gap_is_unknown_and_one_across_a_halt_is_not() -> None:
    #                                                  0     1     2     3     4     5
    halted = [10.0, 11.0, None, 12.0, 13.0, 14.0]
    panel = panel_by_hand(halted, halted, gaps=((2, "B"), (2, "X"), (0, "Z"), (7, "B")))
    assert panel.n_sessions == 6
    assert np.argwhere(panel.gap_TN).tolist() == [[2, 1]]
    np.testing.assert_allclose(forward_returns(panel, 0, 1)[:5, 0], [0.1, 0.0, 0.0, 13 / 12 - 1, 14 / 13 - 1])
    np.testing.assert_allclose(forward_returns(panel, 0, 1)[:5, 1], [0.1, NAN, NAN, 13 / 12 - 1, 14 / 13 - 1])
    np.testing.assert_allclose(forward_returns(panel, 1, 1)[:4, 1], [NAN, NAN, 13 / 12 - 1, 14 / 13 - 1])
    np.testing.assert_allclose(forward_returns(panel, 0, 2)[:4, 1], [NAN, NAN, NAN, 14 / 12 - 1])
    np.testing.assert_allclose(forward_returns(panel, 0, 3)[:3, 0], [0.2, 13 / 11 - 1, 0.0])
    np.testing.assert_allclose(forward_returns(panel, 0, 3)[:3, 1], [NAN, NAN, NAN])


def test_a_session_that_every_firm_lacks_stays_a_session() -> None:
    closes: list[float | None] = [10.0, 11.0, 12.0, 13.0, 14.0]
    panel = panel_by_hand(closes, closes, gaps=((2, "A"), (2, "B"), (2, "Z")))
    assert panel.n_sessions == 5
    assert not panel.traded_TN[2].any()
    label_TN = forward_returns(panel, 0, 1)
    assert np.isnan(label_TN[1:3]).all(), "a return over two sessions is no return of one"
    np.testing.assert_allclose(label_TN[3, :2], 14 / 13 - 1)
    assert any("3 price(s) on 1 session(s)" in hazard and "(1 session(s) have no" in hazard
               for hazard in panel.hazards)  # fmt: skip


def test_known_gaps_do_not_make_a_firm_delisted() -> None:
    closes: list[float | None] = [10.0, 11.0, None, None, None, None, 12.0, 13.0]
    gone, kept = panel_by_hand(closes), panel_by_hand(closes, gaps=tuple((t, "A") for t in (2, 3, 4, 5)))
    assert gone.delisted_TN[4:6, 0].all()
    assert not kept.delisted_TN.any()
    mixed = panel_by_hand([10.0, 11.0, *[None] * 6], gaps=((3, "A"), (4, "A")))
    assert np.flatnonzero(mixed.delisted_TN[:, 0]).tolist() == [6, 7], "two halted sessions, two gaps"
    assert np.isfinite(forward_returns(mixed, 0, 6)[1, 0]), "a delisting is paid, whatever the gaps before"


def test_paid_out_firm_that_trades_again_is_no_longer_held() -> None:
    #                       0     1     2     3     4     5     6
    panel = panel_by_hand([10.0, 12.0, None, None, None, 30.0, 33.0])
    # bought at 12, no price for more than two sessions: paid out at session 4 with 12 * 0.7
    np.testing.assert_allclose(forward_returns(panel, 1, 2)[:5, 0], [0.0, 0.0, 0.0, 0.0, NAN], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 1, 3)[:4, 0], [-0.3, 0.0, 0.0, NAN], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 1, 5)[:2, 0], [-0.3, NAN], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 0, 6)[:1, 0], [12 * 0.7 / 10 - 1], rtol=1e-14)


def test_halts_block_orders_and_keep_positions_at_the_last_price() -> None:
    panel = panel_by_hand([10.0, None, 15.0, None, 30.0])
    np.testing.assert_allclose(forward_returns(panel, 1, 1)[:3, 0], [0.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 0, 1)[:4, 0], [0.0, 0.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 0, 2)[:3, 0], [0.5, 0.0, 1.0], atol=1e-15)


def test_label_is_unknown_only_if_it_ends_in_a_data_gap() -> None:
    gap: list[float | None] = [10.0, 11.0, None, 13.0, 26.0]
    panel = panel_by_hand(*[gap] * 10)
    assert np.isnan(panel.total_return_index_TN[2, :10]).all()
    for horizon, expected in (
        (1, [0.1, NAN, 0.0, 1.0]),
        (2, [NAN, 13 / 11 - 1, 0.0]),
        (3, [0.3, 26 / 11 - 1]),
    ):
        np.testing.assert_allclose(
            forward_returns(panel, 0, horizon)[: len(expected), 0], expected, atol=1e-14
        )
