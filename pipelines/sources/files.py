"""A user's own CSV or Parquet files: prices, and optionally what the firms are.

CSV is read as text, so that a ticker named NA stays a ticker and an unreadable number rejects its row rather
than the file. What a value means is settled here (dates, "not available", a zero price); whether it may be
stored is the contract's matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.contracts import within_range
from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import SourceTables
from pipelines.sources.sample import STATIC_SINCE

_PRICE_REQUIRED: Final = ("date", "ticker", "close")
_BAR: Final = ("open", "high", "low")
_PRICE_OPTIONAL: Final = (*_BAR, "volume", "split_ratio", "dividend")
_SECURITY_TEXT: Final = ("name", "sector", "industry", "currency", "exchange")
_SECURITY_DATES: Final = ("valid_from", "valid_to", "listed_on", "delisted_on")
_SECURITY_OPTIONAL: Final = (*_SECURITY_TEXT, *_SECURITY_DATES, "delisting_return")
_NAMES: Final = frozenset((*_PRICE_REQUIRED, *_PRICE_OPTIONAL, *_SECURITY_OPTIONAL))
_NOT_AVAILABLE: Final = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-")
_SURVIVORS_FROM_YEARS: Final = 2.0
_SURVIVORS_FROM_FIRMS: Final = 10
_STILL_TRADING: Final = timedelta(days=30)
_FEW_LEAVE_PER_YEAR: Final = 0.005
"""Share of firms; of US listed firms some 5% to 10% leave their exchange in a year, by merger or failure."""


class FilesSource:
    """Prices, and optionally securities, from files.

    Parameters
    ----------
    prices
        CSV (may be gzipped) or Parquet file with at least date, ticker and close. Dates are ISO (2020-01-31
        or 20200131). ``~`` and environment variables are expanded.
    securities
        File with at least ticker, and any of name, sector, industry, currency, exchange, valid_from,
        valid_to, listed_on, delisted_on, delisting_return; None if there is none.
    columns
        Our column name -> the files' name, for columns that are named otherwise there. A name that the
        securities file lacks falls back on our own name there, so ``ticker`` may be mapped for prices alone.
    start, end
        First and last date to take, both included; None for no bound.
    hazards
        What the user knows to be wrong with the data (survivorship, say), one sentence each.

    Raises
    ------
    ConfigError
        If a mapped name is not one of ours, or start is after end.
    """

    def __init__(
        self,
        prices: Path,
        securities: Path | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        start: date | None = None,
        end: date | None = None,
        hazards: tuple[str, ...] = (),
    ) -> None:
        self._prices, self._securities = prices, securities
        self._columns = dict(columns or {})
        self._start, self._end, self._hazards = start, end, hazards
        if unknown := sorted(set(self._columns) - _NAMES):
            raise ConfigError(
                f"columns maps {', '.join(unknown)}, which no table has; map from {', '.join(sorted(_NAMES))}"
            )
        if start is not None and end is not None and start > end:
            raise ConfigError(f"start {start} is after end {end}: swap them")

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return "files"

    def fetch(self) -> SourceTables:
        """Read the files.

        An open, high or low of zero means "not known", and so does an open outside the day's range while the
        close is inside it (vendors leave opens unadjusted for later splits); both are counted in the notes.

        Raises
        ------
        ConfigError
            If a path is neither CSV nor Parquet, or names an environment variable that is not set.
        DataError
            If a file is missing, unreadable, lacks a required column, or has no row within the dates.
        """
        prices, notes = self._read_prices()
        tables = {"prices": prices}
        securities: pl.DataFrame | None = None
        if self._securities is None:
            notes.append(
                "No securities file was given: names, sectors, industries and listing dates are unknown."
            )
        else:
            securities, security_notes = self._read_securities(self._securities)
            tables["securities"] = securities
            notes.extend(security_notes)
            without = prices.select("ticker").unique().join(securities, on="ticker", how="anti").height
            if without:
                notes.append(f"{without} of the tickers in the prices are not in the securities file.")
        notes.append("Files give no statements and no index membership.")
        hazards = (*self._hazards, *_detected_hazards(prices, securities, self._hazards))
        return SourceTables(tables, tuple(notes), hazards)

    def _read_prices(self) -> tuple[pl.DataFrame, list[str]]:
        path = resolve(self._prices)
        frame = self._pick(path, _PRICE_REQUIRED, _PRICE_OPTIONAL, fall_back=False)
        notes = _absent(frame, _PRICE_OPTIONAL, path)
        numbers: list[str] = [c for c in ("close", *_PRICE_OPTIONAL) if c in frame.columns]
        frame = _read_numbers(_read_dates(frame, ["date"]).with_columns(_text("ticker")), numbers)
        frame = self._within_dates(frame, path)
        frame, bar_notes = _unknown_bars(frame)
        return frame.sort("date", "ticker"), notes + bar_notes

    def _read_securities(self, given: Path) -> tuple[pl.DataFrame, list[str]]:
        path = resolve(given)
        frame = self._pick(path, ("ticker",), _SECURITY_OPTIONAL, fall_back=True)
        notes: list[str] = []
        if "valid_from" not in frame.columns:
            frame = frame.with_columns(pl.lit(STATIC_SINCE).alias("valid_from"))
            notes.append(
                f"{path.name} has no valid_from: what it says of a firm is assumed static, true on all dates."
            )
        frame = frame.with_columns(_text("ticker"), *(_text(c) for c in _SECURITY_TEXT if c in frame.columns))
        frame = frame.with_columns(_none_if_not_available(c) for c in _SECURITY_TEXT if c in frame.columns)
        frame = _read_dates(frame, [c for c in _SECURITY_DATES if c in frame.columns])
        return _read_numbers(frame, [c for c in ("delisting_return",) if c in frame.columns]), notes

    def _pick(
        self, path: Path, required: tuple[str, ...], optional: tuple[str, ...], *, fall_back: bool
    ) -> pl.DataFrame:
        """Read the columns we know, under our names."""
        rows = _scan(path)
        there = _columns_of(rows, path)
        take: dict[str, str] = {}
        for ours in (*required, *optional):
            theirs = self._columns.get(ours, ours)
            if theirs not in there and fall_back:
                theirs = ours
            if theirs in there:
                take[ours] = theirs
            elif ours in required or ours in self._columns:
                raise DataError(
                    f"{path} has no column {theirs!r} for {ours}; it has {', '.join(there)}: "
                    f"map it in the source's columns, {ours}: <their name>"
                )
        try:
            return rows.select(pl.col(theirs).alias(ours) for ours, theirs in take.items()).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _unreadable(path, error) from error

    def _within_dates(self, frame: pl.DataFrame, path: Path) -> pl.DataFrame:
        """Keep the rows within the dates, and those whose date cannot be read, for the contract to reject."""
        if frame.is_empty():
            raise DataError(f"{path} has a header and no rows: give a file with prices")
        read = _day(frame)
        keep = pl.lit(value=True)
        if self._start is not None:
            keep &= read >= self._start
        if self._end is not None:
            keep &= read <= self._end
        kept = frame.filter(keep.fill_null(value=True))
        if kept.is_empty():
            first, last = frame.select(read.min().alias("first"), read.max().alias("last")).row(0)
            raise DataError(
                f"{path} has no rows from {self._start or 'its start'} to {self._end or 'its end'}; it has "
                f"{first} to {last}: widen the dates"
            )
        return kept


def resolve(path: Path) -> Path:
    """Expand ``~`` and environment variables of a path.

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
        file = Path(expanded).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"path {path} names a home folder that cannot be found: write it out") from error
    if not file.name.lower().endswith((".csv", ".csv.gz", ".parquet", ".pq")):
        raise ConfigError(f"{file} is neither CSV (.csv, .csv.gz) nor Parquet (.parquet, .pq): convert it")
    if not file.is_file():
        raise DataError(
            f"there is no file {file} (looked in {Path.cwd()}): mend the path in the source's config"
        )
    return file


