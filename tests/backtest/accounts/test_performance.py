"""Performance metrics against loops and hand-computed books."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from book_weights import quantile_long_short, top_k_long_only
from skfolio import Portfolio

from backtest.accounts.accounting import run_book
from backtest.accounts.performance import (
    active_metrics,
    annual_return,
    annual_volatility,
    book_metrics,
    calmar,
    max_drawdown,
    sharpe,
    skewness,
    sortino,
)
from backtest.accounts.result import BookResult
from backtest.books.book import in_proportion
from backtest.costs import CostModel
from backtest.inference.bootstrap import sharpe_interval
from features.arrays import FloatArray

COSTS = CostModel(half_spread_bps=4, commission_bps=1, borrow_bps_per_year=100)


def walk(rng: np.random.Generator, T: int, N: int) -> FloatArray:
    """Total return indices of random walks."""
    total_return_index_TN: FloatArray = np.cumprod(
        1 + rng.normal(0.0005, 0.02, (T, N)), axis=0, dtype=np.float64
    )
    return total_return_index_TN


def test_return_and_risk_equal_loops() -> None:
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


def test_undefined_metrics_are_nan() -> None:
    assert math.isnan(sharpe(np.zeros(10)))
    assert math.isnan(sharpe(np.array([0.1])))
    assert math.isnan(sortino(np.array([0.1, 0.2])))
    assert math.isnan(annual_return(np.array([])))
    assert max_drawdown(np.array([0.1, 0.2])) == 0
    assert max_drawdown(np.array([-0.1])) == pytest.approx(0.1)  # from the starting capital


def test_calmar_and_skewness_equal_a_hand_computed_year_and_scipy() -> None:
    year_T = np.zeros(252)
    year_T[[10, 20, 30]] = [0.25, -0.2, 0.1]  # 1 -> 1.25 -> 1 -> 1.1: a year of 10%, a drawdown of 20%
    assert calmar(year_T) == pytest.approx(0.1 / 0.2)
    assert math.isnan(calmar(np.array([0.1, 0.2])))
    r_T = np.random.default_rng(8).gamma(2.0, 0.01, 400) - 0.02
    assert skewness(r_T) == pytest.approx(scipy.stats.skew(r_T))
    assert skewness(np.array([-0.02, 0.01, 0.01])) == pytest.approx(-1 / math.sqrt(2))
    assert math.isnan(skewness(np.full(9, 0.1)))
    assert math.isnan(skewness(np.array([0.1])))


def test_a_hand_computed_book_has_its_best_and_worst_day_and_its_net_exposure() -> None:
    free = CostModel()
    index_TN = np.array([[1.0, 1.0], [1.1, 1.0], [1.1, 0.5], [1.1, 0.5]])
    target_TN = np.array([[0.5, -0.25], [np.nan, np.nan], [np.nan, np.nan], [0.0, 0.0]])
    m = book_metrics(run_book(target_TN, index_TN, np.ones((4, 2), bool), free, 0))
    # NAV: 1, 1 + 0.05, + 0.125, unchanged; net positions: 0.25, 0.55 - 0.25, 0.55 - 0.125, 0
    assert m.best_day_net == pytest.approx(0.125 / 1.05)
    assert m.worst_day_net == 0.0
    assert m.net_exposure == pytest.approx((0.25 + 0.3 / 1.05 + 0.425 / 1.175 + 0.0) / 4)
    assert m.leverage == pytest.approx((0.75 + 0.8 / 1.05 + 0.675 / 1.175 + 0.0) / 4)
    assert math.isnan(m.calmar_net)


def test_metrics_start_at_the_first_trade() -> None:
    rng = np.random.default_rng(2)
    total_return_index_TN = walk(rng, 200, 10)
    signal_TN = rng.normal(size=(200, 10))
    signal_TN[:40] = np.nan
    book = run_book(top_k_long_only(signal_TN, 3), total_return_index_TN, np.ones((200, 10), bool), COSTS, 1)
    m = book_metrics(book)
    assert book.first_trade == 41
    net_T = book.return_net_T[41:]
    assert m.n_sessions == 159
    assert m.sharpe_net == pytest.approx(net_T.mean() / net_T.std(ddof=1) * math.sqrt(252))
    assert m.sharpe_gross > m.sharpe_net
    assert m.annual_return_net == pytest.approx(book.nav_net_T[-1] ** (252 / 159) - 1)
    assert m.total_return_gross == pytest.approx(book.nav_gross_T[-1] - 1)
    assert m.skew_net == pytest.approx(scipy.stats.skew(net_T))
    assert m.calmar_net == pytest.approx(m.annual_return_net / m.max_drawdown_net)
    assert (m.worst_day_net, m.best_day_net) == (net_T.min(), net_T.max())
    assert m.net_exposure == pytest.approx((1 - book.cash_T[41:]).mean())
    assert m.hit_rate_net == sum(r > 0 for r in net_T) / 159
    assert m.turnover == pytest.approx(book.turnover_T.sum() / 159)
    assert m.leverage == pytest.approx(1, abs=1e-3)
    lost = (book.return_gross_T - book.return_net_T)[41:].mean() * 252e4
    assert sum(m.costs_bps_per_year.values()) == pytest.approx(lost)
    assert m.costs_bps_per_year["half_spread"] == pytest.approx(4 * m.costs_bps_per_year["commission"])
    assert m.costs_bps_per_year["borrow"] == 0
    assert (m.unfilled, m.max_unpriced, m.ruined_at) == (0, 0, None)
    assert m.identity_gap < 1e-12


def test_book_without_trades_and_ruined_book() -> None:
    idle = book_metrics(run_book(np.zeros((5, 3)), np.ones((5, 3)), np.ones((5, 3), bool), COSTS, 1))
    assert (idle.n_sessions, idle.total_return_net, idle.turnover) == (5, 0, 0)
    assert math.isnan(idle.sharpe_net)
    total_return_index_TN = np.array([[1.0], [3.0], [3.0]])
    target_TN = np.array([[-1.0], [np.nan], [np.nan]])
    ruined = book_metrics(run_book(target_TN, total_return_index_TN, np.ones((3, 1), bool), COSTS, 0))
    assert (ruined.ruined_at, ruined.n_sessions) == (1, 2)
    assert ruined.net_exposure == pytest.approx(
        -1.0 / 2, rel=1e-3
    )  # short at the first close, nothing after ruin
    assert ruined.worst_day_net == -1
    assert (ruined.total_return_net, ruined.annual_return_net, ruined.max_drawdown_net) == (-1, -1, 1)


def excess_by_hand(book: BookResult, rate_T: np.ndarray, *, net: bool = True) -> list[float]:
    """Excess return by definition: credit cash at the rate, then subtract the rate from the return."""
    earned_T = book.return_net_T if net else book.return_gross_T
    first = book.first_trade or 0
    out = []
    for t in range(first, len(earned_T)):
        cash = book.cash_T[t - 1] if t else 1.0
        out.append(earned_T[t] + cash * rate_T[t] - rate_T[t])
    return out


def test_risk_free_rate_is_deducted_for_net_exposure_only() -> None:
    rng = np.random.default_rng(3)
    total_return_index_TN = walk(rng, 300, 12)
    signal_TN = rng.normal(size=(300, 12))
    traded_TN = np.ones((300, 12), bool)
    rate_T = rng.uniform(0.0, 0.0004, 300)
    invested = run_book(top_k_long_only(signal_TN, 4), total_return_index_TN, traded_TN, COSTS, 1)
    financed = run_book(quantile_long_short(signal_TN, 3), total_return_index_TN, traded_TN, COSTS, 1)
    half = run_book(0.5 * top_k_long_only(signal_TN, 4), total_return_index_TN, traded_TN, COSTS, 1)
    for book in (invested, financed, half):
        over = book_metrics(book, rate_T)
        excess = np.array(excess_by_hand(book, rate_T))
        assert over.sharpe_net == pytest.approx(excess.mean() / excess.std(ddof=1) * math.sqrt(252))
        gross = np.array(excess_by_hand(book, rate_T, net=False))
        assert over.sharpe_gross == pytest.approx(gross.mean() / gross.std(ddof=1) * math.sqrt(252))
        downside = math.sqrt(np.mean([min(r, 0) ** 2 for r in excess]))
        assert over.sortino_net == pytest.approx(excess.mean() / downside * math.sqrt(252))
        assert over.annual_return_net == book_metrics(book).annual_return_net
    plain_T = invested.return_net_T[1:]
    assert excess_by_hand(invested, rate_T)[1:] == pytest.approx(plain_T[1:] - rate_T[2:], abs=1e-6)
    moved = book_metrics(financed, rate_T).sharpe_net - book_metrics(financed).sharpe_net
    assert abs(moved) < 0.02  # net exposure is 0 except for one session's drift
    assert book_metrics(invested).sharpe_net - book_metrics(invested, rate_T).sharpe_net > 0.1
    rate_T[200] = np.nan
    with pytest.raises(ValueError, match="unknown on a session with positions"):
        book_metrics(invested, rate_T)


def test_zero_rate_equals_no_rate_to_the_bit() -> None:
    rng = np.random.default_rng(4)
    total_return_index_TN = walk(rng, 60, 9)
    book = run_book(
        top_k_long_only(rng.normal(size=(60, 9)), 3), total_return_index_TN, np.ones((60, 9), bool), COSTS, 1
    )
    assert book_metrics(book, np.zeros(60)) == book_metrics(book)
    assert sharpe(book.return_net_T[1:]) == book_metrics(book).sharpe_net


def test_sharpe_and_information_ratio_equal_skfolio_and_statsmodels() -> None:
    rng = np.random.default_rng(5)
    total_return_index_TN = walk(rng, 250, 10)
    traded_TN = np.ones((250, 10), bool)
    signal_TN = rng.normal(size=(250, 10))
    book = run_book(top_k_long_only(signal_TN, 3, 5), total_return_index_TN, traded_TN, COSTS, 1)
    decided_TN = top_k_long_only(signal_TN, 3, 5)
    universe_TN = np.ones((250, 10), bool)
    universe_TN[:, 9] = False
    target_TN = in_proportion(universe_TN, decided_TN)
    np.testing.assert_array_equal(target_TN[0], [1 / 9] * 9 + [0])
    assert np.flatnonzero(~np.isnan(target_TN).any(axis=1)).tolist() == list(range(0, 250, 5))
    benchmark = run_book(target_TN, total_return_index_TN, traded_TN, CostModel(), 1)
    active = active_metrics(book, benchmark.return_gross_T)
    active_T = book.return_net_T[1:] - benchmark.return_gross_T[1:]
    fit = sm.OLS(active_T, np.ones(249)).fit()
    assert active.information_ratio == pytest.approx(fit.tvalues[0] / math.sqrt(249) * math.sqrt(252))
    assert active.tracking_error == pytest.approx(math.sqrt(fit.mse_resid) * math.sqrt(252))
    daily = 0.02 / 252
    exposure_T = 1.0 - book.cash_T[:-1]
    excess_T = book.return_net_T[1:] - exposure_T * daily
    theirs = Portfolio(X=excess_T[:, None], weights=np.ones(1), annualized_factor=252)
    ours = book_metrics(book, np.full(250, daily))
    assert ours.sharpe_net == pytest.approx(theirs.annualized_sharpe_ratio, rel=1e-9)
    # all firms are in the universe, so the book is the benchmark minus costs
    same = run_book(target_TN, total_return_index_TN, traded_TN, COSTS, 1)
    assert active_metrics(same, benchmark.return_gross_T).information_ratio < 0
    assert math.isnan(active_metrics(benchmark, benchmark.return_gross_T).information_ratio)
    with pytest.raises(ValueError, match="shape of the benchmark's return is"):
        active_metrics(book, benchmark.return_gross_T[1:])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_active_metrics_equal_empyrical_quantstats_and_statsmodels() -> None:
    import empyrical
    import pandas as pd
    from quantstats import stats

    rng = np.random.default_rng(6)
    index_TN = walk(rng, 250, 10)
    signal_TN, traded_TN = rng.normal(size=(250, 10)), np.ones((250, 10), bool)
    benchmark_T = np.zeros(250)
    benchmark_T[2:] = 0.7 * (index_TN[2:] / index_TN[1:-1] - 1).mean(axis=1) + rng.normal(0, 0.003, 248)
    for target_TN in (top_k_long_only(signal_TN, 3, 5), quantile_long_short(signal_TN, 3)):
        book = run_book(target_TN, index_TN, traded_TN, COSTS, 1)
        days = pd.bdate_range("2020-01-01", periods=249)
        ours, theirs = pd.Series(book.return_net_T[1:], days), pd.Series(benchmark_T[1:], days)
        found = active_metrics(book, benchmark_T)
        fit = sm.OLS(ours.to_numpy(), sm.add_constant(theirs.to_numpy())).fit()
        assert found.beta == pytest.approx(empyrical.beta(ours, theirs), rel=1e-10)
        assert found.beta == pytest.approx(fit.params[1], rel=1e-10)
        # "yearly" is one session a period, so that returns are not made annual before they are divided
        for name in ("up_capture", "down_capture"):
            expected = getattr(empyrical, name)(ours, theirs, period="yearly")
            assert getattr(found, name) == pytest.approx(expected, rel=1e-9)
        assert found.benchmark_return == pytest.approx(empyrical.annual_return(theirs), rel=1e-9)
        gap = empyrical.annual_return(ours) - empyrical.annual_return(theirs)
        assert found.tracking_difference == pytest.approx(gap, rel=1e-9)
        # both leave out the year: mean over standard deviation of a session
        for single in (empyrical.excess_sharpe(ours, theirs), stats.information_ratio(ours, theirs)):
            assert found.information_ratio == pytest.approx(single * math.sqrt(252), rel=1e-10)
        assert found.beta == pytest.approx(stats.greeks(ours, theirs)["beta"], rel=1e-10)
        assert found.active_return == pytest.approx(252 * (ours - theirs).mean(), rel=1e-10)
        assert found.active_return == pytest.approx(found.information_ratio * found.tracking_error)
        assert found.active_drawdown == pytest.approx(-empyrical.max_drawdown(ours - theirs), rel=1e-9)
        own = book.return_net_T[1:]
        for figure, expected in {
            annual_return(own): stats.cagr(ours),
            annual_volatility(own): stats.volatility(ours),
            sharpe(own): stats.sharpe(ours),
            sortino(own): stats.sortino(ours),
            max_drawdown(own): -stats.max_drawdown(ours),
            calmar(own): stats.calmar(ours),
        }.items():
            assert figure == pytest.approx(expected, rel=1e-9)


def test_a_book_that_is_half_invested_captures_half_and_a_flat_benchmark_nothing() -> None:
    benchmark_T = np.array([0.0, 0.02, -0.01, 0.03, -0.02])
    index_TN = np.cumprod(1 + benchmark_T)[:, None]
    book = run_book(np.full((5, 1), 0.5), index_TN, np.ones((5, 1), bool), CostModel(), 0)
    found = active_metrics(book, benchmark_T)
    assert found.beta == pytest.approx(0.5)
    assert found.up_capture == pytest.approx(0.5, abs=0.002)  # a geometric mean is not linear
    assert found.down_capture == pytest.approx(0.5, abs=0.002)
    assert found.active_drawdown == pytest.approx(1 - (1 - 0.01) * (1 + 0.005) * (1 - 0.015))
    flat = active_metrics(book, np.zeros(5))
    assert all(math.isnan(x) for x in (flat.beta, flat.up_capture, flat.down_capture))
    assert (flat.benchmark_return, flat.tracking_difference) == (0, book_metrics(book).annual_return_net)


def test_annual_figures_of_weekly_returns_by_hand() -> None:
    rng = np.random.default_rng(9)
    index_TN = np.exp(np.cumsum(rng.normal(0.001, 0.03, (160, 6)), axis=0))
    target_TN = np.full((160, 6), np.nan)
    target_TN[0] = [0.5, 0.5, 0.5, -0.5, 0.0, 0.0]
    costs = CostModel(borrow_bps_per_year=520.0, financing_bps_per_year=260.0, periods_per_year=52.0)
    book = run_book(target_TN, index_TN, np.ones((160, 6), bool), costs, 0)
    # a year's fee of 5.2% is 0.1% a week, and of 2.6% on half of the capital 0.05% a week
    assert book.costs_T["borrow"][1] == pytest.approx(0.5 * 0.001)
    assert book.costs_T["financing"][1] == pytest.approx(0.5 * 0.0005)
    m, net_T = book_metrics(book, np.full(160, 0.0001)), book.return_net_T
    excess_T = np.array(excess_by_hand(book, np.full(160, 0.0001)))
    assert m.sharpe_net == pytest.approx(excess_T.mean() / excess_T.std(ddof=1) * math.sqrt(52))
    assert m.annual_volatility_net == pytest.approx(net_T.std(ddof=1) * math.sqrt(52))
    assert m.annual_return_net == pytest.approx(book.nav_net_T[-1] ** (52 / 160) - 1)
    assert m.costs_bps_per_year["borrow"] == pytest.approx(book.costs_T["borrow"].mean() * 52e4)
    active = active_metrics(book, book.return_gross_T)
    gap_T = book.return_net_T - book.return_gross_T
    assert active.tracking_error == pytest.approx(gap_T.std(ddof=1) * math.sqrt(52))
    interval = sharpe_interval(net_T, periods_per_year=52)
    assert interval.estimate == pytest.approx(sharpe_interval(net_T).estimate * math.sqrt(52 / 252))
    assert interval.lower == pytest.approx(sharpe_interval(net_T).lower * math.sqrt(52 / 252))
