"""The section on the simulated truth: the share of the best possible IC, and recovery of planted edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts import attribution
from pipelines.pages.contents.frames import is_missing
from pipelines.pages.contents.report import ReportData
from pipelines.pages.contents.truth import SimulatedTruth
from pipelines.pages.sections.section import Block, beside, paragraph
from pipelines.pages.tables import Column, number, significant, table, text, yes_no
from pipelines.pages.theme import Style

_CEILING_COLUMNS = (
    Column("delay", "delay (sessions)", number(0)),
    Column("ic", "IC of the true mean", number(3)),
    Column("rank_ic", "rank IC of the true mean", number(3)),
)
_AUC_COLUMNS = (Column("method", "pairs ranked by", text, numeric=False), Column("auc", "AUC", number(3)))
_RECOVERY_COLUMNS = (
    Column("kind", "planted edges", text, numeric=False),
    Column("n_edges", "number", number(0)),
    Column("shap", "SHAP", number(3)),
    Column("error", "standard error", number(3)),
    Column("attention", "attention", number(3)),
    Column("start", "attention before training", number(3)),
    Column("lift", "lift of SHAP", number(3)),
    Column("lift_error", "standard error of the lift", number(3)),
)
_EDGE_COLUMNS = (
    Column("leader", "leader", text, numeric=False),
    Column("follower", "follower", text, numeric=False),
    Column("weight", "mean |SHAP|", significant(3)),
    Column("planted", "planted?", yes_no, numeric=False),
)


def truth_blocks(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    """Compare models with the true conditional mean, and the peer network with the planted edges."""
    truth = data.truth
    if truth is None:
        return
    yield paragraph(
        "The market is simulated, so the conditional mean of every return is known. Its IC is the highest "
        "that a model can be expected to reach."
    )
    yield table(truth.ceiling, _CEILING_COLUMNS, label="IC of the true conditional mean")
    ceiling = truth.ceiling.filter(pl.col("delay") == data.header.label_delay)
    if not ceiling.is_empty() and not is_missing(ceiling["rank_ic"][0]):
        yield (
            attribution.share_of_ceiling(data.main_ladder, styles, float(ceiling["rank_ic"][0])),
            "The dashed line is the rank IC of the true mean. The number at the end of a bar is the share "
            "of it that the model reached.",
        )
    yield from _edge_recovery(truth)


def _edge_recovery(truth: SimulatedTruth) -> Iterator[Block]:
    if truth.roc is None and truth.edge_auc is None and truth.top_edges is None:
        return
    yield "<h3>Does the peer network find the planted edges?</h3>"
    of_model = f"Network of {truth.edge_model}. " if truth.edge_model is not None else ""
    size = (
        f"{truth.n_planted:,} of {truth.n_pairs:,} ordered pairs of firms are planted edges "
        f"({truth.n_planted / truth.n_pairs:.2%}). "
        if truth.n_planted is not None and truth.n_pairs
        else ""
    )
    yield paragraph(f"{of_model}{size}An AUC of 0.5 is random; 1 ranks every planted edge first.")
    auc = {} if truth.edge_auc is None else dict(truth.edge_auc.select("method", "auc").iter_rows())
    if truth.edge_auc is not None:
        yield table(truth.edge_auc, _AUC_COLUMNS, label="Recovery of planted edges")
        if "attention before training" in auc:
            yield paragraph(
                "Attention before training shows what the model's initialisation already finds. Only an "
                "AUC above it was learned from the data."
            )
    if truth.recovery is not None and not truth.recovery.is_empty():
        yield "<h4>What was learned, by kind of edge</h4>"
        yield paragraph(
            "AUC of each kind of edge against pairs that are no edge. The lift is the AUC of SHAP less that "
            "of attention before training, on the same dates: at or below zero, the start knew as much. "
            "Standard errors are those of a jackknife over the explained dates."
        )
        yield table(truth.recovery, _RECOVERY_COLUMNS, label="Recovery by kind of edge")
    blocks: list[Block] = []
    if truth.roc is not None and not truth.roc.is_empty():
        blocks.append(
            (
                attribution.edge_roc(truth.roc, auc),
                "ROC curves. The closer a curve is to the upper left corner, the fewer other pairs are "
                "ranked above the planted edges.",
            )
        )
    if truth.top_edges is not None and not truth.top_edges.is_empty():
        written = table(truth.top_edges, _EDGE_COLUMNS, label="Strongest edges")
        blocks.append(f"<div><h4>The {truth.top_edges.height} strongest edges by SHAP</h4>{written}</div>")
    if blocks:
        yield from beside(blocks)
