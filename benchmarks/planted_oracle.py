"""What the training sessions say about planted leaders and day weights: linear estimators that know the lags.

They see returns, industries and the lags of the simulated market's rules, but not its leaders, shocks or
edges. What they cannot find in the training sessions, a model trained on them can hardly find either.

Legend: T sessions, N firms, L lags, W days.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.network import EdgeRecovery, edge_recovery
from pipelines.dataset.build import Dataset
from pipelines.sources.simulated.config import INDUSTRIES
from pipelines.sources.simulated.firms import supplier_of
from pipelines.sources.simulated.source import MAX_LAG, WEIGHTS_BY_LAG

PAIR, POOLED = "pair alone", "all followers of an industry"


def linear_recovery(
    dataset: Dataset, planted: Mapping[str, BoolArray], train: IntArray, sessions: IntArray, delay: int
) -> list[EdgeRecovery]:
    """Measure how well z-scores of lagged correlations find the planted edges of some sessions.

    The z-score of a pair is ``sqrt(n) * corr(return of i over (t, t + 1], sum_l weight(rule, l) * return of j
    over (t - l, t + 1 - l])`` over the training sessions, with the weights of the rule by which firms of
    these two industries can be connected, or else of hidden edges. ``pair alone`` uses this z-score. ``all
    followers of an industry`` also knows that a leader leads every firm of an industry: it is the sum of the
    z-scores of a leader over the followers of the industry, divided by the root of their number.
    """
    next_TN = _standardised(dataset.labels[delay], train)  # row t: the return over (t, t + 1]
    group_N = _industries(dataset, sessions)
    rule_NN = np.full((len(group_N), len(group_N)), "hidden", dtype=object)
    supplier_S = supplier_of()
    for i, own in enumerate(group_N):
        first = supplier_S[own] if own >= 0 else -1
        second = supplier_S[first] if first >= 0 else -1
        for industry, rule in ((second, "supplier_of_supplier"), (first, "supplier"), (own, "industry")):
            if industry >= 0:
                rule_NN[i, group_N == industry] = rule
    lagged_LTN = [np.roll(next_TN, lag, axis=0)[train] for lag in range(1, MAX_LAG + 1)]
    z_NN = np.zeros(rule_NN.shape)
    for rule, weights in WEIGHTS_BY_LAG.items():
        filtered_TN = np.sum([weight * lagged_LTN[lag - 1] for lag, weight in weights.items()], axis=0)
        of_rule_NN = rule_NN == rule
        z_NN[of_rule_NN] = _z_scores(next_TN[train], filtered_TN)[of_rule_NN]
    pooled_NN = z_NN.copy()
    for own in np.unique(group_N[group_N >= 0]):
        followers_N = group_N == own
        for j in range(len(group_N)):
            if rule_NN[followers_N, j][0] != "hidden":
                others_N = followers_N & (np.arange(len(group_N)) != j)
                known = max(int(np.count_nonzero(z_NN[others_N, j])), 1)
                pooled_NN[followers_N, j] = z_NN[others_N, j].sum() / np.sqrt(known)
    firms_B = [np.flatnonzero(universe_N) for universe_N in dataset.universe_TN[sessions]]
    methods = {
        name: [(firms_n, score_NN[np.ix_(firms_n, firms_n)]) for firms_n in firms_B]
        for name, score_NN in ((PAIR, z_NN), (POOLED, pooled_NN))
    }
    return edge_recovery(methods, planted, start=PAIR)


def linear_days(dataset: Dataset, train: IntArray, delay: int, window: int) -> FloatArray:
    """Regress the next return on a firm's own last returns over the training sessions: |slopes| [W]."""
    next_TN = _standardised(dataset.labels[delay], train)
    own_TNW = np.stack([np.roll(next_TN, age, axis=0)[train] for age in range(1, window + 1)], axis=-1)
    y_TN = next_TN[train]
    known_TN = np.isfinite(y_TN) & np.isfinite(own_TNW).all(axis=-1)
    slopes_W: FloatArray = np.abs(np.linalg.lstsq(own_TNW[known_TN], y_TN[known_TN], rcond=None)[0])
    return slopes_W


def _standardised(return_TN: FloatArray, train: IntArray) -> FloatArray:
    """Return less the date's mean, over the firm's standard deviation, clipped at 3; NaN where unknown."""
    other_TN = return_TN - np.nanmean(return_TN, axis=1, keepdims=True)
    other_TN = other_TN / np.nanstd(other_TN[train], axis=0)
    clipped_TN: FloatArray = np.clip(other_TN, -3.0, 3.0)
    return clipped_TN


def _z_scores(y_TN: FloatArray, x_TN: FloatArray) -> FloatArray:
    """``sqrt(n) * corr(y_i, x_j)`` [i, j] over the sessions on which both are known; 0 with fewer than 60."""
    known_y, known_x = np.isfinite(y_TN).astype(np.float64), np.isfinite(x_TN).astype(np.float64)
    y_TN, x_TN = np.nan_to_num(y_TN), np.nan_to_num(x_TN)
    number_NN = known_y.T @ known_x
    scale_NN = np.sqrt(((y_TN**2).T @ known_x) * (known_y.T @ (x_TN**2)))
    z_NN = np.sqrt(number_NN) * np.divide(
        y_TN.T @ x_TN, scale_NN, out=np.zeros_like(scale_NN), where=scale_NN > 0
    )
    return np.where(number_NN >= 60, z_NN, 0.0)


def _industries(dataset: Dataset, sessions: IntArray) -> IntArray:
    """Index into INDUSTRIES of each firm, as of the last of the sessions on which it is known; -1: never."""
    names = list(INDUSTRIES)
    index_S = np.array([names.index(group) for group in dataset.panel.groups_S])
    last_N: IntArray = np.full(dataset.panel.n_firms, -1)
    for code_N in dataset.panel.group_TN[sessions]:
        last_N = np.where(code_N >= 0, index_S[code_N], last_N)
    return last_N
