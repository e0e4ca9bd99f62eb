"""Pages from templates: one base, one style, one way to show a table or a chart, also without scripts.

A page is self-contained. Its content security policy forbids all requests and allows only its own scripts.
All values are escaped by the templates, so a name from the data that looks like a script is never executed.
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from features.arrays import FloatArray
from pipelines.pages.figure import GRID, ZERO, Figure, LineStyle, plain
from pipelines.pages.tables import Spec, make_table, write


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("pipelines.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["write"] = write
    made.globals["sessions"] = count_sessions
    made.globals["under"] = columns_under
    return made


def count_sessions(count: int) -> str:
    """Write a number of sessions: "1 session", "2 sessions"."""
    return f"{count:,} session{'' if count == 1 else 's'}"


def columns_under(group: str, *names: str) -> list[Spec]:
    """Declared columns of a table that share a header."""
    return [(name, None, None, group) for name in names]


def asset(name: str) -> str:
    """Read a style or a script that stands beside the templates."""
    return files("pipelines.pages").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def script(*names: str) -> str:
    """Join scripts to one function, in which ``unpack`` gives the data of the page."""
    return f'"use strict";\n(async () => {{\n{"".join(map(asset, ("data.js", *names)))}}})();\n'


def packed(content: object) -> Markup:
    """Data of a page as JSON, compressed by gzip and written as base64."""
    text = json.dumps(plain(content), separators=(",", ":"), allow_nan=False)
    return Markup(base64.b64encode(gzip.compress(text.encode(), compresslevel=5, mtime=0)).decode())  # noqa: S704  # base64


class Page:
    """What one page shows its tables and charts by; ``styles`` are for the chips of models."""

    def __init__(self, styles: Mapping[str, LineStyle] | None = None) -> None:
        self.styles = styles or {}
        self.figures: dict[str, Any] = {}
        self._macros = _templates().get_template("macros.jinja").module

    def chart(self, figure: Figure, caption: str) -> Markup:
        """Show a chart of plotly.js with its views, its legend and a caption."""
        name = f"figure-{len(self.figures) + 1}"
        self.figures[name] = {"data": figure.traces, "layout": figure.layout}
        return self._show("chart", figure, name, caption)

    def table(
        self, frame: pl.DataFrame, columns: Sequence[Spec], label: str, best: str | None = None
    ) -> Markup:
        """Show a table (`pipelines.pages.tables.make_table`)."""
        return self._show("table", make_table(frame, columns, label, self.styles, best))

    def _show(self, macro: str, *arguments: object) -> Markup:
        return Markup(getattr(self._macros, macro)(*arguments))  # noqa: S704  # a macro escapes its arguments

    def sections(
        self, template: str, titles: Mapping[str, str] | None = None, **context: object
    ) -> list[tuple[str, str, Markup]]:
        """Anchor, title (given, or set by the template) and body of a template's macros that have a body."""
        macros: Any = _templates().get_template(template).make_module(self._context(context))
        named: Mapping[str, str] = macros.titles if titles is None else titles
        bodies = ((anchor, title, getattr(macros, anchor)()) for anchor, title in named.items())
        return [(anchor, title, body) for anchor, title, body in bodies if body.strip()]

    def render(
        self,
        template: str,
        *,
        css: Sequence[str] = (),
        scripts: Sequence[str] = (),
        data: object = None,
        **context: object,
    ) -> str:
        """Render a template that extends the base, with the style of all pages, scripts and their data."""
        hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
        allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        policy += f"form-action 'none'{f'; script-src {allowed}' if allowed else ''}"
        own = {
            "policy": Markup(policy),  # noqa: S704  # written above
            "style": Markup("".join(asset(name) for name in ("page.css", *css))),  # noqa: S704  # our own files
            "scripts": [Markup(script) for script in scripts],  # noqa: S704  # our own files
            "data": None if data is None else packed(data),
        }
        return _templates().get_template(template).render(self._context(context | own))

    def _context(self, context: Mapping[str, object]) -> dict[str, object]:
        return {"chart": self.chart, "table": self.table, **context}


_WIDTH, _HEIGHT = 400, 180  # about the width of a phone, so that its text can be read there
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 8, 8, 22
_TICKS = 4
_DASHES = {"dash": "5 4", "dot": "2 3"}


def static_chart(figure: Figure) -> dict[str, Any]:
    """Place lines and bands over equidistant sessions; an unknown value or a missing session interrupts."""
    dates_T = np.unique(np.concatenate([trace["x"] for trace in figure.traces]))
    values = np.concatenate([trace["y"] for trace in figure.traces])
    known = [0.0, *values[np.isfinite(values)].tolist()]
    low, high = min(known), max(known)
    low, high = (low, high) if high > low else (low - 1.0, high + 1.0)
    ticks, digits = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    last = len(dates_T) - 1

    def x(at: Any) -> Any:  # noqa: ANN401  # a number or an array
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at / last if last else 0.5 + 0 * at)

    def y(value: Any) -> Any:  # noqa: ANN401  # a number or an array
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - (value - low) / (high - low))

    lines, bands = [], []
    for trace in figure.traces:
        at_T = np.asarray(np.searchsorted(dates_T, trace["x"]), dtype=np.float64)
        y_T: FloatArray = trace["y"].astype(np.float64)
        if "fill" in trace:
            bands.append((_points(x(at_T), y(y_T)), trace["fillcolor"]))
            continue
        look, places = trace["line"], np.flatnonzero(np.isfinite(y_T))
        for run in np.split(places, np.flatnonzero(np.diff(at_T[places]) > 1) + 1):
            if len(run):  # known values in consecutive sessions
                points = {"points": _points(x(at_T[run]), y(y_T[run])), "single": len(run) == 1}
                dash = _DASHES.get(look.get("dash", ""))
                lines.append({**points, "colour": look["color"], "width": look["width"], "dash": dash})
    ends = [(0, "start"), (last, "end")] if last else [(0, "middle")]
    return {
        "title": figure.title,
        "size": (_WIDTH, _HEIGHT),
        "sides": (_LEFT, _WIDTH - _RIGHT),
        "ticks": [(f"{y(t):.1f}", write(t, str(digits)), GRID if t else ZERO) for t in ticks],
        "dates": [(f"{x(t):.1f}", str(dates_T[t]), anchor) for t, anchor in ends],
        "lines": lines,
        "bands": bands,
        "legend": figure.legend,
    }


def _points(x_T: FloatArray, y_T: FloatArray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(x_T, y_T, strict=True))


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Round numbers that cover the range, about `_TICKS` of them, and their decimals."""
    rough = (high - low) / _TICKS
    power = math.floor(math.log10(rough))
    factor = next(one for one in (1.0, 2.0, 2.5, 5.0, 10.0) if one * 10.0**power >= rough)
    step = factor * 10.0**power
    ticks = [k * step for k in range(math.floor(low / step), math.ceil(high / step) + 1)]
    return ticks, max(0, -power + (factor == 2.5) - (factor == 10.0))
