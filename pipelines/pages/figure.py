"""Charts as plain data for plotly.js: their look, their traces, and their JSON in a page.

Charts are dictionaries in the schema of plotly.js. plotly's Python classes would check every value again,
which takes longer than everything else in a report together.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, MUTED, GRID, ZERO = "#1f2933", "#667380", "#e7eaee", "#b5bec8"
BLUE, VERMILION, UNKNOWN = "#0072B2", "#D55E00", "#8a949e"
# Okabe and Ito 2008 without its yellow (too faint on white), then Tol's indigo and wine, and a brown.
PALETTE = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK, "#882255", "#332288", "#b07d4b")
BLUES = [[0.0, "#ffffff"], [0.5, "#7fb3d8"], [1.0, "#08306b"]]
UNSKILLED = {"zero": "#9aa5b1"}  # a model without skill by definition is grey
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_POINTS = 1000  # per line: about the pixels of a screen
MIN_POINTS = 250
MAX_POINTS_PER_CHART = 20_000  # keeps the file small if there are many models
_DIGITS = 6  # significant digits of a number in the data of a page

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Colour and dash of one model. If there are more models than colours, the dash distinguishes them."""

    colour: str
    dash: str = "solid"

    def line(self, width: float = 2) -> dict[str, Any]:
        """The line of a trace."""
        return {"color": self.colour, "dash": self.dash, "width": width}


def model_styles(models: Sequence[str]) -> dict[str, LineStyle]:
    """Assign a style to every model by its position in the ladder, the same for all charts."""
    coloured = [model for model in models if model not in UNSKILLED]
    places = {model: divmod(at, len(PALETTE)) for at, model in enumerate(coloured)}
    return {
        model: LineStyle(UNSKILLED[model], "dot")
        if model in UNSKILLED
        else LineStyle(PALETTE[places[model][1]], DASHES[places[model][0] % len(DASHES)])
        for model in models
    }


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One name of a legend: its escaped text, its look, and the traces that it switches on and off."""

    name: str
    colour: str
    dash: str
    traces: tuple[int, ...]
    hidden: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart of plotly.js, which interprets texts as HTML, so that names in traces are escaped."""

    title: str
    traces: tuple[Trace, ...]  # an x that holds dates is an array of ``datetime64[D]``
    layout: Mapping[str, Any]
    height: int  # in pixels, without title and legend
    # buttons switch between views, the first one at the start; traces in none are always shown
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
            traces = [self.traces[i] for i in indices]
            first = next((trace for trace in traces if trace.get("showlegend", True)), None)
            if first is not None:
                look = first.get("line", {})
                colour = look.get("color", first.get("marker", {}).get("color", INK))
                colour = colour if isinstance(colour, str) else INK
                hidden = all(trace.get("visible", True) == "legendonly" for trace in traces)
                dash = look.get("dash", "solid")
                made.append(LegendEntry(first["name"], colour, dash, tuple(indices), hidden))
        return tuple(made) if len(made) > 1 or any(entry.hidden for entry in made) else ()


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
        **{"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff", "colorway": list(PALETTE)},
        "height": height,
        "margin": {"l": 56, "r": 14, "t": 14, "b": 44 if "title" in layout["xaxis"] else 26},
        "showlegend": False,  # the page has a legend of its own, which wraps at any width
        "hoverlabel": {"font": {"size": 12, "family": FONT}, "namelength": -1},
    }
    return Figure(title, tuple(traces), {**common, **layout}, height, views or {})


def draw_rows(
    title: str, names: Sequence[str], traces: Sequence[Trace], x: Trace, step: int = 26, **changes: object
) -> Figure:
    """Build a figure with one row per name, the last name at the top; ``step`` is the height of a row."""
    layout = {"xaxis": x, "yaxis": names_axis(), **changes}
    return draw(title, 80 + step * max(len(names), 2), traces, layout)


