"""Charts of forecasts and books, drawn from the frames of :class:`.contents.report.ReportData`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from pipelines.report.charts.series import by_model, date_strings, float32, line, rank_ic
from pipelines.report.theme import Style, axis, finish, short, thin

ROLLING_SESSIONS = 63
LOG_NAV_RATIO = 8.0  # ratio of the largest to the smallest NAV above which the axis is logarithmic
COST_KINDS = {
    "half_spread": "half-spread",
    "commission": "commission",
    "impact": "impact",
    "borrow": "borrow",
    "financing": "financing",
}
_COST_COLOURS = {
    "half_spread": "#33475b",
    "commission": "#7d93a8",
    "impact": "#a8324a",
    "borrow": "#c9a227",
    "financing": "#5b8c5a",
}


def validation_against_test(ladder: pl.DataFrame, styles: Mapping[str, Style], delay: int) -> go.Figure:
    """Draw each model's rank IC on validation (hollow) and on test (filled), one row per model."""
    frame = ladder.filter(pl.col("delay") == delay).reverse()
    figure = go.Figure()
    for row in frame.iter_rows(named=True):
        style = styles[row["model"]]
        name = short(row["model"])
        pair = [row["valid_rank_ic"], row["rank_ic"]]
        figure.add_trace(
            go.Scatter(
                x=pair,
                y=[name, name],
                mode="lines+markers",
                line={"color": style.colour, "width": 2},
                marker={
                    "size": 12,
                    "symbol": ["circle-open", "circle"],
                    "color": style.colour,
                    "line": {"width": 2, "color": style.colour},
                },
                text=["validation", "test"],
                hovertemplate=f"{name}, %{{text}}: %{{x:.4f}}<extra></extra>",
                showlegend=False,
            )
        )
    for label, symbol in (("validation", "circle-open"), ("test", "circle")):
        marker = {"size": 12, "symbol": symbol, "color": "#667380", "line": {"width": 2, "color": "#667380"}}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=label))
    return finish(
        figure,
        "Rank IC on validation and on test",
        120 + 34 * frame.height,
        xaxis=axis("mean daily rank IC (Spearman correlation)", zeroline=True, zerolinewidth=2),
        yaxis=axis("model", type="category"),
    )


def net_asset_value(equity: pl.DataFrame, styles: Mapping[str, Style], book: str) -> go.Figure:
    """Draw one book's NAV and drawdown per model; buttons switch between net and gross of costs."""
    frame = equity.filter(pl.col("book") == book)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.7, 0.3], vertical_spacing=0.05)
    shown: list[bool] = []
    extremes: list[float] = []
    for kind in ("nav_net", "nav_gross"):
        for model, style, rows in by_model(frame, styles):
            path = rows.select("date", nav=pl.col(kind).cast(pl.Float64).fill_nan(None)).drop_nulls("nav")
            path = thin(path.with_columns(drawdown=pl.col("nav") / pl.col("nav").cum_max() - 1))
            extremes += [
                value for value in (path["nav"].min(), path["nav"].max()) if isinstance(value, float)
            ]
            line = {"color": style.colour, "dash": style.dash}
            shared: dict[str, Any] = {
                "x": date_strings(path),
                "mode": "lines",
                "name": short(model),
                "legendgroup": model,
                "visible": kind == "nav_net",
            }
            shown += [kind == "nav_net"] * 2
            figure.add_trace(
                go.Scatter(
                    y=float32(path["nav"]), line=line | {"width": 2}, hovertemplate="%{y:.3f}", **shared
                ),
                row=1,
                col=1,
            )
            figure.add_trace(
                go.Scatter(
                    y=float32(path["drawdown"]),
                    line=line | {"width": 1.2},
                    showlegend=False,
                    hovertemplate="%{y:.1%}",
                    **shared,
                ),
                row=2,
                col=1,
            )
    wide = bool(extremes) and min(extremes) > 0 and max(extremes) / min(extremes) > LOG_NAV_RATIO
    figure.update_xaxes(**axis(""), showticklabels=False, row=1, col=1)
    figure.update_xaxes(**axis("session"), row=2, col=1)
    figure.update_yaxes(
        **axis("NAV (1 at the start)" + (", log scale" if wide else ""), type="log" if wide else "linear"),
        row=1,
        col=1,
    )
    figure.update_yaxes(**axis("drawdown (% of peak)", tickformat=".0%"), row=2, col=1)
    buttons = [
        {"label": label, "method": "restyle", "args": [{"visible": [s == net for s in shown]}]}
        for label, net in (("net of costs", True), ("gross", False))
    ]
    return finish(
        figure,
        f"Net asset value: {short(book, 48)}",
        560,
        hovermode="x unified",
        margin={"l": 64, "r": 16, "t": 62, "b": 48},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "buttons": buttons,
                "x": 1,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
                "pad": {"t": 0, "b": 0, "r": 0},
                "font": {"size": 12},
                "bgcolor": "#f4f6f8",
                "bordercolor": "#cbd2d9",
                "showactive": True,
            }
        ],
    )


