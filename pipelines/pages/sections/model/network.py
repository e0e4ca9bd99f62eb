"""The part of the section on attribution that shows a model's peer network, and what supports it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.pages.charts.network import peer_network
from pipelines.pages.contents.attribution import ModelAttribution
from pipelines.pages.sections.section import Block, paragraph
from pipelines.pages.tables import Column, neutral_yes_no, number, significant, table, text

NETWORK_ROWS = 20
_EDGE_COLUMNS = (
    Column("leader", "leader", text, numeric=False),
    Column("follower", "follower", text, numeric=False),
    Column("weight", "RMS SHAP", significant(3)),
    Column("error", "standard error", significant(2)),
    Column("t", "t", number(1)),
    Column("q", "q", significant(1)),
    Column("same_group", "same group?", neutral_yes_no, numeric=False),
)
_MEASURE_COLUMNS = (
    Column("measure", "measure", text, numeric=False),
    Column("value", "value", significant(3)),
    Column("null_mean", "by chance", significant(3)),
    Column("null_low", "2.5%", significant(3)),
    Column("null_high", "97.5%", significant(3)),
    Column("number", "pairs or edges", number(0)),
)
_EVIDENCE_COLUMNS = (
    Column("kind", "pairs", text, numeric=False),
    Column("pairs", "regressions", number(0)),
    Column("significant", "p below 5%", number(0)),
    Column("found", "q below 5%", number(0)),
    Column("slope", "mean slope", significant(2)),
)


def network_blocks(model: ModelAttribution) -> Iterator[Block]:
    """Show the strongest edges, the drawing, the measures beside their nulls, and the evidence in returns."""
    if model.edges is None or model.edges.is_empty():
        return
    top = model.edges.sort("weight", descending=True).head(NETWORK_ROWS)
    yield f"<h4>The {top.height} strongest edges of the peer network</h4>"
    yield paragraph(
        "The weight of an edge is the root mean square over dates of the leader's Shapley value in the "
        "follower's forecast. t compares the leader with the other peers of the follower; q is its p-value "
        "against shuffled peers, adjusted for all pairs."
    )
    yield table(top, _EDGE_COLUMNS, label="Strongest edges of the peer network")
    yield (
        peer_network(model.edges, model.model),
        "An arrow points from a leader to a follower: information about the leader moved the forecast of the "
        "follower. Thicker arrows mean larger effects. Blue arrows stay within a group, orange ones cross "
        "groups.",
    )
    if model.network is not None:
        yield "<h4>Measures of the network</h4>"
        yield paragraph(
            "Each measure stands beside its mean and 95% interval by chance: shuffled peers for the edges "
            "found, shuffled groups for homophily, shuffled leaders for reciprocity, exchanged names for "
            "rank correlations. A value inside its interval says nothing."
        )
        yield table(model.network, _MEASURE_COLUMNS, label="Measures of the peer network")
    if model.evidence is not None:
        yield "<h4>Do leaders' returns precede followers' returns?</h4>"
        yield paragraph(
            "Regressions of the follower's next return on the leader's return over the test, given the "
            "follower's own return, all adjusted for their groups. The network says what the model uses. "
            "Only an excess over the random pairs says that the market works like that."
        )
        yield table(_summary(model.evidence), _EVIDENCE_COLUMNS, label="Evidence for the strongest edges")


def _summary(evidence: pl.DataFrame) -> pl.DataFrame:
    return (
        evidence.group_by("kind", maintain_order=True)
        .agg(
            pl.len().alias("pairs"),
            (pl.col("p") < 0.05).sum().alias("significant"),
            (pl.col("q") < 0.05).sum().alias("found"),
            pl.col("slope").drop_nans().mean().alias("slope"),
        )
        .with_columns(pl.col("kind").replace({"edge": "strongest edges", "random": "random pairs"}))
    )
