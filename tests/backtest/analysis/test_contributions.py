"""Contributions and exposures against loops over the ledger, and sums that agree to 1e-12."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from analysed_books import SECTORS, TICKERS, AnalysedBook, N, T, analysed_book
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.analysis.ledger import (
    Contribution,
    by_factor,
    by_name,
    by_sector,
    by_side,
    sector_exposures,
    sector_names,
    style_exposures,
)
from features.arrays import FloatArray


@pytest.fixture(scope="module")
def book() -> AnalysedBook:
    return analysed_book()


def positions(book: AnalysedBook) -> FloatArray:
    """Positions after trades by session and firm, straight from the ledger."""
    out_TN = np.zeros((T, N))
    for row in book.result.ledger.iter_rows(named=True):
        out_TN[row["session"], row["firm"]] = row["position"]
    return out_TN


def parts(book: AnalysedBook) -> dict[str, list[Contribution]]:
    return {
        "sector": list(by_sector(book.rows, book.group_TN, SECTORS)),
        "side": list(by_side(book.rows)),
        "factor": list(by_factor(book.rows, book.scores, book.factors)),
        "name": list(by_name(book.rows, TICKERS)),
    }


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), leverage=st.sampled_from([0.5, 1.5, 4.0, 20.0]))
def test_every_partition_adds_up_to_the_profit_of_the_book(seed: int, leverage: float) -> None:
    book = analysed_book(seed, leverage)
    gross, cost = (float(book.result.ledger[name].to_numpy().sum()) for name in ("pnl", "cost"))
    owed = book.result.shortfall  # a ruined book has lost more than its capital
    assert book.result.nav_ledger_T[-1] - 1.0 - owed == pytest.approx(gross - cost, abs=1e-12)
    assert cost > 0.001
    for by, rows in parts(book).items():
        assert {row.by for row in rows} == {by}
        assert len({row.key for row in rows}) == len(rows) > 1
        assert sum(row.gross for row in rows) == pytest.approx(gross, abs=1e-12)
        assert sum(row.cost for row in rows) == pytest.approx(cost, abs=1e-12)
        assert sum(row.net for row in rows) == pytest.approx(
            book.result.nav_net_T[-1] - 1.0 - owed, abs=1e-12
        )


def test_some_books_of_that_test_are_ruined() -> None:
    ruined = [analysed_book(seed, 20.0).result for seed in range(12)]
    assert any(book.ruined_at is not None and book.shortfall > 0 for book in ruined)


def test_names_sectors_and_sides_equal_a_loop_over_the_ledger(book: AnalysedBook) -> None:
    position_TN = positions(book)
    gross: dict[tuple[str, str], float] = defaultdict(float)
    cost: dict[tuple[str, str], float] = defaultdict(float)
    for row in book.result.ledger.iter_rows(named=True):
        t, firm = row["session"], row["firm"]
        before, after = (position_TN[t - 1, firm] if t else 0.0), row["position"]
        sector = sector_names(SECTORS)[book.group_TN[t, firm] + 1]
        earning = "short" if before < 0 else "long"
        paying = "short" if (after or before) < 0 else "long"
        for key in (("name", TICKERS[firm]), ("sector", sector)):
            gross[key] += row["pnl"]
            cost[key] += row["cost"]
        gross["side", earning] += row["pnl"]
        cost["side", paying] += row["half_spread"] + row["commission"] + row["impact"]
        cost["side", "short"] += row["borrow"]  # only shorts pay it
        cost["side", "long"] += row["financing"]  # only longs are financed
    checked = 0
    for by, rows in parts(book).items():
        if by == "factor":
            continue
        for part in rows:
            assert part.gross == pytest.approx(gross[by, part.key], abs=1e-12)
            assert part.cost == pytest.approx(cost[by, part.key], abs=1e-12)
            checked += 1
    assert checked == len(gross)


def test_factors_earn_exposure_times_return_at_the_previous_close(book: AnalysedBook) -> None:
    position_TN, returns = positions(book), np.nan_to_num(book.factors.return_TJ)
    expected = np.zeros(3)
    for t in range(1, T):
        expected[0] += position_TN[t - 1].sum() * returns[t, 0]
        for k in range(2):
            expected[k + 1] += position_TN[t - 1] @ book.scores.score_KTN[k, t - 1] * returns[t, k + 1]
    rows = {row.key: row for row in by_factor(book.rows, book.scores, book.factors)}
    assert list(rows) == ["market", "momentum", "reversal_1", "specific", "costs"]
    np.testing.assert_allclose(
        [rows[key].gross for key in ("market", "momentum", "reversal_1")], expected, atol=1e-12
    )
    assert np.abs(expected).min() > 1e-5
    assert all(rows[key].cost == 0 for key in ("market", "momentum", "reversal_1", "specific"))


def test_exposures_equal_weights_times_scores_and_sums_by_sector(book: AnalysedBook) -> None:
    position_TN, nav_T = positions(book), book.result.nav_ledger_T
    style_TK = style_exposures(book.rows, book.scores, nav_T)
    sector_TS = sector_exposures(book.rows, book.group_TN, len(SECTORS), nav_T)
    for t in (0, 12, 55, 61, T - 1):
        weight_N = position_TN[t] / nav_T[t]
        np.testing.assert_allclose(
            style_TK[t], book.scores.score_KTN[:, t].astype(float) @ weight_N, atol=1e-12
        )
        expected = [weight_N[book.group_TN[t] == code].sum() for code in range(-1, len(SECTORS))]
        np.testing.assert_allclose(sector_TS[t], expected, atol=1e-12)
    np.testing.assert_allclose(sector_TS.sum(axis=1), (1 - book.result.cash_T), atol=1e-12)
    assert np.abs(style_TK).max() > 0.1


def test_a_ruined_book_has_no_exposure_afterwards() -> None:
    book = analysed_book()
    nav_T = np.where(np.arange(T) < 60, book.result.nav_ledger_T, 0.0)
    assert (sector_exposures(book.rows, book.group_TN, len(SECTORS), nav_T)[60:] == 0).all()


def test_positions_before_a_session_are_those_after_the_one_before(book: AnalysedBook) -> None:
    position_TN = positions(book)
    ledger = book.result.ledger
    before = [
        position_TN[t - 1, firm] if t else 0.0 for t, firm in ledger.select("session", "firm").iter_rows()
    ]
    np.testing.assert_allclose(book.rows.before_R, before, atol=1e-14)
    assert ((np.array(before) == 0) == (book.rows.before_R == 0)).all()
    assert ledger.filter(pl.col("released") != 0).height == 2
