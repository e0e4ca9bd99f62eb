"""The section on the worst times: drawdowns and worst sessions, with the names responsible."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import Block, in_book, main_model, paragraph, shown_rows
from pipelines.pages.tables import DASH, Column, number, percent, table, text

_NAMES = Column(
    "names",
    "names responsible",
    lambda names: ", ".join(str(one).replace(" -", " \N{MINUS SIGN}") for one in names),
    numeric=False,
    wide=True,
)
_DRAWDOWN_COLUMNS = (
    Column("rank", "", number(0)),
    Column("depth", "depth %", percent(1)),
    Column("peak", "peak", text, numeric=False),
    Column("trough", "trough", text, numeric=False),
    Column("recovered", "recovered", text, numeric=False),
    Column(
        "sessions", "sessions", number(0), hint="from the peak to the recovery, or to the end of the test"
    ),
    _NAMES,
)
_DAY_COLUMNS = (
    Column("rank", "", number(0)),
    Column("date", "session", text, numeric=False),
    Column("return_net", "net return %", percent(2)),
    _NAMES,
)


def drawdown_blocks(data: ReportData, best: str | None) -> Iterator[Block]:
    """Show the deepest drawdowns and the worst sessions of the main book."""
    model = main_model(data, best)
    falls = shown_rows(data.books.drawdowns, data, model)
    worst = shown_rows(data.books.worst_days, data, model)
    if not falls.is_empty():
        yield "<h3>Deepest drawdowns</h3>"
        yield paragraph(
            f"{in_book(data, model)}, net of costs. The names lost most between peak and trough, as shares "
            f"of NAV. {DASH} means that the old peak was not reached again."
        )
        yield table(
            falls.sort("rank").with_columns(pl.col("names")), _DRAWDOWN_COLUMNS, label="Deepest drawdowns"
        )
    if not worst.is_empty():
        yield "<h3>Worst sessions</h3>"
        yield table(worst.sort("rank"), _DAY_COLUMNS, label="Worst sessions")