def cumulative_rank_ic(ic_series: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw the cumulative sum of daily rank ICs per model; sessions without a rank IC count as 0."""
    figure = go.Figure()
    for model, style, rows in by_model(ic_series, styles):
        if rows.select(rank_ic().is_null().all()).item():
            continue  # without any rank IC, a flat line would look like a measured zero
        path = thin(rows.with_columns(y=rank_ic().fill_null(0.0).cum_sum()))
        figure.add_trace(line(path, model, style, "%{y:.2f}"))
    return finish(
        figure,
        "Cumulative rank IC on the test sessions",
        400,
        hovermode="x unified",
        xaxis=axis("session"),
        yaxis=axis("sum of daily rank ICs", zeroline=True),
    )


def rolling_window(ic_series: pl.DataFrame) -> int:
    """Length of the rolling mean: 63 sessions, or a quarter of the test if it has fewer than 126 sessions."""
    sessions = ic_series["date"].n_unique()
    return ROLLING_SESSIONS if sessions >= 2 * ROLLING_SESSIONS else max(1, sessions // 4)


def rolling_rank_ic(ic_series: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw the trailing mean of daily rank ICs per model, starting at the first full window."""
    window = rolling_window(ic_series)
    figure = go.Figure()
    for model, style, rows in by_model(ic_series, styles):
        # some days have no rank IC: half of the window must be known
        mean = rank_ic().rolling_mean(window, min_samples=max(1, window // 2))
        path = thin(rows.with_columns(y=mean).slice(window - 1).drop_nulls("y"))
        if not path.is_empty():
            figure.add_trace(line(path, model, style, "%{y:.3f}"))
    return finish(
        figure,
        f"Rank IC, mean over the last {window} sessions",
        400,
        hovermode="x unified",
        xaxis=axis("session"),
        yaxis=axis("mean daily rank IC", zeroline=True, zerolinewidth=2),
    )


def quantile_returns(quantiles: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw the mean label by quantile of the forecast, grouped bars per model."""
    figure = go.Figure()
    for model, style, rows in by_model(quantiles, styles, order="quantile"):
        bars = go.Bar(
            x=[f"Q{quantile}" for quantile in rows["quantile"].to_list()],
            y=float32(rows["mean_return_bps"]),
            name=short(model),
            marker={"color": style.colour},
            hovertemplate=f"{short(model)}, %{{x}}: %{{y:.1f}} bps<extra></extra>",
        )
        figure.add_trace(bars)
    return finish(
        figure,
        "Mean return by forecast quantile",
        400,
        barmode="group",
        bargap=0.18,
        xaxis=axis("quantile of the forecasts of a date (Q1 = lowest)", type="category"),
        yaxis=axis("mean label (bps)", zeroline=True, zerolinewidth=2),
    )


def cost_breakdown(costs: pl.DataFrame, styles: Mapping[str, Style], book: str) -> go.Figure:
    """Draw the costs of one book per year by kind, one stacked bar per model."""
    order = [model for model in styles if model in set(costs["model"].to_list())]
    frame = pl.DataFrame({"model": order[::-1]}).join(
        costs.filter(pl.col("book") == book), on="model", maintain_order="left"
    )
    figure = go.Figure()
    for kind, colour in _COST_COLOURS.items():
        bars = go.Bar(
            x=float32(frame[kind]),
            y=[short(model) for model in frame["model"].to_list()],
            orientation="h",
            name=COST_KINDS[kind],
            marker={"color": colour},
            hovertemplate=f"%{{y}}, {COST_KINDS[kind]}: %{{x:.0f}} bps per year<extra></extra>",
        )
        figure.add_trace(bars)
    return finish(
        figure,
        f"Cost per year: {short(book, 48)}",
        120 + 30 * max(frame.height, 2),
        barmode="stack",
        legend_traceorder="normal",
        xaxis=axis("bps of NAV per year"),
        yaxis=axis("model", type="category"),
    )
