"""The section on costs: what each book traded and paid, what was not filled, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from backtest.analysis.rolling import rolling_window
from pipelines.pages.charts import analysis, books
from pipelines.pages.charts.series import books_of
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import MODEL_COLUMN, Block, beside, has_values, main_model, shown_rows
from pipelines.pages.tables import Column, number, percent, plain, table, text
from pipelines.pages.theme import Style, short

_ASSUMPTION_COLUMNS = (
    Column("assumption", "assumption", text, numeric=False),
    Column("value", "value", lambda v: plain(4)(v) if isinstance(v, int | float) else str(v)),
    Column("unit", "unit", text, numeric=False),
)
_TRADED_COLUMNS = (
    Column("turnover", "turnover % / session", percent(1), group="traded", hint="one-way"),
    Column("notional", "x NAV / year", number(1), group="traded", hint="two-way: purchases and sales"),
    Column("unfilled", "unfilled % / session", percent(2), group="traded", hint="one-way"),
)


def cost_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Show costs per year by kind beside what was traded, trading over time, and the cost assumptions."""
    costs = data.cost_breakdown
    if costs is not None and not costs.is_empty():
        main = data.header.main_book
        yield from beside(_figures(data, styles, main_model(data, best)))
        for book in books_of(costs, main):
            yield _paid(data, costs.filter(pl.col("book") == book), book, styles, best)
    if data.cost_assumptions is not None and not data.cost_assumptions.is_empty():
        yield "<h4>Assumptions</h4>"
        yield table(data.cost_assumptions, _ASSUMPTION_COLUMNS, label="Cost assumptions")


def _figures(data: ReportData, styles: Mapping[str, Style], model: str) -> Iterator[Block]:
    assert data.cost_breakdown is not None
    book = books_of(data.cost_breakdown, data.header.main_book)[0]
    yield (
        books.cost_breakdown(data.cost_breakdown, styles, book),
        "Costs per year by kind. 100 bps are 1% of NAV.",
    )
    equity = shown_rows(data.equity, data, model)
    if has_values(equity, "turnover") and has_values(equity, "unfilled"):
        window = rolling_window(equity.height)
        yield (
            analysis.trading(equity.sort("date"), short(model), styles[model], window),
            "Orders beyond the cap on participation, or in halted firms, are not filled; they are carried "
            "over or dropped, as the assumptions say.",
        )


def _paid(
    data: ReportData, costs: pl.DataFrame, book: str, styles: Mapping[str, Style], best: str | None
) -> str:
    """What every model paid in one book, with the turnover that it follows from."""
    kinds = books.cost_kinds(costs)
    frame = costs.with_columns(total=pl.sum_horizontal(*kinds))
    traded: list[Column] = []
    figures = data.books.figures
    if figures is not None:
        own = pl.col("book") == book, pl.col("delay") == data.header.verdict_delay
        means = figures.filter(*own).select(
            "model",
            "turnover",
            "unfilled",
            notional=2 * data.header.periods_per_year * pl.col("turnover"),
        )
        frame = frame.join(means, on="model", how="left", maintain_order="left")
        traded = [column for column in _TRADED_COLUMNS if has_values(frame, column.field)]
    columns = (
        MODEL_COLUMN,
        *traded,
        *(
            Column(kind, title, number(0), group="paid, bps of NAV per year")
            for kind, title in {**kinds, "total": "total"}.items()
        ),
    )
    label = f"Costs of {book} in basis points of NAV per year"
    written = table(frame, columns, label=label, styles=styles, highlight=best)
    return f"<div><h4>{short(book, 80)}</h4>{written}</div>"
