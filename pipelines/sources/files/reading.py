"""Reading a user's CSV, Excel and Parquet files: column names, dates, numbers and units.

CSV and Excel are read as text, so that a ticker named NA stays a ticker, and an unreadable number rejects its
row rather than the whole file. This module interprets values; the contract decides whether they may be
stored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.sources.files.dates import COUNTED, counted_as_iso, refuse_mixed_orders, refuse_times_of_day
from pipelines.sources.files.layouts import Names, match_names
from pipelines.sources.files.text import (
    COMMAS,
    EXCEL,
    HEADER_LINES,
    TextFormat,
    header_of,
    is_text,
    scan_text,
)
from pipelines.sources.tickers import plain_tickers

_NOT_AVAILABLE: Final = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-")
_MAX_LISTED: Final = 12
UNNAMED: Final = ("", "__index_level_0__")
"""Names of an index without a name, in CSV and in Parquet, as pandas writes it."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to interpret the columns and values of a user's files.

    Attributes
    ----------
    columns
        Peerglass column name -> name in the files, where they differ. ``table.column`` applies only to the
        file of that table.
    units
        Peerglass column or statement item -> factor by which its values are multiplied.
    date_format
        strptime format of dates that are not ISO (2020-01-31 or 20200131), or one of `COUNTED`; None if all
        are ISO. It must be given, because 05/01/2015 is ambiguous.
    table_only
        Peerglass names that are mapped for this file only; the file must have these columns.
    names
        Usual names of columns in files of this kind, which are looked for where a name is not mapped.
    text
        Separator, decimal mark and encoding of text files.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)
    date_format: str | None = None
    table_only: frozenset[str] = frozenset()
    names: Names = field(default_factory=dict)
    text: TextFormat = COMMAS

    def for_table(self, table: str, names: Names | None = None) -> ReadOptions:
        """Return the options for one table's file; names given for that table take precedence."""
        table_only = {
            name.partition(".")[2]: theirs
            for name, theirs in self.columns.items()
            if name.partition(".")[0] == table and "." in name
        }
        shared = {name: theirs for name, theirs in self.columns.items() if "." not in name}
        return replace(
            self, columns=shared | table_only, table_only=frozenset(table_only), names=names or self.names
        )

    def with_name(self, ours: str, theirs: str) -> ReadOptions:
        """Return the options with one more usual name of a column."""
        return replace(self, names={**self.names, ours: (theirs,)})

    def match(self, available: Sequence[str]) -> dict[str, str]:
        """Peerglass column -> the file's column, of those that are mapped or have a usual name."""
        mapped = {ours: theirs for ours, theirs in self.columns.items() if theirs in available}
        return {**match_names(self.names, available), **mapped}

    def read_columns(
        self, files: Sequence[Path], required: Sequence[str], optional: Sequence[str], *, fall_back: bool
    ) -> pl.DataFrame:
        """Read the known columns of every file, under Peerglass's names.

        Parameters
        ----------
        files
            Files with the same columns.
        required, optional
            Peerglass's column names.
        fall_back
            Whether Peerglass's own name is tried if a file lacks the mapped one, because the mapping may be
            meant for another file.

        Raises
        ------
        DataError
            If a file is unreadable, lacks a required or a mapped column, or differs from the first file in
            the names or types of its columns.
        """
        parts: list[pl.DataFrame] = []
        for file in files:
            rows = scan(file, self.text)
            names = self._columns_to_read(
                columns_of(rows, file), file, required, optional, fall_back=fall_back
            )
            part = collect(rows.select(pl.col(theirs).alias(ours) for ours, theirs in names.items()), file)
            if parts:
                _refuse_different_columns(files[0], parts[0], file, part)
            parts.append(part)
        return concat_parts(parts)

    def _columns_to_read(
        self,
        available: list[str],
        file: Path,
        required: Sequence[str],
        optional: Sequence[str],
        *,
        fall_back: bool,
    ) -> dict[str, str]:
        names: dict[str, str] = {}
        usual = match_names(self.names, available)
        for ours in (*required, *optional):
            theirs = self.columns.get(ours) or usual.get(ours, ours if ours not in self.names else "")
            if theirs not in available and fall_back and ours not in self.table_only:
                theirs = usual.get(ours, ours)
            if theirs in available:
                names[ours] = theirs
            elif ours in required or ours in self.columns:
                wide = (
                    " (or set source.layout to wide, if its columns are tickers)" if ours == "ticker" else ""
                )
                raise DataError(no_column(file, theirs or ours, ours, available) + wide)
        return names

    def column_name(self, ours: str, available: Sequence[str], file: Path) -> str:
        """Return the file's name of a required column: the mapped name, or Peerglass's own.

        A first column without a name holds the dates: this is how pandas writes an index of dates.
        """
        mapped = self.columns.get(ours, ours)
        usual = match_names(self.names, available).get(ours, ours)
        for theirs in (mapped,) if ours in self.table_only else (mapped, ours, usual):
            if theirs in available:
                return theirs
        if ours == "date" and mapped == ours and available[0] in UNNAMED:
            return available[0]
        raise DataError(no_column(file, mapped, ours, available))

    def numbers(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Convert columns to float64 and multiply them by their units.

        A column with a value that is not a number stays text, so that the contract rejects the rows in
        question.
        """
        for column in columns:
            frame = read_number(frame, column)
            if column in self.units:
                frame = scale(frame, column, pl.lit(float(self.units[column])))
        return frame

    def dates(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Convert columns to dates.

        A column with a value that is not a date stays text, so that the contract rejects the rows in
        question.

        Raises
        ------
        DataError
            If the dates share a time of day that is not midnight, or have two orders of day and month
            (`pipelines.sources.files.dates`).
        """
        for column in columns:
            dtype = frame.schema[column]
            if dtype == pl.Date or isinstance(dtype, pl.Datetime):
                refuse_times_of_day(frame[column])
                # the day of a date's own time zone; a cast would give the day in UTC
                frame = frame.with_columns(pl.col(column).dt.date())
                continue
            read = frame.select(as_text(column)).select(null_if_not_available(column))
            if self.date_format in COUNTED:
                read = read.select(counted_as_iso(pl.col(column), self.date_format).alias(column))
            refuse_times_of_day(read[column])
            value = pl.col(column)
            # drop the time of day, so that 2020-01-31 00:00:00 and 2020-01-31T00:00 are dates as well
            iso = value.str.extract(r"^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:.*)?$")
            parsed = pl.coalesce(
                iso.str.to_date("%Y-%m-%d", strict=False),
                value.str.extract(r"^(\d{8})$").str.to_date("%Y%m%d", strict=False),
            )
            if self.date_format is not None and self.date_format not in COUNTED:
                read = self._given_format(read, column, parsed)
            dates = read.select(parsed.alias(column)).to_series()
            if dates.null_count() == read[column].null_count():
                frame = frame.with_columns(dates)
            else:
                kept = pl.coalesce(parsed.dt.to_string("%Y-%m-%d"), value).alias(column)
                frame = frame.with_columns(read.select(kept).to_series())
        return frame

    def _given_format(self, read: pl.DataFrame, column: str, parsed: pl.Expr) -> pl.DataFrame:
        """Write the dates of the given format as ISO, where ``parsed`` does not read them already."""
        assert self.date_format is not None
        others = read.filter(parsed.is_null())[column].drop_nulls().unique().sort()
        moments = others.str.to_datetime(self.date_format, strict=False)
        refuse_times_of_day(moments)
        refuse_mixed_orders(others, others.filter(moments.is_null()), self.date_format)
        written = pl.DataFrame({column: others, "iso": moments.dt.to_string("%Y-%m-%d")}).drop_nulls()
        iso = pl.col(column).replace(written[column], written["iso"])
        return read.with_columns(pl.when(parsed.is_null()).then(iso).otherwise(pl.col(column)).alias(column))


def no_column(file: Path, wanted: str, ours: str, available: Sequence[str]) -> str:
    """Say that a file lacks a column, which one was probably meant, and the cure."""
    near = difflib.get_close_matches(wanted.lower(), [name.lower() for name in available], n=1)
    meant = next((f" (did you mean {name!r}?)" for name in available if [name.lower()] == near), "")
    return (
        f"{file} has no column {wanted!r} for {ours}{meant}; its columns are {abbreviate(available)}: "
        f"map it in source.columns, as {ours}: <name in the file>"
    )


def file_label(files: Sequence[Path]) -> str:
    """Return a name for files in messages."""
    return files[0].name if len(files) == 1 else f"{files[0].name} to {files[-1].name} ({len(files)} files)"


def scan(file: Path, text: TextFormat) -> pl.LazyFrame:
    """Open a file lazily: text files and workbooks as text, Parquet with its own types."""
    try:
        if file.name.lower().endswith(EXCEL):
            return _read_sheet(file).lazy()
        return scan_text(file, text) if is_text(file) else pl.scan_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error


def _read_sheet(file: Path) -> pl.DataFrame:
    """Read the first sheet of a workbook as text."""
    from fastexcel import FastExcelError

    try:
        cells = pl.read_excel(file, has_header=False, infer_schema_length=0, raise_if_empty=False)
    except FastExcelError as error:
        raise _unreadable(file, error) from error
    lines = [[cell or "" for cell in row] for row in cells.head(HEADER_LINES).iter_rows()]
    if not lines:
        raise DataError(f"the first sheet of {file} is empty: use a sheet with values")
    skipped, names = header_of(lines) or (1, [cell.strip() for cell in lines[0]])
    return cells.slice(skipped).rename(dict(zip(cells.columns, names, strict=True)))


def columns_of(rows: pl.LazyFrame, file: Path) -> list[str]:
    """Return a file's column names; DataError if it is unreadable, or a CSV header repeats a name."""
    try:
        names = rows.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error
    for name in names:  # polars renames the second of two columns with the same name
        twin = re.fullmatch(r"(.*)_duplicated_\d+", name)
        if twin and twin[1] and twin[1] in names:  # columns without a name may repeat
            raise DataError(f"{file} has several columns named {twin[1]!r}: rename or remove all but one")
    return names


def collect(rows: pl.LazyFrame, file: Path) -> pl.DataFrame:
    """Read the rows of a file; DataError if it is unreadable."""
    try:
        return rows.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "utf-8" in reason:
        return DataError(f"{file} is not encoded as UTF-8: set its encoding, for example encoding: latin-1")
    return DataError(f"{file} cannot be read as {file.suffix.lstrip('.')} ({reason}): repair or replace it")


def _refuse_different_columns(first: Path, first_part: pl.DataFrame, file: Path, part: pl.DataFrame) -> None:
    for complete, incomplete, has, lacks in (
        (first, file, first_part, part),
        (file, first, part, first_part),
    ):
        if absent := [name for name in has.columns if name not in lacks.columns]:
            raise DataError(
                f"{incomplete} has no {', '.join(absent)}, which {complete.name} has: the files of one "
                "pattern "
                "must have the same columns"
            )
    for name in first_part.columns:
        kinds = _kind(first, first_part.schema[name]), _kind(file, part.schema[name])
        if None not in kinds and kinds[0] != kinds[1]:
            raise DataError(
                f"{file} stores {name} as {part.schema[name]}, but {first.name} as "
                f"{first_part.schema[name]}: the "
                "files of one pattern must have columns of the same type"
            )


def _kind(file: Path, dtype: pl.DataType) -> str | None:
    """Return whether a type is number, date or text; None for files that are all text, and for all-null."""
    if dtype == pl.Null or not file.name.lower().endswith((".parquet", ".pq")):
        return None
    return "number" if dtype.is_numeric() else "date" if dtype.is_temporal() else "text"


def concat_parts(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate parts with the same columns; columns of different types become float64 or text."""
    if len(parts) == 1:
        return parts[0]
    casts: list[pl.Expr] = []
    for name in parts[0].columns:
        dtypes = {part.schema[name] for part in parts} - {pl.Null()}
        if len(dtypes) <= 1:
            to: pl.DataType | None = next(iter(dtypes), None)
        elif all(dtype.is_numeric() for dtype in dtypes):
            to = pl.Float64()
        else:
            to = pl.String()
        if to is not None:
            casts.append(pl.col(name).cast(to))
    return pl.concat([part.with_columns(casts) for part in parts])


def as_text(column: str) -> pl.Expr:
    """Return a column as text without surrounding spaces."""
    return pl.col(column).cast(pl.String).str.strip_chars()


def ticker_text(column: str = "ticker") -> pl.Expr:
    """Return a column of tickers in the form in which they are stored (`pipelines.sources.tickers`)."""
    return plain_tickers(as_text(column)).alias(column)


def null_if_not_available(column: str) -> pl.Expr:
    """Return a text column with null in place of the usual words for "not available"."""
    missing = pl.col(column).str.to_lowercase().is_in(_NOT_AVAILABLE)
    return pl.when(~missing).then(pl.col(column)).alias(column)


def read_number(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Convert a column to float64, with null for NaN and "not available".

    A column with a value that is not a number stays text.
    """
    if frame.schema[column].is_numeric():
        return frame.with_columns(pl.col(column).cast(pl.Float64).fill_nan(None))
    words = frame.select(as_text(column)).select(null_if_not_available(column)).to_series()
    numbers = read_numbers(words)
    if numbers.null_count() != words.null_count():
        return frame.with_columns(words)
    return frame.with_columns(numbers.fill_nan(None))


def read_numbers(words: pl.Series) -> pl.Series:
    """Convert text to float64; null where it is no number."""
    numbers = words.cast(pl.Float64, strict=False)
    if numbers.null_count() != words.null_count():
        cleaned = _without_marks(words.filter(numbers.is_null()))
        numbers = numbers.scatter(numbers.is_null().arg_true(), cleaned)
    return numbers


_AMOUNT: Final = r"^(-?)(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?$"
_FACTORS: Final = {
    "K": 1e3,
    "M": 1e6,
    "B": 1e9,
    "T": 1e12,
    "%": 1e-2,
    "万": 1e4,
    "만": 1e4,
    "亿": 1e8,
    "억": 1e8,
}


def _without_marks(words: pl.Series) -> pl.Series:
    """Read numbers with separators of thousands, signs of currencies, brackets for minus, and suffixes.

    ``$1,234.50`` is 1234.5, ``(1.5)`` is -1.5, ``1.2M`` is 1.2 million and ``1.5%`` is 0.015.
    Null: no number.
    """
    text = pl.col("text").str.replace_all(r"[\s'\u2019]|US\$|USD|EUR|GBP|[$€£¥￥₩₹]", "")
    frame = pl.DataFrame({"text": words}).select(
        text.str.to_uppercase()
        .str.replace(r"^\((.*)\)$", "-${1}")
        .str.replace(r"^\+", "")
        .str.replace("\u2212", "-")
    )
    suffix = pl.col("text").str.extract(r"\d([KMBT%万만亿억])$")
    digits = pl.col("text").str.strip_suffix(suffix.fill_null(""))
    number = pl.when(digits.str.contains(_AMOUNT)).then(digits.str.replace_all(",", "", literal=True))
    factor = suffix.replace_strict(_FACTORS, default=1.0, return_dtype=pl.Float64)
    return frame.select(number.cast(pl.Float64, strict=False) * factor).to_series()


def scale(frame: pl.DataFrame, column: str, factor: pl.Expr) -> pl.DataFrame:
    """Multiply a column that `read_number` has read; values that are not numbers are unchanged."""
    if frame.schema[column] != pl.String:
        return frame.with_columns(pl.col(column) * factor + 0.0)  # no negative zero
    scaled = (pl.col(column).cast(pl.Float64, strict=False) * factor).cast(pl.String)
    return frame.with_columns(pl.coalesce(scaled, pl.col(column)).alias(column))


def abbreviate(names: Sequence[str]) -> str:
    """Join names for a message, at most twelve of them."""
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")
