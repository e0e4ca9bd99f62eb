"""The peer network against hand-computed examples: weights, errors and lists of edges."""

from __future__ import annotations

import io

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from models.explain.network import (
    EdgeTests,
    NetworkSums,
    PeerWeights,
    mean_network,
    ranks_of_sources,
    to_digraph,
)

NAN = float("nan")
# firm 2 is absent on the first date; on the second, firm 0 is not measured as a source
DATES = (
    (np.array([0, 1]), np.array([[9.0, -1.0], [2.0, 9.0]])),
    (np.array([0, 1, 2]), np.array([[NAN, 3.0, 0.5], [NAN, 9.0, -4.0], [NAN, 0.0, 9.0]])),
)


def two_dates() -> tuple[PeerWeights, EdgeTests]:
    sums = NetworkSums(4)
    for firms, phi in DATES:
        sums.add(firms, phi, phi**2)
    return sums.network(), sums.tests()


def test_weights_are_root_mean_squares_over_the_dates_on_which_a_pair_was_measured() -> None:
    network, tests = two_dates()
    rms = np.sqrt(5.0)
    np.testing.assert_allclose(
        network.weight_NN, [[0.0, rms, 0.5, 0.0], [2.0, 0.0, 4.0, 0.0], [0.0] * 4, [0.0] * 4]
    )
    np.testing.assert_allclose(
        network.signed_NN, [[0.0, 1.0, 0.5, 0.0], [2.0, 0.0, -4.0, 0.0], [0.0] * 4, [0.0] * 4]
    )
    assert network.dates_NN.tolist() == [[0, 2, 1, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    # squares 1 and 9: the standard error of their mean is 4, and d sqrt(m) = dm / (2 sqrt(m))
    assert tests.error_NN[0, 1] == pytest.approx(4.0 / (2.0 * rms))
    assert np.isnan(tests.error_NN[0, 2])
    assert np.isnan(tests.t_NN[3, 0])
    assert not tests.found().any()


def test_the_mean_of_attention_is_a_network_of_absolute_values() -> None:
    network = mean_network(DATES, n_firms=4)
    assert network.weight_NN[0, 1] == 2.0
    np.testing.assert_array_equal(network.dates_NN, two_dates()[0].dates_NN)


def test_noise_of_squares_does_not_make_a_weight() -> None:
    sums, rng = NetworkSums(30), np.random.default_rng(0)
    true_NN = np.abs(rng.normal(size=(30, 30)))
    for _ in range(400):
        draws_RNN = true_NN + rng.normal(size=(8, 30, 30))  # noise as large as the values
        mean_NN = draws_RNN.mean(axis=0)
        sums.add(np.arange(30), mean_NN, mean_NN**2 - draws_RNN.var(axis=0, ddof=1) / 8)
    others = ~np.eye(30, dtype=bool)
    weight_V, true_V = sums.network().weight_NN[others], true_NN[others]
    weak_V = true_V < np.median(true_V)
    assert weight_V.sum() / true_V.sum() == pytest.approx(1.0, abs=0.01)
    assert weight_V[weak_V].sum() / true_V[weak_V].sum() == pytest.approx(1.0, abs=0.05)
    covered_V = np.abs(weight_V - true_V) < 1.96 * sums.tests().error_NN[others]
    assert 0.93 < covered_V[~weak_V].mean() < 0.97


def test_p_values_are_adjusted_over_all_measured_pairs() -> None:
    sums, rng = NetworkSums(12), np.random.default_rng(1)
    for _ in range(20):
        square_NN = rng.exponential(size=(12, 12))
        square_NN[3, 5] += 10.0
        sums.add(np.arange(12), np.sqrt(square_NN), square_NN)
    tests, others = sums.tests(), ~np.eye(12, dtype=bool)
    np.testing.assert_allclose(tests.p_NN[others], stats.norm.sf(tests.t_NN[others]))
    np.testing.assert_allclose(tests.q_NN[others], stats.false_discovery_control(tests.p_NN[others]))
    assert tests.found()[3, 5]
    assert tests.found().sum() <= 3
    assert np.isnan(np.diagonal(tests.q_NN)).all()


def test_sources_are_ranked_by_size_and_ties_by_column() -> None:
    weight_NN = two_dates()[0].weight_NN
    assert ranks_of_sources(weight_NN)[:2].tolist() == [[3, 1, 2, 4], [2, 3, 1, 4]]


def test_the_digraph_points_from_source_to_target_and_can_be_written_as_graphml() -> None:
    network, _ = two_dates()
    graph = to_digraph(network, network.weight_NN > 1.0, ("A", "B", "C", "D"))
    assert set(graph.edges) == {("B", "A"), ("C", "B"), ("A", "B")}
    assert graph.edges["C", "B"]["signed"] == -4.0
    assert set(graph.nodes) == {"A", "B", "C", "D"}
    stream = io.BytesIO()
    nx.write_graphml(graph, stream)
    stream.seek(0)
    assert nx.read_graphml(stream).edges["C", "B"]["weight"] == 4.0


def test_a_network_needs_at_least_one_pair() -> None:
    with pytest.raises(ValueError, match="at least one date"):
        mean_network([], 3)
    with pytest.raises(ValueError, match="at least one date"):
        NetworkSums(3).network()
    with pytest.raises(ValueError, match="one row and one column"):
        mean_network([(np.array([0, 1]), np.ones((3, 3)))], 3)
    with pytest.raises(ValueError, match="one row and one column"):
        NetworkSums(3).add(np.array([0, 1]), np.ones((3, 3)), np.ones((3, 3)))
