"""Recovery of the planted edges of a simulated market, by kind of edge, and its lift over the start."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from features.arrays import BoolArray, IntArray
from models.explain.network.lift import edge_recovery
from pipelines.dataset.build import Dataset
from pipelines.explain.fold import ModelExplanation

START = "attention before training"
_SCHEMA = {
    "model": pl.String,
    "method": pl.String,
    "kind": pl.String,
    "auc": pl.Float64,
    "error": pl.Float64,
    "lift": pl.Float64,
    "lift_error": pl.Float64,
    "n_edges": pl.Int64,
    "n_pairs": pl.Int64,
}


def recovery_table(explanation: ModelExplanation, truth: pl.DataFrame, dataset: Dataset) -> pl.DataFrame:
    """Measure how well SHAP, attention and attention before training find each kind of planted edge.

    Parameters
    ----------
    explanation
        Results of the games of a model with peers.
    truth
        Planted edges: leader, follower, valid_from, valid_to, and rule, the kind.
    dataset
        Dataset of the run.

    Returns
    -------
    DataFrame
        One row per method and kind, with the fields of :class:`models.explain.network.lift.EdgeRecovery`.
        Empty if no edge is among the compared pairs.
    """
    sessions = np.array([part.session for part in explanation.peers])
    kinds = truth["rule"].fill_null("edge").unique().sort().to_list()
    planted = {
        kind: planted_edges(truth.filter(pl.col("rule").fill_null("edge") == kind), dataset, sessions)
        for kind in kinds
    }
    methods = {
        "shap": [(part.firms_N, part.square_NN) for part in explanation.peers],
        "attention": [(part.firms_N, part.attention_NN) for part in explanation.peers],
        START: list(explanation.untrained),
    }
    found = edge_recovery(methods, planted, start=START) if planted else []
    rows = [{"model": explanation.model, **dataclasses.asdict(one)} for one in found]
    return pl.DataFrame(rows, schema=_SCHEMA)


def planted_edges(truth: pl.DataFrame, dataset: Dataset, sessions: IntArray) -> BoolArray:
    """Find the planted edges, direct or over two hops, that are valid on at least half of the sessions.

    Parameters
    ----------
    truth
        leader, follower, valid_from, valid_to: edges of a simulated market.
    dataset
        Panel with dates and tickers.
    sessions
        Indices of the explained sessions.

    Returns
    -------
    ndarray of bool, shape (N, N)
        Indexed by [target, source].
    """
    column = {ticker: n for n, ticker in enumerate(dataset.panel.tickers_N)}
    dates = dataset.panel.dates_T[sessions].astype("datetime64[D]")
    valid_NN = np.zeros((dataset.panel.n_firms, dataset.panel.n_firms), dtype=np.int64)
    spells = truth.select("leader", "follower", "valid_from", "valid_to").unique()
    for leader, follower, start, end in spells.iter_rows():
        if leader in column and follower in column:
            valid = dates >= np.datetime64(start)
            if end is not None:
                valid &= dates < np.datetime64(end)
            valid_NN[column[follower], column[leader]] += int(valid.sum())
    return 2 * valid_NN >= len(sessions)
