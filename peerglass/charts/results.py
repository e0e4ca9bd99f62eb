"""Charts of the models of a run, or of the signals of a backtest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from peerglass.charts.notebook import to_plotly
from peerglass.runs import Run
from pipelines.errors import ConfigError
from pipelines.pages.charts import books, models
from pipelines.pages.figure import LineStyle, model_styles

if TYPE_CHECKING:
    from peerglass.signals import Backtest

    Results = Run | Backtest


def skill(results: Results, delay: int = 0) -> go.Figure:
    """Draw the mean daily IC of every model or signal with its 95% interval.

    The IC is that of the mean over seeds. The interval is 1.96 Newey-West standard errors. On a simulated
    market, a dashed line shows the IC of the true conditional mean, which no forecast can exceed on average.
    """
    ladder = _at_delay(_table(results, "ladder"), delay)
    return to_plotly(models.skill(ladder, _styles(results), delay))


def cumulative_ic(results: Results, delay: int = 0) -> go.Figure:
    """Draw the cumulative sum of daily rank ICs; a straight line is steady skill."""
    frame = _at_delay(_table(results, "ic_series"), delay)
    return to_plotly(models.cumulative_rank_ic(frame, _styles(results)))


def quantiles(results: Results, delay: int = 0) -> go.Figure:
    """Draw the mean return of the firms in each quantile of the forecasts, in basis points."""
    frame = _at_delay(_table(results, "quantiles"), delay)
    return to_plotly(models.quantile_returns(frame, _styles(results)))


def ic_decay(results: Results) -> go.Figure:
    """Draw the mean rank IC against the number of sessions between the forecast and the trade."""
    frame = _table(results, "ic_decay").filter(pl.col("horizon") == results.config.label.horizon)
    return to_plotly(models.ic_decay(frame, "delay", "Rank IC by delay of the trade", _styles(results)))


def net_asset_value(results: Results, book: str, delay: int = 1) -> go.Figure:
    """Draw the NAV and the drawdown of a book; a menu switches between net and gross of costs."""
    frame = _at_delay(_table(results, "equity"), delay)
    if book not in set(frame["book"]):
        known = ", ".join(frame["book"].unique(maintain_order=True).to_list())
        raise ConfigError(f"There is no book {book!r}, only {known}.")
    return to_plotly(books.net_asset_value(frame, _styles(results), book, None))


def sharpe(results: Results, book: str, delay: int = 1) -> go.Figure:
    """Draw the net Sharpe ratio of every model or signal with its bootstrap interval.

    The numbers at the right are the probabilistic Sharpe ratio, which is the probability that the true Sharpe
    ratio is above 0, and the deflated one, which asks for more than the best of all trials would have by luck
    (Bailey and Lopez de Prado 2014).
    """
    frame = _at_delay(_table(results, "significance"), delay).filter(pl.col("book") == book)
    rows = frame.filter(pl.col("sharpe_net").is_not_null())
    if rows.is_empty():
        raise ConfigError(f"No Sharpe ratio of a book {book!r} at delay {delay} was measured.")
    title = f"Net Sharpe ratio, {book}, delay {delay}, {int(rows['trials'][0])} trials counted"
    return to_plotly(models.sharpe(rows, _styles(results), title))


def _table(results: Results, name: str) -> pl.DataFrame:
    if isinstance(results, Run):
        return results.table(name)
    if name not in results.tables:
        raise ConfigError(f"The backtest has no table {name!r}, only {', '.join(sorted(results.tables))}.")
    return results.tables[name]


def _styles(results: Results) -> dict[str, LineStyle]:
    return model_styles(_table(results, "ladder")["model"].unique(maintain_order=True).to_list())


def _at_delay(frame: pl.DataFrame, delay: int) -> pl.DataFrame:
    rows = frame.filter(pl.col("delay") == delay)
    if rows.is_empty():
        known = ", ".join(str(one) for one in sorted(set(frame["delay"].to_list())))
        raise ConfigError(f"Nothing was measured at delay {delay}, only at {known}.")
    return rows
