"""Reading users' CSV and Parquet: paths and globs, column names, dates, numbers and their units.

CSV is read as text, so that a ticker named NA stays a ticker and an unreadable number rejects its row rather
than the file. What a value means is settled here; whether it may be stored is the contract's matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError

_ENDINGS: Final = (".csv", ".csv.gz", ".parquet", ".pq")
_NOT_AVAILABLE: Final = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-")
_SHOWN_COLUMNS: Final = 12


@dataclass(frozen=True, slots=True)
class Reading:
    """How the columns and values of a user's files are to be understood.

    Attributes
    ----------
    columns
        Our column name -> the files' name, for columns that are named otherwise there. ``table.column``
        is about the file of that table alone.
    units
        Our column or statement item -> factor that its values are multiplied by.
    date_format
        A strptime format of dates that are not ISO (2020-01-31 or 20200131); None if all are. It must be
        said, for 05/01/2015 is one of two days.
    own
        Our names that are mapped for this file alone, which it must have.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)
    date_format: str | None = None
    own: frozenset[str] = frozenset()

    def of(self, table: str) -> Reading:
        """Return the reading of one table's file, in which names given for that table come first."""
        own = {
            name.partition(".")[2]: theirs
            for name, theirs in self.columns.items()
            if name.partition(".")[0] == table and "." in name
        }
        shared = {name: theirs for name, theirs in self.columns.items() if "." not in name}
        return replace(self, columns=shared | own, own=frozenset(own))

    def pick(
        self, files: Sequence[Path], required: Sequence[str], optional: Sequence[str], *, fall_back: bool
    ) -> pl.DataFrame:
        """Read the columns we know, under our names, from every file.

        Parameters
        ----------
        files
            Files with the same columns.
        required, optional
            Our names.
        fall_back
            Whether a mapped name that a file lacks falls back on our own, because the mapping may be meant
            for another file.

        Raises
        ------
        DataError
            If a file is unreadable, lacks a required or a mapped column, or its columns are not those of the
            first file, in name or in kind.
        """
        parts: list[pl.DataFrame] = []
        for file in files:
            rows = scan(file)
            take = self._take(columns_of(rows, file), file, required, optional, fall_back=fall_back)
            part = collect(rows.select(pl.col(theirs).alias(ours) for ours, theirs in take.items()), file)
            if parts:
                _refuse_drift(files[0], parts[0], file, part)
            parts.append(part)
        return stack(parts)

    def _take(
        self,
        there: list[str],
        file: Path,
        required: Sequence[str],
        optional: Sequence[str],
        *,
        fall_back: bool,
    ) -> dict[str, str]:
        take: dict[str, str] = {}
        for ours in (*required, *optional):
            theirs = self.columns.get(ours, ours)
            if theirs not in there and fall_back and ours not in self.own:
                theirs = ours
            if theirs in there:
                take[ours] = theirs
            elif ours in required or ours in self.columns:
                wide = " (or set layout: wide, if its columns are tickers)" if ours == "ticker" else ""
                raise DataError(
                    f"{file} has no column {theirs!r} for {ours}; it has {shown(there)}: "
                    f"map it in the source's columns, {ours}: <their name>{wide}"
                )
        return take

    def name_of(self, ours: str, there: Sequence[str], file: Path) -> str:
        """Return the file's own name of a column that it must have; its mapped one, or ours."""
        mapped = self.columns.get(ours, ours)
        for theirs in (mapped,) if ours in self.own else (mapped, ours):
            if theirs in there:
                return theirs
        raise DataError(
            f"{file} has no column {mapped!r} for {ours}; it has {shown(there)}: "
            f"map it in the source's columns, {ours}: <their name>"
        )

    def numbers(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Make columns float64 in our units.

        A column with a value that is no number stays text: the contract rejects those rows.
        """
        for column in columns:
            frame = read_number(frame, column)
            if column in self.units:
                frame = scale(frame, column, pl.lit(float(self.units[column])))
        return frame

    def dates(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Make columns dates; one with a value that is no date stays text: the contract rejects its rows."""
        for column in columns:
            dtype = frame.schema[column]
            if dtype == pl.Date or isinstance(dtype, pl.Datetime):
                frame = frame.with_columns(pl.col(column).cast(pl.Date))
                continue
            read = frame.select(text(column)).select(none_if_not_available(column))
            value = pl.col(column)
            # the part before a time of day, so that 2020-01-31 00:00:00 and 2020-01-31T00:00 are dates too
            iso = value.str.extract(r"^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:.*)?$")
            ways = [
                iso.str.to_date("%Y-%m-%d", strict=False),
                value.str.extract(r"^(\d{8})$").str.to_date("%Y%m%d", strict=False),
            ]
            if self.date_format is not None:
                ways.append(value.str.to_date(self.date_format, strict=False))
            parsed = pl.coalesce(ways)
            dates = read.select(parsed.alias(column)).to_series()
            if dates.null_count() == read[column].null_count():
                frame = frame.with_columns(dates)
            else:
                kept = pl.coalesce(parsed.dt.to_string("%Y-%m-%d"), value).alias(column)
                frame = frame.with_columns(read.select(kept).to_series())
        return frame


def resolve(path: Path) -> list[Path]:
    """Expand ``~``, environment variables and ``*?[]`` of a path into files, sorted by name.

    A file of exactly that name comes before what it would match as a pattern.

    Raises
    ------
    ConfigError
        If the path names an environment variable that is not set, or a file that is neither CSV nor Parquet.
    DataError
        If there is no such file.
    """
    expanded = os.path.expandvars(str(path))
    if unset := re.search(r"\$\{?\w+\}?", expanded):
        raise ConfigError(
            f"path {path} names the environment variable {unset.group()}, which is not set: set it"
        )
    try:
        given = Path(expanded).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"path {path} names a home folder that cannot be found: write it out") from error
    pattern = bool(re.search(r"[*?\[]", str(given))) and not given.is_file()
    files = sorted(_matches(given)) if pattern else [given]
    for file in files:
        if not file.name.lower().endswith(_ENDINGS):
            raise ConfigError(
                f"{file} is neither CSV (.csv, .csv.gz) nor Parquet (.parquet, .pq): "
                f"{'narrow the pattern' if pattern else 'convert it'}"
            )
    if pattern and not files:
        raise DataError(
            f"no file matches {given} (looked in {Path.cwd()}): mend the path in the source's config"
        )
    if not pattern and not given.is_file():
        raise DataError(
            f"there is no file {given} (looked in {Path.cwd()}): mend the path in the source's config"
        )
    return files