def axis(title: str, **changes: object) -> dict[str, Any]:
    """Describe an axis with a title, which includes the unit; labels that speak for themselves need none."""
    named = {"title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 10}} if title else {}
    look = {"gridcolor": GRID, "zerolinecolor": ZERO, "linecolor": ZERO, "automargin": True}
    look |= {"exponentformat": "none", "separatethousands": True}  # not 1.5k and 20\u03bc
    return {**named, **look, "tickfont": {"size": 12, "color": INK}, **changes}


def zero_axis(title: str, **changes: object) -> dict[str, Any]:
    """Describe an axis with a thick line at zero."""
    return axis(title, zeroline=True, zerolinewidth=2, **changes)


def names_axis(**changes: object) -> dict[str, Any]:
    """Describe an axis of names."""
    return axis("", type="category", **changes)


def over_time(y: Mapping[str, Any]) -> dict[str, Any]:
    """Layout of a chart over dates: all values of a date are shown together."""
    return {"hovermode": "x unified", "xaxis": axis(""), "yaxis": y}


def scatter(x: object, y: object, mode: str = "lines", /, **changes: object) -> Trace:
    """Draw points, or a line through them."""
    return {"type": "scatter", "x": x, "y": y, "mode": mode, **changes}


def line(path: pl.DataFrame, name: str, style: LineStyle, hover: str, **changes: object) -> Trace:
    """Draw the column ``y`` over ``date`` in a style."""
    days = path["date"].cast(pl.Date).to_numpy().astype("datetime64[D]")
    look = {"name": short(name), "line": style.line(), "hovertemplate": hover}
    return scatter(days, floats(path["y"]), **{**look, **changes})


def band(path: pl.DataFrame, half: pl.Series, name: str, style: LineStyle) -> Trace:
    """Draw the area within ``half`` of the column ``y`` over ``date``; it is switched with its line."""
    edge, half_T = line(path, name, style, ""), np.nan_to_num(floats(half))
    x = np.concatenate([edge["x"], edge["x"][::-1]])
    y = np.concatenate([edge["y"] + half_T, (edge["y"] - half_T)[::-1]])
    look = {"fill": "toself", "fillcolor": style.colour, "opacity": 0.18}
    quiet = {"hoverinfo": "skip", "legendgroup": name, "showlegend": False}
    return edge | {"x": x, "y": y, "line": {"width": 0, "color": style.colour}, **look, **quiet}


def bar_trace(names: Sequence[str], values: object, colour: object, **changes: object) -> Trace:
    """Draw horizontal bars; the last name is at the top."""
    look = {"marker": {"color": colour}, "hovertemplate": "%{y}: %{x:,.4~r}<extra></extra>"}
    return {"type": "bar", "orientation": "h", "x": values, "y": list(names), **look, **changes}


def columns(names: Sequence[str], values: object, name: str, colour: str, hover: str) -> Trace:
    """Draw vertical bars of one of several names."""
    look = {"name": short(name), "marker": {"color": colour}}
    shown = {"hovertemplate": f"{short(name)}, %{{x}}: {hover}<extra></extra>"}
    return {"type": "bar", "x": names, "y": values, **look, **shown}


def whiskers(up: object, down: object = None, **changes: object) -> Trace:
    """Error bars, one on each side if ``down`` is given."""
    sides = {} if down is None else {"symmetric": False, "arrayminus": _numbers(down)}
    look = {"thickness": 1.2, "width": 3, "color": INK, **changes}
    return {"type": "data", "array": _numbers(up), **sides, **look}


def heat(
    title: str,
    z: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    unit: str,
    *,
    across: str = "",
    **look: object,
) -> Figure:
    """Draw a matrix, its first row at the top; a cell that is None is empty. ``across`` names the columns."""
    bar = {"thickness": 12, "title": {"text": unit, "side": "right"}}
    common = {"colorscale": BLUES, "zmin": 0, "hoverongaps": False, "colorbar": bar}
    trace = {"type": "heatmap", "z": z, "x": list(columns), "y": list(rows), **common, **look}
    x = axis(across, type="category", tickangle=-90 if len(columns) > 12 and not across else 0)
    y = names_axis(autorange="reversed")
    return draw(title, 140 + max(15 * len(rows), 90), [trace], {"xaxis": x, "yaxis": y})


def matrix(
    cells: pl.DataFrame, rows: Sequence[object], columns: Sequence[object]
) -> list[list[float | None]]:
    """Arrange cells (row, column, value) as a matrix for `heat`; unknown cells are None."""
    known = {(row, column): value for row, column, value in cells.iter_rows()}
    grid = [[known.get((row, column)) for column in columns] for row in rows]
    return [[None if v is None or not math.isfinite(v) else round(v, 6) for v in row] for row in grid]


def by_model(
    frame: pl.DataFrame, styles: Mapping[str, LineStyle], order: str = "date"
) -> list[tuple[str, LineStyle, pl.DataFrame]]:
    """Split a frame by model in the order of ``styles``, each part sorted; skip models without rows."""
    parts = ((model, style, frame.filter(pl.col("model") == model)) for model, style in styles.items())
    return [(model, style, rows.sort(order)) for model, style, rows in parts if not rows.is_empty()]


def safe(name: object) -> str:
    """Escape a name from data; plotly.js interprets chart texts as a subset of HTML."""
    return html.escape(str(name))


def short(name: object, length: int = 28) -> str:
    """Escape a name for an axis or a legend, truncated to ``length`` characters."""
    text = str(name)
    return safe(text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}")


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


def floats(series: pl.Series) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A column as float32, with NaN for null."""
    return series.cast(pl.Float32).to_numpy()


def _numbers(values: object) -> object:
    return floats(values) if isinstance(values, pl.Series) else values


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Data of a page as plain JSON: 6 significant digits, dates as texts, None for what is not known."""
    if isinstance(value, np.ndarray):
        value = pl.Series(value)
    if isinstance(value, pl.Series):
        if value.dtype.is_float():
            known, digits = pl.col("x").is_finite(), pl.col("x").cast(pl.Float64).round_sig_figs(_DIGITS)
            value = value.alias("x").to_frame().select(pl.when(known).then(digits)).to_series()
        return (value.dt.to_string("%F") if value.dtype.is_temporal() else value).to_list()
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
