"""Charts of the books: net asset value with drawdown, and costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.charts.series import by_model, line
from pipelines.pages.theme import Style, axis, points_per_line, short, thin

LOG_NAV_RATIO = 8.0  # ratio of the largest to the smallest NAV above which the axis is logarithmic
COST_TITLES = {
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


def net_asset_value(equity: pl.DataFrame, styles: Mapping[str, Style], book: str, best: str | None) -> Figure:
    """Draw one book's NAV and drawdown per model; the views are net and gross of costs.

    For the model ``best`` the net view also shows NAV before costs, as a thin dotted line.
    """
    frame = equity.filter(pl.col("book") == book)
    parts = by_model(frame, styles)
    limit = points_per_line(4 * len(parts))
    traces: list[Trace] = []
    views: dict[str, list[int]] = {"net of costs": [], "before costs": []}
    extremes: list[float] = []
    for kind, view in zip(("nav_net", "nav_gross"), views, strict=True):
        shown = view == "net of costs"
        for model, style, rows in parts:
            path = rows.select("date", y=pl.col(kind).cast(pl.Float64).fill_nan(None)).drop_nulls("y")
            if path.is_empty():
                continue
            path = thin(path.with_columns(drawdown=pl.col("y") / pl.col("y").cum_max() - 1), limit)
            extremes += [float(value) for value in path["y"].to_list()]
            group: dict[str, Any] = {"legendgroup": model, "visible": shown}
            width = 2.6 if model == best else 1.6
            colour = {"color": style.colour, "dash": style.dash}
            views[view] += [len(traces), len(traces) + 1]
            traces.append(line(path, model, style, "%{y:.3f}", **group, line=colour | {"width": width}))
            drawdown = path.select("date", y="drawdown")
            below = {**group, "yaxis": "y2", "showlegend": False, "line": colour | {"width": 1.2}}
            traces.append(line(drawdown, model, style, "%{y:.1%}", **below))
            if model == best and not shown:
                views["net of costs"].append(len(traces))
                dotted = {"color": style.colour, "dash": "dot", "width": 1.4}
                name = f"{short(model)}, before costs"
                traces.append(
                    line(path, model, style, "%{y:.3f}")
                    | {"name": name, "legendgroup": "before costs", "line": dotted, "visible": True}
                )
    wide = bool(extremes) and min(extremes) > 0 and max(extremes) / min(extremes) > LOG_NAV_RATIO
    scale = ("NAV, log scale", "log") if wide else ("NAV (1 at the start)", "linear")
    layout = {
        "hovermode": "x unified",
        "xaxis": axis("", anchor="y2"),
        "yaxis": axis(scale[0], type=scale[1], domain=[0.36, 1.0]),
        "yaxis2": axis("drawdown", tickformat=".1~%", domain=[0.0, 0.3], nticks=4),
    }
    return draw(
        f"Net asset value and drawdown: {book}",
        480,
        traces,
        layout,
        {view: tuple(indices) for view, indices in views.items()},
    )


def cost_kinds(costs: pl.DataFrame) -> dict[str, str]:
    """Columns of a cost table that are not zero throughout -> their titles."""
    paid = {
        name: title
        for name, title in COST_TITLES.items()
        if name in costs.columns and costs[name].fill_nan(0.0).abs().sum() > 0
    }
    return paid or {"half_spread": COST_TITLES["half_spread"]}


def cost_breakdown(costs: pl.DataFrame, styles: Mapping[str, Style], book: str) -> Figure:
    """Draw the costs of one book per year by kind, one stacked bar per model."""
    order = [model for model in styles if model in set(costs["model"].to_list())]
    frame = pl.DataFrame({"model": order[::-1]}).join(
        costs.filter(pl.col("book") == book), on="model", maintain_order="left"
    )
    traces: list[Trace] = []
    for kind, title in cost_kinds(costs).items():
        traces.append(
            {
                "type": "bar",
                "x": floats(frame[kind]),
                "y": [short(model) for model in frame["model"].to_list()],
                "orientation": "h",
                "name": short(title),
                "marker": {"color": _COST_COLOURS[kind]},
                "hovertemplate": f"%{{y}}, {short(title)}: %{{x:.0f}} bps per year<extra></extra>",
            }
        )
    return draw(
        f"Cost per year: {book}",
        80 + 26 * max(frame.height, 2),
        traces,
        {
            "barmode": "stack",
            "xaxis": axis("bps of NAV per year"),
            "yaxis": axis("", type="category"),
        },
    )
