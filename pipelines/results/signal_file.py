"""A user's signals: the columns of their file, its rows, and the folder of what is measured.

Roles of columns need only names and types, so a wrong file is refused before any data are read.
The folder is ``<output>/<file's name>-<digest>/``. The digest covers the values of the signals, the versions
of the tables, the universe and the label. Books, costs and delays make another evaluation in it.
"""

import datetime as dt
import difflib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.config.load import digest, load_config, to_yaml
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.files import damaged, write_text
from pipelines.run.record import LATEST, list_records
from pipelines.sources.files import opening
from pipelines.sources.files.layouts import PRICE_NAMES, match_names
from pipelines.sources.files.reading import (
    read_dates,
    read_known_dates,
    read_number,
    read_numbers,
    ticker_text,
)
from pipelines.sources.files.recognise import recognise_dates

_DATE = ("date", "__index_level_0__")
_TICKER = ("ticker", "asset", "__index_level_1__")
_FORWARD_RETURN = re.compile(r"\d+[DWMYhms]|\d+(min|us|ms|ns)")
_OF_ALPHALENS = ("factor_quantile", "group")
_GENERIC = ("signal", "factor")
_SAMPLED = 200  # rows of a text file that are read to tell numbers from text
_CASH = "cash"  # in pyfolio's positions
KNOWN_FROM: Final = "known_from"  # column with the knowledge cutoff of a row
_FEWEST_FIRMS = 2


@dataclass(frozen=True, slots=True)
class Columns:
    """Roles of a file's columns: signals by their names, why others are ignored, tickers of a wide file."""

    date: str
    ticker: str
    signals: Mapping[str, str]
    ignored: Mapping[str, str]
    text: opening.TextFormat = opening.COMMAS
    wide: tuple[str, ...] = ()
    cutoff: tuple[str, ...] = ()  # the column `KNOWN_FROM`, if there is one

    @property
    def notes(self) -> tuple[str, ...]:
        """The columns that are not measured, one sentence per reason."""
        by_reason: dict[str, list[str]] = {}
        for column, reason in self.ignored.items():
            by_reason.setdefault(reason, []).append(column or "(unnamed)")
        return tuple(f"Not measured: {', '.join(names)} ({reason})." for reason, names in by_reason.items())


