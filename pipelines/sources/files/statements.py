"""Statements from a user's files: one row a ticker and period (wide), or one row an item (long)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.files.reading import (
    Reading,
    collect,
    columns_of,
    label,
    read_number,
    resolve,
    scale,
    scan,
    shown,
    stack,
    text,
)
from pipelines.sources.files.splits import ShareCountsAsOf, state_counts
from pipelines.sources.items import FLOWS, ITEMS, SPLIT_ITEMS

_ABOUT: Final = ("known_at", "unit", "filing_id", "months", "stated_on")
STATEMENTS: Final = ("period_end", "item", "value", *_ABOUT)
_DATES: Final = ("period_end", "known_at", "stated_on")
_STATED: Final[Mapping[ShareCountsAsOf, str]] = {
    "period_end": "the period's end",
    "known_at": "the day of publication",
    "today": "today, with all later splits, which are taken off",
}
_KEY: Final = ["ticker", "period_end", "item"]


@dataclass(frozen=True, slots=True)
class StatementFiles:
    """Files of statements and how to understand them.

    Attributes
    ----------
    path
        CSV or Parquet, globs allowed. Wide: ticker, period_end and a column an item. Long: ticker,
        period_end, item, value. Both may have known_at (the date by whose close it was public), unit,
        filing_id, months (the span of a flow) and stated_on (the last day whose splits a share count or an
        amount per share contains).
    items
        Canonical item (`pipelines.sources.items`) -> the file's name of it; items of our own names need no
        entry.
    reporting_lag_days
        Where there is no known_at, days after the period's end on which a statement is taken as known.
    months
        Span of every flow where the file has no such column; None if it is not known.
    zero_means_missing
        Items of which a zero means "not reported".
    share_counts_as_of
        As of when counts and amounts per share without a stated_on are stated
        (`pipelines.sources.files.splits.state_counts`).
    """

    path: Path
    items: Mapping[str, str] = field(default_factory=dict)
    reporting_lag_days: int = 90
    months: int | None = None
    zero_means_missing: tuple[str, ...] = ()
    share_counts_as_of: ShareCountsAsOf = "period_end"

    def __post_init__(self) -> None:
        for setting, names in (("items", self.items), ("zero_means_missing", self.zero_means_missing)):
            if unknown := sorted(set(names) - set(ITEMS)):
                raise ConfigError(
                    f"{setting} names {', '.join(unknown)}, which no statement item is called; "
                    f"choose from {', '.join(ITEMS)}"
                )


def read_statements(
    given: StatementFiles, reading: Reading, prices: pl.DataFrame
) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Read statements into rows of (ticker, period_end, known_at, item, value, ...); notes and hazards.

    ``prices`` give the splits, where share counts are restated for all of them.

    Empty values are left out and counted. A row without a date of publication gets one from the assumed
    lag, and says so in ``assumed``.

    Raises
    ------
    DataError
        If a file is unreadable, lacks a column, or holds no item that we know.
    """
    files = resolve(given.path)
    parts = [_read_one(file, given, reading) for file in files]
    notes = list(dict.fromkeys(note for _, part_notes in parts for note in part_notes))
    about = list(dict.fromkeys(c for part, _ in parts for c in part.columns))
    frame = stack([_with_columns(part, about) for part, _ in parts])
    frame = read_number(frame, "value")
    factor = pl.col("item").replace_strict(dict(reading.units), default=1.0, return_dtype=pl.Float64)
    if reading.units:
        frame = scale(frame, "value", factor)
    frame = reading.dates(frame, [c for c in _DATES if c in frame.columns])

    unknown = pl.col("value").cast(pl.Float64, strict=False) == 0
    zeros = unknown & pl.col("item").is_in(given.zero_means_missing)
    dropped = int(frame.select(zeros.sum()).item())
    if dropped:
        notes.append(
            f"{dropped:,} zeros of {', '.join(given.zero_means_missing)} in {label(files)} are taken as not "
            "reported."
        )
    frame = frame.filter(~zeros.fill_null(value=False))
    empty = frame["value"].null_count()
    if empty:
        notes.append(f"{empty:,} empty values of {label(files)} are left out.")
    frame = frame.drop_nulls("value")
    if frame.is_empty():
        raise DataError(f"{label(files)} holds no value of any item: give a file with statements")
    frame = _date_of_knowledge(_spans(frame, given), given.reporting_lag_days)
    if "stated_on" not in frame.columns and not frame.filter(pl.col("item").is_in(SPLIT_ITEMS)).is_empty():
        notes.append(
            f"{label(files)} does not say as of when share counts and amounts per share are stated: taken as "
            f"of {_STATED[given.share_counts_as_of]} (source.share_counts_as_of: {given.share_counts_as_of})."
        )
    frame = state_counts(frame, given.share_counts_as_of, prices)
    return frame.sort(*_KEY, "known_at"), notes, _hazards(frame, given, files)


