"""A chart as plain data for plotly.js.

Charts are dictionaries in the schema of plotly.js. plotly's Python classes would check every value again,
which takes longer than everything else in a report together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from pipelines.pages.theme import FONT, INK, PALETTE

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart.

    Attributes
    ----------
    title
        Plain text, shown by the page above the chart.
    traces
        Traces of plotly.js. An x that holds dates is an array of ``datetime64[D]``. Names are escaped,
        because plotly.js interprets texts as HTML.
    layout
        Layout of plotly.js.
    height
        In pixels, without title and legend.
    views
        Name of a view -> indices of the traces that it shows; buttons switch between views, and the first is
        shown at the start. Traces in no view are always shown.
    """

    title: str
    traces: tuple[Trace, ...]
    layout: Mapping[str, Any]
    height: int
    views: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def legend(self) -> tuple[LegendEntry, ...]:
        """One entry per name in the legend, in the order of the traces; empty if there is only one name."""
        entries: dict[str, list[int]] = {}
        for index, trace in enumerate(self.traces):
            if "name" in trace:
                entries.setdefault(str(trace.get("legendgroup", trace["name"])), []).append(index)
        made = []
        for indices in entries.values():
            shown = [i for i in indices if self.traces[i].get("showlegend", True)]
            if shown:
                first = self.traces[shown[0]]
                hidden = all(self.traces[i].get("visible", True) == "legendonly" for i in indices)
                made.append(LegendEntry(first["name"], *_look(first), tuple(indices), hidden))
        return tuple(made) if len(made) > 1 or any(entry.hidden for entry in made) else ()


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One name of a legend: its escaped text, its look, and the traces that it switches on and off."""

    name: str
    colour: str
    dash: str
    traces: tuple[int, ...]
    hidden: bool


def draw(
    title: str,
    height: int,
    traces: Sequence[Trace],
    layout: Mapping[str, Any],
    views: Mapping[str, tuple[int, ...]] | None = None,
) -> Figure:
    """Build a figure with the common layout of all charts, changed by ``layout``."""
    common: dict[str, Any] = {
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "height": height,
        "margin": {"l": 56, "r": 14, "t": 14, "b": 44},
        "showlegend": False,  # the page has a legend of its own, which wraps at any width
        "hoverlabel": {"font": {"size": 12, "family": FONT}, "namelength": -1},
        "colorway": list(PALETTE),
    }
    if "title" not in layout["xaxis"]:
        common["margin"]["b"] = 26
    return Figure(title, tuple(traces), {**common, **layout}, height, views or {})


def floats(series: pl.Series) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A column as float32, with NaN for null."""
    return series.cast(pl.Float32).to_numpy()


def days(series: pl.Series) -> np.ndarray[Any, np.dtype[np.datetime64]]:
    """A column of dates as ``datetime64[D]``, whose axis is stored once for the page."""
    return series.cast(pl.Date).to_numpy().astype("datetime64[D]")


def _look(trace: Trace) -> tuple[str, str]:
    """Colour and dash of a trace, or of its markers."""
    line, marker = trace.get("line", {}), trace.get("marker", {})
    colour = line.get("color", marker.get("color", trace.get("fillcolor", INK)))
    return (colour if isinstance(colour, str) else INK), line.get("dash", "solid")
