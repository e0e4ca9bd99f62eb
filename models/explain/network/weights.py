"""The directed network of peers: weights from the Shapley values of several dates, and a test of every edge.

Legend: N firms of the panel, n firms of a date, D dates.  Matrices are [target i, source j]: weight [i, j]
is how much firm j's information moved firm i's forecast, an edge j -> i.

The weight is the root mean square of a Shapley value over the dates. The mean of the value itself would
cancel, because a peer raises a forecast on some days and lowers it on others. The mean of ``|phi|`` adds the
Monte Carlo error to every weight, most of all to small ones. The mean of the squares can be estimated without
bias, from products of independent draws (`models.explain.peers.PeerAttribution.square_NN`).
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
class PeerWeights:
    """Weights between the firms of a panel, averaged over D dates."""

    # weight of an edge, in the forecast's unit (root mean square of ``phi_ij``) or of attention (its mean); 0
    # on the diagonal and for pairs that were not measured on any date
    weight_NN: FloatArray
    signed_NN: FloatArray  # mean over dates of ``phi_ij``; positive if j's information raised i's forecast
    dates_NN: IntArray  # number of dates on which the pair was measured; 0 on the diagonal

    @property
    def observed(self) -> BoolArray:
        """Bool [N, N]: pairs that were observed on at least one date."""
        return self.dates_NN > 0


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTests:
    """Errors and tests of the edges of a network, each over the dates."""

    # standard error of the weight, from the variation over dates: ``sd(square) / (2 weight sqrt(D))``. NaN
    # with fewer than two dates or a weight of 0
    error_NN: FloatArray
    # sum over dates of the normal score of the square among all sources of the target, divided by
    # ``sqrt(D)``. If the sources of every date were shuffled, it would be nearly a normal variable with a
    # variance slightly below 1 (`models.explain.network.weights`). NaN for pairs that were not measured
    t_NN: FloatArray
    # probability of at least this ``t`` under the shuffled peers, by the standard normal distribution;
    # one-sided and slightly conservative
    p_NN: FloatArray
    # ``p_NN`` adjusted for the number of pairs, by Benjamini and Hochberg (1995). Among the edges with ``q <=
    # 0.05``, at most 5% are expected to be false
    q_NN: FloatArray

    def found(self, rate: float = 0.05) -> BoolArray:
        """Bool [N, N]: edges of positive weight with ``q_NN`` of at most the rate of false discoveries."""
        found_NN: BoolArray = (np.nan_to_num(self.q_NN, nan=1.0) <= rate) & np.isfinite(self.error_NN)
        return found_NN


class NetworkSums:
    """Sums over dates from which a network and its tests are computed; memory O(N^2), whatever D.

    Parameters
    ----------
    n_firms
        N.
    """

    def __init__(self, n_firms: int) -> None:
        self.value_NN, self.square_NN, self.fourth_NN, self.score_NN = np.zeros((4, n_firms, n_firms))
        self.dates_NN = np.zeros((n_firms, n_firms), dtype=np.int64)

    def add(self, firms_n: IntArray, value_nn: FloatArray, square_nn: FloatArray) -> None:
        """Add a date: its firms, Shapley values and squares [target, source]; NaN means not measured.

        Raises ValueError if a matrix does not match its firms.
        """
        if value_nn.shape != (len(firms_n), len(firms_n)) or int(firms_n.max()) >= len(self.dates_NN):
            raise ValueError(
                f"A matrix of shape {value_nn.shape} was given for {len(firms_n)} firms of a panel of "
                f"{len(self.dates_NN)}; pass one row and one column per firm of the date."
            )
        at, known_nn = np.ix_(firms_n, firms_n), _measured(square_nn)
        kept_nn = np.where(known_nn, square_nn, 0.0)
        self.value_NN[at] += np.where(known_nn, value_nn, 0.0)
        self.square_NN[at] += kept_nn
        self.fourth_NN[at] += kept_nn**2
        self.score_NN[at] += normal_scores(square_nn)
        self.dates_NN[at] += known_nn

    def network(self, *, root: bool = True) -> PeerWeights:
        """Network of the dates so far; without ``root``, the weight is the mean of what was given as squares.

        Raises ValueError if no pair was measured on any date.
        """
        if not self.dates_NN.any():
            raise ValueError(
                "No pair of firms was measured on any date; explain at least one date with two firms."
            )
        count_NN = np.maximum(self.dates_NN, 1)
        mean_NN = self.square_NN / count_NN
        weight_NN = np.sqrt(np.maximum(mean_NN, 0.0)) if root else mean_NN
        return PeerWeights(weight_NN, self.value_NN / count_NN, self.dates_NN.copy())

    def tests(self) -> EdgeTests:
        """Errors and tests of the edges over the dates so far."""
        from scipy import stats

        weight_NN, dates_NN = self.network().weight_NN, self.dates_NN
        count_NN = np.maximum(dates_NN, 1)
        variance_NN = self.fourth_NN / count_NN - (self.square_NN / count_NN) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            error_NN = np.sqrt(np.maximum(variance_NN, 0.0) / (dates_NN - 1)) / (2.0 * weight_NN)
        error_NN[(dates_NN < 2) | (weight_NN == 0.0)] = np.nan
        observed_NN = dates_NN > 0
        t_NN = np.where(observed_NN, self.score_NN / np.sqrt(count_NN), np.nan)
        p_NN, q_NN = stats.norm.sf(t_NN), np.full_like(t_NN, np.nan)
        q_NN[observed_NN] = stats.false_discovery_control(p_NN[observed_NN], method="bh")
        return EdgeTests(error_NN, t_NN, p_NN, q_NN)


def sum_dates(attributions: Iterable[PeerAttribution], n_firms: int) -> NetworkSums:
    """Sum the attributions of several dates, preferably out of sample, over the firms of the panel."""
    sums = NetworkSums(n_firms)
    for part in attributions:
        sums.add(part.firms_N, part.phi_NN, part.square_NN)
    return sums


def attention_network(attributions: Iterable[PeerAttribution], n_firms: int) -> PeerWeights:
    """Average the attention of several dates; attention has no sign."""
    return mean_network(((part.firms_N, part.attention_NN) for part in attributions), n_firms)


def mean_network(matrices: Iterable[tuple[IntArray, FloatArray]], n_firms: int) -> PeerWeights:
    """Network of mean absolute values, for values without Monte Carlo error, such as attention.

    Raises ValueError if no pair was measured on any date, or a matrix does not match its firms.

    Parameters
    ----------
    matrices
        For each date, the panel columns [n] and the values [n, n] as [target, source]. NaN means that the
        pair was not measured on that date. The diagonal is ignored.
    """
    sums = NetworkSums(n_firms)
    for firms_n, value_nn in matrices:
        sums.add(firms_n, value_nn, np.abs(value_nn))
    return sums.network(root=False)


def normal_scores(size_nn: FloatArray) -> FloatArray:
    """Standardised normal score of each source among those of its target; tied sources share their rank.

    0 on the diagonal, for pairs that were not measured (NaN), and for targets whose sources are all tied.

    The null is that of dates on which the sources are shuffled: every target keeps its values, at random
    places. The rank of a source is then uniform on every date and independent between dates. Its score ``s =
    Phi^-1(rank / n)`` (van der Waerden 1952) is divided by its standard deviation over the n - 1 sources,
    with divisor n - 2. Its variance (n - 2) / (n - 1) is below 1, which makes the test conservative: with
    divisor n - 1, a source would be found at the 5% level in up to 12% of all cases if there are few sources
    and few dates. Large shocks on single dates cannot make an edge; being among the largest on most dates
    can.
    """
    from scipy import stats
    from scipy.special import ndtri

    known_nn = _measured(size_nn)
    count_n1 = known_nn.sum(axis=1, keepdims=True)
    # pairs that were not measured get the lowest ranks, which are then subtracted
    rank_nn = stats.rankdata(np.where(known_nn, size_nn, -np.inf), axis=1) - (len(size_nn) - count_n1)
    score_nn = np.where(known_nn, ndtri(np.where(known_nn, rank_nn, 1.0) / (count_n1 + 1.0)), 0.0)
    score_nn -= np.where(known_nn, score_nn.sum(axis=1, keepdims=True) / np.maximum(count_n1, 1), 0.0)
    spread_n1 = np.sqrt((score_nn**2).sum(axis=1, keepdims=True) / np.maximum(count_n1 - 1, 1))
    standard_nn: FloatArray = np.where(spread_n1 > 1e-9, score_nn / np.maximum(spread_n1, 1e-9), 0.0)
    return standard_nn


def shuffled_sources(value_nn: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Values of a date with its measured sources in a random order, the same for all targets.

    A source that would fall onto the diagonal changes places with the one that replaces the target itself, so
    that every target keeps exactly its own values.
    """
    n = len(value_nn)
    drawn = np.flatnonzero(_measured(value_nn).any(axis=0))
    source_n = np.arange(n)
    source_n[drawn] = rng.permutation(drawn)
    source_nn = np.broadcast_to(source_n, (n, n)).copy()
    own_nn = (source_nn == np.arange(n)[:, None]) & ~np.eye(n, dtype=np.bool_)
    source_nn[own_nn] = source_n[np.nonzero(own_nn)[0]]
    np.fill_diagonal(source_nn, np.arange(n))
    return np.take_along_axis(value_nn, source_nn, axis=1)


def _measured(value_nn: FloatArray) -> BoolArray:
    measured: BoolArray = np.isfinite(value_nn) & ~np.eye(len(value_nn), dtype=np.bool_)
    return measured


def ranks_of_sources(size_NN: FloatArray) -> IntArray:
    """Rank of each source among those of its target, 1 for the largest; ties by the source's column."""
    order_NN = np.argsort(-size_NN, axis=1, kind="stable")
    rank_NN = np.empty_like(order_NN)
    np.put_along_axis(rank_NN, order_NN, np.arange(1, size_NN.shape[1] + 1)[None, :], axis=1)
    return rank_NN


def to_digraph(network: PeerWeights, listed_NN: BoolArray, tickers: Sequence[str]) -> nx.DiGraph[str]:
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
