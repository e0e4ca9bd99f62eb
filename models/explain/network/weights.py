"""The directed network of peers.

Legend: N firms of the panel, E edges, D dates.  Matrices are [target i, source j]: weight [i, j] is
how much firm j's information moved firm i's forecast, an edge j -> i.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.peers import PeerAttribution

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, eq=False)
class PeerNetwork:
    """Weights between the firms of a panel, averaged over D dates.

    Attributes
    ----------
    weight_NN
        Mean over dates of ``|phi_ij|``, in the forecast's unit; 0 on the diagonal and for pairs that were not
        observed on any date.
    signed_NN
        Mean over dates of ``phi_ij``; positive if j's information raised i's forecast.
    dates_NN
        Number of dates on which i was forecast and j was a player of its own; 0 on the diagonal.
    """

    weight_NN: FloatArray
    signed_NN: FloatArray
    dates_NN: IntArray

    @property
    def observed(self) -> BoolArray:
        """Bool [N, N]: pairs that were observed on at least one date."""
        return self.dates_NN > 0


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTable:
    """Edges ``source -> target`` with positive weight, sorted by target and rank.

    Attributes
    ----------
    source_E, target_E
        Columns of the panel.
    weight_E, signed_E
        As in :class:`PeerNetwork`.
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
    share_E: FloatArray
    rank_E: IntArray
    dates_E: IntArray


@dataclass(frozen=True, slots=True)
class Homophily:
    """Share of the weight within groups.

    Attributes
    ----------
    within
        Share of the weight between firms of the same group.
    expected
        The share if each target divided its weight equally among the sources with which it was observed.
    ratio
        ``within / expected``; above 1, firms are moved more by firms of their own group.
    """

    within: float
    expected: float
    ratio: float


def peer_network(attributions: Iterable[PeerAttribution], n_firms: int) -> PeerNetwork:
    """Average the Shapley values of several dates, preferably out of sample; see :func:`mean_network`."""
    return mean_network(((part.firms_N, part.phi_NN) for part in attributions), n_firms)


def attention_network(attributions: Iterable[PeerAttribution], n_firms: int) -> PeerNetwork:
    """Average the attention of several dates; attention has no sign."""
    return mean_network(((part.firms_N, part.attention_NN) for part in attributions), n_firms)


def mean_network(matrices: Iterable[tuple[IntArray, FloatArray]], n_firms: int) -> PeerNetwork:
    """Average the matrices of several dates over the firms of the panel.

    Parameters
    ----------
    matrices
        For each date, the panel columns [n] and the values [n, n] as [target, source]. NaN means that the
        pair was not measured on that date. The diagonal is ignored.
    n_firms
        N.

    Raises
    ------
    ValueError
        If no pair was measured on any date, or a matrix does not match its firms.
    """
    total_NN, signed_NN = np.zeros((n_firms, n_firms)), np.zeros((n_firms, n_firms))
    dates_NN = np.zeros((n_firms, n_firms), dtype=np.int64)
    for firms_n, phi_nn in matrices:
        if phi_nn.shape != (len(firms_n), len(firms_n)) or int(firms_n.max()) >= n_firms:
            raise ValueError(
                f"A matrix of shape {phi_nn.shape} was given for {len(firms_n)} firms of a panel of "
                f"{n_firms}; pass one row and one column per firm of the date."
            )
        at = np.ix_(firms_n, firms_n)
        known_nn = np.isfinite(phi_nn) & ~np.eye(len(firms_n), dtype=np.bool_)
        value_nn = np.where(known_nn, phi_nn, 0.0)
        total_NN[at] += np.abs(value_nn)
        signed_NN[at] += value_nn
        dates_NN[at] += known_nn
    if not dates_NN.any():
        raise ValueError(
            "No pair of firms was measured on any date; explain at least one date with two firms."
        )
    count_NN = np.maximum(dates_NN, 1)
    return PeerNetwork(total_NN / count_NN, signed_NN / count_NN, dates_NN)


def edge_table(network: PeerNetwork, top: int | None = None) -> EdgeTable:
    """List the edges of a network, or the ``top`` strongest edges of each target.

    Ties are broken by the source's column, so the table is deterministic.
    """
    weight_NN = network.weight_NN
    row_N1 = weight_NN.sum(axis=1, keepdims=True)
    share_NN = np.divide(weight_NN, row_N1, out=np.zeros_like(weight_NN), where=row_N1 > 0.0)
    order_NN = np.argsort(-weight_NN, axis=1, kind="stable")
    rank_NN = np.empty_like(order_NN)
    np.put_along_axis(rank_NN, order_NN, np.arange(1, len(weight_NN) + 1)[None, :], axis=1)
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
        share_E=share_NN[at],
        rank_E=rank_NN[at],
        dates_E=network.dates_NN[at],
    )


def homophily(network: PeerNetwork, group_N: IntArray) -> Homophily:
    """Compare the share of weight within groups with the share expected by chance.

    ``within = sum_ij w_ij 1[g_i = g_j] / sum_ij w_ij``. ``expected`` is the same with ``w_ij`` replaced by
    the mean of row i over the observed pairs. Firms of unknown group (-1) are excluded. All fields are NaN if
    the remaining weight is 0; the ratio is NaN if no observed pair shares a group.

    Parameters
    ----------
    network
        The network.
    group_N
        Group code of each firm of the panel.

    Raises
    ------
    ValueError
        If ``group_N`` does not have one code per firm of the network.
    """
    if group_N.shape != (len(network.weight_NN),):
        raise ValueError(
            f"group_N has shape {group_N.shape} but the network has {len(network.weight_NN)} firms; "
            "pass one code per firm."
        )
    known_N = group_N >= 0
    observed_NN = network.observed & known_N[:, None] & known_N[None, :]
    same_NN = observed_NN & (group_N[:, None] == group_N[None, :])
    weight_NN = np.where(observed_NN, network.weight_NN, 0.0)
    total = float(weight_NN.sum())
    if total == 0.0:
        return Homophily(float("nan"), float("nan"), float("nan"))
    chance_N = same_NN.sum(axis=1) / np.maximum(observed_NN.sum(axis=1), 1)
    within = float(weight_NN[same_NN].sum()) / total
    expected = float(weight_NN.sum(axis=1) @ chance_N) / total
    return Homophily(within, expected, within / expected if expected > 0.0 else float("nan"))


def to_digraph(table: EdgeTable, tickers: Sequence[str]) -> nx.DiGraph[str]:
    """Convert a table to a ``networkx.DiGraph`` with edges ``source -> target``.

    Edges have the columns of the table as attributes. All attributes are plain numbers, so the graph can be
    written as GraphML.
    """
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(tickers)
    for e in range(len(table.source_E)):
        graph.add_edge(
            tickers[table.source_E[e]],
            tickers[table.target_E[e]],
            weight=float(table.weight_E[e]),
            signed=float(table.signed_E[e]),
            share=float(table.share_E[e]),
            rank=int(table.rank_E[e]),
            dates=int(table.dates_E[e]),
        )
    return graph