def find_columns(path: Path, wanted: Sequence[str] = ()) -> Columns:
    """Find the roles of a signal file's columns; separator, decimal mark and encoding are recognised.

    The keys are ``date`` and ``ticker``, other usual names of both, or those of an alphalens frame
    (``asset``, or two unnamed columns in front). Every other column of numbers is a signal, except
    alphalens's forward returns, ``factor_quantile`` and ``group``. A file with one row a date is wide: its
    columns are tickers, as in pyfolio's positions (without ``cash``). ``known_from`` is the cutoff of a row.
    """
    text, schema, rows = _schema(path)
    names = list(schema)
    usual = match_names({ours: PRICE_NAMES[ours] for ours in ("date", "ticker")}, names)
    date = next((name for name in _DATE if name in schema), usual.get("date"))
    ticker = next((name for name in _TICKER if name in schema), usual.get("ticker"))
    unnamed = [name for name in names[:2] if opening.is_unnamed(name)]
    if date is None and ticker is None and len(unnamed) == 2:
        date, ticker = unnamed
    if ticker is None and (date is not None or len(unnamed) == 1):
        wide = _wide(path, rows, schema, unnamed[0] if date is None else date)
        if wide is not None:
            return replace(wide, text=text)
    listed = ", ".join(name or "(unnamed)" for name in names)
    if date is None or ticker is None:
        lacking = "date" if date is None else "ticker"
        raise DataError(
            f"{path} lacks the column {lacking!r}; it needs date, ticker and at least one column of numbers, "
            f"and has {listed}."
        )
    cutoff = _cutoff_of(names)
    others = [name for name in names if name not in (date, ticker, *cutoff)]
    numbers = [name for name in others if schema[name].is_numeric()]
    for name in wanted:
        if name not in numbers:
            near = difflib.get_close_matches(name, numbers, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            wrong = "does not hold numbers" if name in names else f"is not in the file{meant}"
            raise ConfigError(
                f"--signal {name}: this column {wrong}; {path} has the signals "
                f"{', '.join(numbers) or 'none'}."
            )
    reasons = {name: _reason_to_ignore(name, wanted, numbers) for name in others}
    signals = {name: name for name, reason in reasons.items() if reason is None}
    if not signals:
        raise DataError(
            f"{path} has no column of numbers to measure beside the date and the ticker; it has {listed}."
        )
    (first, *more) = signals
    if not more and first.lower() in _GENERIC:  # the file names it
        signals = {path.name.partition(".")[0]: first}
    ignored = {name: reason for name, reason in reasons.items() if reason is not None}
    return Columns(date, ticker, signals, ignored, text, cutoff=cutoff)


def _cutoff_of(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower() == KNOWN_FROM)[:1]


def _schema(path: Path) -> tuple[opening.TextFormat, Mapping[str, pl.DataType], pl.LazyFrame]:
    """Format, types and rows of a file; a column of text is one of numbers if its first values are."""
    if not path.is_file():
        raise DataError(f"There is no signal file at {path}; check the path.")
    text = opening.recognise_text(path) if opening.is_text(path) else opening.COMMAS
    rows = opening.scan(path, text)
    opening.columns_of(rows, path)
    schema = dict(rows.collect_schema())
    words = [name for name, dtype in schema.items() if dtype == pl.String]
    sample = opening.collect(rows.select(words).head(_SAMPLED), path)
    empty = [name for name in words if read_number(sample, name)[name].null_count() == sample.height]
    whole = opening.collect(rows.select(empty), path) if empty else sample
    for name in words:
        read = read_number(whole if name in empty else sample, name)[name]
        if read.dtype == pl.Float64 and read.null_count() < len(read):
            schema[name] = pl.Float64()
    return text, schema, rows


def _reason_to_ignore(name: str, wanted: Sequence[str], numbers: Sequence[str]) -> str | None:
    """Say why a column beside the keys is not measured; None if it is."""
    reasons = {
        "not selected by --signal": bool(wanted) and name not in wanted,
        "no numbers": name not in numbers,
        "an index without a name": not wanted and opening.is_unnamed(name),
        "forward returns of alphalens, which look ahead": not wanted and _FORWARD_RETURN.fullmatch(name),
        "made by alphalens from the factor": not wanted and name in _OF_ALPHALENS,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _wide(path: Path, rows: pl.LazyFrame, schema: Mapping[str, pl.DataType], day: str) -> Columns | None:
    """Return the roles of a wide file's columns; None if a date has several rows, or a column has words."""
    cutoff = _cutoff_of(list(schema))
    tickers = tuple(name for name in schema if name not in (day, *cutoff) and name.lower() != _CASH)
    if not all(schema[name].is_numeric() for name in tickers):
        return None
    if opening.collect(rows.select(day), path).is_duplicated().any():
        return None
    if len(tickers) < _FEWEST_FIRMS:
        raise DataError(
            f"{path} has one number a date, as a series of returns has, but a signal has one for each firm "
            f"and date; its columns are {', '.join(name or '(unnamed)' for name in schema)}, without ticker."
        )
    left = {name: "cash of positions" for name in schema if name.lower() == _CASH}
    return Columns(day, "ticker", {path.name.partition(".")[0]: "signal"}, left, wide=tickers, cutoff=cutoff)


@dataclass(frozen=True, slots=True, eq=False)
class SignalTable:
    """The rows of a signal file: date, ticker, a column per signal (null: none), in order, no key twice.

    A further column ``known_from`` is the knowledge cutoff of each row; without it, all rows count.
    """

    path: Path
    rows: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals, in the order of the file."""
        return tuple(name for name in self.rows.columns[2:] if name != KNOWN_FROM)

    def since(self, day: dt.date | None) -> Self:
        """Return the table with a cutoff for all rows; ConfigError if they have cutoffs of their own."""
        if day is None:
            return self
        if KNOWN_FROM in self.rows.columns:
            raise ConfigError(
                f"known_from is {day}, and {self.path} has a column {KNOWN_FROM}; remove one of them."
            )
        return replace(self, rows=self.rows.with_columns(pl.lit(day).alias(KNOWN_FROM)))

    def content(self, signal: str) -> str:
        """Digest of a signal's dates, tickers, values and cutoffs; the same for CSV and Parquet."""
        cutoffs = [KNOWN_FROM] if KNOWN_FROM in self.rows.columns else []
        known = self.rows.select("date", "ticker", signal, *cutoffs).drop_nulls()
        digest = hashlib.sha256(known["date"].to_physical().to_numpy().tobytes())
        digest.update(known["ticker"].str.join("\n").item().encode() if known.height else b"")
        digest.update((known[signal].to_numpy() + 0.0).tobytes())  # + 0.0: -0.0 equals 0.0
        for name in cutoffs:
            digest.update(known[name].to_physical().to_numpy().tobytes())
        return digest.hexdigest()[:16]


def early_rows(path: Path | str, rows: pl.DataFrame) -> pl.Series:
    """Whether each row is dated before its ``known_from`` and does not count; DataError if all are."""
    if KNOWN_FROM not in rows.columns:
        return pl.repeat(value=False, n=rows.height, eager=True)
    early = rows["date"] < rows[KNOWN_FROM]
    if rows.height and early.all():
        last, since = str(rows["date"].max()), str(rows[KNOWN_FROM].min())
        raise DataError(
            f"{path}: no forecast counts, because the last one is dated {last} and known_from is {since}; "
            "give forecasts made after the training data of the model."
        )
    return early


def read_signals(path: Path, columns: Columns) -> SignalTable:
    """Read the signals of a file, and refuse repeated keys, rows without a key, and infinite values."""
    rows = opening.scan(path, columns.text)
    if columns.wide:
        frame = opening.collect(rows.select(columns.date, *columns.cutoff, *columns.wide), path)
        numeric = all(frame.schema[name].is_numeric() for name in columns.wide)
        frame = frame.with_columns(pl.col(columns.wide).cast(pl.Float64 if numeric else pl.String))
        index = [columns.date, *columns.cutoff]
        frame = frame.unpivot(columns.wide, index=index, variable_name="ticker", value_name="signal")
        frame = _typed(path, frame, columns).drop_nulls(list(columns.signals))
    else:
        wanted = (columns.date, columns.ticker, *columns.signals.values(), *columns.cutoff)
        frame = opening.collect(rows.select(wanted), path)
        frame = _typed(path, frame, columns)
    incomplete = frame.filter(pl.col("date").is_null() | pl.col("ticker").is_null()).height
    if incomplete:
        raise DataError(
            f"{path}: {incomplete:,} rows have no date or no ticker; fill them, or remove the rows."
        )
    without = frame[KNOWN_FROM].null_count() if columns.cutoff else 0
    if without:
        raise DataError(
            f"{path}: {without:,} rows have no known_from; give each the cutoff of the model that made it, "
            "or a date before the first row if all of its forecasts count."
        )
    for signal in columns.signals:
        for row in frame.filter(pl.col(signal).is_infinite()).iter_rows(named=True):
            raise DataError(
                f"{path}: the signal {signal} of {row['ticker']} on {row['date']} is {row[signal]}; use "
                "finite numbers, or leave the value empty."
            )
    return SignalTable(path, _in_order(path, frame), columns.notes)


def _typed(path: Path, frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """Rename the columns and read their values; NaN becomes null."""
    names = {column: name for name, column in columns.signals.items()}
    cutoffs = dict.fromkeys(columns.cutoff, KNOWN_FROM)
    frame = frame.rename({columns.date: "date", columns.ticker: "ticker"} | names | cutoffs)
    for name in ("date", *cutoffs.values()):
        frame = _with_dates(path, frame, name)
    frame = frame.with_columns(ticker_text())
    for name in names.values():
        frame = read_number(frame, name)
        if frame.schema[name] == pl.String:
            words = frame.filter(pl.col(name).is_not_null() & read_numbers(frame[name]).is_null())
            row = words.row(0, named=True)
            raise DataError(
                f"{path}: the signal {name} of {row['ticker']} on {row['date']} is {row[name]!r}; it and "
                f"{words.height - 1:,} more values are no numbers: write them as 1234.5, or leave them empty."
            )
    return frame.select("date", "ticker", *names.values(), *cutoffs.values())


def _with_dates(path: Path, frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Read a column of dates in the format that most of them have."""
    days = frame.select(pl.col(name).unique())
    form = recognise_dates(days, path, cure="write them as 2020-01-31") if days.height else None
    known = name == KNOWN_FROM
    frame = read_known_dates(frame, name, form) if known else read_dates(frame, [name], form)
    if frame.schema[name] == pl.String:
        unread = frame[name].str.to_date("%Y-%m-%d", strict=False).is_null() & frame[name].is_not_null()
        day = frame[name].filter(unread)[0]
        raise DataError(f"{path}: the {name} {day!r} cannot be read; write dates as 2020-01-31.")
    return frame


def _in_order(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Sort by date and ticker, unless the rows are in that order, and refuse keys that appear twice."""
    tickers = frame["ticker"].unique().sort()
    code = frame["ticker"].cast(pl.Enum(tickers)).to_physical().to_numpy().astype(np.int64)
    key = frame["date"].to_physical().to_numpy().astype(np.int64) * max(len(tickers), 1) + code
    if (np.diff(key) <= 0).any():
        order = np.argsort(key, kind="stable")
        frame, key = frame[order], key[order]
    for at in np.flatnonzero(np.diff(key) == 0):
        row = frame.row(int(at), named=True)
        raise DataError(
            f"{path}: {row['ticker']} on {row['date']} appears more than once; "
            "keep one signal per firm and date."
        )
    return frame


RECORD: Final = "signals.json"  # name of the record in the folder

_NAME = re.compile(r"[^a-z0-9_]+")


class SignalRecord(BaseModel):
    """What was measured on which data; ``signals`` are digests, ``notes`` say what was not measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    file: str
    signals: dict[str, str]
    rows: int
    notes: tuple[str, ...]
    lake: str
    tables: dict[str, tuple[int, int]]
    hazards: tuple[str, ...]
    firms: float
    commit: str
    libraries: dict[str, str]
    made_at: dt.datetime


@dataclass(frozen=True, slots=True)
class MeasuredSignals:
    """The signals of a file, measured on one version of the data, with the config of the last measurement."""

    run_id: str
    config: Config
    folder: Path
    record: SignalRecord

    def save(self) -> None:
        """Write the record and the config; the record of an earlier measurement is kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "config.yaml", to_yaml(self.config))
        if not (self.folder / RECORD).is_file():
            write_text(self.folder / RECORD, self.record.model_dump_json(indent=1))

    def write_report(self, text: str) -> Path:
        """Write ``report.html`` atomically and return its path."""
        return write_text(self.folder / "report.html", text)


def signals_id(path: Path, contents: Mapping[str, str], config: Config, tables: Mapping[str, object]) -> str:
    """Name of the folder: the file's name, and a digest of signals, data, universe and label."""
    measured = config.model_dump(mode="json", include={"universe", "label", "features"})
    label = {key: value for key, value in measured["label"].items() if key != "extra_delays"}
    parts = {
        "signals": contents,
        "tables": {name: str(table) for name, table in tables.items()},
        "universe": measured["universe"],
        "label": label,
        "earn_nothing": sorted(config.quality.earn_nothing),
        "group_by": measured["features"]["group_by"],
    }
    name = _NAME.sub("-", path.stem.lower()).strip("-_")[:40].rstrip("-_")
    return f"{name if name[:1].isalpha() else f'signals-{name}'.rstrip('-')}-{digest(parts)}"


def find_signals(name: str, output: Path) -> MeasuredSignals | None:
    """Find measured signals by id, a unique prefix of it, or folder; None if there are none."""
    if (Path(name) / RECORD).is_file():
        return _open(Path(name))
    if name == LATEST or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        return None
    folders = sorted(path.parent for path in output.glob(f"{name}*/{RECORD}"))
    exact = [folder for folder in folders if folder.name == name]
    if folders and not exact:
        folders += [folder for folder, _ in list_records(output) if folder.name.startswith(name)]
    if len(exact or folders) > 1:
        listed = ", ".join(folder.name for folder in folders)
        raise ConfigError(
            f"More than one run or measured file begins with {name!r} under {output}: {listed}; give one of "
            "them."
        )
    return _open((exact or folders)[0]) if folders else None


def _open(folder: Path) -> MeasuredSignals:
    with damaged(f"The record {folder / RECORD}", "delete the folder and measure the file again"):
        record = SignalRecord.model_validate_json((folder / RECORD).read_text(encoding="utf-8"))
    return MeasuredSignals(record.run_id, load_config(folder / "config.yaml", models=False), folder, record)