def _scan(path: Path) -> pl.LazyFrame:
    try:
        if path.name.lower().endswith((".parquet", ".pq")):
            return pl.scan_parquet(path, glob=False)
        return pl.scan_csv(path, glob=False, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def _columns_of(rows: pl.LazyFrame, path: Path) -> list[str]:
    try:
        return rows.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DataError(f"{path} cannot be read as {path.suffix.lstrip('.')} ({reason}): write it again")


def _text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).str.strip_chars()


def _none_if_not_available(column: str) -> pl.Expr:
    missing = pl.col(column).str.to_lowercase().is_in(_NOT_AVAILABLE)
    return pl.when(~missing).then(pl.col(column)).alias(column)


def _read_numbers(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Make columns float64; one with a value that is no number stays text: the contract rejects its rows."""
    for column in columns:
        if frame.schema[column].is_numeric():
            frame = frame.with_columns(pl.col(column).cast(pl.Float64).fill_nan(None))
            continue
        text = frame.select(_text(column)).select(_none_if_not_available(column)).to_series()
        numbers = text.cast(pl.Float64, strict=False)
        frame = frame.with_columns(numbers if numbers.null_count() == text.null_count() else text)
    return frame


def _read_dates(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Make columns dates; one with a value that is no ISO date stays text: the contract rejects its rows."""
    for column in columns:
        dtype = frame.schema[column]
        if dtype == pl.Date or isinstance(dtype, pl.Datetime):
            frame = frame.with_columns(pl.col(column).cast(pl.Date))
            continue
        text = frame.select(_text(column)).select(_none_if_not_available(column))
        value = pl.col(column)
        # the part before a time of day, so that 2020-01-31 00:00:00 and 2020-01-31T00:00 are dates too
        day = value.str.extract(r"^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:.*)?$")
        parsed = pl.coalesce(
            day.str.to_date("%Y-%m-%d", strict=False),
            value.str.extract(r"^(\d{8})$").str.to_date("%Y%m%d", strict=False),
        )
        dates = text.select(parsed.alias(column)).to_series()
        if dates.null_count() == text[column].null_count():
            frame = frame.with_columns(dates)
        else:
            frame = frame.with_columns(
                text.select(pl.coalesce(parsed.dt.to_string("%Y-%m-%d"), value).alias(column)).to_series()
            )
    return frame


def _day(frame: pl.DataFrame) -> pl.Expr:
    """Return the date of a frame that `_read_dates` has read; null where it could not."""
    day = pl.col("date")
    return day if frame.schema["date"] == pl.Date else day.str.to_date("%Y-%m-%d", strict=False)


def _absent(frame: pl.DataFrame, optional: tuple[str, ...], path: Path) -> list[str]:
    absent = [c for c in optional if c not in frame.columns]
    if not absent:
        return []
    note = f"{path.name} has no {', '.join(absent)}"
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


def _detected_hazards(
    prices: pl.DataFrame, securities: pl.DataFrame | None, told: tuple[str, ...]
) -> list[str]:
    """Find out whether any firm ever leaves, and whether the last session is whole."""
    dated = prices.select(_day(prices), "ticker").drop_nulls()
    hazards: list[str] = []
    lasts = dated.group_by("ticker").agg(pl.col("date").max().alias("last"))
    first, last = dated["date"].min(), dated["date"].max()
    if not isinstance(first, date) or not isinstance(last, date):
        return hazards
    years = (last - first).days / 365.25
    leavers = lasts.filter(pl.col("last") < last - _STILL_TRADING).height
    recorded = (
        securities is not None
        and "delisted_on" in securities.columns
        and securities["delisted_on"].drop_nulls().len() > 0
    )
    told_so = any("surviv" in hazard.lower() for hazard in told)
    if (
        years >= _SURVIVORS_FROM_YEARS
        and lasts.height >= _SURVIVORS_FROM_FIRMS
        and leavers < _FEW_LEAVE_PER_YEAR * years * lasts.height
        and not (recorded or told_so)
    ):
        hazards.append(
            f"Survivorship is likely: {leavers or 'none'} of {lasts.height:,} firms stop trading in "
            f"{years:.1f} years, so the list was probably drawn up with hindsight."
        )
    sessions = dated.group_by("date").len().sort("date").tail(2)["len"].to_list()
    if len(sessions) == 2 and sessions[1] < 0.8 * sessions[0]:
        hazards.append(
            f"The last session, {last}, has {sessions[1]:,} firms where the one before has {sessions[0]:,}: "
            "it may be incomplete."
        )
    return hazards
