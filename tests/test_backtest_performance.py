"""Performance numbers against loops and hand-computed books."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backtest.accounting import run_book
from backtest.books import top_k_long_only
from backtest.costs import CostModel
from backtest.performance import annual_return, book_metrics, max_drawdown, sharpe, sortino

COSTS = CostModel(half_spread_bps=4, commission_bps=1, borrow_bps_per_year=100)


def test_return_and_risk_against_loops() -> None:
    r_T = np.random.default_rng(0).normal(0.001, 0.02, 300)
    nav, peak, worst = 1.0, 1.0, 0.0
    for r in r_T:
        nav *= 1 + r
        peak = max(peak, nav)
        worst = max(worst, 1 - nav / peak)
    assert max_drawdown(r_T) == pytest.approx(worst)
    assert annual_return(r_T) == pytest.approx(nav ** (252 / 300) - 1)
    mean = sum(r_T) / 300
    deviation = math.sqrt(sum((r - mean) ** 2 for r in r_T) / 299)
    assert sharpe(r_T) == pytest.approx(mean / deviation * math.sqrt(252))
    downside = math.sqrt(sum(min(r, 0) ** 2 for r in r_T) / 300)
    assert sortino(r_T) == pytest.approx(mean / downside * math.sqrt(252))


def test_numbers_that_do_not_exist_are_nan() -> None:
    assert math.isnan(sharpe(np.zeros(10)))
    assert math.isnan(sharpe(np.array([0.1])))
    assert math.isnan(sortino(np.array([0.1, 0.2])))
    assert math.isnan(annual_return(np.array([])))
    assert max_drawdown(np.array([0.1, 0.2])) == 0
    assert max_drawdown(np.array([-0.1])) == pytest.approx(0.1)  # from the starting capital


def test_a_book_counts_from_its_first_trade() -> None:
    rng = np.random.default_rng(2)
    wealth_TN = np.cumprod(1 + rng.normal(0.0005, 0.02, (200, 10)), axis=0, dtype=np.float64)
    signal_TN = rng.normal(size=(200, 10))
    signal_TN[:40] = np.nan
    book = run_book(top_k_long_only(signal_TN, 3), wealth_TN, np.ones((200, 10), bool), COSTS, 1)
    m = book_metrics(book)
    assert book.first_trade == 41
    net_T = book.return_net_T[41:]
    assert m.n_sessions == 159
    assert m.sharpe_net == pytest.approx(net_T.mean() / net_T.std(ddof=1) * math.sqrt(252))
    assert m.sharpe_gross > m.sharpe_net
    assert m.annual_return_net == pytest.approx(book.nav_net_T[-1] ** (252 / 159) - 1)
    assert m.total_return_gross == pytest.approx(book.nav_gross_T[-1] - 1)
    assert m.hit_rate_net == sum(r > 0 for r in net_T) / 159
    assert m.turnover == pytest.approx(book.turnover_T.sum() / 159)
    assert m.leverage == pytest.approx(1, abs=1e-3)
    lost = (book.return_gross_T - book.return_net_T)[41:].mean() * 252e4
    assert sum(m.costs_bps_per_year.values()) == pytest.approx(lost)
    assert m.costs_bps_per_year["half_spread"] == pytest.approx(4 * m.costs_bps_per_year["commission"])
    assert m.costs_bps_per_year["borrow"] == 0
    assert (m.missed, m.max_unpriced, m.ruined_at) == (0, 0, None)
    assert m.identity_gap < 1e-12


def test_a_book_without_trades_and_a_ruined_one() -> None:
    idle = book_metrics(run_book(np.zeros((5, 3)), np.ones((5, 3)), np.ones((5, 3), bool), COSTS, 1))
    assert (idle.n_sessions, idle.total_return_net, idle.turnover) == (5, 0, 0)
    assert math.isnan(idle.sharpe_net)
    wealth_TN = np.array([[1.0], [3.0], [3.0]])
    target_TN = np.array([[-1.0], [np.nan], [np.nan]])
    ruined = book_metrics(run_book(target_TN, wealth_TN, np.ones((3, 1), bool), COSTS, 0))
    assert (ruined.ruined_at, ruined.n_sessions) == (1, 2)
    assert (ruined.total_return_net, ruined.annual_return_net, ruined.max_drawdown_net) == (-1, -1, 1)
