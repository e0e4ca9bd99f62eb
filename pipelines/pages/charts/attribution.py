"""Charts of Shapley values, and of their comparison with the truth of a simulated market."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate

import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.contents.attribution import ExampleForecast
from pipelines.pages.theme import BLUE, INK, MUTED, VERMILION, Style, axis, short, thin

MAX_PLAYERS = 24
MAX_CONTRIBUTIONS = 12
_KIND_COLOURS = {"days": "#0072B2", "features": "#009E73", "peers": "#D55E00"}
_METHOD_COLOURS = {"shap": "#0072B2", "attention": "#D55E00", "random": "#8a949e"}
_OTHER_COLOURS = ("#882255", "#E69F00", "#332288", "#56B4E9")


def share_of_ceiling(ladder: pl.DataFrame, styles: Mapping[str, Style], ceiling_ic: float) -> Figure:
    """Draw each model's test rank IC as a bar, with the rank IC of the true conditional mean as a line."""
    frame = ladder.reverse()
    share = frame["share_of_truth"].cast(pl.Float64).fill_nan(None).to_list()
    bars: Trace = {
        "type": "bar",
        "x": floats(frame["rank_ic"]),
        "y": [short(model) for model in frame["model"].to_list()],
        "orientation": "h",
        "marker": {"color": [styles[model].colour for model in frame["model"].to_list()]},
        "text": ["" if value is None else f"{value:.0%}" for value in share],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
    }
    vertical = {"x0": ceiling_ic, "x1": ceiling_ic, "y0": 0, "y1": 1, "yref": "paper"}
    return draw(
        "Test rank IC against that of the true mean",
        110 + 28 * max(frame.height, 2),
        [bars],
        {
            "margin": {"l": 56, "r": 34, "t": 28, "b": 44},
            "xaxis": axis("mean daily rank IC (Spearman correlation)", zeroline=True),
            "yaxis": axis("", type="category"),
            "shapes": [{"type": "line", **vertical, "line": {"color": INK, "width": 2, "dash": "dash"}}],
            "annotations": [
                {
                    "x": ceiling_ic,
                    "y": 1.0,
                    "yref": "paper",
                    "yanchor": "bottom",
                    "xanchor": "right",
                    "showarrow": False,
                    "text": f"true mean {ceiling_ic:.3f}",
                }
            ],
        },
    )


def edge_roc(roc: pl.DataFrame, auc: Mapping[str, float]) -> Figure:
    """Draw one ROC curve per way of ranking the pairs of firms, with planted edges as positives."""
    traces: list[Trace] = []
    spare = iter(_OTHER_COLOURS * 4)
    for part in roc.partition_by("method", maintain_order=True):
        method = str(part["method"][0])
        curve = thin(part, 300)
        colour = _METHOD_COLOURS[method] if method in _METHOD_COLOURS else next(spare)
        traces.append(
            {
                "type": "scatter",
                "x": floats(curve["fpr"]),
                "y": floats(curve["tpr"]),
                "mode": "lines",
                "name": f"{short(method)} (AUC {auc[method]:.2f})" if method in auc else short(method),
                "line": {"color": colour, "width": 2.5, "dash": "dot" if method == "random" else "solid"},
                "hovertemplate": "true positive rate %{y:.0%} at false positive rate %{x:.0%}",
            }
        )
    return draw(
        "Planted edges recovered",
        400,
        traces,
        {
            "xaxis": axis(
                "false positive rate (share of other pairs)", range=[-0.01, 1.01], tickformat=".0%"
            ),
            "yaxis": axis("true positive rate", range=[-0.01, 1.03], tickformat=".0%"),
        },
    )


def player_importance(players: pl.DataFrame, model: str, unit: str) -> Figure:
    """Draw mean |SHAP| per player with its Monte Carlo error, the largest at the top, coloured by kind."""
    frame = players.sort("mean_abs_shap", descending=True).head(MAX_PLAYERS).reverse()
    spare = iter(_OTHER_COLOURS * 4)
    traces: list[Trace] = []
    for kind in players["kind"].unique(maintain_order=True).to_list():
        rows = frame.filter(pl.col("kind") == kind)
        traces.append(
            {
                "type": "bar",
                "x": floats(rows["mean_abs_shap"]),
                "y": [short(player) for player in rows["player"].to_list()],
                "orientation": "h",
                "name": short(kind),
                "marker": {"color": _KIND_COLOURS[kind] if kind in _KIND_COLOURS else next(spare)},
                "error_x": _errors(rows["error"]),
                "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
            }
        )
    order = [short(player) for player in frame["player"].to_list()]
    return draw(
        f"Mean absolute effect on the forecasts of {model}",
        90 + 22 * max(frame.height, 3),
        traces,
        {
            "barmode": "stack",
            "xaxis": axis(f"mean |SHAP| ({unit})"),
            "yaxis": axis("", type="category", categoryorder="array", categoryarray=order),
        },
    )


