"""The section on holdings: positions and trades of any session, chosen with a date picker."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.pages.contents.report import ReportData
from pipelines.pages.holdings import select_holdings, to_json
from pipelines.pages.sections.section import Block, in_book, main_model, paragraph, shown_rows
from pipelines.pages.tables import Column, number, percent, signed, table, text

_BPS = 1e4
_PRINTED = 30  # rows on paper; report.css hides the others
_COLUMNS = (
    Column("ticker", "name", text, numeric=False),
    Column("weight", "weight %", percent(2)),
    Column("trade", "traded %", percent(2)),
    Column("pnl", "profit bps", lambda value: signed(1)(_BPS * value)),
    Column("cost", "cost bps", lambda value: number(2)(_BPS * value)),
)


def holding_blocks(data: ReportData, best: str | None) -> Iterator[Block]:
    """Show the newest session's positions; the picker of the page shows those of any other session."""
    model = main_model(data, best)
    positions = shown_rows(data.books.positions, data, model)
    if positions.is_empty():
        return
    kept = select_holdings(positions)
    last = kept.totals.row(-1, named=True)
    where = "" if data.header.tables is None else f" in {data.header.tables}, beside this report"
    left_out = (
        ""
        if kept.complete
        else f" To keep this page small, a session shows its {kept.names_per_date} largest positions and "
        f"{kept.names_per_date // 2} largest trades; all of them are in positions.parquet{where}."
    )
    yield paragraph(
        f"{in_book(data, model)}: weights at the close as shares of NAV, and what was traded that session; "
        f"profit before costs and costs in bps of NAV.{left_out}"
    )
    first, newest = kept.totals["date"][0], last["date"]
    yield (
        '<div class="picker" hidden><button type="button" data-step="-1" aria-label="Previous session">'
        '\N{LEFTWARDS ARROW}</button><label>session <input type="date" '
        f'min="{first}" max="{newest}" value="{newest}"></label>'
        '<button type="button" data-step="1" aria-label="Next session">\N{RIGHTWARDS ARROW}</button>'
        '<label><input type="checkbox"> only what was traded</label></div>'
    )
    yield f'<p id="holdings-total" aria-live="polite">{_summary(last)}</p>'
    rows = kept.rows.filter(pl.col("date") == newest)
    yield f'<div id="holdings-table">{table(rows, _COLUMNS, label="Positions of one session")}</div>'
    if rows.height > _PRINTED:
        yield f'<p class="printed">The first {_PRINTED} rows of {rows.height} are printed.</p>'
    yield f'<script type="application/json" id="holdings-data">{to_json(kept)}</script>'


def _summary(total: dict[str, object]) -> str:
    def of(name: str) -> float:
        value = total[name]
        assert isinstance(value, int | float)
        return float(value)

    return (
        f"{total['date']}: {total['names']:,} names, gross {percent(1)(of('gross'))}%, net "
        f"{percent(1)(of('net'))}%, traded {percent(1)(of('traded'))}%, profit {signed(1)(_BPS * of('pnl'))} "
        f"bps, costs {number(1)(_BPS * of('cost'))} bps"
    )
