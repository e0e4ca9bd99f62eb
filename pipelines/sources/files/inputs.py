"""A user's own numbers by date and ticker: every numeric column becomes an input of its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.lake.columns import INPUT_PATTERN
from pipelines.sources.files.prices import within_dates
from pipelines.sources.files.reading import (
    Reading,
    collect,
    columns_of,
    label,
    read_number,
    scan,
    shown,
    stack,
    text,
)


def read_inputs(
    files: Sequence[Path], reading: Reading, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows of (name, date, ticker, value), as delivered: nothing says when they were known.

    Names are made of ``[a-z][a-z0-9_]*``. Empty values and NaN are left out and counted, columns that hold
    anything but numbers are named in a note.

    Raises
    ------
    DataError
        If a file is unreadable, lacks date, ticker or a numeric column, two columns end up with the same
        name, or no row lies within the dates.
    """
    parts: list[pl.DataFrame] = []
    left_out: dict[str, None] = {}
    for file in files:
        rows = scan(file)
        there = columns_of(rows, file)
        day, ticker = (reading.name_of(ours, there, file) for ours in ("date", "ticker"))
        frame = collect(rows, file)
        numeric: list[str] = []
        for name in there:
            if name in (day, ticker):
                continue
            frame = read_number(frame, name) if _may_be_number(frame.schema[name]) else frame
            if frame.schema[name] == pl.Float64:
                numeric.append(name)
            else:
                left_out[name] = None
        if not numeric:
            raise DataError(f"{file} has no numeric column beside {day} and {ticker}; it has {shown(there)}")
        frame = frame.select(pl.col(day).alias("date"), pl.col(ticker).alias("ticker"), *numeric)
        frame = frame.with_columns(text("ticker")).rename(_names(numeric, file))
        parts.append(frame.unpivot(index=["date", "ticker"], variable_name="name", value_name="value"))
    frame = within_dates(reading.dates(stack(parts), ["date"]), files, start, end)
    notes = []
    if left_out:
        notes.append(
            f"{label(files)} has columns that are not numbers and left out: {shown(list(left_out))}."
        )
    empty = frame["value"].null_count()
    if empty:
        notes.append(f"{empty:,} empty values of {label(files)} are left out.")
    return frame.drop_nulls("value").select("name", "date", "ticker", "value").sort(
        "name", "date", "ticker"
    ), notes


def _may_be_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.String


def _names(columns: Sequence[str], file: Path) -> dict[str, str]:
    """Turn a file's column names into names of inputs."""
    named: dict[str, str] = {}
    taken: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
        name = f"x_{name}" if name[:1].isdigit() else name
        if not re.fullmatch(INPUT_PATTERN, name):
            raise DataError(
                f"{file} has a column {column!r}, of which no name can be made: rename it to at most 41 "
                "letters, digits and underscores"
            )
        if name in taken:
            raise DataError(
                f"{file} has the columns {taken[name]!r} and {column!r}, which would both be named {name}: "
                "rename one"
            )
        named[column], taken[name] = name, column
    return named