def skill_by_player(skill: pl.DataFrame, model: str) -> Figure:
    """Draw the rank IC that each player carries, with its standard error over dates, the largest on top."""
    players = skill.filter(~pl.col("kind").is_in(["base", "total"]))
    frame = players.sort("value", descending=True).head(MAX_PLAYERS).reverse()
    total = skill.filter(pl.col("kind") == "total").row(0, named=True)
    kinds = ["features" if kind == "family" else kind for kind in frame["kind"]]
    trace: Trace = {
        "type": "bar",
        "x": floats(frame["value"]),
        "y": [short(player) for player in frame["player"].to_list()],
        "orientation": "h",
        "marker": {"color": [_KIND_COLOURS.get(kind, _OTHER_COLOURS[0]) for kind in kinds]},
        "error_x": _errors(frame["error"]),
        "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
    }
    return draw(
        f"Rank IC of {model} by player: {total['value']:+.3f} in total, on {total['dates']} dates",
        90 + 22 * max(frame.height, 3),
        [trace],
        {
            "showlegend": False,
            "xaxis": axis("rank IC (Shapley value, mean over dates)", zeroline=True),
            "yaxis": axis("", type="category"),
        },
    )


def one_forecast(example: ExampleForecast, model: str, unit: str) -> Figure:
    """Draw one forecast as a waterfall from the base value to the forecast, one bar per player.

    The whisker of a bar is the Monte Carlo error of its value. Players that are drawn as one bar have the
    root of their summed squared errors.
    """
    frame = example.contributions.sort(pl.col("value").abs(), descending=True)
    shown = frame.height if frame.height <= MAX_CONTRIBUTIONS + 1 else MAX_CONTRIBUTIONS
    names = [short(player, 20) for player in frame["player"].head(shown).to_list()]
    values = frame["value"].head(shown).to_list()
    errors = frame["error"].head(shown).to_list()
    rest = frame.slice(shown)
    if not rest.is_empty():
        names.append(f"{rest.height} other players")
        values.append(float(rest["value"].sum()))
        errors.append(math.sqrt(float((rest["error"] ** 2).sum())))
    steps = [example.base_value, *values, example.forecast]
    ends = [0.0, *accumulate([example.base_value, *values]), example.forecast]
    room = 0.03 * (max(ends) - min(ends) or 1.0)
    # numbers beside the bars would run into the names on a phone
    written = [
        f"{name}  {_signed(value)}"
        for name, value in zip(["base value", *names, "forecast"], steps, strict=True)
    ]
    levels = list(accumulate([example.base_value, *values]))[1:]
    bars: Trace = {
        "type": "waterfall",
        "orientation": "h",
        "y": written,
        "x": steps,
        "measure": ["absolute", *["relative"] * len(values), "total"],
        "increasing": {"marker": {"color": BLUE}},
        "decreasing": {"marker": {"color": VERMILION}},
        "totals": {"marker": {"color": MUTED}},
        "connector": {"line": {"color": "#b5bec8", "width": 1}},
        "hovertemplate": "%{y}<extra></extra>",
    }
    whiskers: Trace = {
        "type": "scatter",
        "x": levels,
        "y": written[1:-1],
        "mode": "markers",
        "marker": {"size": 1, "color": INK},
        "error_x": _errors(pl.Series(errors, dtype=pl.Float64)),
        "hoverinfo": "skip",
    }
    return draw(
        f"{example.ticker} on {example.date}: one forecast of {model}",
        90 + 25 * (len(names) + 2),
        [bars, whiskers],
        {
            "margin": {"l": 56, "r": 20, "t": 14, "b": 44},
            "xaxis": axis(
                f"forecast ({unit})",
                zeroline=True,
                range=[min(ends) - room, max(ends) + room],
            ),
            "yaxis": axis("", type="category", autorange="reversed"),
        },
    )


def _errors(errors: pl.Series) -> Trace:
    """Whiskers of one Monte Carlo standard error."""
    return {"type": "data", "array": floats(errors), "thickness": 1.2, "width": 3, "color": INK}


def _signed(value: float) -> str:
    """A value with its sign and three significant digits."""
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}")
