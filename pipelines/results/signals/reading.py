"""Reading a signal file: dates, tickers and one or more signals, as a frame with one row per key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.errors import DataError
from pipelines.results.signals.columns import Columns, is_parquet, unreadable
from pipelines.sources.files.dates import refuse_times_of_day
from pipelines.sources.files.text import COMMAS, scan_text


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
        CSV or Parquet file.
    columns
        Roles of its columns (`pipelines.results.signals.columns.find_columns`).

    Raises
    ------
    DataError
        If the file cannot be parsed, repeats a key, lacks a date or ticker in a row, or holds infinite
        values, or its dates share a time of day that is not midnight.
    """
    chosen = [columns.date, columns.ticker, *columns.signals.values()]
    try:
        if is_parquet(path):
            frame = pl.read_parquet(path, columns=chosen)
        elif columns.text != COMMAS:
            frame = scan_text(path, columns.text).select(chosen).collect()
        else:
            # Type inference would guess the order of day and month in 05/01/2015, and read 0700 as a number.
            as_text = {columns.date: pl.String, columns.ticker: pl.String}
            frame = pl.read_csv(path, columns=chosen, schema_overrides=as_text, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(path, error) from None
    frame = _typed(path, frame, columns)
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
    """Rename the columns and cast them; NaN becomes null."""
    refuse_times_of_day(frame[columns.date])
    try:
        day = pl.col(columns.date)
        if frame.schema[columns.date] == pl.String:
            midnight = (
                r"[T ]00:00(:00(\.0+)?)?(Z|[+-]\d{2}:?\d{2})?$"  # the day of the zone in which it is written
            )
            day = day.str.replace(midnight, "").str.to_date("%Y-%m-%d")
        return frame.select(
            day.dt.date().alias("date"),  # of its own time zone; a cast would give the day in UTC
            pl.col(columns.ticker).cast(pl.String).alias("ticker"),
            *(
                pl.col(column).cast(pl.Float64).fill_nan(None).alias(name)
                for name, column in columns.signals.items()
            ),
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{path}: {' '.join(str(error).split())[:200]}; dates must be YYYY-MM-DD and signals numbers."
        ) from None


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
