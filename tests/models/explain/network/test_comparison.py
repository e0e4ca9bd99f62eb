"""Comparisons and measures of networks against libraries and simulated nulls."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from models.explain.network import (
    PeerWeights,
    firm_measures,
    homophily,
    rank_correlation,
    reciprocity,
    return_correlations,
    same_group,
)

RNG = np.random.default_rng(0)
OTHERS = ~np.eye(20, dtype=bool)


def network(weight_NN: np.ndarray) -> PeerWeights:
    return PeerWeights(weight_NN, weight_NN, OTHERS.astype(np.int64))


def test_the_rank_correlation_is_spearmans_over_the_valid_pairs() -> None:
    first, second = RNG.normal(size=(2, 20, 20))
    valid = RNG.random((20, 20)) < 0.6
    result = rank_correlation(first, second, valid, np.random.default_rng(1))
    pairs = valid & OTHERS
    assert result.value == pytest.approx(stats.spearmanr(first[pairs], second[pairs]).statistic)
    assert result.number == pairs.sum()
    assert result.null_low < 0.0 < result.null_high


def test_the_null_is_wide_where_edges_of_a_firm_move_together() -> None:
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(40):  # unrelated networks, each with its own hubs
        first, second = (
            rng.normal(size=(1, 20)) + 0.2 * rng.normal(size=(20, 20)),
            rng.normal(size=(1, 20)) + 0.2 * rng.normal(size=(20, 20)),
        )
        result = rank_correlation(first, second, OTHERS, rng)
        inside += result.null_low <= result.value <= result.null_high
        assert result.null_high > 0.25  # 20 hubs, not 380 independent pairs
    assert inside >= 34
    same = rank_correlation(first, first, OTHERS, rng)
    assert same.value == pytest.approx(1.0)
    assert same.null_high < 0.7


def test_homophily_and_its_null() -> None:
    group = np.repeat([0, 1, 2, 3, -1], 4)
    even = homophily(np.ones((20, 20)), OTHERS, group, np.random.default_rng(3))
    assert even.value == pytest.approx(3 / 15)  # three of the fifteen other firms of known group
    assert even.null_low == pytest.approx(even.null_high)
    within = np.where(group[:, None] == group[None, :], 5.0, 1.0)
    result = homophily(within, OTHERS, group, np.random.default_rng(3))
    assert result.value == pytest.approx(15 / 27)
    assert result.value > result.null_high
    assert result.null_mean == pytest.approx(0.2, abs=0.02)
    assert np.isnan(homophily(np.zeros((20, 20)), OTHERS, group, np.random.default_rng(3)).value)


def test_reciprocity_counts_edges_whose_reverse_exists() -> None:
    found = np.zeros((20, 20), dtype=bool)
    found[[1, 0, 3, 5], [0, 1, 4, 6]] = True
    result = reciprocity(found, OTHERS, np.random.default_rng(4))
    assert result.value == nx.overall_reciprocity(nx.DiGraph(list(zip(*np.nonzero(found.T), strict=True))))
    assert result.number == 4
    assert result.null_mean < 0.2
    assert np.isnan(reciprocity(np.zeros((20, 20), dtype=bool), OTHERS, np.random.default_rng(4)).value)


def test_measures_of_firms() -> None:
    weight = np.zeros((20, 20))
    weight[1:5, 0] = 2.0  # firm 0 leads 1 to 4
    weight[11:14, 10] = 1.0  # firm 10 leads 11 to 13
    result = firm_measures(network(weight), weight > 0.0, seed=0)
    assert result.out_strength_N[0] == 8.0
    assert result.in_strength_N[[1, 11, 0]].tolist() == [2.0, 1.0, 0.0]
    assert (result.leads_N[0], result.follows_N[1]) == (4, 1)
    assert result.pagerank_N.argmax() == 0
    assert result.pagerank_N.sum() == pytest.approx(1.0)
    assert result.community_N[:5].tolist() == [0] * 5
    assert result.community_N[10:14].tolist() == [1] * 4
    assert result.community_N[19] == -1
    nothing = firm_measures(network(np.zeros((20, 20))), np.zeros((20, 20), dtype=bool), seed=0)
    assert not nothing.out_strength_N.any()
    assert (nothing.community_N == -1).all()


def test_networks_of_groups_and_of_correlations() -> None:
    same, known = same_group(np.array([0, 0, 1, -1]))
    assert same[0, 1] == 1.0
    assert not known[3].any()
    returns = RNG.normal(size=(300, 5))
    returns[:, 1] += 2.0 * returns[:, 0]
    returns[:100, 2] = np.nan
    result = return_correlations(returns)
    assert result[0, 1] == pytest.approx(abs(np.corrcoef(returns[:, 0], returns[:, 1])[0, 1]))
    assert result[2, 1] == pytest.approx(abs(np.corrcoef(returns[100:, 2], returns[100:, 1])[0, 1]))
    assert np.isnan(return_correlations(returns[:120])[2, 0])
