"""Measures of a network: strength and rank of firms, communities, reciprocity, and homophily.

Legend: N firms of the panel, B draws of the null.  Matrices are [target i, source j].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.network.comparison import DRAWS, AgainstNull, against, undefined
from models.explain.network.edges import to_digraph
from models.explain.network.weights import PeerNetwork


@dataclass(frozen=True, slots=True, eq=False)
class FirmMeasures:
    """Place of every firm in the network of the edges that were found.

    Attributes
    ----------
    out_strength_N, in_strength_N
        Sum of the weights of the firm's edges as a leader and as a follower.
    leads_N, follows_N
        Number of these edges.
    pagerank_N
        PageRank of a firm as a leader: followers pass their rank on to their leaders in proportion to the
        weights (damping 0.85). Sums to 1.
    community_N
        Number of the firm's community (Louvain), 0 for the largest; -1 without an edge.
    """

    out_strength_N: FloatArray
    in_strength_N: FloatArray
    leads_N: IntArray
    follows_N: IntArray
    pagerank_N: FloatArray
    community_N: IntArray


def firm_measures(network: PeerNetwork, found_NN: BoolArray, seed: int) -> FirmMeasures:
    """Compute the measures of the firms with networkx, on the edges that were found.

    Notes
    -----
    Page, Brin, Motwani and Winograd (1999), "The PageRank citation ranking"; Blondel et al. (2008), "Fast
    unfolding of communities in large networks".
    """
    import networkx as nx

    n_firms = len(found_NN)
    graph = to_digraph(network, found_NN, [str(n) for n in range(n_firms)])
    by_name = [str(n) for n in range(n_firms)]
    rank = nx.pagerank(graph.reverse(), weight="weight") if graph.number_of_edges() else {}
    community_N = np.full(n_firms, -1, dtype=np.int64)
    linked = graph.subgraph([name for name in by_name if graph.degree(name)])
    if linked.number_of_edges():
        communities = nx.community.louvain_communities(linked, weight="weight", seed=seed)
        ordered = sorted(communities, key=lambda names: (-len(names), min(int(name) for name in names)))
        for number, names in enumerate(ordered):
            community_N[[int(name) for name in names]] = number
    out, into = dict(graph.out_degree(weight="weight")), dict(graph.in_degree(weight="weight"))
    return FirmMeasures(
        out_strength_N=np.array([out[name] for name in by_name], dtype=np.float64),
        in_strength_N=np.array([into[name] for name in by_name], dtype=np.float64),
        leads_N=found_NN.sum(axis=0),
        follows_N=found_NN.sum(axis=1),
        pagerank_N=np.array([rank.get(name, 0.0) for name in by_name]),
        community_N=community_N,
    )


def reciprocity(
    found_NN: BoolArray, observed_NN: BoolArray, rng: np.random.Generator, draws: int = DRAWS
) -> AgainstNull:
    """Share of the edges whose reverse was found as well.

    Only edges whose reverse was measured count. Under the null, every target keeps its number of leaders, and
    they are drawn at random from its measured sources.
    """
    both_NN = observed_NN & observed_NN.T

    def share(edge_NN: BoolArray) -> float:
        edge_NN = edge_NN & both_NN
        return float((edge_NN & edge_NN.T).sum() / edge_NN.sum()) if edge_NN.any() else float("nan")

    leaders_N1 = (found_NN & observed_NN).sum(axis=1, keepdims=True)
    null = []
    for _ in range(draws):
        # the pairs with the smallest random numbers of their row; pairs that were not measured come last
        number_NN = np.where(observed_NN, rng.random(found_NN.shape, dtype=np.float32), 2.0)
        rank_NN = np.empty_like(found_NN, dtype=np.int64)
        order_NN = np.argsort(number_NN, axis=1)
        np.put_along_axis(rank_NN, order_NN, np.arange(len(found_NN))[None, :], axis=1)
        null.append(share(rank_NN < leaders_N1))
    if not (found_NN & both_NN).any():
        return undefined()
    return against(share(found_NN), np.nan_to_num(np.array(null)), int((found_NN & both_NN).sum()))


def homophily(
    weight_NN: FloatArray,
    observed_NN: BoolArray,
    group_N: IntArray,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> AgainstNull:
    """Share of the weight within groups, with the interval of groups that are dealt out at random.

    ``within = sum_ij w_ij 1[g_i = g_j] / sum_ij w_ij`` over the measured pairs of firms of known group (-1 is
    unknown). Under the null the firms of known group exchange their codes, so the sizes of the groups and the
    weights stay. NaN if the weight is 0.

    Raises
    ------
    ValueError
        If ``group_N`` does not have one code per firm of the network.
    """
    if group_N.shape != (len(weight_NN),):
        raise ValueError(
            f"group_N has shape {group_N.shape} but the network has {len(weight_NN)} firms; "
            "pass one code per firm."
        )
    firms = np.flatnonzero(group_N >= 0)
    at = np.ix_(firms, firms)
    kept_nn = np.where(observed_NN[at] & ~np.eye(len(firms), dtype=np.bool_), weight_NN[at], 0.0)
    total = float(kept_nn.sum())
    if total == 0.0:
        return undefined()
    target_E, source_E = np.nonzero(kept_nn)
    weight_E, group_n = kept_nn[target_E, source_E], group_N[firms]

    def within(code_n: IntArray) -> float:
        return float(weight_E[code_n[target_E] == code_n[source_E]].sum()) / total

    null_B = np.array([within(rng.permutation(group_n)) for _ in range(draws)])
    return against(within(group_n), null_B, len(weight_E))
