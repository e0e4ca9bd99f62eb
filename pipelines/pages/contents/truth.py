"""The truth of a simulated market, as a report shows it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.pages.contents.frames import require_columns

CEILING_COLUMNS = ("delay", "ic", "rank_ic")
AUC_COLUMNS = ("method", "auc")
ROC_COLUMNS = ("method", "fpr", "tpr")
RECOVERY_COLUMNS = ("kind", "n_edges", "shap", "error", "attention", "start", "lift", "lift_error")
PLANTED_COLUMNS = ("leader", "follower", "weight", "planted")


@dataclass(frozen=True, slots=True)
class SimulatedTruth:
    """Results on a simulated market: the highest possible IC, and the recovery of planted edges.

    Attributes
    ----------
    ceiling
        delay, ic, rank_ic: scores of the true conditional mean on the test sessions.
    edge_model
        The model whose peer network is compared with the planted edges; None if there is none.
    edge_auc
        method (shap, attention, random, ...), auc: area under the ROC curve for classifying a pair of firms
        as planted.
    recovery
        kind, n_edges, shap, error, attention, start, lift, lift_error: AUC of each kind of edge by SHAP (with
        its standard error), by attention and by attention before training; lift is that of SHAP over the
        start.
    roc
        method, fpr, tpr: fractions in [0, 1], in order of decreasing score.
    top_edges
        leader, follower, weight, planted (bool): the strongest edges by SHAP.
    n_planted, n_pairs
        Number of planted edges and of ordered pairs that were ranked.
    """

    ceiling: pl.DataFrame
    edge_model: str | None = None
    edge_auc: pl.DataFrame | None = None
    recovery: pl.DataFrame | None = None
    roc: pl.DataFrame | None = None
    top_edges: pl.DataFrame | None = None
    n_planted: int | None = None
    n_pairs: int | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("ceiling", self.ceiling, CEILING_COLUMNS)
        require_columns("edge_auc", self.edge_auc, AUC_COLUMNS)
        require_columns("recovery", self.recovery, RECOVERY_COLUMNS)
        require_columns("roc", self.roc, ROC_COLUMNS)
        require_columns("top_edges", self.top_edges, PLANTED_COLUMNS)
