"""Firms, new tickers, index membership and the user's own numbers from a user's files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.files import plain_name
from pipelines.lake.source_tables import INPUT_PATTERN
from pipelines.sources.files.layouts import PRICE_NAMES, Names, match_names, plain
from pipelines.sources.files.opening import UNNAMED, abbreviate, collect, columns_of, file_label, scan
from pipelines.sources.files.prices import within_dates
from pipelines.sources.files.reading import (
    ReadOptions,
    as_text,
    concat_parts,
    null_if_not_available,
    read_number,
    ticker_text,
)
from pipelines.sources.files.recognise import recognise_dates
from pipelines.sources.sample import STATIC_SINCE

_SECURITY_TEXT: Final = ("name", "sector", "industry", "currency", "exchange")
_SECURITY_DATES: Final = ("valid_from", "valid_to", "listed_on", "delisted_on")
SECURITY_NAMES: Final[Names] = {
    "ticker": PRICE_NAMES["ticker"],
    "name": ("name", "comnam", "conm", "companyname", "company", "longname", "security"),
    "sector": ("sector",),
    "industry": ("industry",),
    "currency": ("currency", "curcdd", "curcd"),
    "exchange": ("exchange", "exch", "mic"),
    "valid_from": ("validfrom", "namedt"),
    "valid_to": ("validto",),
    "listed_on": ("listedon", "ipodate", "listingdate"),
    "delisted_on": ("delistedon", "dlstdt", "dldte", "delistingdate"),
    "delisting_return": ("delistingreturn", "dlret"),
    "delisting_reason": ("delistingreason", "dlstcd"),
}
"""Usual names of columns of files about firms, CRSP's and Compustat's among them."""
_LISTED: Final = r"^100(?:\.0+)?$"
"""CRSP's code of a firm that is still listed."""
_NO_RETURN: Final = ("A", "S", "T", "P", "B", "C", "-55.0", "-66.0", "-77.0", "-88.0", "-99.0")
"""CRSP's codes for a delisting return that is not known."""
SECURITIES: Final = (*_SECURITY_TEXT, *_SECURITY_DATES, "delisting_return", "delisting_reason")
RENAMES: Final = ("from_date", "new_ticker")


def read_securities(files: Sequence[Path], options: ReadOptions) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Read names and classifications of firms; returns rows, notes and hazards.

    Without ``valid_from``, the file is assumed to be valid on all dates, which is a hazard if it contains
    sectors or industries.
    """
    frame = options.read_columns(files, ("ticker",), SECURITIES, fall_back=True)
    notes: list[str] = []
    hazards: list[str] = []
    if "valid_from" not in frame.columns:
        frame = frame.with_columns(pl.lit(STATIC_SINCE).alias("valid_from"))
        notes.append(f"{file_label(files)} has no valid_from: its data are assumed to be valid on all dates.")
        groups = [c for c in ("sector", "industry") if c in frame.columns]
        if groups:
            hazards.append(
                f"Static groups: {' and '.join(groups)} as of the date of {file_label(files)} are applied to "
                "all dates, so a firm that changed its business is grouped with hindsight."
            )
    frame = frame.with_columns(ticker_text(), *(as_text(c) for c in _SECURITY_TEXT if c in frame.columns))
    frame = frame.with_columns(null_if_not_available(c) for c in _SECURITY_TEXT if c in frame.columns)
    frame = options.dates(frame, [c for c in _SECURITY_DATES if c in frame.columns])
    if "delisting_return" in frame.columns:
        known = ~as_text("delisting_return").is_in(_NO_RETURN)
        frame = frame.with_columns(pl.when(known).then("delisting_return").alias("delisting_return"))
        frame = options.numbers(frame, ["delisting_return"])
    if {"delisting_reason", "delisted_on"} <= {*frame.columns}:
        listed = as_text("delisting_reason").str.contains(_LISTED).fill_null(value=False)
        ended = ("delisted_on", "delisting_reason")
        frame = frame.with_columns(pl.when(~listed).then(pl.col(c)).alias(c) for c in ended)
    if "delisting_reason" in frame.columns:
        frame = frame.with_columns(as_text("delisting_reason"))
        frame = frame.with_columns(null_if_not_available("delisting_reason"))
        frame = frame.with_columns(_delisting_reason(pl.col("delisting_reason")).alias("delisting_reason"))
    return frame, notes, hazards


def delisted_firms(ended: pl.DataFrame) -> pl.DataFrame:
    """Return the firms whose prices say on which day their listing ended, and with which return and reason.

    ``ended``: ticker, date, and delisting_return or delisting_reason as in the files. A code of 100 is a firm
    that is still listed.
    """
    rows = ended.with_columns(
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in (("delisting_return", pl.Float64()), ("delisting_reason", pl.String()))
        if name not in ended.columns
    ).with_columns(as_text("delisting_reason"))
    listed = pl.col("delisting_reason").str.contains(_LISTED).fill_null(value=False)
    last = rows.filter(~listed).sort("ticker", "date").group_by("ticker", maintain_order=True).last()
    return last.select(
        "ticker",
        pl.lit(STATIC_SINCE).alias("valid_from"),
        pl.col("date").alias("delisted_on"),
        "delisting_return",
        _delisting_reason(pl.col("delisting_reason")).alias("delisting_reason"),
    )


def _delisting_reason(recorded: pl.Expr) -> pl.Expr:
    """Map CRSP's delisting codes to merger, performance or unknown; other text is kept, in lower case.

    Codes 200 to 399 are mergers and exchanges of shares; 500 and 520 to 584 are delistings for performance
    (Shumway and Warther 1999). All other codes are unknown: liquidations (4xx), which pay a liquidation
    value, and moves to another exchange (501 to 519).
    """
    code = recorded.str.extract(r"^(\d{3})(?:\.0+)?$").cast(pl.Int64)
    return (
        pl.when(code.is_between(200, 399))
        .then(pl.lit("merger"))
        .when((code == 500) | code.is_between(520, 584))
        .then(pl.lit("performance"))
        .when(code.is_not_null())
        .then(pl.lit("unknown"))
        .otherwise(recorded.str.to_lowercase())
    )


def read_renames(files: Sequence[Path], options: ReadOptions) -> pl.DataFrame:
    """Read new tickers: from ``from_date`` on, ``ticker`` is called ``new_ticker``."""
    frame = options.read_columns(files, ("ticker", *RENAMES), (), fall_back=True)
    return options.dates(frame.with_columns(ticker_text(), ticker_text("new_ticker")), ["from_date"])


MEMBERSHIP: Final = ("universe", "from_date", "to_date")
_LAST_DAYS: Final = ("thru", "ending", "mbrenddt", "through", "lastday", "until")
"""Names of ends that are the last day as a member. Other ends are the first day as none."""
_DAY_NAMES, _TICKER = PRICE_NAMES["date"], PRICE_NAMES["ticker"]
_UNIVERSE: Final = ("universe", "index", "indexname", "gvkeyx", "conm")
_STARTS: Final = "fromdate from start startdate dateadded validfrom begin entry mbrstartdt"
_ENDS: Final = "todate to end enddate dateremoved validto exit"
_SPELLS: Final[Names] = {
    "ticker": _TICKER,
    "universe": _UNIVERSE,
    "from_date": tuple(_STARTS.split()),
    "to_date": (*_ENDS.split(), *_LAST_DAYS),
}
_ON: Final[Names] = {"date": _DAY_NAMES, "ticker": _TICKER, "universe": _UNIVERSE}
_LISTS: Final[Names] = {"date": _DAY_NAMES, "tickers": ("tickers", "members", "constituents", "symbols")}
_ACTIONS: Final[Names] = {**_ON, "action": ("action", "change", "event", "type", "status")}
_CHANGES: Final[Names] = {
    "date": _DAY_NAMES,
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

    Raises DataError if a file is unreadable or has none of the layouts.
    """
    options = options.for_table("membership", _SPELLS)
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
        frame = _dated(concat_parts(parts), options, files)
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
    whole = concat_parts(parts) if parts else pl.DataFrame()
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


