"""Drawdowns and worst days against hand-computed cases and a loop."""

from __future__ import annotations

import numpy as np
import pytest
from analysed_books import N, T, analysed_book

from backtest.accounts.performance import max_drawdown
from backtest.analysis.ledger import Drawdown, largest_drawdowns, losers, worst_days


def test_drawdowns_of_a_hand_computed_nav() -> None:
    nav = np.array([0.9, 1.1, 1.2, 0.9, 0.6, 1.3, 1.5, 1.38, 1.4])
    found = largest_drawdowns(nav / np.concatenate([[1.0], nav[:-1]]) - 1.0)
    shapes = [(one.peak, one.trough, one.recovered, one.sessions) for one in found]
    assert shapes == [(2, 4, 5, 3), (-1, 0, 1, 2), (6, 7, None, 2)]
    assert [one.depth for one in found] == pytest.approx([0.5, 0.1, 0.08])
    assert largest_drawdowns(np.array([0.1, 0.0, 0.2])) == []
    assert largest_drawdowns(np.array([0.5, -1.0, 0.0])) == [Drawdown(0, 1, None, 1.0, 2)]


@pytest.mark.parametrize("seed", range(8))
def test_drawdowns_equal_a_loop(seed: int) -> None:
    return_T = np.random.default_rng(seed).normal(0.0005, 0.01, 300)
    nav = [1.0, *np.cumprod(1 + return_T)]
    expected: list[tuple[int, int, int | None, float]] = []
    peak, lowest = 0, None
    for t in range(1, len(nav)):
        if nav[t] >= nav[peak]:
            if lowest is not None:
                expected.append((peak - 1, lowest - 1, t - 1, 1 - nav[lowest] / nav[peak]))
            peak, lowest = t, None
        elif lowest is None or nav[t] < nav[lowest]:
            lowest = t
    if lowest is not None:
        expected.append((peak - 1, lowest - 1, None, 1 - nav[lowest] / nav[peak]))
    expected.sort(key=lambda one: -one[3])
    found = largest_drawdowns(return_T, count=10_000)
    assert len(found) == len(expected) > 0
    assert [(one.peak, one.trough, one.recovered) for one in found] == [one[:3] for one in expected]
    assert [one.depth for one in found] == pytest.approx([one[3] for one in expected])
    assert found[0].depth == pytest.approx(max_drawdown(return_T))
    assert largest_drawdowns(return_T) == found[:5]


def test_the_worst_days_are_losses_from_the_lowest_on() -> None:
    assert worst_days(np.array([0.1, -0.2, 0.0, -0.3, -0.1]), 2) == [3, 1]
    assert worst_days(np.array([0.1, -0.2, 0.0])) == [1]


def test_the_losses_of_all_firms_are_the_loss_of_the_book() -> None:
    book = analysed_book()
    nav_T = book.result.nav_ledger_T
    largest = largest_drawdowns(book.result.return_net_T)[0]
    span, capital = range(largest.peak + 1, largest.trough + 1), nav_T[largest.peak]
    net_N = np.zeros(N)
    for row in book.result.ledger.iter_rows(named=True):
        if row["session"] in span:
            net_N[row["firm"]] += row["pnl"] - row["cost"]
    assert net_N.sum() / capital == pytest.approx(-largest.depth, abs=1e-12)
    worst = losers(book.rows, span, N, capital, count=3)
    assert [firm for firm, _ in worst] == np.argsort(net_N)[:3].tolist()
    assert [lost for _, lost in worst] == pytest.approx((np.sort(net_N)[:3] / capital).tolist())
    assert all(lost < 0 for _, lost in worst)
    assert losers(book.rows, range(0, 5), N, 1.0) == []
    assert (
        len(losers(book.rows, range(T), N, 1.0, count=100))
        == (np.bincount(book.rows.firm_R, book.rows.pnl_R - book.rows.cost_R, N) < 0).sum()
    )
