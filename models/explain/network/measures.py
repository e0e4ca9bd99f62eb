"""Measures of a network beside their nulls, comparisons with other networks, and the evidence in returns.

Two networks over the same firms are not two samples of independent pairs: all edges of a firm move together.
Their null is therefore that of the quadratic assignment procedure (Krackhardt 1988): one network keeps its
structure and its firms change names at random. The network says what a model uses. Whether the market works
like that is another question, which returns answer that the model never saw.

Legend: N firms of the panel, T sessions, E edges, B draws of the null. Matrices are [target i, source j].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import average_ranks
from models.explain.network.weights import PeerWeights, ranks_of_sources, to_digraph

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
    known_TN = np.isfinite(return_TN).astype(np.float64)
    r_TN = np.where(known_TN > 0.0, return_TN, 0.0)
    count_NN = known_TN.T @ known_TN
    with np.errstate(divide="ignore", invalid="ignore"):
        sum_NN = r_TN.T @ known_TN / count_NN  # mean of the row's firm over the common sessions
        square_NN = (r_TN**2).T @ known_TN / count_NN - sum_NN**2
        covariance_NN = r_TN.T @ r_TN / count_NN - sum_NN * sum_NN.T
        correlation_NN = covariance_NN / np.sqrt(square_NN * square_NN.T)
    correlation_NN[(count_NN < MIN_SESSIONS) | (square_NN <= 0.0) | (square_NN.T <= 0.0)] = np.nan
    return np.abs(correlation_NN)


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
    q_E, known_E = np.full(len(p_E), np.nan), np.isfinite(p_E)
    if known_E.any():
        q_E[known_E] = stats.false_discovery_control(p_E[known_E], method="bh")
    return LeadLag(slope_E, error_E, t_E, p_E, q_E, sessions_E)
