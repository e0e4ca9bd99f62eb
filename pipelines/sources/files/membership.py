"""Index membership from a user's files, in five layouts: spells, dated rows, lists, flags and changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.sources.files.layouts import PRICE_NAMES, Names, match_names, plain
from pipelines.sources.files.reading import (
    UNNAMED,
    ReadOptions,
    abbreviate,
    as_text,
    collect,
    columns_of,
    file_label,
    read_number,
    scan,
    ticker_text,
)
from pipelines.sources.files.recognise import recognise_dates
from pipelines.sources.sample import STATIC_SINCE

MEMBERSHIP: Final = ("universe", "from_date", "to_date")
_LAST_DAYS: Final = ("thru", "ending", "mbrenddt", "through", "lastday", "until")
"""Names of ends that are the last day as a member. Other ends are the first day as none."""
_DATE, _TICKER = PRICE_NAMES["date"], PRICE_NAMES["ticker"]
_UNIVERSE: Final = ("universe", "index", "indexname", "gvkeyx", "conm")
_STARTS: Final = "fromdate from start startdate dateadded validfrom begin entry mbrstartdt"
_ENDS: Final = "todate to end enddate dateremoved validto exit"
_NAMES: Final[Names] = {
    "ticker": _TICKER,
    "universe": _UNIVERSE,
    "from_date": tuple(_STARTS.split()),
    "to_date": (*_ENDS.split(), *_LAST_DAYS),
}
_ON: Final[Names] = {"date": _DATE, "ticker": _TICKER, "universe": _UNIVERSE}
_LISTS: Final[Names] = {"date": _DATE, "tickers": ("tickers", "members", "constituents", "symbols")}
_ACTIONS: Final[Names] = {**_ON, "action": ("action", "change", "event", "type", "status")}
_CHANGES: Final[Names] = {
    "date": _DATE,
    "added": ("added", "addedticker", "tickeradded", "addition", "additions"),
    "removed": ("removed", "removedticker", "tickerremoved", "deletion", "deletions"),
}
_ADDS: Final = ("add", "added", "addition", "in", "join", "joined", "1", "include", "included", "entry")
_REMOVES: Final = ("remove", "removed", "deletion", "delete", "deleted", "drop", "out", "-1", "0")


def read_membership(files: Sequence[Path], options: ReadOptions) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Read spells of membership, from_date <= t < to_date; returns rows, notes and hazards.

    Five layouts are recognised by their columns. *Spells* have a ticker, from_date and to_date; an empty
    from_date means a member from the start, an empty to_date still a member. *Dated rows* have a date and a
    ticker, *lists* a date and all tickers in one cell, and *flags* a date and a column of 0 and 1 per ticker:
    the members of a date stay until the next date, so nothing is known before its date. *Changes* have a date
    with the tickers added and removed, or a ticker and an action. A file without a column ``universe`` is one
    universe, named after the (first) file.

    Raises
    ------
    DataError
        If a file is unreadable or has none of the layouts.
    """
    options = options.for_table("membership", _NAMES)
    notes: list[str] = []
    hazards: list[str] = []
    available = columns_of(scan(files[0], options.text), files[0])
    frame, layout = _in_other_layout(files, options, available)
    if frame is None:
        frame = options.read_columns(files, ("ticker", "from_date"), ("universe", "to_date"), fall_back=True)
        ends = options.match(available).get("to_date", "")
        frame = options.dates(
            frame.with_columns(ticker_text()), [c for c in MEMBERSHIP[1:] if c in frame.columns]
        )
        if plain(ends) in _LAST_DAYS and frame.schema.get("to_date") == pl.Date:
            frame = frame.with_columns(pl.col("to_date").dt.offset_by("1d"))
            notes.append(f"{ends} of {file_label(files)} is the last day as a member.")
    else:
        notes.append(f"{file_label(files)} is read as {layout}.")
    if "universe" not in frame.columns:
        universe = files[0].name.split(".")[0]
        frame = frame.with_columns(pl.lit(universe).alias("universe"))
        notes.append(
            f"{file_label(files)} has no column universe: it is read as one universe, named {universe}."
        )
    frame = frame.with_columns(as_text("universe"))
    without_start = frame["from_date"].null_count()
    if without_start:
        filled = pl.lit(STATIC_SINCE).cast(frame.schema["from_date"])
        frame = frame.with_columns(pl.col("from_date").fill_null(filled))
        notes.append(
            f"{without_start:,} rows of {file_label(files)} have no from_date: these firms are members from "
            "the start."
        )
    if "to_date" not in frame.columns or frame["to_date"].null_count() == frame.height:
        hazards.append(
            f"Membership without leavers: no firm in {file_label(files)} ever leaves, so it lists today's "
            "members with the dates on which they joined; former members are missing."
        )
    return frame, notes, hazards


