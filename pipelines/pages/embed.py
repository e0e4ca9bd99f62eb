"""Figures as HTML: the place of the chart, its buttons, its legend, and its data as compact JSON."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.pages.charts.figure import Figure

_SHORT = 24  # arrays up to this length are written as numbers, which is as compact and can be read
_DIGITS = 5  # significant digits of a number in a chart
_BORDERS = {"dash": "dashed", "dot": "dotted", "dashdot": "dashed"}


class DatePool:
    """The date axes of a page, each stored once: the first day since 1970, then the steps in days."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._axes: list[list[int]] = []

    def place(self, dates: np.ndarray[Any, np.dtype[np.datetime64]]) -> int:
        """Index of an axis in the pool; it is added if it is new."""
        days = dates.astype("datetime64[D]").astype(np.int64)
        key = days.tobytes()
        if key not in self._places:
            self._places[key] = len(self._axes)
            self._axes.append(np.diff(days, prepend=0).tolist())
        return self._places[key]

    def to_json(self) -> str:
        """All axes as JSON."""
        return json.dumps(self._axes, separators=(",", ":"))


def figure_html(figure: Figure, name: str, caption: str, pool: DatePool) -> str:
    """Write a figure: title, place of the chart, views, legend, caption, and the data of the chart.

    Title and caption are plain text and are escaped.
    """
    # inside a script element, only "<" can end the element or open a comment
    payload = to_json(figure, pool).replace("<", "\\u003c")
    title = html.escape(figure.title)
    return (
        f"<figure><h4>{title}</h4>{_views(figure)}"
        f'<div class="plot" id="{name}" role="img" aria-label="{title}" data-height="{figure.height}" '
        f'style="height:{figure.height}px"></div>'
        f'<script type="application/json" data-figure="{name}">{payload}</script>'
        f"{_legend(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>\n"
    )


def _views(figure: Figure) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="{"false" if place else "true"}" '
        f'data-traces="{" ".join(map(str, traces))}">{html.escape(view)}</button>'
        for place, (view, traces) in enumerate(figure.views.items())
    )
    return f'<div class="views">{buttons}</div>' if buttons else ""


def _legend(figure: Figure) -> str:
    entries = "".join(
        f'<button type="button" aria-pressed="{"false" if entry.hidden else "true"}" '
        f'data-traces="{" ".join(map(str, entry.traces))}"><i style="border-color:{entry.colour};'
        f'border-top-style:{_BORDERS.get(entry.dash, "solid")}"></i>{entry.name}</button>'
        for entry in figure.legend
    )
    return f'<div class="legend">{entries}</div>' if entries else ""


def to_json(figure: Figure, pool: DatePool) -> str:
    """Encode a figure as JSON for the script of the page.

    Numbers keep 5 significant digits, long arrays 4 bytes a number (base64, which plotly.js decodes). NaN
    becomes null. Dates are replaced by their place in the pool.
    """
    content = {
        "data": [_encode(trace, pool) for trace in figure.traces],
        "layout": _encode(dict(figure.layout), pool),
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _encode(value: Any, pool: DatePool) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, np.ndarray):
        return _encode_array(value, pool)
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _encode(item, pool) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, pool) for item in value]
    return value


def _encode_array(array: np.ndarray[Any, Any], pool: DatePool) -> Any:  # noqa: ANN401 - any JSON value
    if array.dtype.kind == "M":
        return {"dates": pool.place(array)}
    if array.size > _SHORT:
        return {"dtype": "f4", "bdata": base64.b64encode(array.astype("<f4").tobytes()).decode()}
    return _encode(array.tolist(), pool)
