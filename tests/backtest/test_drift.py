"""Drift of a feature against hand-computed cases and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy, ks_2samp, norm

from backtest.monitoring import Distribution, bin_shares, ks_distance, stability_index


def test_shares_of_a_hand_computed_case() -> None:
    """Bins are open below and closed above; unknown values have the last one."""
    x_M = np.array([0.0, 1.0, 1.5, 2.0, 9.0, np.nan, np.nan, 3.0])
    np.testing.assert_allclose(bin_shares(x_M, np.array([1.0, 2.0])), [2 / 8, 2 / 8, 2 / 8, 2 / 8])


def test_the_index_of_a_hand_computed_case() -> None:
    """(0.3-0.2) ln(0.3/0.2) + (0.7-0.8) ln(0.7/0.8) = 0.053900."""
    assert stability_index(np.array([0.2, 0.8]), np.array([0.3, 0.7])) == pytest.approx(0.053900, abs=1e-6)


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=12), st.integers(0, 10**6))
def test_the_index_is_both_divergences(weights: list[float], seed: int) -> None:
    """It equals KL(a|e) + KL(e|a) of scipy and does not depend on the order of the two."""
    e_B = np.array(weights) / np.sum(weights)
    a_B = np.random.default_rng(seed).dirichlet(np.full(len(e_B), 50.0))
    a_B = np.maximum(a_B, 1e-3) / np.maximum(a_B, 1e-3).sum()
    value = stability_index(e_B, a_B)
    assert value == pytest.approx(entropy(a_B, e_B) + entropy(e_B, a_B), abs=1e-9)
    assert value == pytest.approx(stability_index(a_B, e_B), abs=1e-12)


def test_an_empty_bin_is_finite() -> None:
    """A feature that goes missing everywhere has a large index, not an infinite one."""
    training = Distribution.of(np.arange(1000.0))
    expected_B = bin_shares(np.arange(1000.0), training.edges_E)
    gone_B = bin_shares(np.full(50, np.nan), training.edges_E)
    value = stability_index(expected_B, gone_B)
    assert 10 < value < 20


def test_points_stand_for_the_whole_distribution() -> None:
    """The distance of the points of two samples is within 1/250 of scipy's on all values."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=20_000), rng.normal(0.38, 1.0, size=10_000)
    value = ks_distance(Distribution.of(x).points_Q, Distribution.of(y).points_Q)
    assert value == pytest.approx(ks_2samp(x, y).statistic, abs=1 / 250)
    assert value == pytest.approx(2 * norm.cdf(0.19) - 1, abs=0.02)  # as the documentation of the limit says


def test_ties_make_fewer_bins() -> None:
    """A feature that is mostly zero has each edge once, and its own shares give an index of zero."""
    x_M = np.concatenate([np.zeros(900), np.arange(1.0, 101.0)])
    found = Distribution.of(x_M)
    assert found.edges_E.tolist() == [0.0]
    shares_B = bin_shares(x_M, found.edges_E)
    assert stability_index(shares_B, shares_B) == 0.0


def test_unknown_values() -> None:
    """A feature that is never known has no distance and no edges."""
    found = Distribution.of(np.array([np.nan, np.nan]))
    assert found.missing == 1.0
    assert not len(found.edges_E)
    assert math.isnan(ks_distance(found.points_Q, np.array([1.0])))
    with pytest.raises(ValueError, match="at least one value"):
        Distribution.of(np.array([]))
