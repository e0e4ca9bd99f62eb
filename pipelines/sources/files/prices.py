"""Prices from a user's files: one row per bar (long), or one column of closes per ticker (wide)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.lake.columns import within_range
from pipelines.sources.files.reading import (
    ReadOptions,
    abbreviate,
    as_text,
    collect,
    columns_of,
    concat_parts,
    file_label,
    read_number,
    scale,
    scan,
)

REQUIRED: Final = ("date", "ticker", "close")
_BAR: Final = ("open", "high", "low")
OPTIONAL: Final = (*_BAR, "volume", "split_ratio", "dividend")


def read_bars(
    files: Sequence[Path], options: ReadOptions, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows of (date, ticker, close, ...), one per session and firm.

    An open, high or low of zero means "not known". So does an open outside the day's range if the close is
    inside it (vendors leave opens unadjusted for later splits). Both are counted in the notes.

    Raises
    ------
    DataError
        If a file is unreadable or lacks a column, or no row is within the dates.
    """
    frame = options.read_columns(files, REQUIRED, OPTIONAL, fall_back=False)
    notes = _note_absent_columns(frame, files)
    numbers = [c for c in ("close", *OPTIONAL) if c in frame.columns]
    frame = options.numbers(options.dates(frame, ["date"]).with_columns(as_text("ticker")), numbers)
    frame = within_dates(frame, files, start, end)
    frame, bar_notes = _clear_invalid_bars(frame)
    return frame.sort("date", "ticker"), notes + bar_notes


def read_wide_closes(
    files: Sequence[Path], options: ReadOptions, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read files with a date column and one column of closes per ticker; an empty cell gives no row.

    The files of one pattern may hold different tickers.

    Raises
    ------
    DataError
        If a file is unreadable, has no date column or no other column, or no close is within the dates.
    """
    parts: list[pl.DataFrame] = []
    empty = 0
    for file in files:
        rows = scan(file, options.text)
        available = columns_of(rows, file)
        day = options.column_name("date", available, file)
        tickers = [name for name in available if name != day]
        if not tickers:
            raise DataError(f"{file} has no column besides {day}: a wide file needs one column per ticker")
        if "ticker" in available or "close" in available:
            raise DataError(f"{file} has the columns {abbreviate(available)}: set source.layout to long")
        frame = collect(rows, file)
        numeric = all(frame.schema[name].is_numeric() for name in tickers)
        frame = frame.with_columns(pl.col(tickers).cast(pl.Float64 if numeric else pl.String))
        long = frame.unpivot(index=day, variable_name="ticker", value_name="close").rename({day: "date"})
        long = read_number(long.with_columns(as_text("ticker")), "close")
        empty += long["close"].null_count()
        parts.append(long.drop_nulls("close"))
    frame = options.dates(concat_parts(parts), ["date"])
    if "close" in options.units:
        frame = scale(frame, "close", pl.lit(float(options.units["close"])))
    notes = [
        f"{file_label(files)} contains closes only, without {', '.join(OPTIONAL)}; "
        "prices are used as they are."
    ]
    if empty:
        notes.append(f"{empty:,} cells of {file_label(files)} hold no close and give no row.")
    return within_dates(frame, files, start, end).sort("date", "ticker"), notes


def day(frame: pl.DataFrame) -> pl.Expr:
    """Return the date column of a frame from `ReadOptions.dates`; null where a date is unreadable."""
    value = pl.col("date")
    return value if frame.schema["date"] == pl.Date else value.str.to_date("%Y-%m-%d", strict=False)


def within_dates(
    frame: pl.DataFrame, files: Sequence[Path], start: date | None, end: date | None
) -> pl.DataFrame:
    """Keep the rows within the dates, and rows with an unreadable date, which the contract rejects."""
    name = str(files[0]) if len(files) == 1 else file_label(files)
    if frame.is_empty():
        raise DataError(f"{name} has a header but no rows: use a file with values")
    read = day(frame)
    kept = frame
    if start is not None:
        kept = kept.filter((read >= start).fill_null(value=True))
    if end is not None:
        kept = kept.filter((read <= end).fill_null(value=True))
    if kept.is_empty():
        first, last = frame.select(read.min().alias("first"), read.max().alias("last")).row(0)
        raise DataError(
            f"{name} has no rows from {start or 'its start'} to {end or 'its end'}; it has "
            f"{first} to {last}: extend the dates"
        )
    return kept


def _note_absent_columns(frame: pl.DataFrame, files: Sequence[Path]) -> list[str]:
    absent = [c for c in OPTIONAL if c not in frame.columns]
    if not absent:
        return []
    note = f"{file_label(files)} has no {', '.join(absent)}"
    if "split_ratio" in absent or "dividend" in absent:
        note += "; without split ratios or dividends, prices are used as they are"
    return [f"{note}."]


def _clear_invalid_bars(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Set opens, highs and lows that mean "not known" to null, and count them in notes."""
    notes: list[str] = []
    bars = [c for c in _BAR if c in frame.columns and frame.schema[c].is_numeric()]
    for column in bars:
        zeros = int((frame[column] == 0).sum())
        if zeros:
            notes.append(f"{zeros:,} rows have {column} = 0, which is treated as not known.")
    frame = frame.with_columns(pl.when(pl.col(c) != 0).then(pl.col(c)).alias(c) for c in bars)
    if {*bars} == {*_BAR} and frame.schema["close"].is_numeric():
        sound = (pl.col("high") >= pl.col("low")) & within_range("close") & (pl.col("open") > 0)
        stray = (sound & ~within_range("open")).fill_null(value=False)
        strays = int(frame.select(stray.sum()).item())
        if strays:
            notes.append(
                f"{strays:,} rows have an open outside [low, high] but a close inside it: the open is "
                "treated "
                "as not known."
            )
            frame = frame.with_columns(pl.when(~stray).then(pl.col("open")).alias("open"))
    return frame, notes
