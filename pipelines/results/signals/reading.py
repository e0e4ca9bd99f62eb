"""Reading a signal file: dates, tickers and one or more signals, as a frame with one row per key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.errors import DataError
from pipelines.results.signals.columns import Columns
from pipelines.sources.files.opening import collect, scan
from pipelines.sources.files.reading import ReadOptions, read_number, read_numbers, ticker_text
from pipelines.sources.files.recognise import recognise_dates


@dataclass(frozen=True, slots=True, eq=False)
class SignalTable:
    """The rows of a signal file.

    Attributes
    ----------
    path
        The file.
    rows
        date, ticker, and one column of Float64 per signal, sorted by date and ticker; each key once. Null:
        the signal has no value.
    notes
        Columns that are not measured, and why.
    """

    path: Path
    rows: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals, in the order of the file."""
        return tuple(self.rows.columns[2:])

    def content(self, signal: str) -> str:
        """Digest of a signal's dates, tickers and values, which is the same for CSV and Parquet."""
        known = self.rows.select("date", "ticker", signal).drop_nulls()
        digest = hashlib.sha256(known["date"].to_physical().to_numpy().tobytes())
        digest.update(known["ticker"].str.join("\n").item().encode() if known.height else b"")
        digest.update((known[signal].to_numpy() + 0.0).tobytes())  # + 0.0: -0.0 equals 0.0
        return digest.hexdigest()[:16]


def read_signals(path: Path, columns: Columns) -> SignalTable:
    """Read the signals of a file.

    Parameters
    ----------
    path
        CSV, Excel or Parquet file.
    columns
        Roles of its columns (`pipelines.results.signals.columns.find_columns`).

    Raises
    ------
    DataError
        If the file cannot be parsed, repeats a key, lacks a date or ticker in a row, or holds infinite
        values, or its dates share a time of day that is not midnight.
    """
    rows = scan(path, columns.text)
    if columns.wide:
        frame = collect(rows.select(columns.date, *columns.wide), path)
        numeric = all(frame.schema[name].is_numeric() for name in columns.wide)
        frame = frame.with_columns(pl.col(columns.wide).cast(pl.Float64 if numeric else pl.String))
        frame = frame.unpivot(columns.wide, index=columns.date, variable_name="ticker", value_name="signal")
    else:
        frame = collect(rows.select(columns.date, columns.ticker, *columns.signals.values()), path)
    frame = _typed(path, frame, columns)
    if columns.wide:
        frame = frame.drop_nulls(list(columns.signals))
    incomplete = frame.filter(pl.col("date").is_null() | pl.col("ticker").is_null())
    if incomplete.height:
        raise DataError(
            f"{path}: {incomplete.height:,} rows have no date or no ticker; fill them, or remove the rows."
        )
    for signal in columns.signals:
        bad = frame.filter(pl.col(signal).is_infinite())
        if bad.height:
            row = bad.row(0, named=True)
            raise DataError(
                f"{path}: the signal {signal} of {row['ticker']} on {row['date']} is {row[signal]}; use "
                "finite numbers, or leave the value empty."
            )
    return SignalTable(path, _in_order(path, frame), columns.notes)


def _typed(path: Path, frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """Rename the columns and read their values; NaN becomes null."""
    names = {column: name for name, column in columns.signals.items()}
    frame = frame.rename({columns.date: "date", columns.ticker: "ticker"} | names)
    days = frame.select(pl.col("date").unique())
    form = recognise_dates(days, path, cure="write them as 2020-01-31") if days.height else None
    frame = ReadOptions(date_format=form).dates(frame, ["date"]).with_columns(ticker_text())
    if frame.schema["date"] == pl.String:
        unread = frame.filter(pl.col("date").str.to_date("%Y-%m-%d", strict=False).is_null())[
            "date"
        ].drop_nulls()
        raise DataError(f"{path}: the date {unread[0]!r} cannot be read; write dates as 2020-01-31.")
    for name in names.values():
        frame = read_number(frame, name)
        if frame.schema[name] == pl.String:
            words = frame.filter(pl.col(name).is_not_null() & read_numbers(frame[name]).is_null())
            row = words.row(0, named=True)
            raise DataError(
                f"{path}: the signal {name} of {row['ticker']} on {row['date']} is {row[name]!r}; it and "
                f"{words.height - 1:,} more values are no numbers: write them as 1234.5, or leave them empty."
            )
    return frame.select("date", "ticker", *names.values())


def _in_order(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Sort by date and ticker, unless the rows are in that order, and refuse keys that appear twice."""
    tickers = frame["ticker"].unique().sort()
    code = frame["ticker"].cast(pl.Enum(tickers)).to_physical().to_numpy().astype(np.int64)
    key = frame["date"].to_physical().to_numpy().astype(np.int64) * max(len(tickers), 1) + code
    if (np.diff(key) <= 0).any():
        order = np.argsort(key, kind="stable")
        frame, key = frame[order], key[order]
    twice = np.flatnonzero(np.diff(key) == 0)
    if len(twice):
        row = frame.row(int(twice[0]), named=True)
        raise DataError(
            f"{path}: {row['ticker']} on {row['date']} appears more than once; "
            "keep one signal per firm and date."
        )
    return frame
