"""The peer network against small hand-computed examples."""

from __future__ import annotations

import io

import networkx as nx
import numpy as np
import pytest

from models.explain.network.weights import (
    PeerNetwork,
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


def test_the_digraph_points_from_source_to_target_and_can_be_written_as_graphml() -> None:
    graph = to_digraph(edge_table(two_dates()), ("A", "B", "C", "D"))
    assert set(graph.edges) == {("B", "A"), ("C", "A"), ("C", "B"), ("A", "B")}
    assert graph.edges["C", "B"]["signed"] == -4.0
    assert set(graph.nodes) == {"A", "B", "C", "D"}
    stream = io.BytesIO()
    nx.write_graphml(graph, stream)
    stream.seek(0)
    assert nx.read_graphml(stream).edges["C", "B"]["weight"] == 4.0


def test_a_network_needs_at_least_one_pair() -> None:
    with pytest.raises(ValueError, match="at least one date"):
        mean_network([], 3)
    with pytest.raises(ValueError, match="one row and one column"):
        mean_network([(np.array([0, 1]), np.ones((3, 3)))], 3)
