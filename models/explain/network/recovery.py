"""How well a network recovers known edges: ROC curves, and how much of the recovery was learned.

Legend: N firms of the panel, K points of a curve, V compared pairs.  Matrices are [target i, source j].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray


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

    ``AUC = P(w_edge > w_other) + P(w_edge = w_other) / 2`` (Mann and Whitney 1947).

    Raises ValueError unless the valid pairs include both planted edges and other pairs.

    Parameters
    ----------
    weight_NN
        [target, source]; finite where valid.
    planted_NN
        True where source j truly leads target i.
    valid_pairs_NN
        Pairs to compare; the diagonal is always excluded.
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


def random_auc(n_edges: int, n_pairs: int, seed: int, draws: int = 200) -> float:
    """Mean AUC of random rankings of the pairs."""
    rng, e = np.random.default_rng(seed), n_edges
    # in a random ranking, the ranks of the e edges are drawn without replacement
    rank_sums = np.array([rng.choice(n_pairs, e, replace=False).sum() + e for _ in range(draws)])
    return float(((rank_sums - e * (e + 1) / 2.0) / (e * (n_pairs - e))).mean())


Matrices = Sequence[tuple[IntArray, FloatArray]]
"""For each date, the panel columns [n] of its firms and their values [n, n] as [target, source]; NaN means
that the pair was not measured."""


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
    methods: Mapping[str, Matrices],
    planted: Mapping[str, BoolArray],
    *,
    start: str,
) -> list[EdgeRecovery]:
    """Measure how well methods find the planted edges, kind by kind, and how much better than the start.

    A method's weight of a pair is the mean of its values over dates. Standard errors are those of the
    jackknife (Tukey 1958): ``sqrt((D - 1) / D sum_d (a_d - mean a)^2)`` with ``a_d`` the AUC without date d.
    A bootstrap would be biased, because a mean over fewer distinct dates is noisier, and noise lowers every
    AUC. Errors show how much the result depends on the explained dates, not on the model's seed. The error of
    a lift is that of a difference on the same dates.

    Raises ValueError if the methods differ in their dates or firms.

    Parameters
    ----------
    methods
        Method -> its matrices, larger for stronger edges: squared Shapley values or attention, without a
        sign. All methods have the same dates and firms.
    planted
        Kind -> bool [N, N], the edges of this kind.
    start
        The method of the model before training.

    Returns
    -------
    list of EdgeRecovery
        For every kind, and for ``all`` kinds together. Kinds without an edge among the compared pairs are
        left out. The list is empty if there is no edge at all, or no other pair.
    """
    shape = next(iter(planted.values())).shape
    values = {name: _by_date(matrices, shape) for name, matrices in methods.items()}
    firms = {name: [tuple(firms_n) for firms_n, _ in matrices] for name, matrices in methods.items()}
    for name in methods:
        if firms[name] != firms[start]:
            raise ValueError(
                f"{name!r} and {start!r} have other dates or firms; explain the same dates with both."
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
    auc: dict[str, dict[str, FloatArray]] = {}  # method -> kind -> the AUC, then those without a date
    for name, value_DNN in values.items():
        other_BP = _weights(value_DNN[:, other_NN], count_BD)
        other_BP.sort(axis=1)
        auc[name] = {
            kind: _auc(_weights(value_DNN[:, edge_NN], count_BD), other_BP) for kind, edge_NN in kinds.items()
        }
    found = []
    for kind, edge_NN in kinds.items():
        for name in methods:
            auc_B = auc[name][kind]
            lift_B = None if name == start else auc_B - auc[start][kind]
            recovery = EdgeRecovery(
                method=name,
                kind=kind,
                auc=float(auc_B[0]),
                error=_jackknife(auc_B[1:]),
                lift=None if lift_B is None else float(lift_B[0]),
                lift_error=None if lift_B is None else _jackknife(lift_B[1:]),
                n_edges=int(edge_NN.sum()),
                n_pairs=int(other_NN.sum()),
            )
            found.append(recovery)
    return found


def _by_date(matrices: Matrices, shape: tuple[int, ...]) -> FloatArray:
    value_DNN = np.full((len(matrices), *shape), np.nan)
    for d, (firms_n, value_nn) in enumerate(matrices):
        value_DNN[d][np.ix_(firms_n, firms_n)] = value_nn
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
