"""Charts of how the models did: one function a figure, frames of :mod:`pipelines.report.data` in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from pipelines.report.theme import Style, axis, finish, short, thin

ROLLING_SESSIONS = 63
LOG_NAV_RATIO = 8.0  # growth beyond which a linear axis hides the early years
_COST_COLOURS = {"half_spread": "#33475b", "commission": "#7d93a8", "borrow": "#c9a227"}
_SEGMENT_COLOURS = {"train": "#9fb3c8", "valid": "#E69F00", "test": "#0072B2"}


def validation_against_test(ladder: pl.DataFrame, styles: Mapping[str, Style], delay: int) -> go.Figure:
    """Draw each model's rank IC on validation (hollow) and on test (filled), one row a model."""
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
        for model, style, rows in _by_model(frame, styles):
            path = rows.select("date", nav=pl.col(kind).cast(pl.Float64).fill_nan(None)).drop_nulls("nav")
            path = thin(path.with_columns(drawdown=pl.col("nav") / pl.col("nav").cum_max() - 1))
            extremes += [
                value for value in (path["nav"].min(), path["nav"].max()) if isinstance(value, float)
            ]
            line = {"color": style.colour, "dash": style.dash}
            shared: dict[str, Any] = {
                "x": _dates(path),
                "mode": "lines",
                "name": short(model),
                "legendgroup": model,
                "visible": kind == "nav_net",
            }
            shown += [kind == "nav_net"] * 2
            figure.add_trace(
                go.Scatter(
                    y=_floats(path["nav"]), line=line | {"width": 2}, hovertemplate="%{y:.3f}", **shared
                ),
                row=1,
                col=1,
            )
            figure.add_trace(
                go.Scatter(
                    y=_floats(path["drawdown"]),
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
    """Draw the running sum of daily rank ICs per model; sessions without one add nothing."""
    figure = go.Figure()
    for model, style, rows in _by_model(ic_series, styles):
        if rows.select(_rank_ic().is_null().all()).item():
            continue  # nothing is known: a flat line would look like a measured zero
        path = thin(rows.with_columns(y=_rank_ic().fill_null(0.0).cum_sum()))
        figure.add_trace(_line(path, model, style, "%{y:.2f}"))
    return finish(
        figure,
        "Cumulative rank IC on test sessions",
        400,
        hovermode="x unified",
        xaxis=axis("session"),
        yaxis=axis("sum of daily rank ICs", zeroline=True),
    )


def rolling_window(ic_series: pl.DataFrame) -> int:
    """Sessions that the rolling mean spans: 63, or a quarter of a test shorter than 126 sessions."""
    sessions = ic_series["date"].n_unique()
    return ROLLING_SESSIONS if sessions >= 2 * ROLLING_SESSIONS else max(1, sessions // 4)


def rolling_rank_ic(ic_series: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw the trailing mean of daily rank ICs per model, from the first full window on."""
    window = rolling_window(ic_series)
    figure = go.Figure()
    for model, style, rows in _by_model(ic_series, styles):
        # a day may have no rank IC: half a window of known days is asked for
        mean = _rank_ic().rolling_mean(window, min_samples=max(1, window // 2))
        path = thin(rows.with_columns(y=mean).slice(window - 1).drop_nulls("y"))
        if not path.is_empty():
            figure.add_trace(_line(path, model, style, "%{y:.3f}"))
    return finish(
        figure,
        f"Rolling rank IC, trailing {window} sessions",
        400,
        hovermode="x unified",
        xaxis=axis("session"),
        yaxis=axis("mean daily rank IC", zeroline=True, zerolinewidth=2),
    )


def quantile_returns(quantiles: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw the mean label by quantile of the forecast, grouped bars per model."""
    figure = go.Figure()
    for model, style, rows in _by_model(quantiles, styles, order="quantile"):
        bars = go.Bar(
            x=[f"Q{quantile}" for quantile in rows["quantile"].to_list()],
            y=_floats(rows["mean_return_bps"]),
            name=short(model),
            marker={"color": style.colour},
            hovertemplate=f"{short(model)}, %{{x}}: %{{y:.1f}} bps<extra></extra>",
        )
        figure.add_trace(bars)
    return finish(
        figure,
        "Mean return by quantile of the forecast",
        400,
        barmode="group",
        bargap=0.18,
        xaxis=axis("quantile of the forecast within its date (Q1 lowest)", type="category"),
        yaxis=axis("mean label (bps)", zeroline=True, zerolinewidth=2),
    )


def cost_breakdown(costs: pl.DataFrame, styles: Mapping[str, Style], book: str) -> go.Figure:
    """Draw what one book pays per year by kind of cost, one stacked bar a model."""
    order = [model for model in styles if model in set(costs["model"].to_list())]
    frame = pl.DataFrame({"model": order[::-1]}).join(
        costs.filter(pl.col("book") == book), on="model", maintain_order="left"
    )
    figure = go.Figure()
    for kind, colour in _COST_COLOURS.items():
        bars = go.Bar(
            x=_floats(frame[kind]),
            y=[short(model) for model in frame["model"].to_list()],
            orientation="h",
            name=kind,
            marker={"color": colour},
            hovertemplate=f"%{{y}}, {kind}: %{{x:.0f}} bps a year<extra></extra>",
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


def fold_timeline(folds: pl.DataFrame) -> go.Figure:
    """Draw each fold's train, validation and test sessions as bars over time; gaps are purge and embargo."""
    frame = folds.sort("fold")
    figure = go.Figure()
    for segment, title in (("train", "train"), ("valid", "validation"), ("test", "test")):
        x: list[object] = []
        y: list[object] = []
        for row in frame.iter_rows(named=True):
            name = f"fold {row['fold']}"
            x += [str(row[f"{segment}_from"]), str(row[f"{segment}_to"]), None]
            y += [name, name, None]
        bars = go.Scatter(
            x=x,
            y=y,
            mode="lines",
            connectgaps=False,
            name=title,
            line={"color": _SEGMENT_COLOURS[segment], "width": 14},
            hovertemplate=f"%{{y}}, {title}: %{{x}}<extra></extra>",
        )
        figure.add_trace(bars)
    return finish(
        figure,
        "Walk-forward folds",
        130 + 28 * max(frame.height, 2),
        xaxis=axis("session", type="date"),
        yaxis=axis("fold", type="category", range=[frame.height - 0.4, -0.6]),
    )


def learning_curves(learning: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw training loss and validation rank IC by epoch: thin lines are runs, thick ones their median."""
    panels = (("train_loss", "training loss"), ("valid_rank_ic", "validation rank IC"))
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.13)
    for column, (field, _) in enumerate(panels, start=1):
        for model, style, rows in _by_model(learning, styles, order="epoch"):
            shared: dict[str, Any] = {"name": short(model), "legendgroup": model, "mode": "lines"}
            x: list[npt.NDArray[np.float32]] = []
            y: list[npt.NDArray[np.float32]] = []
            gap = np.array([np.nan], dtype=np.float32)
            for run in rows.partition_by("fold", "seed", maintain_order=True):
                x += [_floats(run["epoch"]), gap]
                y += [_floats(run[field]), gap]
            thin_lines = go.Scatter(
                x=np.concatenate(x),
                y=np.concatenate(y),
                line={"color": style.colour, "width": 0.8},
                opacity=0.3,
                showlegend=False,
                hoverinfo="skip",
                **shared,
            )
            median = (
                rows.group_by("epoch")
                .agg(pl.col(field).cast(pl.Float64).fill_nan(None).median(), runs=pl.len())
                .sort("epoch")
            )
            # runs stop early one by one: a median over the few that last longest would bend the curve
            median = median.filter(pl.col("runs") * 2 >= pl.col("runs").max())
            thick_line = go.Scatter(
                x=_floats(median["epoch"]),
                y=_floats(median[field]),
                line={"color": style.colour, "width": 2.5, "dash": style.dash},
                showlegend=column == 1,
                hovertemplate="%{y:.4f}",
                **shared,
            )
            figure.add_trace(thin_lines, row=1, col=column)
            figure.add_trace(thick_line, row=1, col=column)
        figure.update_xaxes(**axis("epoch"), row=1, col=column)
        figure.update_yaxes(**axis(panels[column - 1][1]), row=1, col=column)
    return finish(figure, "Learning curves", 400, hovermode="x unified")


def _by_model(
    frame: pl.DataFrame, styles: Mapping[str, Style], order: str = "date"
) -> list[tuple[str, Style, pl.DataFrame]]:
    """Split a frame by model, in the ladder's order, each part sorted; models without rows are left out."""
    parts = []
    for model, style in styles.items():
        rows = frame.filter(pl.col("model") == model).sort(order)
        if not rows.is_empty():
            parts.append((model, style, rows))
    return parts


def _line(path: pl.DataFrame, model: str, style: Style, hover: str) -> go.Scatter:
    return go.Scatter(
        x=_dates(path),
        y=_floats(path["y"]),
        mode="lines",
        name=short(model),
        line={"color": style.colour, "dash": style.dash, "width": 2},
        hovertemplate=hover,
    )


def _rank_ic() -> pl.Expr:
    return pl.col("rank_ic").cast(pl.Float64).fill_nan(None)


def _dates(frame: pl.DataFrame) -> list[str]:
    return [str(date) for date in frame["date"].to_list()]


def _floats(series: pl.Series) -> npt.NDArray[np.float32]:
    """Give a column as float32, nulls as NaN: half the file of float64, and finer than any pixel."""
    return series.cast(pl.Float32).to_numpy()


def books_of(frame: pl.DataFrame, main: str) -> list[str]:
    """Books in a frame, the main one first, the others in order of appearance."""
    books: list[str] = frame["book"].unique(maintain_order=True).to_list()
    return sorted(books, key=lambda book: book != main)
