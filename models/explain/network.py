"""The directed network of peers: weights from the Shapley values of several dates, and a test of every edge.

Legend: N firms of the panel, n firms of a date, D dates, T sessions, E edges, B draws of the null. Matrices
are [target i, source j]: weight [i, j] is how much firm j's information moved firm i's forecast, an edge
j -> i.

The weight is the root mean square of a Shapley value over the dates. The mean of the value itself would
cancel, because a peer raises a forecast on some days and lowers it on others. The mean of ``|phi|`` adds the
Monte Carlo error to every weight, most of all to small ones. The mean of the squares can be estimated without
bias, from products of independent draws (`models.explain.peers.PeerAttribution.square_NN`).

Two networks over the same firms are not two samples of independent pairs: all edges of a firm move together.
Their null is therefore that of the quadratic assignment procedure (Krackhardt 1988): one network keeps its
structure and its firms change names at random. The network says what a model uses. Whether the market works
like that is another question, which returns answer that the model never saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

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
    # variance slightly below 1 (`models.explain.network`). NaN for pairs that were not measured
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
        p_NN = stats.norm.sf(t_NN)
        return EdgeTests(error_NN, t_NN, p_NN, _adjusted(p_NN))


def _adjusted(p_X: FloatArray) -> FloatArray:
    """P-values adjusted for their number (Benjamini and Hochberg 1995); NaN stays."""
    from scipy import stats

    q_X, known_X = np.full_like(p_X, np.nan), np.isfinite(p_X)
    if known_X.any():
        q_X[known_X] = stats.false_discovery_control(p_X[known_X], method="bh")
    return q_X


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
    return np.asarray(np.argsort(np.argsort(-size_NN, axis=1, kind="stable"), axis=1) + 1)


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


DRAWS = 100
MIN_SESSIONS = 60  # common returns that a pair of firms needs


@dataclass(frozen=True, slots=True, eq=False)
class FirmMeasures:
    """Place of every firm in the network of the edges that were found."""

    out_strength_N: FloatArray  # sum of the weights of the firm's edges as a leader and as a follower
    in_strength_N: FloatArray
    leads_N: IntArray  # number of these edges
    follows_N: IntArray
    # PageRank of a firm as a leader: followers pass their rank on to their leaders in proportion to the
    # weights (damping 0.85). Sums to 1
    pagerank_N: FloatArray
    community_N: IntArray  # number of the firm's community (Louvain), 0 for the largest; -1 without an edge


def firm_measures(network: PeerWeights, found_NN: BoolArray, seed: int) -> FirmMeasures:
    """Compute the measures of the firms with networkx, on the edges that were found.

    Page, Brin, Motwani and Winograd (1999), "The PageRank citation ranking"; Blondel et al. (2008), "Fast
    unfolding of communities in large networks".
    """
    import networkx as nx

    by_name = [str(n) for n in range(len(found_NN))]
    graph = to_digraph(network, found_NN, by_name)
    rank = nx.pagerank(graph.reverse(), weight="weight") if graph.number_of_edges() else {}
    community_N = np.full(len(found_NN), -1, dtype=np.int64)
    linked = graph.subgraph([name for name in by_name if graph.degree(name)])
    if linked.number_of_edges():
        communities = nx.community.louvain_communities(linked, weight="weight", seed=seed)
        ordered = sorted(communities, key=lambda names: (-len(names), min(int(name) for name in names)))
        for number, names in enumerate(ordered):
            community_N[[int(name) for name in names]] = number
    out_N, into_N = (
        np.array([strength[name] for name in by_name], dtype=np.float64)
        for strength in (dict(degree(weight="weight")) for degree in (graph.out_degree, graph.in_degree))
    )
    pagerank_N = np.array([rank.get(name, 0.0) for name in by_name])
    leads_N, follows_N = found_NN.sum(axis=0), found_NN.sum(axis=1)
    return FirmMeasures(out_N, into_N, leads_N, follows_N, pagerank_N, community_N)


def reciprocity(found_NN: BoolArray, observed_NN: BoolArray, rng: np.random.Generator) -> AgainstNull:
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
    for _ in range(DRAWS):
        # the pairs with the smallest random numbers of their row; pairs that were not measured come last
        number_NN = np.where(observed_NN, rng.random(found_NN.shape, dtype=np.float32), 2.0)
        null.append(share(ranks_of_sources(-number_NN) <= leaders_N1))
    if not (found_NN & both_NN).any():
        return undefined()
    return against(share(found_NN), np.nan_to_num(np.array(null)), int((found_NN & both_NN).sum()))


def homophily(
    weight_NN: FloatArray, observed_NN: BoolArray, group_N: IntArray, rng: np.random.Generator
) -> AgainstNull:
    """Share of the weight within groups, with the interval of groups that are dealt out at random.

    ``within = sum_ij w_ij 1[g_i = g_j] / sum_ij w_ij`` over the measured pairs of firms of known group (-1 is
    unknown). Under the null the firms of known group exchange their codes, so the sizes of the groups and the
    weights stay. NaN if the weight is 0.
    """
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

    null_B = np.array([within(rng.permutation(group_n)) for _ in range(DRAWS)])
    return against(within(group_n), null_B, len(weight_E))


@dataclass(frozen=True, slots=True)
class AgainstNull:
    """A measure of a network with its distribution under a null."""

    value: float  # the measure; NaN if it is not defined
    null_mean: float  # mean, 2.5% and 97.5% quantiles under the null
    null_low: float
    null_high: float
    number: int  # number of pairs or edges that the measure is computed from


def rank_correlation(
    first_NN: FloatArray, second_NN: FloatArray, valid_NN: BoolArray, rng: np.random.Generator
) -> AgainstNull:
    """Spearman correlation of two networks over the valid pairs, with its null of exchanged names."""
    valid_NN = valid_NN & ~np.eye(len(valid_NN), dtype=np.bool_)
    number = int(valid_NN.sum())
    if number < 3:
        return undefined(number)
    one_NN, two_NN = np.zeros((2, *valid_NN.shape))
    for rank_NN, weight_NN in ((one_NN, first_NN), (two_NN, second_NN)):
        rank_NN[valid_NN] = average_ranks(weight_NN[valid_NN][None])[0]
        rank_NN[valid_NN] -= rank_NN[valid_NN].mean()
    # names are exchanged among the firms of at least one valid pair
    firms = np.flatnonzero(valid_NN.any(axis=0) | valid_NN.any(axis=1))
    null = []
    for _ in range(DRAWS):
        name_N = np.arange(len(valid_NN))
        name_N[firms] = rng.permutation(firms)
        at = np.ix_(name_N, name_N)
        null.append(_correlation(one_NN, two_NN[at], valid_NN & valid_NN[at]))
    return against(_correlation(one_NN, two_NN, valid_NN), np.array(null), number)


def against(value: float, null_B: FloatArray, number: int) -> AgainstNull:
    """A value with the mean and the 95% interval of its draws under the null."""
    low, high = np.quantile(null_B, (0.025, 0.975))
    return AgainstNull(float(value), float(null_B.mean()), float(low), float(high), number)


def undefined(number: int = 0) -> AgainstNull:
    """A measure that the network does not define, such as the reciprocity of no edges."""
    nan = float("nan")
    return AgainstNull(nan, nan, nan, nan, number)


def same_group(group_N: IntArray) -> tuple[FloatArray, BoolArray]:
    """The industry network: 1 for firms of the same group, 0 otherwise; and the pairs of known groups."""
    known_N = group_N >= 0
    same_NN = (group_N[:, None] == group_N[None, :]).astype(np.float64)
    return same_NN, known_N[:, None] & known_N[None, :]


def return_correlations(return_TN: FloatArray) -> FloatArray:
    """Absolute correlations of returns; NaN below `MIN_SESSIONS` common ones, or for a constant one."""
    return np.asarray(pd.DataFrame(return_TN).corr(min_periods=MIN_SESSIONS).abs())


def _correlation(first_NN: FloatArray, second_NN: FloatArray, valid_NN: BoolArray) -> float:
    a, b = first_NN[valid_NN], second_NN[valid_NN]
    if len(a) < 3:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread > 0.0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class LeadLag:
    """Slope of followers' next returns on leaders' returns, edge by edge."""

    # slope of the leader's return and its standard error; NaN with fewer than 60 sessions. The error is NaN
    # if a single session decides on a coefficient
    slope_E: FloatArray
    error_E: FloatArray
    # ``slope / error`` and its two-sided p-value, by Student's t with the number of sessions less 3 degrees
    # of freedom
    t_E: FloatArray
    p_E: FloatArray
    # p-values adjusted for the number of edges (Benjamini and Hochberg 1995); NaN where p is NaN
    q_E: FloatArray
    sessions_E: IntArray  # number of sessions of the regression


def adjusted_returns(return_TN: FloatArray, universe_TN: BoolArray, group_TN: IntArray) -> FloatArray:
    """Returns minus the mean return of the other firms of the group, or of the market.

    The mean leaves the firm itself out. Firms of unknown group (-1), and the only firm of a group, are
    adjusted for the market. NaN outside the universe.
    """
    known_TN = universe_TN & np.isfinite(return_TN)
    r_TN = np.where(known_TN, return_TN, 0.0)
    result_TN = np.full(r_TN.shape, np.nan)
    for t, (known_N, r_N) in enumerate(zip(known_TN, r_TN, strict=True)):
        code_N = np.where(known_N, group_TN[t], -1)
        grouped_N = code_N >= 0
        mean_N = (r_N.sum() - r_N) / max(known_N.sum() - 1.0, 1.0)
        if grouped_N.any():
            sum_S = np.bincount(code_N[grouped_N], weights=r_N[grouped_N])
            count_S = np.bincount(code_N[grouped_N])
            others_N = np.where(grouped_N, count_S[np.maximum(code_N, 0)] - 1, 0)
            own_sum_N = sum_S[np.maximum(code_N, 0)] - r_N
            mean_N = np.where(others_N > 0, own_sum_N / np.maximum(others_N, 1), mean_N)
        result_TN[t, known_N] = (r_N - mean_N)[known_N]
    return result_TN


def lead_lag(return_TN: FloatArray, next_TN: FloatArray, source_E: IntArray, target_E: IntArray) -> LeadLag:
    """Regress the follower's next return on the leader's return, given the follower's own return.

    ``next_i,t = a + b r_j,t + c r_i,t + e``, by least squares with standard errors HC3: White's (1980) with
    each residual over ``1 - h_t``, its share of the fit (MacKinnon and White 1985). With White's own errors
    and the normal distribution, 8% instead of 5% of edges without a lead were significant at 60 sessions.
    The follower's own return is included, because a short-term reversal of the follower would otherwise be
    attributed to every leader that moves with it. Returns are adjusted for market and group; ``next_TN`` are
    those that start at the close of session t. Leaders and followers are columns.
    """
    from scipy import stats

    slope_E, error_E = np.full((2, len(source_E)), np.nan)
    sessions_E = np.zeros(len(source_E), dtype=np.int64)
    for e, (j, i) in enumerate(zip(source_E, target_E, strict=True)):
        x_T2 = return_TN[:, [j, i]]
        known_T = np.isfinite(x_T2).all(axis=1) & np.isfinite(next_TN[:, i])
        sessions_E[e] = known_T.sum()
        if sessions_E[e] < MIN_SESSIONS:
            continue
        x_K3 = np.column_stack((np.ones(sessions_E[e]), x_T2[known_T]))
        y_K = next_TN[known_T, i]
        inverse_33 = np.linalg.pinv(x_K3.T @ x_K3)
        beta_3 = inverse_33 @ (x_K3.T @ y_K)
        leverage_K = ((x_K3 @ inverse_33) * x_K3).sum(axis=1)
        left_K = np.where(leverage_K < 1.0 - 1e-9, 1.0 - leverage_K, np.nan)  # one session decides: no error
        moment_K3 = x_K3 * ((y_K - x_K3 @ beta_3) / left_K)[:, None]
        variance_33 = inverse_33 @ (moment_K3.T @ moment_K3) @ inverse_33
        slope_E[e], error_E[e] = beta_3[1], np.sqrt(variance_33[1, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        t_E = slope_E / error_E
    p_E = np.asarray(2.0 * stats.t.sf(np.abs(t_E), np.maximum(sessions_E - 3, 1)))
    return LeadLag(slope_E, error_E, t_E, p_E, _adjusted(p_E), sessions_E)
