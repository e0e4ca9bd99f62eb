"""Charts of faithfulness and of attention: removal curves, agreement with its null, and heat maps."""

from __future__ import annotations

import numpy as np
import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.theme import INK, MUTED, axis, safe, short

METHODS = {
    "shap": ("SHAP", "#0072B2", "solid"),
    "integrated_gradients": ("integrated gradients", "#009E73", "solid"),
    "attention": ("attention", "#D55E00", "solid"),
    "rollout": ("rollout", "#E69F00", "dash"),
    "flow": ("flow", "#882255", "dash"),
    "gradient": ("attention x gradient", "#CC79A7", "dash"),
    "random": ("random order", "#8a949e", "dot"),
}
REGIME_COLOURS = {"all": INK, "calm": "#0072B2", "normal": "#8a949e", "turbulent": "#D55E00"}


def removal_curves(curves: pl.DataFrame, over: str) -> Figure:
    """Draw the cumulative share of the change against the share of removed units, one line per method."""
    removals = curves["removal"].unique(maintain_order=True).to_list()
    traces: list[Trace] = []
    views: dict[str, tuple[int, ...]] = {}
    for removal in removals:
        first = len(traces)
        for method, (name, colour, dash) in METHODS.items():
            rows = curves.filter((pl.col("removal") == removal) & (pl.col("method") == method)).sort("share")
            if rows.is_empty():
                continue
            traces.append(
                {
                    "type": "scatter",
                    "x": floats(rows["share"]),
                    "y": floats(rows["cumulative"]),
                    "mode": "lines+markers",
                    "name": name,
                    "line": {"color": colour, "width": 2.5, "dash": dash},
                    "visible": removal == removals[0],  # the others are views
                    "hovertemplate": "%{y:.0%} of the change after %{x:.0%} of the " + safe(over),
                }
            )
        views[REMOVAL_NAMES.get(removal, safe(removal))] = tuple(range(first, len(traces)))
    return draw(
        f"Change of the forecasts as {safe(over)} are removed",
        380,
        traces,
        {
            "xaxis": axis(f"share of the {safe(over)} removed", tickformat=".0%", range=[-0.02, 1.02]),
            "yaxis": axis("cumulative share of the change", tickformat=".0%", range=[-0.02, 1.04]),
        },
        views if len(views) > 1 else None,
    )


REMOVAL_NAMES = {
    "mask": "masked keys",
    "date": "other firms of the date",
    "train": "training data",
}


def agreement_with_shap(agreement: pl.DataFrame) -> Figure:
    """Draw each method's rank correlation with |SHAP| with its 90% interval, and its null as a ring."""
    names = [
        f"{row['over']}: {METHODS.get(row['method'], (row['method'],))[0]}"
        for row in agreement.iter_rows(named=True)
    ]
    low = (agreement["value"] - agreement["low"]).fill_nan(0.0)
    high = (agreement["high"] - agreement["value"]).fill_nan(0.0)
    measured: Trace = {
        "type": "scatter",
        "x": floats(agreement["value"]),
        "y": [short(name, 34) for name in names],
        "mode": "markers",
        "name": "measured",
        "marker": {"size": 10, "color": "#0072B2"},
        "error_x": {"type": "data", "symmetric": False, "array": floats(high), "arrayminus": floats(low)},
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    null: Trace = {
        "type": "scatter",
        "x": floats(agreement["null"]),
        "y": [short(name, 34) for name in names],
        "mode": "markers",
        "name": "null",
        "marker": {"size": 11, "color": MUTED, "symbol": "circle-open", "line": {"width": 2}},
        "hovertemplate": "%{y}, null: %{x:.2f}<extra></extra>",
    }
    return draw(
        "Rank correlation with |SHAP|",
        110 + 30 * len(names),
        [measured, null],
        {
            "xaxis": axis("mean Spearman correlation over forecasts", zeroline=True, range=[-1.02, 1.02]),
            "yaxis": axis("", type="category", autorange="reversed"),
        },
    )


def weight_of_past_days(days: pl.DataFrame) -> Figure:
    """Draw the mean weight of each past day by the volatility regime of that day, and equal weights."""
    traces: list[Trace] = []
    for regime, colour in REGIME_COLOURS.items():
        rows = days.filter(pl.col("regime") == regime).sort("day")
        if rows.is_empty():
            continue
        traces.append(
            {
                "type": "scatter",
                "x": rows["day"].to_list(),
                "y": floats(rows["weight"]),
                "mode": "lines+markers",
                "name": f"{regime} days",
                "line": {"color": colour, "width": 3 if regime == "all" else 1.6},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": floats((rows["high"] - rows["weight"]).fill_nan(0.0)),
                    "arrayminus": floats((rows["weight"] - rows["low"]).fill_nan(0.0)),
                    "thickness": 1,
                    "width": 2,
                },
                "hovertemplate": "day %{x}: %{y:.3f}",
            }
        )
    null = float(days["null"][0])
    line = {"color": MUTED, "width": 1.5, "dash": "dash"}
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": null, "y1": null, "line": line}
    return draw(
        "Attention to past days",
        360,
        traces,
        {
            "xaxis": axis("day before the forecast (1 is the decision session)"),
            "yaxis": axis("mean weight (dashed: equal weights)"),
            "shapes": [shape],
        },
    )


