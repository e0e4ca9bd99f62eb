"""The sections on what a book was exposed to: sectors and styles, factors, and where its profit came from."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts import analysis
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import (
    Block,
    beside,
    has_values,
    in_book,
    main_model,
    paragraph,
    shown_rows,
)
from pipelines.pages.tables import TOTAL, Column, number, percent, signed, table, text
from pipelines.pages.theme import Style

_KINDS = {
    "sector": ("Net weight by sector", "net weight (fraction of NAV)"),
    "style": ("Exposure to styles", "weighted score (standard deviations)"),
}
_MEANINGS = {
    "sector": "Longs less shorts.",
    "style": "Weights times the firms' scores, added up.",
}
_FACTOR_COLUMNS = (
    Column("term", "term", text, numeric=False),
    Column("coefficient", "coefficient", signed(3)),
    Column("t", "t", signed(1)),
    Column("p_value", "p", number(3)),
    Column("per_year", "return % / year", percent(1), hint="coefficient times the factor's mean return"),
    Column("variance_share", "% of variance", percent(1), hint="share of the variance of the book's returns"),
)
_BREAKDOWNS = {"side": "By side", "sector": "By sector", "factor": "By factor", "name": "By name"}
_LARGEST = {"sector": analysis.largest_sectors, "name": analysis.largest_names}
_CAPTIONS = {
    "sector": f"At most {analysis.MAX_SECTORS} sectors, the largest by absolute net contribution; the others "
    "are added up. One sector that carries everything is a bet on that sector.",
    "factor": "What the factors explain of each session's profit; the rest is specific.",
    "name": f"The {analysis.MAX_NAMES} largest gains and losses. If few names carry everything, the result "
    "is luck or an error in the data.",
}
_PARTS = (
    Column("key", "", text, numeric=False),
    Column("gross", "before costs", percent(2), group="% of starting capital"),
    Column("cost", "costs", percent(2), group="% of starting capital"),
    Column("net", "net", percent(2), group="% of starting capital"),
)
_PART_FIELDS = tuple(column.field for column in _PARTS)


def exposure_blocks(data: ReportData, best: str | None) -> Iterator[Block]:
    """Draw the exposures of the main book to sectors and styles."""
    model = main_model(data, best)
    frame = shown_rows(data.books.exposures, data, model)
    if frame.is_empty():
        return
    yield paragraph(
        f"{in_book(data, model)}. A dot is the mean over sessions, the bar behind it reaches "
        "from the lowest to the highest session. A neutral book stays close to zero on every session, not "
        "only on average."
    )
    yield from beside(
        _exposure_figure(frame.filter(pl.col("kind") == kind), kind)
        for kind in _KINDS
        if kind in frame["kind"]
    )


def _exposure_figure(frame: pl.DataFrame, kind: str) -> Block:
    """Draw the exposures of one kind; of many sectors, the largest and the sum of the others."""
    caption = f"After the trades of each session. {_MEANINGS[kind]}"
    rows = frame.sort(pl.col("mean").abs(), descending=True)
    if kind == "sector":
        rows, others = analysis.largest_exposures(frame)
        if not others.is_empty():
            caption += (
                f" Shown are the {analysis.MAX_SECTORS} largest absolute means. The dot of the others is the "
                "sum of their means, without a range; each of them stayed between "
                f"{number(3)(others['low'].min())} and {number(3)(others['high'].max())}."
            )
    return analysis.exposure_ranges(rows, *_KINDS[kind]), caption


def factor_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Show the regression of net returns on factors, and the alpha of every model."""
    model = main_model(data, best)
    every = shown_rows(data.books.factor_alpha, data)
    own = every.filter(pl.col("model") == model) if not every.is_empty() else every
    if own.is_empty():
        return
    r2, sessions = own["r2"][0], own["sessions"][0]
    readings = own["reading"].drop_nulls().to_list() if "reading" in own.columns else []
    yield paragraph(
        f"{' '.join([*readings, ''])}Net returns of {in_book(data, model)}, regressed on factors built from "
        f"the panel itself, over {sessions:,} sessions, with Newey-West errors; R\N{SUPERSCRIPT TWO} is "
        f"{r2:.2f}. Alpha is the return per year that the factors do not explain (0.05 is 5%)."
    )
    columns = [column for column in _FACTOR_COLUMNS if has_values(own, column.field)]
    tables = [f"<div><h4>{html.escape(model)}</h4>{table(own, columns, label='Factor regression')}</div>"]
    alphas = every.filter(pl.col("term") == "alpha")
    if alphas.height > 1:
        shown = (
            Column("model", "model", text, numeric=False),
            Column("coefficient", "alpha % / year", percent(1)),
            *_FACTOR_COLUMNS[2:4],
            Column("r2", "R\N{SUPERSCRIPT TWO}", number(2)),
        )
        written = table(alphas, shown, label="Alpha by model", styles=styles, highlight=best)
        tables.append(f"<div><h4>Alpha of every model</h4>{written}</div>")
    yield from beside(tables)


def contribution_blocks(data: ReportData, best: str | None) -> Iterator[Block]:
    """Show the profit of the main book by side, sector, factor and name."""
    model = main_model(data, best)
    frame = shown_rows(data.books.contributions, data, model)
    if frame.is_empty():
        return
    yield paragraph(
        f"Profit of {in_book(data, model)}, as a share of the starting capital. Every breakdown adds up "
        "to the same total."
    )
    for by, title in _BREAKDOWNS.items():
        rows = frame.filter(pl.col("by") == by)
        if rows.is_empty():
            continue
        kept = (
            _LARGEST[by](rows) if by in _LARGEST else rows.select(*_PART_FIELDS).sort("net", descending=True)
        )
        total = rows.select(pl.lit(TOTAL).alias("key"), pl.col("gross", "cost", "net").sum())
        written = table(pl.concat([kept, total]), _PARTS, label=f"Contributions {title.lower()}")
        if by == "side":
            yield f"<h4>{title}</h4>{written}"
        else:
            figure = analysis.contributions(kept, f"Net contribution {title.lower()}")
            yield from beside(((figure, _CAPTIONS[by]), f"<div>{written}</div>"))
