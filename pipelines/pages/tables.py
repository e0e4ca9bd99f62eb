"""Tables and numbers of the pages: which columns, and how a value is written."""

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import polars as pl

from pipelines.columns import COLUMNS
from pipelines.format import ANSWER, EN_DASH, NAMES, TEXT, YES_NO, Kind, is_unknown
from pipelines.pages.figure import LineStyle

TOTAL = "total"  # a row with this key is set off from the others
_SCALES = {"%": 100.0, "bps": 1e4}
_NUMBER = re.compile(r"(\+?)(%|bps|#|g|)(\d+)")
_WORDS: Mapping[str, Callable[[Any], str]] = {
    "yes": YES_NO.page,
    "answer": ANSWER.page,
    "names": NAMES.page,
    "mark": lambda value: ANSWER.page("yes" if value else "no"),
    "alarm": lambda value: "! yes" if value else "no",
    "minute": lambda value: f"{value:%Y-%m-%d %H:%M}",
}

Form = str | Kind
Spec = str | Sequence[Form | None]


def write(value: object, form: Form = "text") -> str:
    """Write a value for a reader as plain text; one that is not known is a dash.

    ``form`` is a kind of number (`pipelines.format`); or decimals after one of nothing, ``%`` (a
    fraction in per cent), ``bps``, ``#`` (significant digits) and ``g`` (at most so many), with ``+`` in
    front for plus signs; or ``text``, ``names``, ``yes``, ``mark`` (yes is better), ``alarm`` (yes is bad),
    ``answer``, ``state`` (also its class), ``minute`` or ``right``.
    """
    if isinstance(form, Kind):
        return form.page(value)
    if is_unknown(value):
        return EN_DASH
    found = _NUMBER.fullmatch(form)
    if found is None:
        return _WORDS.get(form, TEXT.page)(value)
    sign, kind, digits = found.groups()
    style = kind if kind in ("#", "g") else "f"
    return Kind(int(digits), _SCALES.get(kind, 1.0), signed=bool(sign), style=style).page(value)


@dataclass(frozen=True, slots=True)
class Shown:
    """One column of a table; neighbours with the same ``group`` share a header, ``hint`` is a tooltip."""

    field: str
    title: str
    form: Form = "text"
    group: str = ""
    hint: str = ""

    @classmethod
    def of(cls, spec: Spec) -> Self:
        """Read a column of a template: the name of a declared column, or name, title, form, group and hint.

        A title or form that is None or left out is that of the declared column. So is the hint, unless the
        title is an own one and the form an own one or left out: then another table than the declared one may
        have the name.
        """
        given: list[Form | None] = [spec] if isinstance(spec, str) else [*spec]
        name, title, form, group, hint = (given + [None] * 4)[:5]
        known = COLUMNS.get(str(name))
        meaning = known.meaning if known and (title is None or given[2:3] == [None]) else ""
        return cls(
            str(name),
            str(title) if title is not None else known.heading if known else str(name),
            form if form is not None else known.kind if known else "text",
            str(group or ""),
            str(hint) if hint is not None else meaning,
        )

    @property
    def css(self) -> str:
        """Class of the cells."""
        if isinstance(self.form, Kind):
            return "num" if self.form.numeric else "wide" if self.form.words == "names" else ""
        right = self.form == "right" or _NUMBER.fullmatch(self.form)
        return "num" if right else "wide" if self.form == "wide" else ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, its class and the colour of its chip (empty for none)."""

    text: str
    css: str = ""
    chip: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the macros of the templates show it; each row is a class and its cells."""

    label: str
    columns: tuple[Shown, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Shared headers and the number of their columns; empty if there are none."""
        if not any(column.group for column in self.columns):
            return []
        return [
            (title, len(list(part))) for title, part in groupby(self.columns, lambda column: column.group)
        ]


def has_values(frame: pl.DataFrame, name: str) -> bool:
    """Whether a frame has a column with at least one value that is neither null nor NaN."""
    if name not in frame.columns:
        return False
    series = frame[name]
    return (series.fill_nan(None) if series.dtype.is_float() else series).drop_nulls().len() > 0


def make_table(
    frame: pl.DataFrame,
    columns: Sequence[Spec],
    label: str,
    styles: Mapping[str, LineStyle],
    highlight: str | None = None,
) -> Table:
    """Build a table of a frame; a column (`Shown.of`) named ``?...`` needs a value, one model is shaded."""
    shown = tuple(_shown(frame, columns))
    rows = []
    for row in frame.iter_rows(named=True):
        chosen = highlight is not None and row.get("model") == highlight
        css = TOTAL if row.get("key") == TOTAL else "chosen" if chosen else ""
        rows.append((css, tuple(_cell(row[column.field], column, styles) for column in shown)))
    return Table(label, shown, tuple(rows))


def _shown(frame: pl.DataFrame, columns: Sequence[Spec]) -> Iterator[Shown]:
    for spec in columns:
        name, *rest = [spec] if isinstance(spec, str) else spec
        field = str(name).removeprefix("?")
        if field == name or has_values(frame, field):
            yield Shown.of((field, *rest))


def _cell(value: object, column: Shown, styles: Mapping[str, LineStyle]) -> Cell:
    text = write(value, column.form)
    if is_unknown(value):
        return Cell(text, column.css)
    if column.form == "mark":
        return Cell(text, "yes" if value else "no")
    if column.form in (ANSWER, "answer", "state"):
        return Cell(text, str(value))
    if column.field == "model" and value in styles:
        return Cell(text, "name", styles[str(value)].colour)
    return Cell(text, "name" if isinstance(value, dt.date) else column.css)


def verdict_rows(verdict: pl.DataFrame) -> pl.DataFrame:
    """Add to the criteria of a verdict, as texts, the ``interval`` of the value and what it ``needs``."""
    needs = []
    for above, passes, fails in verdict.select("above", "threshold", "fails").iter_rows():
        zone = "" if passes == fails else f", fails {'below' if above else 'above'} {write(fails, '2')}"
        needs.append(f"{'at least' if above else 'below'} {write(passes, '2')}{zone}")
    return with_interval(verdict).with_columns(needs=pl.Series(needs, dtype=pl.String))


def with_interval(frame: pl.DataFrame, low: str = "low", high: str = "high", digits: int = 2) -> pl.DataFrame:
    """Write bounds as the text ``interval``: an unbounded side in words, an unknown interval as a dash."""

    def bound(value: float | None) -> str:
        return "unbounded" if value is not None and math.isinf(value) else write(value, str(digits))

    written = [
        EN_DASH if is_unknown(one) and is_unknown(other) else f"{bound(one)} to {bound(other)}"
        for one, other in frame.select(low, high).iter_rows()
    ]
    return frame.with_columns(interval=pl.Series(written, dtype=pl.String))
