"""The section on labels and pretraining: pretrained models against models trained from scratch."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts.label_shares import rank_ic_by_share
from pipelines.pages.sections.section import Block, beside, paragraph
from pipelines.pages.tables import Column, number, percent, table, text
from pipelines.pages.theme import Style

_VALID, _TEST, _GAIN = "validation rank IC", "test rank IC", "test, minus scratch"
_COLUMNS = (
    Column("beginning", "initialisation", text, numeric=False),
    Column("share", "labels %", percent(0), hint="share of training dates whose labels are used"),
    Column("model", "model", text, numeric=False),
    Column("seeds", "seeds", number(0)),
    Column("valid_rank_ic", "mean", number(3), group=_VALID),
    Column("valid_lowest", "lowest", number(3), group=_VALID),
    Column("valid_highest", "highest", number(3), group=_VALID),
    Column("rank_ic", "mean", number(3), group=_TEST),
    Column("lowest", "lowest", number(3), group=_TEST),
    Column("highest", "highest", number(3), group=_TEST),
)
_GAINS = tuple(
    Column(
        field,
        title,
        number(4),
        group=_GAIN,
        hint="difference from the model trained from scratch with the same seed and labels",
    )
    for field, title in (("gain", "mean"), ("gain_lowest", "lowest"), ("gain_highest", "highest"))
)

_CAPTION = (
    "One line per initialisation; bars span the lowest to the highest seed. A seed also determines which "
    "labels are used, equally for every initialisation. To compare initialisations, use the differences in "
    "the table."
)


def label_share_blocks(frame: pl.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[Block]:
    """Show a table and a figure for each model with several variants; nothing if there is none."""
    if frame is None or frame.is_empty():
        return
    yield paragraph(
        "Each table compares variants of one model with the same options. They differ in their "
        "initialisation and in the share of training dates whose labels they use. Numbers are the mean "
        "over seeds and the lowest and highest seed. The epoch of each fit was chosen on validation, so "
        "validation is optimistic; the test was forecast once."
    )
    for group in frame["group"].unique(maintain_order=True).to_list():
        rows = frame.filter(pl.col("group") == group)
        yield f"<h3>{html.escape(group)}</h3>"
        columns = _COLUMNS if rows["gain"].is_null().all() else (*_COLUMNS, *_GAINS)
        yield table(rows, columns, label=f"Rank IC of {group} by share of the labels", styles=styles)
        yield from beside((figure, _CAPTION) for figure in rank_ic_by_share(rows, group))
