"""Measures of a peer network beside their nulls, and the evidence for its edges in unseen returns.

Legend: N firms of the panel, T sessions, E edges. Matrices are [target i, source j].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl

from features.arrays import IntArray
from models.explain.network.comparison import (
    AgainstNull,
    rank_correlation,
    return_correlations,
    same_group,
)
from models.explain.network.evidence import adjusted_returns, lead_lag
from models.explain.network.measures import homophily, reciprocity
from models.explain.network.scores import shuffled_sources
from models.explain.network.weights import NetworkSums, PeerNetwork, sum_dates
from pipelines.explain.network_study import NetworkStudy, session_returns

EVIDENCE_EDGES = 200
"""Strongest edges whose followers are regressed on their leaders, and random pairs beside them."""
_CORRELATION_SESSIONS = 252
_SHUFFLES = 5


def measure_network(study: NetworkStudy) -> pl.DataFrame:
    """Measures of the whole network, each beside its mean and 95% interval under its null."""
    network, attention, found_NN = study.network, study.attention, study.found
    weight_NN, observed_NN, group_N = network.weight_NN, network.observed, study.groups
    rng = np.random.default_rng(study.seed)
    same_NN, known_NN = same_group(group_N)
    first = min(part.session for part in study.peers)
    past_TN = session_returns(study.dataset)[max(1, first + 1 - _CORRELATION_SESSIONS) : first + 1]
    correlated_NN = return_correlations(past_TN)
    rows = {
        "edges found": _found(study, rng),
        "homophily": homophily(weight_NN, observed_NN, group_N, rng),
        "homophily of the edges found": homophily(
            np.where(found_NN, weight_NN, 0.0), observed_NN, group_N, rng
        ),
        "reciprocity of the edges found": reciprocity(found_NN, observed_NN, rng),
        "rank correlation with attention": rank_correlation(
            weight_NN, attention.weight_NN, observed_NN & attention.observed, rng
        ),
        "rank correlation with the same group": rank_correlation(
            weight_NN, same_NN, observed_NN & known_NN, rng
        ),
        "rank correlation with past return correlations": rank_correlation(
            weight_NN, np.nan_to_num(correlated_NN), observed_NN & np.isfinite(correlated_NN), rng
        ),
        **_persistence(study, rng),
    }
    columns = ("value", "null_mean", "null_low", "null_high")
    return pl.DataFrame(
        {
            "model": [study.model] * len(rows),
            "measure": list(rows),
            **{name: [float(getattr(row, name)) for row in rows.values()] for name in columns},
            "number": [row.number for row in rows.values()],
        }
    )


def _persistence(study: NetworkStudy, rng: np.random.Generator) -> dict[str, AgainstNull]:
    def compare(one: PeerNetwork, two: PeerNetwork) -> AgainstNull:
        return rank_correlation(one.weight_NN, two.weight_NN, one.observed & two.observed, rng)

    rows: dict[str, AgainstNull] = {}
    n_firms = study.dataset.panel.n_firms
    if len(study.peers) > 1:
        halves = [sum_dates(study.peers[half::2], n_firms).network() for half in (0, 1)]
        rows["persistence between odd and even dates"] = compare(*halves)
    folds = sorted({fold for fold, _ in study.fits})
    by_fold = [study.network_of(fold=kept) for kept in folds]
    for (one, first), (two, second) in pairwise(zip(folds, by_fold, strict=True)):
        rows[f"persistence from fold {one} to fold {two}"] = compare(first, second)
    seeds = sorted({seed for _, seed in study.fits})
    by_seed = [study.network_of(seed=kept) for kept in seeds]
    for (one, first), (two, second) in pairwise(zip(seeds, by_seed, strict=True)):
        rows[f"persistence from seed {one} to seed {two}"] = compare(first, second)
    return rows


def _found(study: NetworkStudy, rng: np.random.Generator) -> AgainstNull:
    """Number of edges found, beside the numbers that are found among shuffled peers."""
    null = []
    for _ in range(_SHUFFLES):
        sums = NetworkSums(len(study.found))
        for part in study.peers:
            square_NN = shuffled_sources(part.square_NN, rng)
            sums.add(part.firms_N, square_NN, square_NN)
        null.append(float(sums.tests().found().sum()))
    pairs = int(study.network.observed.sum())
    return AgainstNull(float(study.found.sum()), float(np.mean(null)), min(null), max(null), pairs)


def evidence(study: NetworkStudy, test_sessions: IntArray) -> pl.DataFrame:
    """Regressions of followers' next returns on leaders' returns over the test sessions.

    ``kind`` is ``edge`` for the strongest edges that were found, and ``random`` for as many random pairs. The
    latter show how many slopes look significant without any choice. No model has seen the returns of a test
    session in training, and no edge was chosen by the returns that follow its dates.
    """
    network, found_NN, dataset = study.network, study.found, study.dataset
    rng, return_TN = np.random.default_rng(study.seed), session_returns(dataset)
    sessions = test_sessions[test_sessions + 1 < len(return_TN)]
    universe_TN, group_TN = dataset.universe_TN[sessions], dataset.panel.group_TN[sessions].astype(np.int64)
    now_TN = adjusted_returns(return_TN[sessions], universe_TN, group_TN)
    next_TN = adjusted_returns(return_TN[sessions + 1], universe_TN, group_TN)
    target_E, source_E = np.nonzero(found_NN)
    strongest = np.argsort(-network.weight_NN[target_E, source_E], kind="stable")[:EVIDENCE_EDGES]
    pairs = np.argwhere(network.observed & ~found_NN)
    drawn = pairs[rng.permutation(len(pairs))[: len(strongest)]]
    frames = []
    for kind, targets, sources in (
        ("edge", target_E[strongest], source_E[strongest]),
        ("random", drawn[:, 0], drawn[:, 1]),
    ):
        measured = lead_lag(now_TN, next_TN, sources, targets)
        columns = {
            "model": [study.model] * len(sources),
            "kind": [kind] * len(sources),
            "leader": study.tickers[sources],
            "follower": study.tickers[targets],
            "weight": network.weight_NN[targets, sources],
            "slope": measured.slope_E,
            "error": measured.error_E,
            "t": measured.t_E,
            "p": measured.p_E,
            "q": measured.q_E,
            "sessions": measured.sessions_E,
        }
        text = dict.fromkeys(("model", "kind", "leader", "follower"), pl.String)
        frames.append(pl.DataFrame(columns, schema_overrides=text))
    return pl.concat(frames)
