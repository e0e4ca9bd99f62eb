"""The section on key figures: one column per model for the main book, at the delay of the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import (
    Block,
    count_sessions,
    has_values,
    main_model,
    paragraph,
    shown_rows,
)
from pipelines.pages.tables import Column, figures_table, number, percent, signed
from pipelines.pages.theme import Style
from pipelines.results.comparisons import BASELINES

MAX_MODELS = 8
_ROWS = (
    Column("annual_return_gross", "gross return, % / year", percent(1), hint="before costs"),
    Column("annual_return_net", "net return, % / year", percent(1), hint="after costs"),
    Column("annual_volatility_net", "volatility, % / year", percent(1)),
    Column("sharpe_gross", "gross Sharpe", number(2)),
    Column("sharpe_net", "net Sharpe", number(2)),
    Column("sharpe_lower", "95% interval from", number(2), hint="of the net Sharpe ratio"),
    Column("sharpe_upper", "to", number(2), hint="of the net Sharpe ratio"),
    Column(
        "deflated_sharpe",
        "deflated Sharpe",
        number(2),
        hint="probability of skill, given the number of trials in the ledger",
    ),
    Column("sortino_net", "Sortino", number(2)),
    Column("calmar_net", "Calmar", number(2), hint="return per year over the largest drawdown"),
    Column("max_drawdown_net", "max drawdown, %", percent(1)),
    Column("hit_rate_net", "hit rate, %", percent(1), hint="share of sessions with a gain"),
    Column("skew_net", "skewness", signed(2), hint="of daily net returns"),
    Column("worst_day_net", "worst day, %", percent(2)),
    Column("best_day_net", "best day, %", percent(2)),
    Column("leverage", "leverage", number(2), hint="gross value of positions over NAV"),
    Column("net_exposure", "net exposure, % of NAV", percent(1)),
    Column("turnover", "turnover, % / session", percent(1), hint="one-way, of NAV"),
    Column("unfilled", "unfilled, % / session", percent(2), hint="one-way, of NAV"),
    Column("n_sessions", "sessions", number(0)),
    Column("signal_dates", "dates with signals", number(0)),
    Column("decisions", "dates with decisions", number(0), hint="dates with signals that the book used"),
)


def figure_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Show the column of figures of the chosen model beside those of the baselines and other models."""
    frame = shown_rows(data.books.figures, data)
    if frame.is_empty():
        return
    tested = data.verdict_ladder.select("model", "sharpe_lower", "sharpe_upper", "deflated_sharpe")
    frame = frame.join(tested, on="model", how="left", maintain_order="left")
    order = {model: place for place, model in enumerate(_order(data, main_model(data, best)))}
    frame = frame.sort(pl.col("model").replace_strict(order, default=len(order)), maintain_order=True)
    hidden = frame.height - MAX_MODELS
    yield paragraph(
        f"{data.header.main_book}, traded at the close {count_sessions(data.header.execution_delay)} after "
        f"the forecast. Net figures are after costs; Sharpe ratios are in excess of "
        f"{data.header.sharpe_rate}. A year has {data.header.periods_per_year:g} sessions. Turnover and "
        "unfilled orders are one-way, as shares of NAV."
        + (f" {hidden} further models are in the tables of the evaluation." if hidden > 0 else "")
    )
    rows = [row for row in _ROWS if has_values(frame, row.field)]
    yield figures_table(
        frame.head(MAX_MODELS), rows, label="Key figures by model", styles=styles, highlight=best
    )


def _order(data: ReportData, chosen: str) -> list[str]:
    """The chosen model, the baselines, and the other models in the order of the ladder."""
    baselines = [model for model in data.models if model in BASELINES and model != chosen]
    return [chosen, *baselines, *(m for m in data.models if m != chosen and m not in baselines)]