def _in_other_layout(
    files: Sequence[Path], options: ReadOptions, available: Sequence[str]
) -> tuple[pl.DataFrame | None, str]:
    """Read files that are no spells into spells; None if they are spells."""
    if options.match(available).keys() >= {"ticker", "from_date"} or {"ticker", "from_date"} <= {
        *options.columns
    }:
        return None, ""
    for names, needs, layout in (
        (_LISTS, {"date", "tickers"}, "lists of members by date"),
        (_ACTIONS, {"date", "ticker", "action"}, "changes by date"),
        (_CHANGES, {"date", "added", "removed"}, "changes by date"),
        (_ON, {"date", "ticker"}, "the members of each date"),
    ):
        found = match_names(names, available)
        if not needs <= found.keys() or (names is _ON and len(available) > len(found) + 6):
            continue
        parts = [
            collect(
                scan(file, options.text).select(pl.col(theirs).alias(ours) for ours, theirs in found.items()),
                file,
            )
            for file in files
        ]
        frame = _dated(pl.concat(parts, how="vertical_relaxed"), options, files)
        if names is _LISTS:
            split = as_text("tickers").str.replace_all(r"[\[\]'\"]", "").str.split(",")
            frame = frame.select("date", split.alias("ticker")).explode("ticker")
        if names is _ACTIONS:
            return _from_changes(frame.with_columns(ticker_text()), files), layout
        if names is _CHANGES:
            both = [
                frame.select("date", as_text(column).alias("ticker"), pl.lit(word).alias("action"))
                for column, word in (("added", "add"), ("removed", "remove"))
            ]
            rows = pl.concat(both).with_columns(ticker_text()).filter(pl.col("ticker").str.len_chars() > 0)
            return _from_changes(rows, files), layout
        return _from_snapshots(frame.with_columns(ticker_text())), layout
    return _from_flags(files, options, available), "flags by date, a column per ticker"


def _from_flags(files: Sequence[Path], options: ReadOptions, available: Sequence[str]) -> pl.DataFrame:
    day = match_names({"date": PRICE_NAMES["date"]}, available).get("date", available[0])
    tickers = [name for name in available if name != day and name not in UNNAMED]
    parts = []
    for file in files:
        frame = collect(scan(file, options.text), file)
        if day not in frame.columns or not tickers:
            continue
        frame = frame.rename({day: "date"}).with_columns(pl.col(tickers).cast(pl.String))
        parts.append(frame.unpivot(tickers, index="date", variable_name="ticker", value_name="flag"))
    whole = pl.concat(parts, how="vertical_relaxed") if parts else pl.DataFrame()
    if whole.height:
        words = pl.col("flag").str.to_lowercase().replace({"true": "1", "false": "0", "x": "1"})
        whole = read_number(whole.with_columns(words), "flag")
    if whole.is_empty() or not whole.schema["flag"].is_numeric():
        raise DataError(
            f"{files[0]} has no layout of index membership; its columns are {abbreviate(available)}: give "
            "ticker, from_date and to_date, or date and ticker"
        )
    whole = _dated(whole, options, files).with_columns(ticker_text())
    days = whole.select(pl.col("date").unique())
    return _from_snapshots(whole.filter(pl.col("flag") > 0).select("date", "ticker"), days)


def _dated(frame: pl.DataFrame, options: ReadOptions, files: Sequence[Path]) -> pl.DataFrame:
    """Read the dates in the format of the config, or else in the one that fits."""
    form = options.date_format
    if form is None:
        form = recognise_dates(frame.select(pl.col("date").unique()), files[0], cure="set date_format")
    frame = ReadOptions(date_format=form).dates(frame, ["date"])
    if frame.schema["date"] == pl.String:
        frame = frame.with_columns(pl.col("date").str.to_date("%Y-%m-%d", strict=False))
    return frame.drop_nulls("date")


def _from_snapshots(rows: pl.DataFrame, days: pl.DataFrame | None = None) -> pl.DataFrame:
    """Turn the members of dates into spells: a member stays until the next date that does not list it."""
    group = [c for c in ("universe",) if c in rows.columns]
    dates = (rows.select(*group, "date").unique() if days is None else days).sort(*group, "date")
    place = pl.int_range(pl.len()).over(*group) if group else pl.int_range(pl.len())
    following = pl.col("date").shift(-1).over(*group) if group else pl.col("date").shift(-1)
    dates = dates.with_columns(place=place, following=following)
    listed = rows.select(*group, "date", "ticker").unique().join(dates, on=[*group, "date"])
    key = [*group, "ticker"]
    listed = listed.sort(*key, "date")
    starts = (pl.col("place") != pl.col("place").shift().over(key) + 1).fill_null(value=True)
    listed = listed.with_columns(spell=starts.cum_sum())
    spells = listed.group_by(*key, "spell", maintain_order=True).agg(
        from_date=pl.col("date").first(), to_date=pl.col("following").last()
    )
    return spells.drop("spell")


def _from_changes(rows: pl.DataFrame, files: Sequence[Path]) -> pl.DataFrame:
    """Turn additions and removals into spells; a firm that is removed first was a member from the start."""
    word = pl.col("action").cast(pl.String).str.strip_chars().str.to_lowercase()
    rows = rows.with_columns(
        joins=pl.when(word.is_in(_ADDS))
        .then(pl.lit(value=True))
        .when(word.is_in(_REMOVES))
        .then(pl.lit(value=False))
    )
    unknown = rows.filter(pl.col("joins").is_null())
    if unknown.height:
        raise DataError(
            f"{file_label(files)} has the action {unknown['action'][0]!r} of {unknown['ticker'][0]}, which "
            f"is neither an addition nor a removal: write {_ADDS[0]} or {_REMOVES[0]}"
        )
    key = [c for c in ("universe", "ticker") if c in rows.columns]
    rows = rows.sort(*key, "date", "joins")
    left = pl.when(~pl.col("joins").shift(-1).over(key)).then(pl.col("date").shift(-1).over(key))
    joined = rows.with_columns(to_date=left).filter("joins")
    first = rows.group_by(*key, maintain_order=True).first().filter(~pl.col("joins"))
    return pl.concat(
        [
            joined.select(*key, pl.col("date").alias("from_date"), "to_date"),
            first.select(*key, pl.lit(STATIC_SINCE).alias("from_date"), pl.col("date").alias("to_date")),
        ]
    ).sort(*key, "from_date")
