"""The directed network of peers: weights from the Shapley values of several dates, and a test of every edge.

Legend: N firms of the panel, n firms of a date, D dates.  Matrices are [target i, source j]: weight [i, j]
is how much firm j's information moved firm i's forecast, an edge j -> i.

The weight is the root mean square of a Shapley value over the dates. The mean of the value itself would
cancel, because a peer raises a forecast on some days and lowers it on others. The mean of ``|phi|`` adds the
Monte Carlo error to every weight, most of all to small ones. The mean of the squares can be estimated without
bias, from products of independent draws (`models.explain.peers.PeerAttribution.square_NN`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import average_ranks
from models.explain.peers import PeerAttribution

if TYPE_CHECKING:
    import networkx as nx


Matrices = Sequence[tuple[IntArray, FloatArray]]
"""For each date, the panel columns [n] of its firms and their values [n, n] as [target, source]; NaN means
that the pair was not measured."""


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
        return np.asarray((np.nan_to_num(self.q_NN, nan=1.0) <= rate) & np.isfinite(self.error_NN))


class NetworkSums:
    """Sums over dates from which a network of N firms and its tests are computed; memory O(N^2)."""

    def __init__(self, n_firms: int) -> None:
        self.value_NN, self.square_NN, self.fourth_NN, self.score_NN = np.zeros((4, n_firms, n_firms))
        self.dates_NN = np.zeros((n_firms, n_firms), dtype=np.int64)

    def add(self, firms_n: IntArray, value_nn: FloatArray, square_nn: FloatArray) -> None:
        """Add a date: its firms, Shapley values and squares [target, source]; NaN means not measured."""
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
        """Network of the dates so far; without ``root``, weights are the means of the given squares."""
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

    ``matrices`` are those of `Matrices`; their diagonals are ignored. ValueError if no pair was measured on
    any date, or a matrix does not match its firms.
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
    from scipy.special import ndtri

    known_nn = _measured(size_nn)
    count_n1 = known_nn.sum(axis=1, keepdims=True)
    # pairs that were not measured get the lowest ranks, which are then subtracted
    rank_nn = average_ranks(np.where(known_nn, size_nn, -np.inf)) - (len(size_nn) - count_n1)
    score_nn = np.where(known_nn, ndtri(np.where(known_nn, rank_nn, 1.0) / (count_n1 + 1.0)), 0.0)
    score_nn -= np.where(known_nn, score_nn.sum(axis=1, keepdims=True) / np.maximum(count_n1, 1), 0.0)
    spread_n1 = np.sqrt((score_nn**2).sum(axis=1, keepdims=True) / np.maximum(count_n1 - 1, 1))
    return np.where(spread_n1 > 1e-9, score_nn / np.maximum(spread_n1, 1e-9), 0.0)


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
    return np.asarray(np.isfinite(value_nn) & ~np.eye(len(value_nn), dtype=np.bool_))


def ranks_of_sources(size_NN: FloatArray) -> IntArray:
    """Rank of each source among those of its target, 1 for the largest; ties by the source's column."""
    order_NN = np.argsort(-size_NN, axis=1, kind="stable")
    rank_NN = np.empty_like(order_NN)
    np.put_along_axis(rank_NN, order_NN, np.arange(1, size_NN.shape[1] + 1)[None, :], axis=1)
    return rank_NN


def to_digraph(network: PeerWeights, listed_NN: BoolArray, tickers: Sequence[str]) -> nx.DiGraph[str]:
    """A ``networkx.DiGraph`` of all firms and the listed pairs ``source -> target``, fit for GraphML."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(tickers)
    for at in zip(*np.nonzero(listed_NN), strict=True):
        target, source = (tickers[n] for n in at)
        weights = {"weight": float(network.weight_NN[at]), "signed": float(network.signed_NN[at])}
        graph.add_edge(source, target, **weights, dates=int(network.dates_NN[at]))
    return graph


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRoc:
    """ROC curve of weights as a classifier of planted edges."""

    auc: float  # probability that a planted edge has a larger weight than another pair; ties count one half
    false_positive_rate_K: FloatArray  # the curve from (0, 0) to (1, 1), one point per distinct weight
    true_positive_rate_K: FloatArray
    n_edges: int  # number of planted edges and of compared pairs
    n_pairs: int


def edge_auc(weight_NN: FloatArray, planted_NN: BoolArray, valid_pairs_NN: BoolArray) -> EdgeRoc:
    """Compute the ROC curve of weights as a classifier of planted edges, with scikit-learn.

    ``AUC = P(w_edge > w_other) + P(w_edge = w_other) / 2`` (Mann and Whitney 1947). Weights are finite where
    valid, and the diagonal is always excluded. ValueError unless the valid pairs include both planted edges
    and other pairs.
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    valid_NN = valid_pairs_NN & ~np.eye(len(weight_NN), dtype=np.bool_)
    weight_V, planted_V = weight_NN[valid_NN], planted_NN[valid_NN]
    n_edges, n_pairs = int(planted_V.sum()), len(planted_V)
    if n_edges in (0, n_pairs):
        raise ValueError(
            f"{n_edges} of {n_pairs} valid pairs are planted edges; "
            "an AUC needs at least one planted edge and one other pair."
        )
    auc = float(roc_auc_score(planted_V, weight_V))
    false_K, true_K, _ = roc_curve(planted_V, weight_V, drop_intermediate=False)
    return EdgeRoc(auc, false_K, true_K, n_edges, n_pairs)


