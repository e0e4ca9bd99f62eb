"""Charts of Shapley values, and of their comparison with the truth of a simulated market."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import plotly.graph_objects as go
import polars as pl

from pipelines.report.contents.attribution import ExampleForecast
from pipelines.report.theme import BLUE, MUTED, VERMILION, Style, axis, finish, safe, short, thin

MAX_PLAYERS = 24
MAX_CONTRIBUTIONS = 12
_KIND_COLOURS = {"days": "#0072B2", "features": "#009E73", "peers": "#D55E00"}
_METHOD_COLOURS = {"shap": "#0072B2", "attention": "#D55E00", "random": "#8a949e"}
_OTHER_COLOURS = ("#882255", "#E69F00", "#332288", "#56B4E9")


def share_of_ceiling(ladder: pl.DataFrame, styles: Mapping[str, Style], ceiling_ic: float) -> go.Figure:
    """Draw each model's test rank IC as a bar, with the rank IC of the true conditional mean as a line."""
    frame = ladder.reverse()
    share = frame["share_of_truth"].cast(pl.Float64).fill_nan(None).to_list()
    figure = go.Figure(
        go.Bar(
            x=frame["rank_ic"].to_list(),
            y=[short(model) for model in frame["model"].to_list()],
            orientation="h",
            marker={"color": [styles[model].colour for model in frame["model"].to_list()]},
            text=["" if value is None else f"{value:.0%}" for value in share],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:.4f}<extra></extra>",
            showlegend=False,
        )
    )
    figure.add_vline(
        x=ceiling_ic,
        line={"color": "#1f2933", "width": 2, "dash": "dash"},
        annotation={"text": f"true mean {ceiling_ic:.3f}", "yref": "paper", "y": 1.0, "yanchor": "bottom"},
        annotation_position="top",
    )
    return finish(
        figure,
        "Test rank IC against that of the true mean",
        130 + 30 * max(frame.height, 2),
        margin={"l": 64, "r": 40, "t": 66, "b": 48},
        xaxis=axis("mean daily rank IC (Spearman correlation)", zeroline=True),
        yaxis=axis("model", type="category"),
    )


def edge_roc(roc: pl.DataFrame, auc: Mapping[str, float]) -> go.Figure:
    """Draw one ROC curve per way of ranking the pairs of firms, with planted edges as positives."""
    figure = go.Figure()
    spare = iter(_OTHER_COLOURS * 4)
    for part in roc.partition_by("method", maintain_order=True):
        method = str(part["method"][0])
        curve = thin(part, 300)
        label = f"{short(method)} (AUC {auc[method]:.2f})" if method in auc else short(method)
        line = {
            "color": _METHOD_COLOURS[method] if method in _METHOD_COLOURS else next(spare),
            "width": 2.5,
            "dash": "dot" if method == "random" else "solid",
        }
        figure.add_trace(
            go.Scatter(
                x=curve["fpr"].cast(pl.Float32).to_numpy(),
                y=curve["tpr"].cast(pl.Float32).to_numpy(),
                mode="lines",
                name=label,
                line=line,
                hovertemplate="true positive rate %{y:.0%} at false positive rate %{x:.0%}",
            )
        )
    return finish(
        figure,
        "Planted edges recovered",
        420,
        xaxis=axis("false positive rate (share of the other pairs)", range=[-0.01, 1.01], tickformat=".0%"),
        yaxis=axis("true positive rate (share of the planted edges)", range=[-0.01, 1.03], tickformat=".0%"),
    )


def player_importance(players: pl.DataFrame, model: str) -> go.Figure:
    """Draw mean |SHAP| per player as bars, the largest at the top, coloured by the kind of player."""
    frame = players.sort("mean_abs_shap", descending=True).head(MAX_PLAYERS).reverse()
    spare = iter(_OTHER_COLOURS * 4)
    figure = go.Figure()
    for kind in players["kind"].unique(maintain_order=True).to_list():
        rows = frame.filter(pl.col("kind") == kind)
        figure.add_trace(
            go.Bar(
                x=rows["mean_abs_shap"].to_list(),
                y=[short(player) for player in rows["player"].to_list()],
                orientation="h",
                name=short(kind),
                marker={"color": _KIND_COLOURS[kind] if kind in _KIND_COLOURS else next(spare)},
                hovertemplate="%{y}: %{x:.4g}<extra></extra>",
            )
        )
    order = [short(player) for player in frame["player"].to_list()]
    return finish(
        figure,
        f"Mean absolute effect on the forecasts of {short(model)}",
        130 + 24 * max(frame.height, 3),
        barmode="stack",
        legend_traceorder="normal",
        xaxis=axis("mean |SHAP| (unit of the forecast)"),
        yaxis=axis("player", type="category", categoryorder="array", categoryarray=order),
    )


def one_forecast(example: ExampleForecast, model: str) -> go.Figure:
    """Draw one forecast as a waterfall from the base value to the forecast, one bar per player."""
    frame = example.contributions.sort(pl.col("value").abs(), descending=True)
    shown = frame.height if frame.height <= MAX_CONTRIBUTIONS + 1 else MAX_CONTRIBUTIONS
    names = [short(player) for player in frame["player"].head(shown).to_list()]
    values = frame["value"].head(shown).to_list()
    rest = frame.slice(shown)
    if not rest.is_empty():
        names.append(f"{rest.height} other players")
        values.append(float(rest["value"].sum()))
    steps = [example.base_value, *values, example.forecast]
    ends = [0.0, *accumulate([example.base_value, *values]), example.forecast]
    room = 0.12 * (max(ends) - min(ends) or 1.0)  # for the numbers next to the outermost bars
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            y=["base value", *names, "forecast"],
            x=steps,
            measure=["absolute", *["relative"] * len(values), "total"],
            text=[f"{value:+.3g}".replace("-", "\N{MINUS SIGN}") for value in steps],
            textposition="outside",
            cliponaxis=False,
            increasing={"marker": {"color": BLUE}},
            decreasing={"marker": {"color": VERMILION}},
            totals={"marker": {"color": MUTED}},
            connector={"line": {"color": "#b5bec8", "width": 1}},
            hovertemplate="%{y}: %{text}<extra></extra>",
            showlegend=False,
        )
    )
    return finish(
        figure,
        f"{safe(example.ticker)} on {safe(example.date)}: one forecast of {short(model)}",
        120 + 26 * (len(names) + 2),
        margin={"l": 64, "r": 56, "t": 48, "b": 48},
        xaxis=axis(
            "output of the model (unit of the forecast)",
            zeroline=True,
            range=[min(ends) - room, max(ends) + room],
        ),
        yaxis=axis("player, largest first", type="category", autorange="reversed"),
    )
