"""Which columns of a signal file are the date, the ticker and the signals.

Only the names and the types are needed, so a wrong file is refused before any data are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.files.text import COMMAS, TextFormat, recognise_text, scan_text

_DATE = ("date", "__index_level_0__")
_TICKER = ("ticker", "asset", "__index_level_1__")
_UNNAMED = re.compile(r"(Unnamed: ?\d+)?|_duplicated_\d+|__index_level_\d+__")
_FORWARD_RETURN = re.compile(r"\d+[DWMYhms]|\d+(min|us|ms|ns)")
_OF_ALPHALENS = ("factor_quantile", "group")
_GENERIC = ("signal", "factor")
_SAMPLED = 200  # rows of a text file that are read to tell numbers from text


@dataclass(frozen=True, slots=True)
class Columns:
    """The roles of a file's columns.

    Attributes
    ----------
    date, ticker
        Columns of the keys.
    signals
        Name shown -> column. A single column called ``signal`` or ``factor`` is shown by the file's name.
    ignored
        Columns that are not measured, with the reason.
    text
        Separator, decimal mark and encoding of a text file; without meaning for Parquet.
    """

    date: str
    ticker: str
    signals: Mapping[str, str]
    ignored: Mapping[str, str]
    text: TextFormat = COMMAS

    @property
    def notes(self) -> tuple[str, ...]:
        """The columns that are not measured, one sentence per reason."""
        by_reason: dict[str, list[str]] = {}
        for column, reason in self.ignored.items():
            by_reason.setdefault(reason, []).append(column or "(unnamed)")
        return tuple(f"Not measured: {', '.join(names)} ({reason})." for reason, names in by_reason.items())


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its suffix."""
    return path.suffix.lower() in (".parquet", ".pq")


def find_columns(path: Path, wanted: Sequence[str] = ()) -> Columns:
    """Find the roles of a signal file's columns.

    Separator, decimal mark and encoding of a text file are recognised from its beginning. The keys are
    ``date`` and ``ticker``. The names that pandas gives to the index of an alphalens factor
    frame work as well: ``asset``, or two unnamed columns in front. Every other column of numbers is a signal,
    except alphalens's forward returns (``1D``, ``5D``), its ``factor_quantile`` and its ``group``.

    Parameters
    ----------
    path
        CSV or Parquet file.
    wanted
        Columns to measure; empty for all.

    Raises
    ------
    ConfigError
        If a wanted column does not exist or does not hold numbers.
    DataError
        If there is no such file, it cannot be read, or it lacks a date, a ticker or a signal.
    """
    text, schema = _schema(path)
    names = list(schema)
    date = next((name for name in _DATE if name in schema), None)
    ticker = next((name for name in _TICKER if name in schema), None)
    unnamed = [name for name in names[:2] if _UNNAMED.fullmatch(name)]
    if date is None and ticker is None and len(unnamed) == 2:
        date, ticker = unnamed
    listed = ", ".join(name or "(unnamed)" for name in names)
    if date is None or ticker is None:
        lacking = "date" if date is None else "ticker"
        raise DataError(
            f"{path} lacks the column {lacking!r}; it needs date, ticker and at least one column of numbers, "
            f"and has {listed}."
        )
    numbers = [name for name in names if name not in (date, ticker) and schema[name].is_numeric()]
    _require_numbers(path, wanted, numbers, names)
    signals: list[str] = []
    ignored: dict[str, str] = {}
    for name in names:
        if name in (date, ticker):
            continue
        if wanted and name not in wanted:
            ignored[name] = "not selected by --signal"
        elif name not in numbers:
            ignored[name] = "no numbers"
        elif not wanted and _UNNAMED.fullmatch(name):
            ignored[name] = "an index without a name"
        elif not wanted and _FORWARD_RETURN.fullmatch(name):
            ignored[name] = "forward returns of alphalens, which look ahead"
        elif not wanted and name in _OF_ALPHALENS:
            ignored[name] = "made by alphalens from the factor"
        else:
            signals.append(name)
    if not signals:
        raise DataError(
            f"{path} has no column of numbers to measure beside the date and the ticker; it has {listed}."
        )
    return Columns(date, ticker, _shown(signals, path), ignored, text)


def _schema(path: Path) -> tuple[TextFormat, Mapping[str, pl.DataType]]:
    if not path.is_file():
        raise DataError(f"There is no signal file at {path}; check the path.")
    try:
        if is_parquet(path):
            return COMMAS, pl.read_parquet_schema(path)
        text = recognise_text(path)
        if text == COMMAS:
            sample = pl.read_csv(path, n_rows=_SAMPLED, infer_schema_length=_SAMPLED)
        else:
            sample = _with_numbers(scan_text(path, text).head(_SAMPLED).collect())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(path, error) from None
    return text, sample.schema


def _with_numbers(sample: pl.DataFrame) -> pl.DataFrame:
    """Cast the columns of text that hold numbers alone."""
    numbers = [
        column.name
        for column in sample
        if column.null_count() < len(column)
        and column.cast(pl.Float64, strict=False).null_count() == column.null_count()
    ]
    return sample.with_columns(pl.col(numbers).cast(pl.Float64))


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error of a file that cannot be parsed."""
    kind = "Parquet" if is_parquet(path) else "CSV"
    return DataError(f"{path} is not readable as {kind}: {' '.join(str(error).split())[:200]}")


def _require_numbers(path: Path, wanted: Sequence[str], numbers: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in numbers:
            wrong = "does not hold numbers" if name in names else "is not in the file"
            raise ConfigError(
                f"--signal {name}: this column {wrong}; {path} has the signals "
                f"{', '.join(numbers) or 'none'}."
            )


def _shown(signals: Sequence[str], path: Path) -> dict[str, str]:
    """Name each signal by its column; a single one with a generic name by its file."""
    if len(signals) == 1 and signals[0].lower() in _GENERIC:
        return {path.stem: signals[0]}
    return {name: name for name in signals}
