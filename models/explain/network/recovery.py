"""How well a network recovers known edges: ROC curves against planted edges, and against chance.

Legend: N firms of the panel, K points of a curve, V compared pairs.  Matrices are [target i, source j].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray
from models.explain.network.weights import PeerNetwork


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRoc:
    """ROC curve of weights as a classifier of planted edges.

    Attributes
    ----------
    auc
        Probability that a planted edge has a larger weight than another pair; ties count one half.
    false_positive_rate_K, true_positive_rate_K
        The curve from (0, 0) to (1, 1), one point per distinct weight.
    n_edges, n_pairs
        Number of planted edges and of compared pairs.
    """

    auc: float
    false_positive_rate_K: FloatArray
    true_positive_rate_K: FloatArray
    n_edges: int
    n_pairs: int


@dataclass(frozen=True, slots=True, eq=False)
class EdgeComparison:
    """Recovery of planted edges by Shapley values, by attention and by chance, over the same pairs.

    Attributes
    ----------
    shap, attention
        ROC curves of the two rankings.
    random_mean, random_low, random_high
        Mean, 5% and 95% quantiles of the AUC of random rankings.
    """

    shap: EdgeRoc
    attention: EdgeRoc
    random_mean: float
    random_low: float
    random_high: float


def edge_auc(weight_NN: FloatArray, planted_NN: BoolArray, valid_pairs_NN: BoolArray) -> EdgeRoc:
    """Compute the ROC curve of weights as a classifier of planted edges, with scikit-learn.

    ``AUC = P(w_edge > w_other) + P(w_edge = w_other) / 2`` (Mann and Whitney 1947).

    Parameters
    ----------
    weight_NN
        [target, source]; finite where valid.
    planted_NN
        True where source j truly leads target i.
    valid_pairs_NN
        Pairs to compare; the diagonal is always excluded.

    Raises
    ------
    ValueError
        If shapes differ, a valid weight is not finite, or the valid pairs do not include both planted edges
        and other pairs.
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    if not weight_NN.shape == planted_NN.shape == valid_pairs_NN.shape:
        raise ValueError(
            f"weight_NN has shape {weight_NN.shape}, planted_NN {planted_NN.shape} and valid_pairs_NN "
            f"{valid_pairs_NN.shape}; pass matrices over the same firms."
        )
    valid_NN = valid_pairs_NN & ~np.eye(len(weight_NN), dtype=np.bool_)
    weight_V, planted_V = weight_NN[valid_NN], planted_NN[valid_NN]
    n_edges, n_pairs = int(planted_V.sum()), len(planted_V)
    if n_edges in (0, n_pairs):
        raise ValueError(
            f"{n_edges} of {n_pairs} valid pairs are planted edges; "
            "an AUC needs at least one planted edge and one other pair."
        )
    if not np.isfinite(weight_V).all():
        raise ValueError(
            "weight_NN has values that are not finite; exclude pairs without a weight from valid_pairs_NN."
        )
    auc = float(roc_auc_score(planted_V, weight_V))
    false_K, true_K, _ = roc_curve(planted_V, weight_V, drop_intermediate=False)
    return EdgeRoc(auc, false_K, true_K, n_edges, n_pairs)


def compare_edges(
    network: PeerNetwork,
    attention: PeerNetwork,
    planted_NN: BoolArray,
    valid_pairs_NN: BoolArray,
    *,
    seed: int,
    draws: int = 200,
) -> EdgeComparison:
    """Compare Shapley values, attention and random rankings as classifiers of planted edges.

    All three are evaluated on the valid pairs that both networks have observed. The random AUC is estimated
    from ``draws`` random rankings of these pairs.

    Raises
    ------
    ValueError
        As :func:`edge_auc`.
    """
    valid_NN = valid_pairs_NN & network.observed & attention.observed
    by_shap = edge_auc(network.weight_NN, planted_NN, valid_NN)
    by_attention = edge_auc(attention.weight_NN, planted_NN, valid_NN)
    rng = np.random.default_rng(seed)
    e, n = by_shap.n_edges, by_shap.n_pairs
    # in a random ranking, the ranks of the e edges are drawn without replacement
    rank_sums = np.array([rng.choice(n, e, replace=False).sum() + e for _ in range(draws)])
    random = (rank_sums - e * (e + 1) / 2.0) / (e * (n - e))
    low, high = np.quantile(random, (0.05, 0.95))
    return EdgeComparison(by_shap, by_attention, float(random.mean()), float(low), float(high))
