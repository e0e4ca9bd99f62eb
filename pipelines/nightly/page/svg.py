"""Small line charts as inline SVG, in the look of the report. They need no script, so a page stays small.

Shape suffix: T sessions.
"""

from __future__ import annotations

import datetime as dt
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from features.arrays import FloatArray, IntArray
from pipelines.pages.theme import GRID, MUTED, ZERO

_WIDTH, _HEIGHT = 400, 180  # about the width of a phone, so that its text can be read there
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 8, 8, 22
_TICKS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A line of a chart.

    Attributes
    ----------
    name
        Plain text, for the legend.
    y_T
        Values; a NaN interrupts the line.
    colour
        CSS colour.
    dash
        SVG dash array, such as ``4 3``; empty for a solid line.
    half_T
        Half-width of a band around the line; None for no band.
    width
        Width of the line, about in pixels of a phone.
    """

    name: str
    y_T: FloatArray
    colour: str
    dash: str = ""
    half_T: FloatArray | None = None
    width: float = 1.6


def chart(dates_T: Sequence[dt.date], lines: Sequence[Line], *, title: str, digits: int) -> str:
    """Draw lines over sessions.

    Parameters
    ----------
    dates_T
        Sessions, ascending; they are drawn at equal distances.
    lines
        At least one line with a known value.
    title
        Plain text above the chart.
    digits
        Decimals of the numbers on the vertical axis.

    Returns
    -------
    str
        An HTML figure with title, chart and legend; every text is escaped.
    """
    low, high = _range(lines)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    count = len(dates_T)

    def x(t: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (t / (count - 1) if count > 1 else 0.5)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - (value - low) / (high - low))

    parts = []
    for tick in ticks:
        colour = ZERO if tick == 0.0 else GRID
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="{colour}"/>'
        )
        parts.append(_text(_LEFT - 5, y(tick) + 4, _number(tick, digits), "end"))
    for place, anchor in ((0, "start"), (count - 1, "end")):
        if count > 1 or place == 0:
            parts.append(_text(x(place), _HEIGHT - 5, str(dates_T[place]), anchor if count > 1 else "middle"))
    for line in lines:
        if line.half_T is not None:
            parts += [_band(run, line, x, y) for run in _runs(line.y_T + line.half_T)]
    for line in lines:
        parts += [_path(run, line, x, y) for run in _runs(line.y_T)]
    legend = "".join(
        f'<span class="key"><i style="border-top:3px {"dashed" if line.dash else "solid"} {line.colour}"></i>'
        f"{html.escape(line.name)}</span>"
        for line in lines
    )
    return (
        f'<figure><h4>{html.escape(title)}</h4><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg><div class="keys">{legend}</div></figure>\n'
    )


Scale = Callable[[float], float]


def _runs(y_T: FloatArray) -> list[IntArray]:
    """Stretches of known values."""
    known = np.flatnonzero(np.isfinite(y_T))
    return [run for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if len(run)]


def _path(run: IntArray, line: Line, x: Scale, y: Scale) -> str:
    if len(run) == 1:
        t = int(run[0])
        return f'<circle cx="{x(t):.1f}" cy="{y(line.y_T[t]):.1f}" r="2" fill="{line.colour}"/>'
    points = " ".join(f"{x(t):.1f},{y(line.y_T[t]):.1f}" for t in run.tolist())
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    stroke = f'stroke="{line.colour}" stroke-width="{line.width:g}"{dash}'
    return f'<polyline points="{points}" fill="none" {stroke}/>'


def _band(run: IntArray, line: Line, x: Scale, y: Scale) -> str:
    assert line.half_T is not None
    edge = [(t, line.y_T[t] + line.half_T[t]) for t in run.tolist()]
    edge += [(t, line.y_T[t] - line.half_T[t]) for t in reversed(run.tolist())]
    points = " ".join(f"{x(t):.1f},{y(value):.1f}" for t, value in edge)
    return f'<polygon points="{points}" fill="{line.colour}" opacity="0.18"/>'


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    values = [line.y_T for line in lines]
    values += [line.y_T + sign * line.half_T for line in lines if line.half_T is not None for sign in (-1, 1)]
    known = np.concatenate([value[np.isfinite(value)] for value in values])
    low, high = min(float(known.min()), 0.0), max(float(known.max()), 0.0)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover the range, about `_TICKS` of them."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * factor >= rough)
    return [k * step for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{MUTED}" '
        f'font-size="11">{html.escape(words)}</text>'
    )


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")
