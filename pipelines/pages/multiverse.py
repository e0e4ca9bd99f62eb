"""The page of a multiverse: specification curves, shares of choices, and tables.

A specification curve shows the sorted results of all designs with their intervals, and below it which value
of each choice a design takes (Simonsohn, Simmons and Nelson 2020).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from plotly.offline import get_plotlyjs

from pipelines.columns import COLUMNS
from pipelines.pages.figure import (
    GRID,
    PALETTE,
    ZERO,
    Figure,
    axis,
    bar_trace,
    draw,
    draw_rows,
    names_axis,
    safe,
    scatter,
    short,
    whiskers,
    zero_axis,
)
from pipelines.pages.page import Page, script
from pipelines.results.multiverse import OUTCOMES, REST, Multiverse

_SHARES = 15  # largest shares in a chart
_CURVE, _ROW = 300, 17  # heights of a curve and of a row below it, in pixels


def render_multiverse(name: str, multiverse: Multiverse) -> str:
    """Render a multiverse of a config as one page."""
    page, charts = Page(), []
    for outcome, (figure, lower, upper) in OUTCOMES.items():
        curve = specification_curve(
            multiverse.designs.drop_nulls([figure, lower, upper]), multiverse.choices, figure
        )
        charts.append(
            page.chart(curve, "Each point is a design with its 95% interval; below it, its values.")
        )
        shares = multiverse.shares.filter((pl.col("outcome") == outcome) & (pl.col("effect") != REST))
        if shares.height:
            charts.append(
                page.chart(share_bars(shares, outcome), "Effects of choices and pairs, with 95% intervals.")
            )
    return page.render(
        "multiverse.jinja",
        scripts=(get_plotlyjs(), script("report.js")),
        data={"figures": page.figures},
        title=f"{name}: multiverse of {multiverse.designs.height:,} designs",
        charts=charts,
        result=multiverse,
        choices=[(path, path) for path in multiverse.choices],
    )


def specification_curve(designs: pl.DataFrame, choices: Mapping[str, Sequence[str]], figure: str) -> Figure:
    """Draw the sorted results with their intervals, and a dot for every value that a design takes."""
    lower, upper = (f"{figure.removesuffix('_net')}_{end}" for end in ("lower", "upper"))
    known = designs.sort(figure)
    place_D, y, name = np.arange(1, known.height + 1), known[figure], COLUMNS[figure].label
    hover = f"{name} %{{y:.4~g}}<br>%{{text}}<extra></extra>"
    written = ["<br>".join(f"{safe(path)} {safe(row[path])}" for path in choices) for row in known.to_dicts()]
    traces = [
        scatter(
            place_D,
            y,
            "markers",
            text=written,
            hovertemplate=hover,
            marker={"size": 5, "color": PALETTE[0]},
            error_y=whiskers(known[upper] - y, y - known[lower], color=ZERO, thickness=1, width=0),
        )
    ]
    rows = [f"{short(path, 40)} = {short(value, 20)}" for path, values in choices.items() for value in values]
    for at, (path, values) in enumerate(choices.items()):
        dots = [(int(d), value) for value in values for d in place_D[(known[path] == value).to_numpy()]]
        names = [f"{short(path, 40)} = {short(value, 20)}" for _, value in dots]
        look = {"marker": {"size": 4, "symbol": "square", "color": PALETTE[at % 2]}, "hoverinfo": "skip"}
        traces.append(scatter([d for d, _ in dots], names, "markers", yaxis="y2", **look))
    height = _CURVE + _ROW * len(rows)
    below = _ROW * len(rows) / height
    layout = {
        "xaxis": axis("designs", anchor="y2", zeroline=False),
        "yaxis": zero_axis(name, domain=[below + 0.02, 1.0]),
        "yaxis2": names_axis(
            domain=[0.0, below],
            categoryarray=rows,
            categoryorder="array",
            autorange="reversed",
            gridcolor=GRID,
        ),
    }
    return draw(f"Specification curve: {name}", height, traces, layout)


def share_bars(shares: pl.DataFrame, outcome: str) -> Figure:
    """Draw the largest shares in the variance of a result with their intervals."""
    own = shares.head(_SHARES).reverse().with_columns(pl.col("share", "share_lower", "share_upper") * 100)
    up, down = own["share_upper"] - own["share"], own["share"] - own["share_lower"]
    sides = {"error_x": whiskers(up, down), "hovertemplate": "%{y}: %{x:.1f}%<extra></extra>"}
    names = [short(effect, 60) for effect in own["effect"]]
    bars = bar_trace(names, own["share"], PALETTE[0], **sides)
    return draw_rows(f"What moves the {outcome}", names, [bars], zero_axis("% of the variance"))
