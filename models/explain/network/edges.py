"""Lists of edges: the strongest peers of each firm, and the network as a graph of networkx.

Legend: N firms of the panel, E edges.  Matrices are [target i, source j].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.network.weights import EdgeTests, PeerNetwork

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTable:
    """Edges ``source -> target`` with positive weight, sorted by target and rank.

    Attributes
    ----------
    source_E, target_E
        Columns of the panel.
    weight_E, signed_E
        As in :class:`PeerNetwork`.
    error_E, t_E, p_E, q_E
        As in :class:`EdgeTests`.
    share_E
        Weight divided by the total weight of the target.
    rank_E
        Rank among the sources of the target; 1 is the largest weight.
    dates_E
        Number of dates over which the weight is averaged.
    """

    source_E: IntArray
    target_E: IntArray
    weight_E: FloatArray
    signed_E: FloatArray
    error_E: FloatArray
    t_E: FloatArray
    p_E: FloatArray
    q_E: FloatArray
    share_E: FloatArray
    rank_E: IntArray
    dates_E: IntArray


def edge_table(network: PeerNetwork, tests: EdgeTests, top: int | None = None) -> EdgeTable:
    """List the edges of a network, or the ``top`` strongest edges of each target.

    Ties are broken by the source's column, so the table is deterministic.
    """
    weight_NN = network.weight_NN
    row_N1 = weight_NN.sum(axis=1, keepdims=True)
    share_NN = np.divide(weight_NN, row_N1, out=np.zeros_like(weight_NN), where=row_N1 > 0.0)
    rank_NN = ranks_of_sources(weight_NN)
    listed_NN = (weight_NN > 0.0) & (rank_NN <= (len(weight_NN) if top is None else top))
    target_E, source_E = np.nonzero(listed_NN)
    by_rank_E = np.lexsort((rank_NN[listed_NN], target_E))
    target_E, source_E = target_E[by_rank_E], source_E[by_rank_E]
    at = (target_E, source_E)
    return EdgeTable(
        source_E=source_E,
        target_E=target_E,
        weight_E=weight_NN[at],
        signed_E=network.signed_NN[at],
        error_E=tests.error_NN[at],
        t_E=tests.t_NN[at],
        p_E=tests.p_NN[at],
        q_E=tests.q_NN[at],
        share_E=share_NN[at],
        rank_E=rank_NN[at],
        dates_E=network.dates_NN[at],
    )


def ranks_of_sources(size_NN: FloatArray) -> IntArray:
    """Rank of each source among those of its target, 1 for the largest; ties by the source's column."""
    order_NN = np.argsort(-size_NN, axis=1, kind="stable")
    rank_NN = np.empty_like(order_NN)
    np.put_along_axis(rank_NN, order_NN, np.arange(1, size_NN.shape[1] + 1)[None, :], axis=1)
    return rank_NN


def to_digraph(network: PeerNetwork, listed_NN: BoolArray, tickers: Sequence[str]) -> nx.DiGraph[str]:
    """Convert the listed pairs to a ``networkx.DiGraph``: edges ``source -> target``, and all firms as nodes.

    The attributes ``weight``, ``signed`` and ``dates`` are plain numbers, so the graph can be written as
    GraphML.
    """
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(tickers)
    for i, j in zip(*np.nonzero(listed_NN), strict=True):
        graph.add_edge(
            tickers[j],
            tickers[i],
            weight=float(network.weight_NN[i, j]),
            signed=float(network.signed_NN[i, j]),
            dates=int(network.dates_NN[i, j]),
        )
    return graph
