"""Line charts over sessions as inline SVG, for pages without scripts: small enough to be mailed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from features.arrays import FloatArray, IntArray
from pipelines.pages.figure import GRID, ZERO, Figure
from pipelines.pages.tables import write

_WIDTH, _HEIGHT = 400, 180  # about the width of a phone, so that its text can be read there
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 8, 8, 22
_TICKS = 4
_DASHES = {"dash": "5 4", "dot": "2 3"}


def static_chart(figure: Figure, digits: int) -> dict[str, Any]:
    """Place the lines and bands of a chart over dates, for the macro ``static`` of the templates.

    Sessions are drawn at equal distances. An unknown value, or a session that a line lacks, interrupts it.
    ``digits`` are the decimals on the vertical axis.
    """
    dates_T = np.unique(np.concatenate([trace["x"] for trace in figure.traces]))
    values = np.concatenate([trace["y"] for trace in figure.traces])
    known = [0.0, *values[np.isfinite(values)].tolist()]
    low, high = min(known), max(known)
    low, high = (low, high) if high > low else (low - 1.0, high + 1.0)
    ticks = _ticks(low, high)
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
        look = trace["line"]
        for run in _runs(at_T, y_T):
            lines.append(
                {
                    "points": _points(x(at_T[run]), y(y_T[run])),
                    "single": len(run) == 1,
                    "colour": look["color"],
                    "width": look["width"],
                    "dash": _DASHES.get(look.get("dash", "")),
                }
            )
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


def _runs(at_T: FloatArray, y_T: FloatArray) -> list[IntArray]:
    """Places of stretches of known values in consecutive sessions."""
    known = np.flatnonzero(np.isfinite(y_T))
    return [run for run in np.split(known, np.flatnonzero(np.diff(at_T[known]) > 1) + 1) if len(run)]


def _points(x_T: FloatArray, y_T: FloatArray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(x_T, y_T, strict=True))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover the range, about `_TICKS` of them."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * factor >= rough)
    return [k * step for k in range(math.floor(low / step), math.ceil(high / step) + 1)]
