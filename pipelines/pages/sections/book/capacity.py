"""The section on capacity: the main book with more and more capital."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts.analysis import capacity_curve
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import Block, in_book, main_model, paragraph, shown_rows
from pipelines.pages.tables import Column, number, percent, table
from pipelines.pages.theme import Style
from pipelines.results.comparisons import BASELINES

_COLUMNS = (
    Column("capital", "capital", number(0)),
    Column("sharpe_net", "net Sharpe", number(2)),
    Column("annual_return_net", "net return % / year", percent(1)),
    Column("impact_bps_per_year", "impact bps / year", number(0)),
    Column(
        "participation_p95",
        "participation %",
        percent(2),
        hint="95th percentile of the share of a firm's trailing dollar volume",
    ),
    Column("unfilled", "not filled % / session", percent(2)),
)


def capacity_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Draw the net Sharpe ratio by capital, and show the figures of the chosen model."""
    model = main_model(data, best)
    frame = shown_rows(data.books.capacity, data)
    if frame.is_empty():
        return
    shown = frame.filter(pl.col("model").is_in([model, *BASELINES]))
    own = frame.filter(pl.col("model") == model).sort("capital")
    yield (
        capacity_curve(shown if own.height else frame, styles),
        "The same book with more capital: market impact grows with the square root of the share of the "
        "volume that is traded. Capacity is reached where the curve falls to what is still worth trading.",
    )
    if own.height:
        yield paragraph(f"{in_book(data, model)}; capital in the currency of the prices.")
        yield table(own, _COLUMNS, label="Capacity")