def _matches(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)  # the current folder where the pattern is relative
    return [path for path in root.glob(str(pattern.relative_to(pattern.anchor))) if path.is_file()]


def label(files: Sequence[Path]) -> str:
    """Name files in a note."""
    return files[0].name if len(files) == 1 else f"{files[0].name} to {files[-1].name} ({len(files)} files)"


def scan(file: Path) -> pl.LazyFrame:
    """Open a file lazily: CSV as text, Parquet with its types."""
    try:
        if file.name.lower().endswith((".parquet", ".pq")):
            return pl.scan_parquet(file, glob=False)
        return pl.scan_csv(file, glob=False, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error


def columns_of(rows: pl.LazyFrame, file: Path) -> list[str]:
    """Return a file's column names; DataError if it cannot be read, or a CSV header has a name twice."""
    try:
        names = rows.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error
    for name in names:  # polars renames the second of two columns of one name
        twin = re.fullmatch(r"(.*)_duplicated_\d+", name)
        if twin and twin[1] in names:
            raise DataError(f"{file} has more than one column {twin[1]!r}: rename or remove all but one")
    return names


def collect(rows: pl.LazyFrame, file: Path) -> pl.DataFrame:
    """Read the rows of a file; DataError if they cannot be read."""
    try:
        return rows.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DataError(f"{file} cannot be read as {file.suffix.lstrip('.')} ({reason}): write it again")


def _refuse_drift(first: Path, known: pl.DataFrame, file: Path, part: pl.DataFrame) -> None:
    for here, there, has, lacks in ((first, file, known, part), (file, first, part, known)):
        if absent := [name for name in has.columns if name not in lacks.columns]:
            raise DataError(
                f"{there} has no {', '.join(absent)}, which {here.name} has: the files of one pattern must "
                "have the same columns"
            )
    for name in known.columns:
        kinds = _kind(first, known.schema[name]), _kind(file, part.schema[name])
        if None not in kinds and kinds[0] != kinds[1]:
            raise DataError(
                f"{file} holds {name} as {part.schema[name]} and {first.name} as {known.schema[name]}: the "
                "files of one pattern must have columns of the same kind"
            )


def _kind(file: Path, dtype: pl.DataType) -> str | None:
    """Tell numbers, dates and text apart; None for CSV, whose text may be any of them, and for all-null."""
    if dtype == pl.Null or file.name.lower().endswith((".csv", ".csv.gz")):
        return None
    return "number" if dtype.is_numeric() else "date" if dtype.is_temporal() else "text"


def stack(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Put parts with the same columns under each other; where types differ, as float64, dates or text."""
    if len(parts) == 1:
        return parts[0]
    casts: list[pl.Expr] = []
    for name in parts[0].columns:
        dtypes = {part.schema[name] for part in parts} - {pl.Null()}
        if len(dtypes) <= 1:
            to: pl.DataType | None = next(iter(dtypes), None)
        elif all(dtype.is_numeric() for dtype in dtypes):
            to = pl.Float64()
        elif all(dtype.is_temporal() for dtype in dtypes):
            to = pl.Date()
        else:
            to = pl.String()
        if to is not None:
            casts.append(pl.col(name).cast(to))
    return pl.concat([part.with_columns(casts) for part in parts])


def text(column: str) -> pl.Expr:
    """Return a column as text without spaces around it."""
    return pl.col(column).cast(pl.String).str.strip_chars()


def none_if_not_available(column: str) -> pl.Expr:
    """Return a text column with null for what files write where they know nothing."""
    missing = pl.col(column).str.to_lowercase().is_in(_NOT_AVAILABLE)
    return pl.when(~missing).then(pl.col(column)).alias(column)


def read_number(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Make a column float64, NaN and "not available" null; one with a value that is no number stays text."""
    if frame.schema[column].is_numeric():
        return frame.with_columns(pl.col(column).cast(pl.Float64).fill_nan(None))
    words = frame.select(text(column)).select(none_if_not_available(column)).to_series()
    numbers = words.cast(pl.Float64, strict=False)
    if numbers.null_count() != words.null_count():
        return frame.with_columns(words)
    return frame.with_columns(numbers.fill_nan(None))


def scale(frame: pl.DataFrame, column: str, factor: pl.Expr) -> pl.DataFrame:
    """Multiply a column that `read_number` has read; values of it that are no numbers stay as they are."""
    if frame.schema[column] != pl.String:
        return frame.with_columns(pl.col(column) * factor + 0.0)  # no negative zero
    scaled = (pl.col(column).cast(pl.Float64, strict=False) * factor).cast(pl.String)
    return frame.with_columns(pl.coalesce(scaled, pl.col(column)).alias(column))


def shown(names: Sequence[str]) -> str:
    """List names for a message, the first dozen of them."""
    more = len(names) - _SHOWN_COLUMNS
    return ", ".join(names[:_SHOWN_COLUMNS]) + (f" and {more:,} more" if more > 0 else "")
