"""Tables as HTML, with fixed digits, units in the headers, right-aligned numbers and escaped names."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipelines.pages.contents.frames import is_missing
from pipelines.pages.theme import Style

DASH = "\N{EN DASH}"
SHORT = 24  # rows of a table that is not split between pages
TOTAL = "total"  # a row with this key is set off from the others
Format = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: field of the frame, title and format.

    ``format`` returns plain text, which is escaped here. Neighbouring columns with the same ``group`` share a
    header. ``hint`` is shown when the pointer rests on the title. A ``wide`` column holds sentences or lists.
    """

    field: str
    title: str
    format: Format
    numeric: bool = True
    group: str = ""
    hint: str = ""
    wide: bool = False


def number(digits: int) -> Format:
    """Write a number with ``digits`` decimals, a minus sign (not a hyphen) and thousands separators."""
    return lambda value: _minus(f"{value:,.{digits}f}")


def signed(digits: int) -> Format:
    """Write a number with its sign and ``digits`` decimals."""
    return lambda value: _minus(f"{value:+,.{digits}f}")


def percent(digits: int) -> Format:
    """Write a fraction in per cent, without the per cent sign (it belongs in the header)."""
    return lambda value: _minus(f"{100 * value:,.{digits}f}")


def significant(digits: int) -> Format:
    """Write a number with exactly ``digits`` significant digits."""
    return lambda value: _minus(f"{value:#.{digits}g}")


def plain(digits: int) -> Format:
    """Write a number with at most ``digits`` significant digits."""
    return lambda value: _minus(f"{value:.{digits}g}")


def text(value: object) -> str:
    """Write a value with ``str``."""
    return str(value)


def neutral_yes_no(value: object) -> str:
    """Write yes or no, without colour, where neither is better."""
    return "yes" if value else "no"


def yes_no(value: object) -> str:
    """Write yes or no with a mark, so that the colour is not needed to read it."""
    return "\N{CHECK MARK} yes" if value else "\N{MULTIPLICATION X} no"


def answer(value: object) -> str:
    """Write yes, no or unclear with a mark, so that the colour is not needed to read it."""
    marks = {"yes": "\N{CHECK MARK}", "no": "\N{MULTIPLICATION X}"}
    return f"{marks.get(str(value), '?')} {value}"


def table(
    frame: pl.DataFrame,
    columns: Sequence[Column],
    *,
    label: str,
    styles: Mapping[str, Style] | None = None,
    highlight: str | None = None,
) -> str:
    """Build one table.

    Parameters
    ----------
    frame
        Rows in the order to be shown.
    columns
        Columns to show. The frame must have all of them; the caller leaves out columns without values.
    label
        Description of the table for screen readers.
    styles
        Model -> style; its colour is drawn before the model's name in the column ``model``.
    highlight
        The model whose rows are shaded.

    Returns
    -------
    str
        HTML, every value escaped.
    """
    head = _head(columns)
    body = []
    for row in frame.iter_rows(named=True):
        mark = ' class="chosen"' if highlight is not None and row.get("model") == highlight else ""
        mark = ' class="total"' if row.get("key") == TOTAL else mark
        body.append(f"<tr{mark}>{''.join(_cell(row[c.field], c, styles) for c in columns)}</tr>")
    return _scrollable(head, body, label)


def figures_table(
    frame: pl.DataFrame,
    rows: Sequence[Column],
    *,
    label: str,
    styles: Mapping[str, Style],
    highlight: str | None = None,
) -> str:
    """Build a table with one row per figure and one column per model.

    Parameters
    ----------
    frame
        One row per model, with the column ``model``, in the order to be shown.
    rows
        Figures to show. The unit belongs in the title.
    label
        Description of the table for screen readers.
    styles
        Model -> style; its colour is drawn before the model's name.
    highlight
        The model whose column is shaded.

    Returns
    -------
    str
        HTML, every value escaped.
    """
    models = frame["model"].to_list()
    marks = [" chosen" if model == highlight else "" for model in models]
    head = "".join(
        f'<th scope="col" class="num model{mark}">{_chip(styles, model)}{html.escape(model)}</th>'
        for model, mark in zip(models, marks, strict=True)
    )
    body = []
    for row in rows:
        cells = "".join(
            f'<td class="num{mark}">{DASH if is_missing(value) else html.escape(row.format(value))}</td>'
            for value, mark in zip(frame[row.field].to_list(), marks, strict=True)
        )
        body.append(f'<tr><th scope="row"{_hint(row)}>{html.escape(row.title)}</th>{cells}</tr>')
    return _scrollable(f"<tr><td></td>{head}</tr>", body, label)


def pairs(rows: Mapping[str, str]) -> str:
    """Build a two-column table of names and values; both are escaped."""
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table class="pairs"><tbody>{body}</tbody></table>'


def _head(columns: Sequence[Column]) -> str:
    groups = ""
    if any(column.group for column in columns):
        spans: list[tuple[str, int]] = []
        for column in columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        cells = (
            f'<th class="group" scope="colgroup" colspan="{count}">{html.escape(title)}</th>'
            if title
            else f'<td colspan="{count}"></td>'
            for title, count in spans
        )
        groups = f"<tr>{''.join(cells)}</tr>"
    titles = "".join(
        f'<th scope="col"{_number_class(column)}{_hint(column)}>{html.escape(column.title)}</th>'
        for column in columns
    )
    return f"{groups}<tr>{titles}</tr>"


def _cell(value: object, column: Column, styles: Mapping[str, Style] | None) -> str:
    if is_missing(value):
        return f"<td{_number_class(column)}>{DASH}</td>"
    written = html.escape(column.format(value))
    if column.format is yes_no:
        return f'<td class="{"yes" if value else "no"}">{written}</td>'
    if column.format is answer:
        return f'<td class="{html.escape(str(value))}">{written}</td>'
    if column.field == "model" and styles is not None and value in styles:
        return f'<td class="name">{_chip(styles, str(value))}{written}</td>'
    if isinstance(value, dt.date):
        return f'<td class="name">{written}</td>'
    return f"<td{_number_class(column)}>{written}</td>"


def _scrollable(head: str, body: Sequence[str], label: str) -> str:
    """A table that scrolls sideways if it is wider than the screen; a short one stays on one page."""
    short = " short" if len(body) <= SHORT else ""
    return (
        f'<div class="scroll{short}" tabindex="0" role="region" aria-label="{html.escape(label)}">'
        f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _chip(styles: Mapping[str, Style], model: str) -> str:
    """A square in the model's colour; nothing for a model without a style."""
    return f'<span class="chip" style="background:{styles[model].colour}"></span>' if model in styles else ""


def _number_class(column: Column) -> str:
    return ' class="num"' if column.numeric else ' class="wide"' if column.wide else ""


def _hint(column: Column) -> str:
    return f' title="{html.escape(column.hint)}"' if column.hint else ""


def _minus(written: str) -> str:
    """Write minus signs for hyphens; a number that was rounded to zero has no sign."""
    if written.strip("+-0.,") == "":
        written = written.lstrip("+-")
    return written.replace("-", "\N{MINUS SIGN}")
