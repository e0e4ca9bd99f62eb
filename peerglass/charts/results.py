"""Charts of the models of a run, or of the signals of a backtest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from peerglass.charts.notebook import decorate, to_plotly
from peerglass.runs import Run
from pipelines.errors import ConfigError
from pipelines.pages.charts import books, signal
from pipelines.pages.theme import INK, MUTED, Style, axis, model_styles, short

if TYPE_CHECKING:
    from peerglass.signals import Backtest

    Results = Run | Backtest


def skill(results: Results, delay: int = 0) -> go.Figure:
    """Draw the mean daily IC of every model or signal with its 95% interval.

    The IC is that of the mean over seeds. The interval is 1.96 Newey-West standard errors. On a simulated
    market, a dashed line shows the IC of the true conditional mean, which no forecast can exceed on average.
    """
    ladder = _at_delay(_table(results, "ladder"), delay)
    styles = model_styles(ladder["model"].to_list())
    rows = ladder.with_columns(pl.col("ensemble_ic", "ic_t").fill_nan(None)).reverse()
    half = [
        None if ic is None or not t else 1.96 * abs(ic / t)
        for ic, t in rows.select("ensemble_ic", "ic_t").iter_rows()
    ]
    figure = go.Figure(
        {
            "type": "bar",
            "orientation": "h",
            "x": rows["ensemble_ic"].to_list(),
            "y": [short(name) for name in rows["model"]],
            "marker": {"color": [styles[name].colour for name in rows["model"]]},
            "error_x": {"type": "data", "array": half, "color": INK, "thickness": 1.2, "width": 4},
            "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
        }
    )
    decorate(figure, f"Mean daily IC on the test, delay {delay}, with 95% intervals")
    truth = None if "truth_ic" not in ladder.columns else ladder["truth_ic"].drop_nulls()
    if truth is not None and len(truth):
        figure.add_vline(
            x=float(truth[0]),
            line={"color": INK, "dash": "dash", "width": 2},
            annotation_text=f"true mean {truth[0]:.3f}",
            annotation_position="top",
        )
    figure.update_layout(
        height=150 + 34 * max(rows.height, 2),
        xaxis=axis("mean daily correlation of forecast and return", zeroline=True, zerolinewidth=2),
        yaxis=axis("", type="category"),
    )
    return figure


def cumulative_ic(results: Results, delay: int = 0) -> go.Figure:
    """Draw the cumulative sum of daily rank ICs; a straight line is steady skill."""
    frame = _at_delay(_table(results, "ic_series"), delay)
    return to_plotly(signal.cumulative_rank_ic(frame, _styles(results)))


def quantiles(results: Results, delay: int = 0) -> go.Figure:
    """Draw the mean return of the firms in each quantile of the forecasts, in basis points."""
    frame = _at_delay(_table(results, "quantiles"), delay)
    return to_plotly(signal.quantile_returns(frame, _styles(results)))


def ic_decay(results: Results) -> go.Figure:
    """Draw the mean rank IC against the number of sessions between the forecast and the trade."""
    frame = _table(results, "ic_decay").filter(pl.col("horizon") == results.config.label.horizon)
    return to_plotly(signal.ic_decay(frame, "delay", "Rank IC by delay of the trade", _styles(results)))


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
    rows = frame.filter(pl.col("sharpe_net").is_not_null()).reverse()
    if rows.is_empty():
        raise ConfigError(f"No Sharpe ratio of a book {book!r} at delay {delay} was measured.")
    styles = _styles(results)
    names = [short(name) for name in rows["model"]]
    value = rows["sharpe_net"]
    figure = go.Figure(
        {
            "type": "scatter",
            "mode": "markers",
            "x": value.to_list(),
            "y": names,
            "marker": {"size": 12, "color": [styles[name].colour for name in rows["model"]]},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": (rows["sharpe_upper"] - value).to_list(),
                "arrayminus": (value - rows["sharpe_lower"]).to_list(),
                "color": MUTED,
            },
            "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
        }
    )
    decorate(
        figure, f"Net Sharpe ratio, {short(book)}, delay {delay}, {int(rows['trials'][0])} trials counted"
    )
    for name, row in zip(names, rows.iter_rows(named=True), strict=True):
        single, deflated = row["probabilistic_sharpe"], row["deflated_sharpe"]
        figure.add_annotation(
            x=1.0,
            xref="paper",
            xanchor="left",
            y=name,
            showarrow=False,
            align="left",
            text=f"  P(>0) {_share(single)}, deflated {_share(deflated)}",
        )
    figure.add_vline(x=0.0, line={"color": INK, "width": 1})
    figure.update_layout(
        height=150 + 34 * max(rows.height, 2),
        margin={"r": 190},
        xaxis=axis("annualised net Sharpe ratio, 95% bootstrap interval"),
        yaxis=axis("", type="category"),
    )
    return figure


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(results: Results, name: str) -> pl.DataFrame:
    if isinstance(results, Run):
        return results.table(name)
    if name not in results.tables:
        raise ConfigError(f"The backtest has no table {name!r}, only {', '.join(sorted(results.tables))}.")
    return results.tables[name]


def _styles(results: Results) -> dict[str, Style]:
    return model_styles(_table(results, "ladder")["model"].unique(maintain_order=True).to_list())


def _at_delay(frame: pl.DataFrame, delay: int) -> pl.DataFrame:
    rows = frame.filter(pl.col("delay") == delay)
    if rows.is_empty():
        known = ", ".join(str(one) for one in sorted(set(frame["delay"].to_list())))
        raise ConfigError(f"Nothing was measured at delay {delay}, only at {known}.")
    return rows
