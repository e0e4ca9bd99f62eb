"""Many books in one pass equal the same books one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from account_cases import random_case

from backtest.accounts.accounting import LANES, run_books
from backtest.accounts.execution import Execution
from backtest.accounts.market import prepare_market
from backtest.accounts.result import BookResult
from backtest.accounts.variants import SparseTargets, Variant
from backtest.costs import CostModel


def assert_same(one: BookResult, book: BookResult) -> None:
    for name in ("turnover", "unfilled", "leverage", "cash", "unpriced", "nav_ledger"):
        np.testing.assert_array_equal(getattr(one, f"{name}_T"), getattr(book, f"{name}_T"))
    for kind, cost_T in book.costs_T.items():
        np.testing.assert_array_equal(one.costs_T[kind], cost_T)
    for name in ("return_net", "return_gross"):
        np.testing.assert_allclose(getattr(one, f"{name}_T"), getattr(book, f"{name}_T"), atol=1e-13)
    np.testing.assert_allclose(one.nav_net_T, book.nav_net_T, rtol=1e-12)
    assert (one.first_trade, one.ruined_at) == (book.first_trade, book.ruined_at)


def test_a_batch_equals_single_books_to_the_bit() -> None:
    case = random_case(4, T=60, N=11)
    market = prepare_market(case.index_TN, case.traded_TN, case.delisted_TN)
    whole, half = SparseTargets.from_targets(case.target_TN), SparseTargets.from_targets(0.5 * case.target_TN)
    firms = case.costs(per_firm=True)
    variants = [Variant(whole, CostModel(bps, 1, 100), 1) for bps in range(LANES + 5)]
    for early in (False, True):
        for capped in (False, True):
            execution = case.execution(early=early, capped=capped)
            variants += [Variant(half, firms, delay, execution) for delay in (1, 2)]
            impact = firms.impact
            assert impact is not None
            less = dataclasses.replace(firms, impact=dataclasses.replace(impact, capital=10.0))
            variants.append(Variant(half, less, 1, execution))
    order = np.random.default_rng(2).permutation(len(variants))
    books = run_books([variants[v] for v in order], market)
    for v, one in zip(order, books, strict=True):
        variant = variants[v]
        scale = 1.0 if variant.decisions is whole else 0.5
        book = dataclasses.replace(case, target_TN=scale * case.target_TN).run(
            variant.costs, variant.delay, variant.execution, keep_ledger=False
        )
        assert_same(one, book)
        assert one.ruined_at is None
    assert len({tuple(one.return_net_T) for one in books}) == len(variants)


def test_a_ruined_lane_does_not_change_its_neighbours() -> None:
    index_TN = np.array([[1.0, 1], [2.5, 1], [2.5, 2], [2.5, 3]])
    target_TN = np.array([[-0.6, 0.5], [np.nan, np.nan], [0.2, 0.5], [np.nan, np.nan]])
    traded_TN = np.ones((4, 2), bool)
    costs = [CostModel(bps, 0, 0) for bps in (0, 5000, 10)]
    decisions = SparseTargets.from_targets(target_TN)
    books = run_books([Variant(decisions, one, 0) for one in costs], prepare_market(index_TN, traded_TN))
    assert [book.ruined_at for book in books] == [None, 1, None]
    np.testing.assert_array_equal(books[1].return_net_T[1:], [-1, 0, 0])
    np.testing.assert_array_equal(books[1].leverage_T[1:], 0)
    for v in (0, 2):
        (alone,) = run_books([Variant(decisions, costs[v], 0)], prepare_market(index_TN, traded_TN))
        np.testing.assert_array_equal(books[v].return_net_T, alone.return_net_T)
    assert books[0].return_net_T[1] == pytest.approx(-0.9)


def test_decisions_hold_the_weights_that_are_not_zero() -> None:
    target_TN = np.array([[0.0, 0.5, -0.5], [np.nan] * 3, [0.0] * 3, [1.0, 0.0, 0.0]])
    decisions = SparseTargets.from_targets(target_TN.astype(np.float32))
    np.testing.assert_array_equal(decisions.decided_T, [True, False, True, True])
    np.testing.assert_array_equal(decisions.start_T1, [0, 2, 2, 2, 3])
    np.testing.assert_array_equal(decisions.firm_K, [1, 2, 0])
    np.testing.assert_array_equal(decisions.weight_K, [0.5, -0.5, 1.0])


def test_a_batch_refuses_what_does_not_fit() -> None:
    market = prepare_market(np.ones((3, 2)), np.ones((3, 2), bool))
    with pytest.raises(ValueError, match="no variant"):
        run_books([], market)
    with pytest.raises(ValueError, match="shape of the target is"):
        run_books([Variant(SparseTargets.from_targets(np.zeros((3, 1))), CostModel(), 0)], market)
    early = Variant(SparseTargets.from_targets(np.zeros((3, 2))), CostModel(), 0, Execution(np.ones((3, 2))))
    with pytest.raises(ValueError, match="executed before the close"):
        run_books([early], market)
