"""Capacity against books that are run one by one, and what must hold at any capital."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from backtest.accounts.accounting import run_book
from backtest.accounts.execution import Execution, ParticipationCap
from backtest.accounts.market import prepare_market
from backtest.accounts.performance import book_metrics
from backtest.accounts.variants import SparseTargets, Variant
from backtest.analysis.capacity import (
    at_capital,
    capacity,
    capital_grid,
    participation_per_capital,
)
from backtest.analysis.ledger import LedgerRows, ledger_rows
from backtest.costs import CostModel, SquareRootImpact, volatility_per_root_volume
from features.arrays import FloatArray

T, N = 300, 20
COSTS = CostModel(half_spread_bps=3, borrow_bps_per_year=100)
RATE_T = np.full(T, 0.03 / 252)


def setting(cap: float | None = 0.1) -> tuple[FloatArray, FloatArray, FloatArray, Variant]:
    """Targets that know tomorrow's return a little, indices, volumes, and the book with a capital of 1."""
    rng = np.random.default_rng(2)
    return_TN = rng.normal(0.0003, 0.02, (T, N))
    index_TN = np.cumprod(1.0 + return_TN, axis=0, dtype=np.float64)
    signal_TN = rng.normal(size=(T, N))
    signal_TN[:-1] += 10.0 * return_TN[1:]
    target_TN = signal_TN / np.abs(signal_TN).sum(axis=1, keepdims=True)
    volume_TN = rng.lognormal(math.log(5e6), 1.0, (T, N))
    volume_TN[:, 7] = np.nan
    rate_TN = volatility_per_root_volume(np.full((T, N), 0.02), volume_TN)
    costs = CostModel(3, borrow_bps_per_year=100, impact=SquareRootImpact(0.8, 1.0, rate_TN))
    execution = Execution(cap=None if cap is None else ParticipationCap(cap, 1.0, volume_TN))
    return target_TN, index_TN, volume_TN, Variant(SparseTargets.from_targets(target_TN), costs, 0, execution)


def free_rows(target_TN: FloatArray, index_TN: FloatArray) -> LedgerRows:
    """Ledger of the book without impact and cap."""
    traded_TN = np.ones((T, N), bool)
    return ledger_rows(run_book(target_TN, index_TN, traded_TN, COSTS, 0, keep_ledger=True).ledger)


def test_each_point_is_the_book_run_with_impact_and_a_cap_at_that_capital() -> None:
    target_TN, index_TN, volume_TN, variant = setting()
    traded_TN = np.ones((T, N), bool)
    rows = free_rows(target_TN, index_TN)
    points = capacity(variant, rows, prepare_market(index_TN, traded_TN), volume_TN, RATE_T)
    assert len(points) == 9
    assert variant.costs.impact is not None
    for point in points:
        impact = SquareRootImpact(0.8, point.capital, variant.costs.impact.volatility_per_root_volume_TN)
        costs = replace(COSTS, impact=impact)
        cap = ParticipationCap(0.1, point.capital, volume_TN)
        alone = run_book(target_TN, index_TN, traded_TN, costs, 0, execution=Execution(cap=cap))
        metrics = book_metrics(alone, RATE_T)
        assert point.sharpe_net == pytest.approx(metrics.sharpe_net, abs=1e-9)
        assert point.annual_return_net == pytest.approx(metrics.annual_return_net, abs=1e-9)
        assert point.impact_bps_per_year == pytest.approx(metrics.costs_bps_per_year["impact"], rel=1e-9)
        assert point.unfilled == pytest.approx(metrics.unfilled, abs=1e-12)
    sharpes = [point.sharpe_net for point in points]
    assert sharpes == sorted(sharpes, reverse=True)
    assert sharpes[0] > sharpes[-1] + 1.0
    assert points[-1].unfilled > points[0].unfilled + 0.01


def test_impact_grows_with_the_root_of_the_capital() -> None:
    target_TN, index_TN, volume_TN, variant = setting(cap=None)
    market = prepare_market(index_TN, np.ones((T, N), bool))
    points = capacity(variant, free_rows(target_TN, index_TN), market, volume_TN, RATE_T)
    impact = [point.impact_bps_per_year for point in points]
    assert impact == sorted(impact)
    assert impact[2] == pytest.approx(impact[0] * math.sqrt(10.0), rel=0.1)  # a decade of capital


def test_without_impact_and_cap_capital_does_not_matter() -> None:
    target_TN, index_TN, volume_TN, variant = setting(cap=None)
    free = replace(variant, costs=COSTS)
    market = prepare_market(index_TN, np.ones((T, N), bool))
    points = capacity(free, free_rows(target_TN, index_TN), market, volume_TN, RATE_T)
    assert len({point.sharpe_net for point in points}) == 1
    assert [point.impact_bps_per_year for point in points] == [0.0] * 9
    assert at_capital(free, 1e6).costs.impact is None


def test_the_grid_spans_four_decades_from_a_hundred_thousandth_of_the_volume() -> None:
    assert capital_grid(1e-9) == [1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8]
    assert capital_grid(0.9e-9)[0] == 3e4
    for share in (3.7e-12, 2e-8, 5e-3):
        grid = capital_grid(share)
        assert 0.8e-5 <= share * grid[0] < 4e-5


def test_participation_is_that_of_the_trades_of_the_ledger() -> None:
    target_TN, index_TN, volume_TN, _ = setting()
    ledger = run_book(target_TN, index_TN, np.ones((T, N), bool), COSTS, 0, keep_ledger=True).ledger
    shares = [
        abs(row["trade"]) / volume_TN[row["session"], row["firm"]]
        for row in ledger.iter_rows(named=True)
        if row["trade"] != 0 and row["firm"] != 7
    ]
    ours = participation_per_capital(ledger_rows(ledger), volume_TN)
    assert ours == pytest.approx(np.quantile(shares, 0.95))


def test_without_known_volumes_or_trades_there_is_no_capacity() -> None:
    target_TN, index_TN, _, variant = setting()
    market = prepare_market(index_TN, np.ones((T, N), bool))
    rows = free_rows(target_TN, index_TN)
    assert capacity(variant, rows, market, np.full((T, N), np.nan), RATE_T) == []
