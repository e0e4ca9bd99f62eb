"""SPA, StepM and the model confidence set against direct calls of arch, by simulation, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from arch.bootstrap import MCS, SPA, StepM

from backtest.inference.multiple import confidence_set, superior_books


def books(seed: int, n: int = 400) -> np.ndarray:
    """Returns of six books with different volatilities; the third and the fifth have skill."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    volatility = np.array([0.01, 0.02, 0.01, 0.005, 0.03, 0.01])
    sharpe = np.array([0.0, 0.0, 0.25, -0.05, 0.3, 0.02])
    returns: np.ndarray = volatility * (sharpe + 0.5 * common + rng.standard_t(6, size=(n, 6)) / 1.2)
    return returns


def test_spa_and_stepm_are_archs() -> None:
    return_TV = books(0)
    loss_TV, zero_T = -return_TV / return_TV.std(axis=0), np.zeros(400)
    spa = SPA(zero_T, loss_TV, block_size=8, reps=1000, seed=0)  # 400^(1/3) = 7.4
    spa.compute()
    steps = StepM(zero_T, loss_TV, size=0.05, block_size=8, reps=1000, seed=0)
    steps.compute()
    found = superior_books(return_TV)
    assert found.p_value == spa.pvalues["consistent"] < 0.05
    assert np.flatnonzero(found.superior_V).tolist() == steps.superior_models == [2, 4]


def test_all_books_can_be_named_in_two_steps() -> None:
    rng = np.random.default_rng(0)
    return_TV = rng.normal(size=(400, 2))
    return_TV -= return_TV.mean(axis=0)
    return_TV += return_TV.std(axis=0) * np.array([10.0, 1.8]) / 20  # t-statistics of 10 and 1.8
    first = SPA(np.zeros(400), -return_TV / return_TV.std(axis=0), block_size=8, reps=1000, seed=0)
    first.compute()
    assert list(first.better_models(0.05)) == [0], "the second book is named only after the first"
    assert superior_books(return_TV).superior_V.tolist() == [True, True]


def test_the_confidence_set_is_archs() -> None:
    return_TV = books(1)
    mcs = MCS(-return_TV / return_TV.std(axis=0), size=0.05, reps=1000, block_size=8, seed=0)
    mcs.compute()
    expected = mcs.pvalues["Pvalue"]
    p_V = confidence_set(return_TV)
    np.testing.assert_array_equal(p_V, [expected[v] for v in range(6)])
    assert p_V.max() == 1
    assert (p_V[[0, 1, 3]] < 0.05).all()
    assert np.flatnonzero(p_V > 0.05).tolist() == list(mcs.included)


def test_columns_that_repeat_or_do_not_vary_have_their_place() -> None:
    return_TV = books(2)
    wider_TV = np.column_stack([return_TV[:, :3], np.zeros(400), return_TV[:, 3:], return_TV[:, 2]])
    p_V = confidence_set(wider_TV)
    np.testing.assert_array_equal(p_V[[0, 1, 2, 4, 5, 6]], confidence_set(return_TV))
    assert math.isnan(p_V[3])
    assert p_V[7] == p_V[2]
    found = superior_books(wider_TV)
    assert found.superior_V.tolist() == [False, False, True, False, False, True, False, True]
    nothing = superior_books(np.zeros((50, 3)))
    assert math.isnan(nothing.p_value)
    assert not nothing.superior_V.any()
    assert np.isnan(confidence_set(return_TV[:, [0, 0]])).all(), "one book only"


def test_leverage_does_not_change_a_result() -> None:
    return_TV, leverage_V = books(3), np.array([1.0, 5.0, 0.1, 3.0, 2.0, 0.5])
    np.testing.assert_array_equal(confidence_set(return_TV), confidence_set(return_TV * leverage_V))
    one, other = superior_books(return_TV), superior_books(return_TV * leverage_V)
    assert one.p_value == other.p_value
    np.testing.assert_array_equal(one.superior_V, other.superior_V)


@pytest.mark.slow(2)
def test_20_books_without_skill_are_called_good_in_at_most_7_per_cent_of_100_samples() -> None:
    rng = np.random.default_rng(0)
    rejected = named = outside = single = 0
    for _ in range(100):
        return_TV = 0.01 * (rng.standard_t(5, size=(250, 20)) + rng.standard_t(5, size=(250, 1)))
        found = superior_books(return_TV, repetitions=300)
        rejected += found.p_value < 0.05
        named += bool(found.superior_V.any())
        outside += bool(confidence_set(return_TV[:, :4], repetitions=300)[0] < 0.05)
        t = return_TV.mean(axis=0) / return_TV.std(axis=0) * math.sqrt(250)
        single += bool((t > 1.645).any())
    assert rejected <= 7
    assert named <= 7
    assert outside <= 7, "the set contains one of the best in 95 of 100 samples"
    assert single > 15, "tests one by one find skill far too often"


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        superior_books(np.array([[0.1, math.nan]] * 20))
    with pytest.raises(ValueError, match="9 sessions are too few"):
        confidence_set(np.ones((9, 2)))
    with pytest.raises(ValueError, match="level is 2"):
        superior_books(books(0), level=2)
