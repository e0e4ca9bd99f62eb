"""The sections on performance over time: rolling measures with bands, and returns by month."""

from __future__ import annotations

import calendar
from collections.abc import Iterator, Mapping

import polars as pl

from backtest.analysis.rolling import monthly_returns, rolling_window
from pipelines.pages.charts.rolling import rolling_charts
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import Block, beside, in_book, main_model, paragraph, shown_rows
from pipelines.pages.tables import DASH, percent
from pipelines.pages.theme import Style
from pipelines.results.comparisons import BASELINES

_FULL_COLOUR = 0.08  # a monthly return of this size has the strongest background


def rolling_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Draw rolling Sharpe ratio, volatility and rank IC of the main book."""
    equity, series = shown_rows(data.equity, data), data.ic_series
    longest = max(0 if f is None or f.is_empty() else f["date"].n_unique() for f in (equity, series))
    if longest < 20:
        return
    window = rolling_window(longest)
    chosen = main_model(data, best)
    shown = (chosen, *(m for m in data.models if m in BASELINES and m != chosen))
    figures = rolling_charts(
        None if equity.is_empty() else equity,
        None if series is None or series.is_empty() else series,
        styles,
        shown,
        window=window,
        lags=data.header.label_horizon - 1,
        year=data.header.periods_per_year,
    )
    yield paragraph(
        f"Each point is measured on the {window} sessions up to its date. The band is {chosen} "
        "\N{PLUS-MINUS SIGN} 1.96 standard errors: for the Sharpe ratio and the volatility with the skewness "
        "and kurtosis of the window, without autocorrelation; for the IC by Newey-West, with the lags over "
        "which labels overlap. Neighbouring points share sessions, so the band is about one point, not about "
        "the whole line. Other models can be switched on in the legend."
    )
    captions = {
        "Sharpe": "A band that holds zero for years is no evidence of skill.",
        "rank IC": "Below zero, the firms with higher forecasts had lower returns.",
    }
    yield from beside(
        (
            figure,
            next(
                (words for name, words in captions.items() if name in figure.title),
                "Standard deviation of the net returns of sessions, per year.",
            ),
        )
        for figure in figures
    )


def monthly_blocks(data: ReportData, best: str | None) -> Iterator[Block]:
    """Show the net returns of the main book by month, with the total of each year."""
    model = main_model(data, best)
    book = shown_rows(data.equity, data, model)
    if book.is_empty():
        return
    returns = monthly_returns(book.sort("date"))
    cells = {(year, month): net for year, month, net in returns.iter_rows()}
    head = "".join(f'<th scope="col" class="num">{calendar.month_abbr[m]}</th>' for m in range(1, 13))
    body = "".join(
        f'<tr><th scope="row">{year}</th>'
        + "".join(_cell(cells.get((year, month))) for month in range(1, 13))
        + f"{_cell(cells[year, 0], total=True)}</tr>"
        for year in returns["year"].unique().sort().to_list()
    )
    months = returns.filter(pl.col("month") > 0)["net"]
    positive = (months > 0).mean()
    assert isinstance(positive, float)
    yield paragraph(
        f"Net return of {in_book(data, model)}, % per month. {positive:.0%} of {months.len()} months "
        f"are positive. Months at the ends of the test may be partial; a year is compounded from its months."
    )
    yield (
        '<div class="scroll short months" tabindex="0" role="region" aria-label="Net return by month">'
        f'<table><thead><tr><th scope="col">year</th>{head}<th scope="col" class="num">year</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: float | None, *, total: bool = False) -> str:
    """One return in per cent; the background repeats sign and size."""
    if value is None:
        return f'<td class="num">{DASH}</td>'
    share = min(abs(value) / (_FULL_COLOUR * (4 if total else 1)), 1.0)
    colour = "0,114,178" if value >= 0 else "213,94,0"
    written = percent(1)(value)
    return (
        f'<td class="num" style="background:rgba({colour},{0.45 * share:.2f})">'
        f"{f'<b>{written}</b>' if total else written}</td>"
    )
