"""Prices from a user's files: bars in rows (long), or closes with a column a ticker (wide)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.lake.columns import within_range
from pipelines.sources.files.reading import (
    Reading,
    collect,
    columns_of,
    label,
    read_number,
    scale,
    scan,
    shown,
    stack,
    text,
)

REQUIRED: Final = ("date", "ticker", "close")
_BAR: Final = ("open", "high", "low")
OPTIONAL: Final = (*_BAR, "volume", "split_ratio", "dividend")


def read_bars(
    files: Sequence[Path], reading: Reading, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows of (date, ticker, close, ...), one a session and firm.

    An open, high or low of zero means "not known", and so does an open outside the day's range while the
    close is inside it (vendors leave opens unadjusted for later splits); both are counted in the notes.

    Raises
    ------
    DataError
        If a file is unreadable, lacks a column, or no row lies within the dates.
    """
    frame = reading.pick(files, REQUIRED, OPTIONAL, fall_back=False)
    notes = _absent(frame, files)
    numbers = [c for c in ("close", *OPTIONAL) if c in frame.columns]
    frame = reading.numbers(reading.dates(frame, ["date"]).with_columns(text("ticker")), numbers)
    frame = within_dates(frame, files, start, end)
    frame, bar_notes = _unknown_bars(frame)
    return frame.sort("date", "ticker"), notes + bar_notes


def read_wide_closes(
    files: Sequence[Path], reading: Reading, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read files with a date column and a column of closes a ticker; an empty cell is no row.

    Files of a pattern may hold different tickers.

    Raises
    ------
    DataError
        If a file is unreadable, has no date column or no other one, or no close lies within the dates.
    """
    parts: list[pl.DataFrame] = []
    empty = 0
    for file in files:
        rows = scan(file)
        there = columns_of(rows, file)
        day = reading.name_of("date", there, file)
        tickers = [name for name in there if name != day]
        if not tickers:
            raise DataError(f"{file} has no column but {day}: a wide file has one a ticker")
        if "ticker" in there or "close" in there:
            raise DataError(
                f"{file} has the columns {shown(there)}: that is layout: long, not a column a ticker"
            )
        frame = collect(rows, file)
        numeric = all(frame.schema[name].is_numeric() for name in tickers)
        frame = frame.with_columns(pl.col(tickers).cast(pl.Float64 if numeric else pl.String))
        long = frame.unpivot(index=day, variable_name="ticker", value_name="close").rename({day: "date"})
        long = read_number(long.with_columns(text("ticker")), "close")
        empty += long["close"].null_count()
        parts.append(long.drop_nulls("close"))
    frame = reading.dates(stack(parts), ["date"])
    if "close" in reading.units:
        frame = scale(frame, "close", pl.lit(float(reading.units["close"])))
    notes = [
        f"{label(files)} gives closes alone: there is no {', '.join(OPTIONAL)}; prices are taken as they are."
    ]
    if empty:
        notes.append(f"{empty:,} cells of {label(files)} hold no close: no row there.")
    return within_dates(frame, files, start, end).sort("date", "ticker"), notes


def day(frame: pl.DataFrame) -> pl.Expr:
    """Return the date of a frame that `Reading.dates` has read; null where it could not."""
    value = pl.col("date")
    return value if frame.schema["date"] == pl.Date else value.str.to_date("%Y-%m-%d", strict=False)


def within_dates(
    frame: pl.DataFrame, files: Sequence[Path], start: date | None, end: date | None
) -> pl.DataFrame:
    """Keep the rows within the dates, and those whose date cannot be read, for the contract to reject."""
    name = str(files[0]) if len(files) == 1 else label(files)
    if frame.is_empty():
        raise DataError(f"{name} has a header and no rows: give a file with values")
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
            f"{first} to {last}: widen the dates"
        )
    return kept


def _absent(frame: pl.DataFrame, files: Sequence[Path]) -> list[str]:
    absent = [c for c in OPTIONAL if c not in frame.columns]
    if not absent:
        return []
    note = f"{label(files)} has no {', '.join(absent)}"
    if "split_ratio" in absent or "dividend" in absent:
        note += "; where split ratios or dividends are absent, prices are taken as they are"
    return [f"{note}."]


def _unknown_bars(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Set opens, highs and lows that mean "not known" to null, and say how many there were."""
    notes: list[str] = []
    bars = [c for c in _BAR if c in frame.columns and frame.schema[c].is_numeric()]
    for column in bars:
        zeros = int((frame[column] == 0).sum())
        if zeros:
            notes.append(f"{zeros:,} rows have {column} = 0, taken as not known.")
    frame = frame.with_columns(pl.when(pl.col(c) != 0).then(pl.col(c)).alias(c) for c in bars)
    if {*bars} == {*_BAR} and frame.schema["close"].is_numeric():
        sound = (pl.col("high") >= pl.col("low")) & within_range("close") & (pl.col("open") > 0)
        stray = (sound & ~within_range("open")).fill_null(value=False)
        strays = int(frame.select(stray.sum()).item())
        if strays:
            notes.append(
                f"{strays:,} rows have an open outside [low, high] and a close inside it: the open is taken "
                "as not known."
            )
            frame = frame.with_columns(pl.when(~stray).then(pl.col("open")).alias("open"))
    return frame, notes
