"""The sections on training: walk-forward folds and learning curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipelines.pages.charts import training
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import Block, beside
from pipelines.pages.tables import Column, number, table, text
from pipelines.pages.theme import Style

_SEGMENTS = tuple(training.SEGMENTS.items())
_FOLD_COLUMNS = (
    Column("fold", "fold", text),
    *(
        Column(f"{segment}_{end}", end, text, group=title)
        for segment, title in _SEGMENTS
        for end in ("from", "to")
    ),
    *(Column(f"n_{segment}", title, number(0), group="sessions") for segment, title in _SEGMENTS),
)

_CURVES = (
    "Each thin line is one fit (one fold and seed). Thick lines are the median of a model's fits, drawn "
    "while at least half of them are still training. A training loss that falls while validation rank IC "
    "also falls indicates overfitting. Only models that are trained by epochs are shown."
)


def fold_blocks(data: ReportData) -> Iterator[Block]:
    """Show the train, validation and test sessions of every fold."""
    if data.folds is None or data.folds.is_empty():
        return
    yield (
        training.fold_timeline(data.folds),
        "Each row is one fold. Models are fitted on the grey sessions, chosen on the orange ones and "
        "tested once on the blue ones. The gaps are the purge, which follows from the label, and the "
        "embargo.",
    )
    yield table(data.folds, _FOLD_COLUMNS, label="Folds")


def learning_blocks(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    """Draw training loss and validation rank IC by epoch."""
    if data.learning is None or data.learning.is_empty():
        return
    yield from beside((figure, _CURVES) for figure in training.learning_curves(data.learning, styles))