def _read_one(file: Path, given: StatementFiles, reading: Reading) -> tuple[pl.DataFrame, list[str]]:
    """Read one file into ticker, period_end, item, value and what else it says of a row, all unparsed."""
    rows = scan(file)
    there = columns_of(rows, file)
    names = {ours: reading.name_of(ours, there, file) for ours in ("ticker", "period_end")}
    for ours in ("item", "value", *_ABOUT):
        if ours in reading.columns or ours in there:
            names[ours] = reading.name_of(ours, there, file)
    if "item" in names and "value" in names:
        frame = collect(rows.select(pl.col(theirs).alias(ours) for ours, theirs in names.items()), file)
        return _canonical(frame.with_columns(text("ticker")), given.items, file)
    index = {ours: theirs for ours, theirs in names.items() if ours not in ("item", "value")}
    take = {item: given.items.get(item, item) for item in ITEMS}
    take = {item: theirs for item, theirs in take.items() if item in given.items or theirs in there}
    for item, theirs in take.items():
        if theirs not in there:
            raise DataError(f"{file} has no column {theirs!r} for the item {item}; it has {shown(there)}")
    if not take:
        raise DataError(
            f"{file} has no statement item that we know; it has {shown(there)}: map them in the source's "
            "items, <our item>: <their column>"
        )
    frame = collect(
        rows.select(pl.col(theirs).alias(ours) for ours, theirs in (index | take).items()), file
    ).with_columns(text("ticker"))
    numeric = all(frame.schema[item].is_numeric() for item in take)
    frame = frame.with_columns(pl.col(list(take)).cast(pl.Float64 if numeric else pl.String))
    return frame.unpivot(on=list(take), index=list(index), variable_name="item", value_name="value"), []


def _canonical(frame: pl.DataFrame, items: Mapping[str, str], file: Path) -> tuple[pl.DataFrame, list[str]]:
    """Rename a long file's items to ours, and say which ones have no name here."""
    frame = frame.with_columns(text("item"))
    there = set(frame["item"].unique().drop_nulls())
    if absent := [f"{ours}: {theirs!r}" for ours, theirs in items.items() if theirs not in there]:
        raise DataError(
            f"{file} has no item {absent[0].partition(': ')[2]} for {absent[0].partition(': ')[0]}; it has "
            f"{shown(sorted(there))}"
        )
    pairs = [(ours, items.get(ours, ours)) for ours in ITEMS if items.get(ours, ours) in there]
    if not pairs:
        raise DataError(
            f"{file} has no statement item that we know; it has {shown(sorted(there))}: map them in the "
            "source's items, <our item>: <their item>"
        )
    left_out = sorted(there - {theirs for _, theirs in pairs})
    names = pl.DataFrame(pairs, schema={"ours": pl.String, "item": pl.String}, orient="row")
    notes = (
        [f"{file.name} has items that are not mapped and left out: {shown(left_out)}."] if left_out else []
    )
    return frame.join(names, on="item").drop("item").rename({"ours": "item"}), notes


def _with_columns(part: pl.DataFrame, about: Sequence[str]) -> pl.DataFrame:
    absent = [pl.lit(None).alias(c) for c in about if c not in part.columns]
    return part.with_columns(absent).select(about)


def _spans(frame: pl.DataFrame, given: StatementFiles) -> pl.DataFrame:
    """Say how many months a flow covers; an instant covers none."""
    if "months" in frame.columns:
        frame = read_number(frame, "months")
        value = pl.col("months")
        if frame.schema["months"] == pl.Float64:
            whole, odd = value.cast(pl.Int64, strict=False), (value != value.floor()).fill_null(value=False)
            spoilt = frame.select(odd.any()).item()  # as text, so that the contract rejects those rows
            as_text = pl.when(odd).then(value.cast(pl.String)).otherwise(whole.cast(pl.String))
            value = as_text if spoilt else whole
    else:
        value = pl.lit(given.months, dtype=pl.Int64)
    return frame.with_columns(pl.when(pl.col("item").is_in(FLOWS)).then(value).alias("months"))


def _date_of_knowledge(frame: pl.DataFrame, lag_days: int) -> pl.DataFrame:
    """Fill the date of publication where there is none, and mark the rows on which it is assumed."""
    ended = pl.col("period_end")
    if frame.schema["period_end"] == pl.String:
        ended = ended.str.to_date("%Y-%m-%d", strict=False)
    later = ended.dt.offset_by(f"{lag_days}d")
    if "known_at" not in frame.columns:
        return frame.with_columns(later.alias("known_at"), pl.lit(value=True).alias("assumed"))
    known = pl.col("known_at")
    filled = later if frame.schema["known_at"] != pl.String else later.dt.to_string("%Y-%m-%d")
    return frame.with_columns(known.is_null().alias("assumed"), known.fill_null(filled).alias("known_at"))


def _hazards(frame: pl.DataFrame, given: StatementFiles, files: Sequence[Path]) -> list[str]:
    assumed = int(frame["assumed"].sum())
    one_version = not frame.select(pl.struct(_KEY).is_duplicated().any()).item()
    restated = (
        f"{label(files)} has one version of every number, presumably as last restated, so a correction is "
        "seen before it was made"
    )
    if not assumed:
        return [f"Statements as last restated: {restated}."] if one_version else []
    rows = f"all {assumed:,}" if assumed == frame.height else f"{assumed:,} of {frame.height:,}"
    return [
        f"Assumed reporting lag: {rows} rows of {label(files)} have no date of publication and are taken as "
        f"known {given.reporting_lag_days} days after their period's end (marked assumed)"
        + (f"; {restated}." if one_version else ".")
    ]
