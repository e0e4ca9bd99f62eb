"""The section on books: net asset values, and long-only books against the universe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts import books
from pipelines.pages.charts.series import books_of
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import MODEL_COLUMN, Block, has_values, paragraph
from pipelines.pages.tables import Column, number, percent, table
from pipelines.pages.theme import Style
from pipelines.results.describe import describe_notes

_LONG_ONLY_COLUMNS = (
    MODEL_COLUMN,
    Column("sharpe_gross", "gross", number(2), group="Sharpe (annual)"),
    Column("sharpe_net", "net", number(2), group="Sharpe (annual)"),
    Column("annual_return_net", "return % / year", percent(1), group="net of costs"),
    Column("information_ratio", "information ratio", number(2), group="against the universe"),
    Column("tracking_error", "tracking error % / year", percent(1), group="against the universe"),
)


def equity_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Draw every book's NAV; add long-only books against the universe, and notes on decisions."""
    if data.equity is None or data.equity.is_empty():
        return
    for book in books_of(data.equity, data.header.main_book):
        yield (
            books.net_asset_value(data.equity, styles, book, best),
            "Top: value of one unit invested at the start; the dotted line is the chosen model before costs. "
            "Bottom: drawdown from the running maximum.",
        )
        yield from _long_only(data, styles, book)
        yield from _notes(data, book)


def _notes(data: ReportData, book: str) -> Iterator[Block]:
    """Say on which dates the book could not decide as configured, and why."""
    if data.books.book_notes is not None:
        shown = data.books.book_notes.filter(pl.col("book") == book)
        yield from (paragraph(line) for line in describe_notes(shown).splitlines())


def _long_only(data: ReportData, styles: Mapping[str, Style], book: str) -> Iterator[Block]:
    """Show a long-only book's Sharpe and information ratios; nothing for other books."""
    fields = [column.field for column in _LONG_ONLY_COLUMNS if column is not MODEL_COLUMN]
    ladder = data.main_ladder
    if not has_values(ladder, f"{book}.information_ratio"):
        return
    yield paragraph(
        f"{book} holds no shorts. Its benchmark is the equally weighted universe, rebalanced on the same "
        "dates with the same delay and without costs. The information ratio is the mean excess return over "
        "the benchmark, net of costs, divided by the tracking error. The tracking error is the standard "
        "deviation of the excess return. Both are annual. Sharpe ratios are in excess of "
        f"{data.header.sharpe_rate}."
    )
    frame = ladder.select("model", *(pl.col(f"{book}.{field}").alias(field) for field in fields))
    yield table(frame, _LONG_ONLY_COLUMNS, label=f"{book} against the universe", styles=styles)