_LATER: Final = re.compile(r"_lead\d+[dwmqy]?$")
"""Ends of names of returns that are earned later, as in the data of Jensen, Kelly and Pedersen."""


def read_inputs(
    files: Sequence[Path], options: ReadOptions, start: date | None, end: date | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows of (name, date, ticker, value), as delivered; the files do not say when a value became known.

    Names match ``[a-z][a-z0-9_]*``. Returns of later periods (``ret_exc_lead1m``) are left out. Empty values
    and NaN are dropped and counted; columns that are not numeric are listed in a note.

    Raises DataError if a file is unreadable or lacks a date, a ticker or a numeric column, two columns would
    get the same name, or no row is within the dates.
    """
    parts: list[pl.DataFrame] = []
    not_numeric: dict[str, None] = {}
    later: dict[str, None] = {}
    for file in files:
        rows = scan(file, options.text)
        available = columns_of(rows, file)
        day, ticker = (options.column_name(ours, available, file) for ours in ("date", "ticker"))
        frame = collect(rows, file)
        numeric: list[str] = []
        for name in available:
            if name in (day, ticker):
                continue
            if _LATER.search(name.lower()):
                later[name] = None
                continue
            frame = read_number(frame, name) if _may_be_number(frame.schema[name]) else frame
            if frame.schema[name] == pl.Float64:
                numeric.append(name)
            else:
                not_numeric[name] = None
        if not numeric:
            raise DataError(
                f"{file} has no numeric column besides {day} and {ticker}; its columns are "
                f"{abbreviate(available)}"
            )
        frame = frame.select(pl.col(day).alias("date"), pl.col(ticker).alias("ticker"), *numeric)
        frame = frame.with_columns(ticker_text()).rename(_input_names(numeric, file))
        parts.append(frame.unpivot(index=["date", "ticker"], variable_name="name", value_name="value"))
    whole = concat_parts(parts)
    frame = within_dates(options.dates(whole, ["date"]), files, start, end)
    notes = []
    if later:
        notes.append(
            f"{file_label(files)} has returns of later periods, which are left out: "
            f"{abbreviate(list(later))}."
        )
    if not_numeric:
        notes.append(
            f"{file_label(files)} has columns that are not numeric and are ignored: "
            f"{abbreviate(list(not_numeric))}."
        )
    empty = frame["value"].null_count()
    if empty:
        notes.append(f"{empty:,} empty values of {file_label(files)} are ignored.")
    return frame.drop_nulls("value").select("name", "date", "ticker", "value").sort(
        "name", "date", "ticker"
    ), notes


def _may_be_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.String


def _input_names(columns: Sequence[str], file: Path) -> dict[str, str]:
    """Convert a file's column names to names of inputs."""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for column in columns:
        name = plain_name(column)
        name = f"x_{name}" if name[:1].isdigit() else name
        if not re.fullmatch(INPUT_PATTERN, name):
            raise DataError(
                f"{file} has a column {column!r}, which cannot be the name of an input: rename it to at most "
                "41 letters, digits and underscores"
            )
        if name in taken:
            raise DataError(
                f"{file} has the columns {taken[name]!r} and {column!r}, which would both be named {name}: "
                "rename one"
            )
        names[column], taken[name] = name, column
    return names
