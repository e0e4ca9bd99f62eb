"""The look of charts: a light theme, and the same colour for a model in every chart."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK = "#1f2933"
MUTED = "#667380"
GRID = "#e7eaee"
ZERO = "#b5bec8"
BLUE = "#0072B2"
VERMILION = "#D55E00"
# Okabe and Ito 2008 without its yellow (too faint on white), then Tol's indigo and wine, and a brown.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#1f2933",
    "#882255",
    "#332288",
    "#b07d4b",
)
UNSKILLED = {"zero": "#9aa5b1"}  # a model without skill by definition is grey
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_POINTS = 1000  # per line: about the pixels of a screen
MIN_POINTS = 250
MAX_POINTS_PER_CHART = 20_000  # keeps the file small if there are many models


@dataclass(frozen=True, slots=True)
class Style:
    """Colour and dash of one model. If there are more models than colours, the dash distinguishes them."""

    colour: str
    dash: str


def model_styles(models: Sequence[str]) -> dict[str, Style]:
    """Assign a style to every model by its position in the ladder, the same for all charts."""
    styles = {}
    taken = 0
    for model in models:
        if model in UNSKILLED:
            styles[model] = Style(UNSKILLED[model], "dot")
            continue
        turn, place = divmod(taken, len(PALETTE))
        styles[model] = Style(PALETTE[place], DASHES[turn % len(DASHES)])
        taken += 1
    return styles


def safe(name: object) -> str:
    """Escape a name from data; plotly.js interprets chart texts as a subset of HTML."""
    return html.escape(str(name))


def short(name: str, length: int = 28) -> str:
    """Escape a name for an axis or a legend, truncated to ``length`` characters."""
    return safe(name if len(name) <= length else name[: length - 1] + "\N{HORIZONTAL ELLIPSIS}")


def axis(title: str, **changes: object) -> dict[str, Any]:
    """Describe an axis with a title, which includes the unit, in the style of the report.

    An axis whose labels speak for themselves, such as dates or names, has no title.
    """
    named = {"title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 10}} if title else {}
    return {
        **named,
        "gridcolor": GRID,
        "zerolinecolor": ZERO,
        "linecolor": ZERO,
        "tickfont": {"size": 12, "color": INK},
        "automargin": True,
        **changes,
    }


def points_per_line(lines: int) -> int:
    """How many points a line of a chart with this many lines may have."""
    return max(MIN_POINTS, min(MAX_POINTS, MAX_POINTS_PER_CHART // max(lines, 1)))


def thin(frame: pl.DataFrame, limit: int = MAX_POINTS) -> pl.DataFrame:
    """Keep every k-th row and the last one, so that at most about ``limit`` rows are drawn."""
    step = -(-frame.height // limit)
    if step <= 1:
        return frame
    kept = frame.gather_every(step)
    return kept if (frame.height - 1) % step == 0 else pl.concat([kept, frame.tail(1)])
