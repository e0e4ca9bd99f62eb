"""The peer network against small hand-computed examples, and its ROC against direct counts."""

from __future__ import annotations

import io
from typing import Any

import networkx as nx
import numpy as np
import pytest

from models.explain.network import (
    PeerNetwork,
    compare_edges,
    edge_auc,
    edge_table,
    homophily,
    mean_network,
    to_digraph,
)

NAN = float("nan")


def two_dates() -> PeerNetwork:
    # firm 2 is absent on the first date; on the second, firm 0 is not a player of its own
    first = np.array([[9.0, -1.0], [2.0, 9.0]])
    second = np.array([[NAN, 3.0, 0.5], [NAN, 9.0, -4.0], [NAN, 0.0, 9.0]])
    return mean_network([(np.array([0, 1]), first), (np.array([0, 1, 2]), second)], n_firms=4)


def test_weights_are_means_over_the_dates_on_which_a_pair_was_observed() -> None:
    network = two_dates()
    np.testing.assert_allclose(
        network.weight_NN, [[0.0, 2.0, 0.5, 0.0], [2.0, 0.0, 4.0, 0.0], [0.0] * 4, [0.0] * 4]
    )
    np.testing.assert_allclose(
        network.signed_NN, [[0.0, 1.0, 0.5, 0.0], [2.0, 0.0, -4.0, 0.0], [0.0] * 4, [0.0] * 4]
    )
    assert network.dates_NN.tolist() == [[0, 2, 1, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_edges_are_listed_by_target_and_rank() -> None:
    table = edge_table(two_dates())
    assert list(zip(table.source_E, table.target_E, table.rank_E, strict=True)) == [
        (1, 0, 1),
        (2, 0, 2),
        (2, 1, 1),
        (0, 1, 2),
    ]
    np.testing.assert_allclose(table.share_E, [0.8, 0.2, 4 / 6, 2 / 6])
    np.testing.assert_allclose(table.signed_E, [1.0, 0.5, -4.0, 2.0])
    assert table.dates_E.tolist() == [2, 1, 1, 1]
    assert edge_table(two_dates(), top=1).source_E.tolist() == [1, 2]


def test_homophily_by_hand() -> None:
    result = homophily(two_dates(), np.array([0, 0, 1, -1]))
    assert result.within == pytest.approx(4.0 / 8.5)  # 1 -> 0 and 0 -> 1
    assert result.expected == pytest.approx((2.5 * 0.5 + 6.0 * 0.5) / 8.5)
    assert result.ratio == pytest.approx(result.within / result.expected)
    nothing = homophily(two_dates(), np.array([-1, -1, 0, 0]))
    assert np.isnan(nothing.within)
    with pytest.raises(ValueError, match="one code per firm"):
        homophily(two_dates(), np.array([0]))


def test_equal_weights_have_no_homophily() -> None:
    even = mean_network([(np.arange(6), np.ones((6, 6)))], n_firms=6)
    assert homophily(even, np.array([0, 0, 0, 1, 1, 2])).ratio == pytest.approx(1.0)


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_auc_is_the_share_of_correctly_ordered_pairs_and_the_curve_counts_edges(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    planted = rng.random((30, 30)) < 0.1
    weight = np.abs(rng.normal(size=(30, 30)) + planted).astype(np.float64).round(decimals)
    valid = rng.random((30, 30)) < 0.7
    weight[~valid] = NAN
    result = edge_auc(weight, planted, valid)
    pairs = valid & ~np.eye(30, dtype=bool)
    edge_E, other_O = weight[pairs & planted], weight[pairs & ~planted]
    higher, tied = edge_E[:, None] > other_O, edge_E[:, None] == other_O
    assert result.auc == pytest.approx((higher + tied / 2).mean(), abs=1e-12)
    thresholds = np.concatenate([[np.inf], np.unique(weight[pairs])[::-1]])
    for rate_K, weight_M in (
        (result.true_positive_rate_K, edge_E),
        (result.false_positive_rate_K, other_O),
    ):
        expected = [(weight_M >= threshold).mean() for threshold in thresholds]
        np.testing.assert_allclose(rate_K, expected, atol=1e-12)
    assert (result.n_edges, result.n_pairs) == (len(edge_E), len(edge_E) + len(other_O))


def test_planted_leaders_are_recovered_and_wrong_attention_is_not() -> None:
    rng = np.random.default_rng(0)
    planted = np.zeros((20, 20), dtype=bool)
    planted[np.arange(2, 20), rng.integers(0, 2, 18)] = True  # [target, source]: firms 0 and 1 lead
    phi = [
        (np.arange(20), planted * rng.normal(size=20) + 1e-3 * rng.normal(size=(20, 20))) for _ in range(20)
    ]
    attention = [(np.arange(20), 1.0 * planted.T) for _ in range(2)]
    network, by_attention = mean_network(phi, 20), mean_network(attention, 20)
    result = compare_edges(network, by_attention, planted, np.ones((20, 20), dtype=bool), seed=0)
    assert result.shap.auc > 0.999
    assert result.attention.auc < 0.6
    assert result.random_low < 0.5 < result.random_high
    assert result.random_mean == pytest.approx(0.5, abs=0.02)
    assert result.random_high < 0.7
    again = compare_edges(network, by_attention, planted, np.ones((20, 20), dtype=bool), seed=0)
    assert again.random_high == result.random_high


def test_the_random_band_matches_simulated_rankings() -> None:
    rng = np.random.default_rng(1)
    planted = rng.random((12, 12)) < 0.2
    network = mean_network([(np.arange(12), rng.normal(size=(12, 12)))], 12)
    valid = np.ones((12, 12), dtype=bool)
    result = compare_edges(network, network, planted, valid, seed=2, draws=2000)
    simulated = [edge_auc(rng.random((12, 12)), planted, valid).auc for _ in range(2000)]
    np.testing.assert_allclose(
        [result.random_low, result.random_high], np.quantile(simulated, (0.05, 0.95)), atol=0.02
    )


def test_the_digraph_points_from_source_to_target_and_can_be_written_as_graphml() -> None:
    graph = to_digraph(edge_table(two_dates()), ("A", "B", "C", "D"))
    assert set(graph.edges) == {("B", "A"), ("C", "A"), ("C", "B"), ("A", "B")}
    assert graph.edges["C", "B"]["signed"] == -4.0
    assert set(graph.nodes) == {"A", "B", "C", "D"}
    stream = io.BytesIO()
    nx.write_graphml(graph, stream)
    stream.seek(0)
    assert nx.read_graphml(stream).edges["C", "B"]["weight"] == 4.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planted_NN": np.zeros((3, 3), dtype=bool)}, "0 of 6 valid pairs"),
        ({"weight_NN": np.full((3, 3), NAN)}, "not finite"),
        ({"valid_pairs_NN": np.ones((2, 2), dtype=bool)}, "same firms"),
    ],
)
def test_invalid_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    planted = np.zeros((3, 3), dtype=bool)
    planted[0, 1] = True
    given: dict[str, Any] = {
        "weight_NN": np.ones((3, 3)),
        "planted_NN": planted,
        "valid_pairs_NN": np.ones((3, 3), dtype=bool),
    }
    with pytest.raises(ValueError, match=message):
        edge_auc(**{**given, **change})


def test_a_network_needs_at_least_one_pair() -> None:
    with pytest.raises(ValueError, match="at least one date"):
        mean_network([], 3)
    with pytest.raises(ValueError, match="one row and one column"):
        mean_network([(np.array([0, 1]), np.ones((3, 3)))], 3)
