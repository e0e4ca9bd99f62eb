"""The order of the sections in a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipelines.report.contents.report import ReportData
from pipelines.report.sections.attribution import attribution_blocks
from pipelines.report.sections.books import book_blocks
from pipelines.report.sections.costs import cost_blocks
from pipelines.report.sections.delistings import delisting_blocks
from pipelines.report.sections.label_shares import label_share_blocks
from pipelines.report.sections.models import model_blocks
from pipelines.report.sections.provenance import provenance_blocks
from pipelines.report.sections.section import Section
from pipelines.report.sections.signal import signal_blocks
from pipelines.report.sections.training import fold_blocks, learning_blocks
from pipelines.report.sections.truth import truth_blocks
from pipelines.report.theme import Style


def sections(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Section]:
    """Build the sections for which there is data, in reading order.

    Parameters
    ----------
    data
        The results of the run.
    styles
        Model -> style.
    best
        The chosen model, highlighted in tables.

    Yields
    ------
    Section
        Only sections that have at least one block.
    """
    for anchor, title, blocks in (
        ("models", "Models", model_blocks(data, styles, best)),
        ("books", "Books", book_blocks(data, styles)),
        ("delistings", "Delistings with unknown return", delisting_blocks(data.endings, styles)),
        ("signal", "Signal", signal_blocks(data, styles)),
        ("costs", "Costs", cost_blocks(data, styles)),
        ("folds", "Folds", fold_blocks(data)),
        ("learning", "Learning curves", learning_blocks(data, styles)),
        ("labels", "Labels and pretraining", label_share_blocks(data.label_shares, styles)),
        ("truth", "Simulated truth", truth_blocks(data, styles)),
        ("attribution", "Attribution", attribution_blocks(data)),
        ("provenance", "Provenance", provenance_blocks(data.header)),
    ):
        if filled := tuple(blocks):
            yield Section(anchor, title, filled)
