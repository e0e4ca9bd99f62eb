"""What a long-only book can buy while some of its positions cannot be sold."""

from __future__ import annotations

import numpy as np
import pytest

from backtest.accounts.accounting import run_book
from backtest.books.decisions import affordable
from backtest.costs import CostModel


@pytest.mark.parametrize("target", [[0.0, 0.6, 0.4], [0.1, 0.2, 0.7], [0.0, 0.7, 0.6]])
def test_purchases_are_cut_as_the_accounts_cut_them(target: list[float]) -> None:
    """Half of the book is in a firm that is halted when the order is traded."""
    held_N, target_N = np.array([0.5, 0.3, 0.2]), np.array(target)
    orders_TN = np.array([held_N, target_N])
    traded_TN = np.ones((2, 3), dtype=np.bool_)
    traded_TN[1, 0] = False
    free = CostModel()
    result = run_book(orders_TN, np.ones((2, 3)), traded_TN, free, 0, keep_ledger=True)
    position_N = np.zeros(3)
    last = result.ledger.filter(result.ledger["session"] == 1)
    position_N[last["firm"].to_numpy()] = last["position"].to_numpy()
    cut_N = affordable(target_N, held_N, ~traded_TN[1], absent=0.0)
    np.testing.assert_allclose(cut_N[1:], position_N[1:], atol=1e-12)
    assert cut_N[0] == target_N[0]


def test_a_target_with_short_positions_is_not_cut() -> None:
    target_N, held_N = np.array([-0.5, 0.5]), np.array([0.5, -0.5])
    assert affordable(target_N, held_N, np.array([True, False]), 0.0) is target_N
