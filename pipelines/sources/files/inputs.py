"""A user's own numbers by date and ticker; each numeric column becomes an input with the column's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.lake.columns import INPUT_PATTERN
from pipelines.sources.files.prices import within_dates
from pipelines.sources.files.reading import (
    ReadOptions,
    abbreviate,
    collect,
    columns_of,
    concat_parts,
    file_label,
    read_number,
    scan,
    ticker_text,
)

_LATER: Final = re.compile(r"_lead\d+[dwmqy]?$")
"""Ends of names of returns that are earned later, as in the data of Jensen, Kelly and Pedersen."""


def read_inputs(
    files: Sequence[Path], options: ReadOptions, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows of (name, date, ticker, value), as delivered; the files do not say when a value became known.

    Names match ``[a-z][a-z0-9_]*``. Returns of later periods (``ret_exc_lead1m``) are left out. Empty values
    and NaN are dropped and counted; columns that are not numeric are listed in a note.

    Raises
    ------
    DataError
        If a file is unreadable or lacks a date, a ticker or a numeric column, two columns would get the same
        name, or no row is within the dates.
    """
    parts: list[pl.DataFrame] = []
    not_numeric: dict[str, None] = {}
    later: dict[str, None] = {}
    for file in files:
        rows = scan(file, options.text)
        available = columns_of(rows, file)
        day, ticker = (options.column_name(ours, available, file) for ours in ("date", "ticker"))
        frame = collect(rows, file)
        numeric: list[str] = []
        for name in available:
            if name in (day, ticker):
                continue
            if _LATER.search(name.lower()):
                later[name] = None
                continue
            frame = read_number(frame, name) if _may_be_number(frame.schema[name]) else frame
            if frame.schema[name] == pl.Float64:
                numeric.append(name)
            else:
                not_numeric[name] = None
        if not numeric:
            raise DataError(
                f"{file} has no numeric column besides {day} and {ticker}; its columns are "
                f"{abbreviate(available)}"
            )
        frame = frame.select(pl.col(day).alias("date"), pl.col(ticker).alias("ticker"), *numeric)
        frame = frame.with_columns(ticker_text()).rename(_input_names(numeric, file))
        parts.append(frame.unpivot(index=["date", "ticker"], variable_name="name", value_name="value"))
    frame = within_dates(options.dates(concat_parts(parts), ["date"]), files, start, end)
    notes = []
    if later:
        notes.append(
            f"{file_label(files)} has returns of later periods, which are left out: "
            f"{abbreviate(list(later))}."
        )
    if not_numeric:
        notes.append(
            f"{file_label(files)} has columns that are not numeric and are ignored: "
            f"{abbreviate(list(not_numeric))}."
        )
    empty = frame["value"].null_count()
    if empty:
        notes.append(f"{empty:,} empty values of {file_label(files)} are ignored.")
    return frame.drop_nulls("value").select("name", "date", "ticker", "value").sort(
        "name", "date", "ticker"
    ), notes


def _may_be_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.String


def _input_names(columns: Sequence[str], file: Path) -> dict[str, str]:
    """Convert a file's column names to names of inputs."""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
        name = f"x_{name}" if name[:1].isdigit() else name
        if not re.fullmatch(INPUT_PATTERN, name):
            raise DataError(
                f"{file} has a column {column!r}, which cannot be the name of an input: rename it to at most "
                "41 letters, digits and underscores"
            )
        if name in taken:
            raise DataError(
                f"{file} has the columns {taken[name]!r} and {column!r}, which would both be named {name}: "
                "rename one"
            )
        names[column], taken[name] = name, column
    return names