def day_map(rows: pl.DataFrame) -> Figure:
    """Draw the mean weights from the state of each day to each day, or by head if one state is pooled."""
    by_head = rows["query"].n_unique() == 1
    field = "head" if by_head else "query"
    last = rows.filter(pl.col("layer") == rows["layer"].max())
    mean = last.group_by(field, "key").agg(pl.col("weight").mean()).sort(field, "key")
    levels, keys = mean[field].unique().sort().to_list(), mean["key"].unique().sort().to_list()
    matrix = mean["weight"].to_numpy().reshape(len(levels), len(keys))
    what = "head" if by_head else "state of day"
    return _heat(
        "Attention from day to day, last layer" if not by_head else "Attention to days by head, last layer",
        matrix,
        [f"{what} {level}" for level in levels],
        [f"day {key}" for key in keys],
        "weight",
    )


def firm_map(rows: pl.DataFrame, method: str) -> Figure:
    """Draw the matrix of one method over the firms of one date; rows are targets, columns sources."""
    firms = rows["target"].unique(maintain_order=True).to_list()
    place = {firm: i for i, firm in enumerate(firms)}
    matrix = np.full((len(firms), len(firms)), np.nan)
    for row in rows.filter(pl.col("method") == method).iter_rows(named=True):
        if row["source"] in place:
            matrix[place[row["target"]], place[row["source"]]] = row["value"]
    name = METHODS[method][0] if method != "shap" else "|SHAP|"
    labels = [short(firm, 10) for firm in firms]
    return _heat(f"{name} between firms on {safe(rows['date'][0])}", matrix, labels, labels, name)


def _heat(title: str, matrix: np.ndarray, rows: list[str], columns: list[str], unit: str) -> Figure:
    trace: Trace = {
        "type": "heatmap",
        "z": [
            [None if not np.isfinite(value) else round(float(value), 5) for value in row] for row in matrix
        ],
        "x": columns,
        "y": rows,
        "colorscale": [[0.0, "#ffffff"], [0.5, "#7fb3d8"], [1.0, "#08306b"]],
        "zmin": 0,
        "colorbar": {"thickness": 12, "title": {"text": unit, "side": "right"}},
        "hovertemplate": "%{y} looks at %{x}: %{z:.4f}<extra></extra>",
    }
    return draw(
        title,
        140 + max(15 * len(rows), 90),
        [trace],
        {
            "xaxis": axis("", type="category", tickangle=-90 if len(columns) > 12 else 0),
            "yaxis": axis("", type="category", autorange="reversed"),
        },
    )
