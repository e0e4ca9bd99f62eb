"""The null of shuffled peers: scores by hand, and the rate of false edges in shuffled networks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from models.explain.network import NetworkSums, normal_scores, shuffled_sources

NAN = float("nan")


def test_scores_rank_the_sources_of_a_target() -> None:
    size = np.array([[NAN, 3.0, 1.0, 2.0], [5.0, NAN, NAN, 4.0], [1.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 7.0]])
    score = normal_scores(size)
    by_hand = stats.norm.ppf(np.array([0.75, 0.25, 0.5]))
    np.testing.assert_allclose(score[0, 1:], by_hand / by_hand.std(ddof=1))
    np.testing.assert_allclose(score[1] * np.sqrt(2.0), [1.0, 0.0, 0.0, -1.0])
    tied = stats.norm.ppf(np.array([1.5, 1.5, 3.0]) / 4)
    np.testing.assert_allclose(score[2, [0, 1, 3]], (tied - tied.mean()) / tied.std(ddof=1))
    np.testing.assert_array_equal(score[3], 0.0)


@pytest.mark.parametrize(("sources", "dates"), [(2, 3), (3, 4), (4, 4), (5, 4), (7, 3), (11, 3)])
def test_few_sources_on_few_dates_are_not_found_too_often(sources: int, dates: int) -> None:
    n = sources + 1
    score_M = normal_scores(np.broadcast_to(np.arange(n, dtype=float), (n, n)))[0, 1:]
    every_t = np.array(list(product(score_M, repeat=dates))).sum(axis=1) / np.sqrt(dates)
    assert (stats.norm.sf(every_t) < 0.05).mean() <= 0.05


def test_shuffling_keeps_the_values_of_every_target_and_skips_sources_that_were_not_measured() -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=(9, 9))
    value[:, [2, 5]] = NAN
    for _ in range(20):
        shuffled = shuffled_sources(value, rng)
        for i in range(9):
            np.testing.assert_array_equal(np.sort(np.delete(shuffled[i], i)), np.sort(np.delete(value[i], i)))
        np.testing.assert_array_equal(np.isnan(shuffled), np.isnan(value))
        np.testing.assert_array_equal(np.diagonal(shuffled), np.diagonal(value))
    places = [shuffled_sources(value, rng)[0, 1] for _ in range(4000)]
    counts = [np.isclose(places, other).mean() for other in value[0, [1, 3, 4, 6, 7, 8]]]
    np.testing.assert_allclose(counts, 1 / 6, atol=0.03)


def test_shuffled_peers_make_at_most_the_stated_rate_of_false_edges() -> None:
    rng, with_any = np.random.default_rng(2), 0
    rates = []
    # heavy tails, a hub and turbulent dates: what breaks a test that assumes normal values
    scale_NN = rng.pareto(1.5, size=(25, 25)) * (1.0 + 20.0 * (np.arange(25) == 4))
    for _ in range(40):
        sums = NetworkSums(25)
        for _ in range(12):
            phi = scale_NN * rng.standard_t(3, size=(25, 25)) * rng.exponential()
            mixed = shuffled_sources(phi, rng)
            sums.add(np.arange(25), mixed, mixed**2)
        tests, others = sums.tests(), ~np.eye(25, dtype=bool)
        rates.append((tests.p_NN[others] < 0.05).mean())
        with_any += bool(tests.found().any())
    assert 0.04 < np.mean(rates) < 0.055
    assert with_any <= 5  # 5% of 40 networks, plus 1.6 standard errors


def test_hubs_and_particular_edges_are_found() -> None:
    rng, sums = np.random.default_rng(3), NetworkSums(25)
    for _ in range(12):
        square = rng.exponential(size=(25, 25))
        square[:, 4] *= 8.0
        square[7, 9] *= 30.0
        sums.add(np.arange(25), np.sqrt(square), square)
    found = sums.tests().found()
    assert found[7, 9]
    assert found[np.arange(25) != 4, 4].mean() > 0.8
    assert found[:, [0, 1, 2, 3]].mean() < 0.05
