"""The section on costs: what was assumed, and what each book paid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.report.charts import performance
from pipelines.report.charts.series import books_of
from pipelines.report.contents.report import ReportData
from pipelines.report.sections.section import MODEL_COLUMN, Block
from pipelines.report.tables import Column, number, plain, table, text
from pipelines.report.theme import Style

_ASSUMPTION_COLUMNS = (
    Column("assumption", "assumption", text, numeric=False),
    Column("value", "value", lambda v: plain(4)(v) if isinstance(v, int | float) else str(v)),
    Column("unit", "unit", text, numeric=False),
)
_PAID_COLUMNS = (
    MODEL_COLUMN,
    *(
        Column(kind, title, number(0), group="bps of NAV per year")
        for kind, title in (*performance.COST_KINDS.items(), ("total", "total"))
    ),
)


def cost_blocks(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    """Show the cost assumptions, and costs per year by book and kind."""
    if data.cost_assumptions is not None and not data.cost_assumptions.is_empty():
        yield "<h3>Assumptions</h3>"
        yield table(data.cost_assumptions, _ASSUMPTION_COLUMNS, label="Cost assumptions")
    if data.cost_breakdown is None or data.cost_breakdown.is_empty():
        return
    for book in books_of(data.cost_breakdown, data.header.main_book):
        yield (
            performance.cost_breakdown(data.cost_breakdown, styles, book),
            "Costs per year. 100 bps are 1% of NAV.",
        )
        paid = data.cost_breakdown.filter(pl.col("book") == book)
        yield table(
            paid.with_columns(total=pl.sum_horizontal(*performance.COST_KINDS)),
            _PAID_COLUMNS,
            label=f"Costs of {book} in basis points of NAV per year",
            styles=styles,
        )
