"""The stationary bootstrap against its closed-form variance and arch, and its calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backtest.accounts.performance import sharpe
from backtest.inference.bootstrap import (
    bootstrap_block,
    bootstrap_counts,
    mean_block,
    mean_interval,
    sharpe_difference,
    sharpe_interval,
)

NAN = math.nan


def test_counts_are_samples_of_n_sessions_and_repeat_with_their_seed() -> None:
    counts_RT = bootstrap_counts(30, block=4, repetitions=50, seed=3)
    assert counts_RT.shape == (50, 30)
    np.testing.assert_array_equal(counts_RT.sum(axis=1), 30)
    np.testing.assert_array_equal(counts_RT, bootstrap_counts(30, block=4, repetitions=50, seed=3))
    assert (counts_RT != bootstrap_counts(30, block=4, repetitions=50, seed=4)).any()
    np.testing.assert_array_equal(bootstrap_counts(1, block=1, repetitions=2), [[1], [1]])
    endless = bootstrap_counts(30, block=1e12, repetitions=20)
    np.testing.assert_array_equal(endless, 1)  # one block that goes round: every session once
    with pytest.raises(ValueError, match=r"block is 0.5; it must be at least 1"):
        bootstrap_counts(30, block=0.5)


@pytest.mark.parametrize("block", [1, 5, 20])
def test_the_variance_of_a_resampled_mean_is_that_of_politis_and_romano(block: float) -> None:
    """Their lemma 1: (1/n) (g_0 + 2 sum ((1 - i/n) q^i + (i/n) q^(n-i)) g_i), with q = 1 - 1/block."""
    rng = np.random.default_rng(0)
    n, q = 120, 1 - 1 / block
    x_T = np.convolve(rng.normal(size=n + 3), np.ones(4) / 4, mode="valid")
    e_T = x_T - x_T.mean()
    variance = e_T @ e_T / n
    for i in range(1, n):
        variance += ((1 - i / n) * q**i + i / n * q ** (n - i)) * 2 * (e_T[i:] @ e_T[:-i]) / n
    counts_RT = bootstrap_counts(n, block=block, repetitions=20_000)
    assert (counts_RT @ x_T / n).var() == pytest.approx(variance / n, rel=0.04)


def test_the_interval_of_a_sharpe_ratio_is_archs_with_the_factor_for_short_samples() -> None:
    from arch.bootstrap import StationaryBootstrap  # imports for seconds

    rng = np.random.default_rng(5)
    return_T = 0.01 * rng.standard_t(5, size=500) + 0.0007
    peer = StationaryBootstrap(8, return_T, seed=np.random.default_rng(1))
    expected = peer.conf_int(lambda x_T: np.array([sharpe(x_T)]), reps=2000, method="percentile")[:, 0]
    found = sharpe_interval(return_T, block=8)
    assert found.estimate == pytest.approx(sharpe(return_T), rel=1e-12)
    wider = found.estimate + math.sqrt(500 / (500 - 2 * 8 + 1)) * (expected - found.estimate)
    # the bounds of 2,000 samples are known to about 0.04
    np.testing.assert_allclose([found.lower, found.upper], wider, atol=0.12)


def test_a_difference_is_that_of_two_sharpe_ratios_on_common_sessions() -> None:
    rng = np.random.default_rng(6)
    a_T, b_T = rng.normal(0.001, 0.01, 300), rng.normal(0.0, 0.02, 300)
    a_T[:3], b_T[299] = NAN, NAN
    found = sharpe_difference(a_T, b_T)
    assert found.n == 296
    assert found.estimate == pytest.approx(sharpe(a_T[3:299]) - sharpe(b_T[3:299]), rel=1e-12)
    back = sharpe_difference(b_T, a_T)
    np.testing.assert_allclose([back.lower, back.upper], [-found.upper, -found.lower], rtol=1e-9)
    assert back.p_value == found.p_value
    counts_RT = bootstrap_counts(296, block=bootstrap_block(296))
    assert sharpe_difference(a_T, b_T, counts_RT=counts_RT) == found


def test_books_without_variation_have_no_interval() -> None:
    assert math.isnan(sharpe_interval(np.zeros(50)).lower)
    assert math.isnan(sharpe_interval(np.array([0.01])).estimate)
    assert math.isnan(sharpe_difference(np.arange(9.0), np.ones(9)).p_value)
    for few_T in (np.array([0.01, 0.02]), np.arange(7.0)):
        found = sharpe_interval(few_T)
        assert found.estimate == pytest.approx(sharpe(few_T))
        assert np.isnan([found.lower, found.upper, found.p_value]).all()
        assert np.isnan(mean_interval(few_T[:1]).lower)
        assert np.isnan(mean_interval(few_T).upper)
    same = sharpe_difference(np.arange(50.0), np.arange(50.0))
    assert (same.estimate, same.lower, same.upper, same.p_value) == (0, 0, 0, 1)


def test_an_ic_is_resampled_only_in_blocks_of_two_overlaps_or_more() -> None:
    """Shorter ones, as of 21-session labels on 60 days, missed the truth in 29% of the samples."""
    x_T = np.convolve(np.random.default_rng(7).normal(size=188), np.ones(21) / 21, mode="valid")
    few, enough = mean_interval(x_T[:167], overlap=21), mean_interval(x_T, overlap=21)
    assert few.estimate == pytest.approx(x_T[:167].mean())
    assert np.isnan([few.lower, few.upper, few.p_value]).all()
    assert enough.lower < enough.estimate < enough.upper
    assert mean_block(168, 21) == 42


def test_what_cannot_be_resampled_is_refused() -> None:
    x_T = np.arange(9.0)
    with pytest.raises(ValueError, match="shape of the bootstrap counts"):
        sharpe_interval(x_T, counts_RT=np.ones((5, 8)))
    with pytest.raises(ValueError, match="shape of the second book"):
        sharpe_difference(x_T, x_T[:8])
    with pytest.raises(ValueError, match="level is 0"):
        sharpe_interval(x_T, level=0)
    with pytest.raises(ValueError, match="infinite"):
        sharpe_interval(np.array([0.1, math.inf, 0.2]))


def test_500_pairs_of_equal_books_are_told_apart_in_5_per_cent() -> None:
    rng = np.random.default_rng(0)
    shared, a, b = 0.005 * rng.standard_t(5, size=(3, 500, 500))
    counts_RT = bootstrap_counts(500, block=bootstrap_block(500), repetitions=1000)
    pairs = zip(shared + a + 0.0004, shared + b + 0.0004, strict=True)
    found = [sharpe_difference(a_T, b_T, counts_RT=counts_RT) for a_T, b_T in pairs]
    rejected = np.mean([one.p_value < 0.05 for one in found])
    assert 0.03 <= rejected <= 0.07
    assert np.mean([one.lower <= 0 <= one.upper for one in found]) == pytest.approx(1 - rejected, abs=0.004)