def random_auc(n_edges: int, n_pairs: int, seed: int) -> float:
    """Mean AUC of random rankings of the pairs."""
    rng, e = np.random.default_rng(seed), n_edges
    # in a random ranking, the ranks of the e edges are drawn without replacement
    rank_sums = np.array([rng.choice(n_pairs, e, replace=False).sum() + e for _ in range(200)])
    return float(((rank_sums - e * (e + 1) / 2.0) / (e * (n_pairs - e))).mean())


@dataclass(frozen=True, slots=True)
class EdgeRecovery:
    """Recovery of one kind of edge by one method."""

    method: str  # names of the method and of the kind of edge
    kind: str
    # probability that an edge of this kind has a larger weight than a pair that is no edge of any kind; ties
    # count one half
    auc: float
    error: float  # standard error of the AUC, by the jackknife over dates; NaN with one date
    # AUC less that of the start, on the same pairs and dates, and its standard error; None for the start
    lift: float | None
    lift_error: float | None
    n_edges: int  # number of edges of this kind, and of pairs that they are compared with
    n_pairs: int


def edge_recovery(
    methods: Mapping[str, Matrices], planted: Mapping[str, BoolArray], *, start: str
) -> list[EdgeRecovery]:
    """Measure how well methods find the planted edges, kind by kind, and how much better than the start.

    A method's weight of a pair is the mean of its values over dates. Standard errors are those of the
    jackknife (Tukey 1958): ``sqrt((D - 1) / D sum_d (a_d - mean a)^2)`` with ``a_d`` the AUC without date d.
    A bootstrap would be biased, because a mean over fewer distinct dates is noisier, and noise lowers every
    AUC. Errors show how much the result depends on the explained dates, not on the model's seed. The error of
    a lift is that of a difference on the same dates.

    The matrices of a method are larger for stronger edges: squared Shapley values or attention, without a
    sign. ``planted`` are the edges [N, N] of each kind, and ``start`` is the method of the model before
    training. There is an entry for every kind, and for ``all`` kinds together; kinds without an edge among
    the compared pairs are left out, and there is none without any edge, or without another pair. ValueError
    if the methods differ in their dates or firms.
    """
    shape = next(iter(planted.values())).shape
    values = {name: _by_date(matrices, shape) for name, matrices in methods.items()}
    firms = {name: [tuple(firms_n) for firms_n, _ in matrices] for name, matrices in methods.items()}
    if other := next((name for name in methods if firms[name] != firms[start]), None):
        raise ValueError(
            f"{other!r} and {start!r} have other dates or firms; explain the same dates with both."
        )
    compared_NN = ~np.eye(shape[0], dtype=np.bool_)
    for value_DNN in values.values():
        compared_NN &= np.isfinite(value_DNN).any(axis=0)
    any_NN = np.logical_or.reduce(list(planted.values())) & compared_NN
    other_NN = compared_NN & ~any_NN
    kinds = {"all": any_NN} | {kind: edge_NN & compared_NN for kind, edge_NN in planted.items()}
    kinds = {kind: edge_NN for kind, edge_NN in kinds.items() if edge_NN.any()}
    if not kinds or not other_NN.any():
        return []
    dates = len(values[start])
    count_BD = np.vstack((np.ones(dates), 1.0 - np.eye(dates)))  # all dates, then all but one
    auc: dict[tuple[str, str], FloatArray] = {}  # method and kind -> the AUC, then those without a date
    for name, value_DNN in values.items():
        other_BP = np.sort(_weights(value_DNN[:, other_NN], count_BD), axis=1)
        for kind, edge_NN in kinds.items():
            auc[name, kind] = _auc(_weights(value_DNN[:, edge_NN], count_BD), other_BP)
    found = []
    for (kind, edge_NN), name in product(kinds.items(), methods):
        auc_B, edges, pairs = auc[name, kind], int(edge_NN.sum()), int(other_NN.sum())
        lift_B = auc_B - auc[start, kind]
        lift, error = (None, None) if name == start else (float(lift_B[0]), _jackknife(lift_B[1:]))
        own = (float(auc_B[0]), _jackknife(auc_B[1:]))
        found.append(EdgeRecovery(name, kind, *own, lift, error, edges, pairs))
    return found


def _by_date(matrices: Matrices, shape: tuple[int, ...]) -> FloatArray:
    value_DNN = np.full((len(matrices), *shape), np.nan)
    for value_NN, (firms_n, value_nn) in zip(value_DNN, matrices, strict=True):
        value_NN[np.ix_(firms_n, firms_n)] = value_nn
    return value_DNN


def _weights(value_DP: FloatArray, count_BD: FloatArray) -> FloatArray:
    """Mean over the dates of each sample [B, P]; 0 for a pair that is on none of them."""
    known_DP = np.isfinite(value_DP)
    total_BP = count_BD @ np.where(known_DP, value_DP, 0.0)
    dates_BP = count_BD @ known_DP
    return np.divide(total_BP, dates_BP, out=np.zeros_like(total_BP), where=dates_BP > 0)


def _auc(edge_BP: FloatArray, other_BP: FloatArray) -> FloatArray:
    """Share of pairs (edge, other) that are in the right order [B]; ``other_BP`` is sorted."""
    auc_B = np.empty(len(edge_BP))
    for b, (edge_P, other_P) in enumerate(zip(edge_BP, other_BP, strict=True)):
        below_P = np.searchsorted(other_P, edge_P, side="left")
        not_above_P = np.searchsorted(other_P, edge_P, side="right")
        auc_B[b] = (below_P + not_above_P).mean() / (2.0 * len(other_P))
    return auc_B


def _jackknife(without_D: FloatArray) -> float:
    """Standard error from the values without one date each; NaN with one date."""
    dates = len(without_D)
    return float(np.sqrt((dates - 1) * without_D.var())) if dates > 1 else float("nan")
