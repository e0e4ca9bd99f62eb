"""Firms, new tickers, index membership, statements and the user's own numbers from a user's files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.files import plain_name
from pipelines.format import abbreviate
from pipelines.lake.renames import renamed
from pipelines.lake.schemas import INPUT_PATTERN
from pipelines.sources.base import FLOWS, ITEMS, SHARE_COUNT, SPLIT_ITEMS, STATIC_SINCE, vendor_names
from pipelines.sources.files import reading
from pipelines.sources.files.layouts import PRICE_NAMES, Names, match_names, plain
from pipelines.sources.files.opening import collect, is_unnamed
from pipelines.sources.files.prices import unpivot
from pipelines.sources.files.recognise import recognise_dates
from pipelines.sources.settings import ShareCountsAsOf

_SECURITY_TEXT: Final = ("name", "sector", "industry", "currency", "exchange")
_SECURITY_DATES: Final = ("valid_from", "valid_to", "listed_on", "delisted_on")
SECURITY_NAMES: Final[Names] = {"ticker": PRICE_NAMES["ticker"], **vendor_names("securities")}
_IS_LISTED: Final = (  # by CRSP's code
    pl.col("delisting_reason").str.contains(r"^100(?:\.0+)?$").fill_null(value=False)
)
_NO_RETURN: Final = ("A", "S", "T", "P", "B", "C", "-55.0", "-66.0", "-77.0", "-88.0", "-99.0")
"""CRSP's codes for a delisting return that is not known."""
SECURITIES: Final = (*_SECURITY_TEXT, *_SECURITY_DATES, "delisting_return", "delisting_reason")
RENAMES: Final = ("from_date", "new_ticker")


def read_securities(given: reading.GivenFiles) -> pl.DataFrame:
    """Read names and classifications of firms; without ``valid_from`` they hold always, a hazard."""
    frame = given.read(("ticker",), SECURITIES)
    if "valid_from" not in frame.columns:
        frame = frame.with_columns(pl.lit(STATIC_SINCE).alias("valid_from"))
        given.note(f"{given.label} has no valid_from: its data are assumed to be valid on all dates.")
        if groups := [c for c in ("sector", "industry") if c in frame.columns]:
            given.hazards.append(
                f"Static groups: {' and '.join(groups)} as of the date of {given.label} are applied to "
                "all dates, so a firm that changed its business is grouped with hindsight."
            )
    texts = [c for c in (*_SECURITY_TEXT, "delisting_reason") if c in frame.columns]
    frame = frame.with_columns(reading.ticker_text(), *(reading.as_words(c) for c in texts))
    frame = given.dates(frame, _SECURITY_DATES)
    if "delisting_return" in frame.columns:
        known = ~reading.as_text("delisting_return").is_in(_NO_RETURN)
        frame = frame.with_columns(pl.when(known).then("delisting_return").alias("delisting_return"))
        frame = given.numbers(frame, ["delisting_return"])
    if "delisting_reason" not in frame.columns:
        return frame
    if "delisted_on" in frame.columns:
        ended = pl.col("delisted_on", "delisting_reason")
        frame = frame.with_columns(pl.when(~_IS_LISTED).then(ended).name.keep())
    return frame.with_columns(_delisting_reason())


def delisted_firms(ended: pl.DataFrame) -> pl.DataFrame:
    """Return the firms whose prices say when, with which return and why their listing ended."""
    kinds = {"delisting_return": pl.Float64(), "delisting_reason": pl.String()}
    absent = (pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in ended.columns)
    rows = ended.with_columns(absent).with_columns(reading.as_text("delisting_reason"))
    last = rows.filter(~_IS_LISTED).sort("ticker", "date").group_by("ticker", maintain_order=True).last()
    return last.select(
        "ticker",
        pl.lit(STATIC_SINCE).alias("valid_from"),
        pl.col("date").alias("delisted_on"),
        "delisting_return",
        _delisting_reason(),
    )


def _delisting_reason() -> pl.Expr:
    """Map CRSP's delisting codes to merger, performance or unknown; other text is kept, in lower case.

    Codes 200 to 399 are mergers and exchanges of shares; 500 and 520 to 584 are delistings for performance
    (Shumway and Warther 1999). All other codes are unknown: liquidations (4xx), which pay a liquidation
    value, and moves to another exchange (501 to 519).
    """
    recorded = pl.col("delisting_reason")
    code = recorded.str.extract(r"^(\d{3})(?:\.0+)?$").cast(pl.Int64)
    return (
        pl.when(code.is_between(200, 399))
        .then(pl.lit("merger"))
        .when((code == 500) | code.is_between(520, 584))
        .then(pl.lit("performance"))
        .when(code.is_not_null())
        .then(pl.lit("unknown"))
        .otherwise(recorded.str.to_lowercase())
        .alias("delisting_reason")
    )


def read_renames(given: reading.GivenFiles) -> pl.DataFrame:
    """Read new tickers: from ``from_date`` on, ``ticker`` is called ``new_ticker``."""
    frame = given.read(("ticker", *RENAMES), ())
    return given.dates(
        frame.with_columns(reading.ticker_text(), reading.ticker_text("new_ticker")), ["from_date"]
    )


MEMBERSHIP: Final = ("universe", "from_date", "to_date")
_LAST_DAYS: Final = ("thru", "ending", "mbrenddt", "through", "lastday", "until")
"""Names of ends that are the last day as a member. Other ends are the first day as none."""
_DAY_NAMES: Final = PRICE_NAMES["date"]


_NAMES: Final[Names] = {**vendor_names("membership"), "ticker": PRICE_NAMES["ticker"], "date": _DAY_NAMES}
MEMBERSHIP_NAMES: Final[Names] = {name: _NAMES[name] for name in ("ticker", *MEMBERSHIP)}
_OTHER_LAYOUTS: Final = (  # their columns, of which only universe may be absent
    ("date", "tickers"),
    ("date", "ticker", "action", "universe"),
    ("date", "added", "removed"),
    ("date", "ticker", "universe"),
)
_ADDS: Final = ("add", "added", "addition", "in", "join", "joined", "1", "include", "included", "entry")
_REMOVES: Final = ("remove", "removed", "deletion", "delete", "deleted", "drop", "out", "-1", "0")
_OTHERS: Final = 6  # columns beside date and ticker in a file with the members of each date; flags have more


def read_membership(given: reading.GivenFiles) -> pl.DataFrame:
    """Read spells of membership, from_date <= t < to_date, from any of five layouts.

    *Spells*: ticker, from_date, to_date (empty: open). *Dated rows*: date and ticker, *lists*: a date and all
    tickers in one cell, *flags*: a date and 0 or 1 per ticker; members stay until the next date. *Changes*: a
    date with the tickers added and removed, or a ticker and an action.
    """
    _, available = given.open(given.files[0])
    spells = {"ticker", "from_date"}
    if spells <= given.match(available).keys() or spells <= given.columns.keys():
        frame = given.read(("ticker", "from_date"), ("universe", "to_date"))
        frame = given.dates(frame.with_columns(reading.ticker_text()), ("from_date", "to_date"))
        ends = given.match(available).get("to_date", "")
        if plain(ends) in _LAST_DAYS and frame.schema.get("to_date") == pl.Date:
            frame = frame.with_columns(pl.col("to_date").dt.offset_by("1d"))
            given.note(f"{ends} of {given.label} is the last day as a member.")
    else:
        frame, layout = _in_other_layout(given, available)
        given.note(f"{given.label} is read as {layout}.")
    if "universe" not in frame.columns:
        universe = given.files[0].name.split(".")[0]
        frame = frame.with_columns(pl.lit(universe).alias("universe"))
        given.note(f"{given.label} has no column universe: it is read as one universe, named {universe}.")
    start = pl.col("from_date").fill_null(pl.lit(STATIC_SINCE).cast(frame.schema["from_date"]))
    given.note(
        f"# rows of {given.label} have no from_date: these firms are members from the start.",
        frame["from_date"].null_count(),
    )
    if "to_date" not in frame.columns or frame["to_date"].null_count() == frame.height:
        given.hazards.append(
            f"Membership without leavers: no firm in {given.label} ever leaves, so it lists today's "
            "members with the dates on which they joined; former members are missing."
        )
    return frame.with_columns(reading.as_text("universe"), start)


def _in_other_layout(given: reading.GivenFiles, available: Sequence[str]) -> tuple[pl.DataFrame, str]:
    """Read files that are no spells into spells, and say what they are."""
    for names in _OTHER_LAYOUTS:
        found = match_names({name: _NAMES[name] for name in names}, available)
        flags = names == _OTHER_LAYOUTS[-1] and len(available) > len(found) + _OTHERS
        if flags or not {*names} - {"universe"} <= found.keys():
            continue
        parts = [collect(given.open(file)[0], file, found) for file in given.files]
        frame, what = _dated(reading.concat_parts(parts), given), "the members of each date"
        if "tickers" in found:
            split = reading.as_text("tickers").str.replace_all(r"[\[\]'\"]", "").str.split(",")
            frame, what = frame.select("date", ticker=split).explode("ticker"), "lists of members by date"
        elif "added" in found:
            frame = pl.concat(
                frame.select("date", ticker=reading.as_text(column), action=pl.lit(column))
                for column in ("added", "removed")
            ).filter(pl.col("ticker").str.len_chars() > 0)
        frame = frame.with_columns(reading.ticker_text())
        if "action" in frame.columns:
            return _from_changes(frame, given), "changes by date"
        return _from_snapshots(frame), what
    return _from_flags(given, available), "flags by date, a column per ticker"


def _from_flags(given: reading.GivenFiles, available: Sequence[str]) -> pl.DataFrame:
    day_name = match_names({"date": _DAY_NAMES}, available).get("date", available[0])
    tickers = [name for name in available if name != day_name and not is_unnamed(name)]
    parts = []
    for file in given.files:
        frame = collect(given.open(file)[0], file)
        if day_name in frame.columns and tickers:
            frame = frame.with_columns(pl.col(tickers).cast(pl.String))
            parts.append(unpivot(frame, tickers, [day_name], "ticker", "flag").rename({day_name: "date"}))
    whole = reading.concat_parts(parts) if parts else pl.DataFrame()
    if whole.height:
        words = pl.col("flag").str.to_lowercase().replace({"true": "1", "false": "0", "x": "1"})
        whole = reading.read_number(whole.with_columns(words), "flag")
    if whole.is_empty() or not whole.schema["flag"].is_numeric():
        raise DataError(
            f"{given.files[0]} has no layout of index membership; its columns are {abbreviate(available)}: "
            "give ticker, from_date and to_date, or date and ticker"
        )
    whole = _dated(whole, given).with_columns(reading.ticker_text())
    days = whole.select(pl.col("date").unique())
    return _from_snapshots(whole.filter(pl.col("flag") > 0).select("date", "ticker"), days)


def _dated(frame: pl.DataFrame, given: reading.GivenFiles) -> pl.DataFrame:
    """Read the dates in the format of the config, or else in the one that fits."""
    form = given.config.date_format
    if form is None:
        form = recognise_dates(frame.select(pl.col("date").unique()), given.files[0], cure="set date_format")
    frame = reading.read_dates(frame, ["date"], form)
    return frame.with_columns(reading.day(frame)).drop_nulls("date")


def _from_snapshots(rows: pl.DataFrame, days: pl.DataFrame | None = None) -> pl.DataFrame:
    """Turn the members of dates into spells: a member stays until the next date that does not list it."""
    of = [c for c in ("universe",) if c in rows.columns]
    dates = rows.select(*of, "date").unique() if days is None else days
    following = pl.col("date").shift(-1)
    dates = dates.sort(*of, "date").with_columns(
        place=pl.int_range(pl.len()).over(of) if of else pl.int_range(pl.len()),
        following=following.over(of) if of else following,
    )
    key = [*of, "ticker"]
    listed = rows.select(*key, "date").unique().join(dates, on=[*of, "date"]).sort(*key, "date")
    starts = (pl.col("place") != pl.col("place").shift().over(key) + 1).fill_null(value=True)
    spells = (
        listed.with_columns(spell=starts.cum_sum())
        .group_by(*key, "spell", maintain_order=True)
        .agg(from_date=pl.col("date").first(), to_date=pl.col("following").last())
    )
    return spells.drop("spell")


def _from_changes(rows: pl.DataFrame, given: reading.GivenFiles) -> pl.DataFrame:
    """Turn additions and removals into spells; a firm that is removed first was a member from the start."""
    word = pl.col("action").cast(pl.String).str.strip_chars().str.to_lowercase()
    joins = pl.when(word.is_in(_ADDS)).then(pl.lit(value=True))
    rows = rows.with_columns(joins=joins.when(word.is_in(_REMOVES)).then(pl.lit(value=False)))
    unknown = rows.filter(pl.col("joins").is_null())
    if unknown.height:
        raise DataError(
            f"{given.label} has the action {unknown['action'][0]!r} of {unknown['ticker'][0]}, which "
            f"is neither an addition nor a removal: write {_ADDS[0]} or {_REMOVES[0]}"
        )
    key = [c for c in ("universe", "ticker") if c in rows.columns]
    rows = rows.sort(*key, "date", "joins")
    left = pl.when(~pl.col("joins").shift(-1).over(key)).then(pl.col("date").shift(-1).over(key))
    joined = rows.with_columns(to_date=left).filter("joins")
    first = rows.group_by(*key, maintain_order=True).first().filter(~pl.col("joins"))
    spells = (
        joined.select(*key, "to_date", from_date="date"),
        first.select(*key, to_date="date", from_date=pl.lit(STATIC_SINCE)),
    )
    return pl.concat(spells).sort(*key, "from_date")


_LATER: Final = re.compile(r"_lead\d+[dwmqy]?$")  # returns earned later (data of Jensen, Kelly and Pedersen)


def read_inputs(given: reading.GivenFiles) -> pl.DataFrame:
    """Read rows of (name, date, ticker, value), as delivered, without empty values and later returns."""
    parts: list[pl.DataFrame] = []
    not_numeric: dict[str, None] = {}
    later: dict[str, None] = {}
    for file in given.files:
        rows, available = given.open(file)
        key = [given.column_name(ours, available, file) for ours in ("date", "ticker")]
        frame, others = collect(rows, file), [name for name in available if name not in key]
        later |= dict.fromkeys(name for name in others if _LATER.search(name.lower()))
        others = [name for name in others if name not in later]
        for name in others:
            if frame.schema[name].is_numeric() or frame.schema[name] == pl.String:
                frame = reading.read_number(frame, name)
        numeric = [name for name in others if frame.schema[name] == pl.Float64]
        not_numeric |= dict.fromkeys(name for name in others if name not in numeric)
        if not numeric:
            beside, listed = " and ".join(key), abbreviate(available)
            raise DataError(f"{file} has no numeric column besides {beside}; its columns are {listed}")
        stored = dict(zip(key, ("date", "ticker"), strict=True)) | _input_names(numeric, file)
        frame = frame.select(*key, *numeric).rename(stored).with_columns(reading.ticker_text())
        parts.append(frame.unpivot(index=["date", "ticker"], variable_name="name", value_name="value"))
    frame = reading.within_dates(given.dates(reading.concat_parts(parts), ["date"]), given)
    ignored = {"returns of later periods, which are left out": later}
    ignored["columns that are not numeric and are ignored"] = not_numeric
    for what, names in ignored.items():
        given.note(f"{given.label} has {what}: {abbreviate(list(names))}.", len(names))
    given.note(f"# empty values of {given.label} are ignored.", frame["value"].null_count())
    columns = ("name", "date", "ticker", "value")
    return frame.drop_nulls("value").select(columns).sort(columns[:3])


def _input_names(columns: Sequence[str], file: Path) -> dict[str, str]:
    """Convert a file's column names to names of inputs."""
    names: dict[str, str] = {}
    for column in columns:
        name = plain_name(column)
        name = f"x_{name}" if name[:1].isdigit() else name
        if not re.fullmatch(INPUT_PATTERN, name):
            raise DataError(
                f"{file} has a column {column!r}, which cannot be the name of an input: rename it to at most "
                "41 letters, digits and underscores"
            )
        if twin := next((other for other, taken in names.items() if taken == name), None):
            raise DataError(
                f"{file} has the columns {twin!r} and {column!r}, which would both be named {name}: "
                "rename one"
            )
        names[column] = name
    return names


_OPTIONAL: Final = ("known_at", "unit", "filing_id", "months", "stated_on")
STATEMENTS: Final = ("period_end", "item", "value", *_OPTIONAL)
_STATED_AS_OF: Final[Mapping[ShareCountsAsOf, str]] = {
    "period_end": "the end of the period",
    "known_at": "the date of publication",
    "today": "today, so that all later splits are undone",
}
_KEY: Final = ["ticker", "period_end", "item"]
_COMPUSTAT: Final = vendor_names("compustat")  # item -> names; one that ends in y is the year to date
_FILTERS: Final = {"indfmt": "INDL", "datafmt": "STD", "consol": "C"}  # other rows repeat a statement
_MILLIONS: Final = 1e6


def read_statements(
    given: reading.GivenFiles, prices: pl.DataFrame, renames: pl.DataFrame | None
) -> pl.DataFrame:
    """Read statements; a row without a publication date gets one from the lag, and is ``assumed``."""
    config = given.config
    frame = reading.read_number(
        reading.concat_parts([_read_one(file, given) for file in given.files]), "value"
    )
    if config.units:
        factor = pl.col("item").replace_strict(config.units, default=1.0, return_dtype=pl.Float64)
        frame = reading.scale(frame, "value", factor)
    if "known_at" in frame.columns:
        frame = reading.read_known_dates(frame, "known_at", config.date_format)
    frame = given.dates(frame, ("period_end", "stated_on"))
    zeros = pl.col("value").cast(pl.Float64, strict=False) == 0
    zeros &= pl.col("item").is_in(config.zero_means_missing)
    given.note(
        f"# zeros of {', '.join(config.zero_means_missing)} in {given.label} are treated as not reported.",
        frame.select(zeros.sum()).item(),
    )
    frame = frame.filter(~zeros.fill_null(value=False))
    given.note(f"# empty values of {given.label} are ignored.", frame["value"].null_count())
    frame = frame.drop_nulls("value")
    if frame.is_empty():
        raise DataError(f"{given.label} holds no value of any item: use a file with statements")
    frame = _fill_known_at(_fill_months(frame, config.statement_months), config.reporting_lag_days)
    if "stated_on" not in frame.columns and not frame.filter(pl.col("item").is_in(SPLIT_ITEMS)).is_empty():
        given.note(
            f"{given.label} does not say as of when share counts and per-share amounts are stated; "
            f"assumed: {_STATED_AS_OF[config.share_counts_as_of]} "
            f"(source.share_counts_as_of: {config.share_counts_as_of})."
        )
    frame = fill_stated_on(frame, config.share_counts_as_of, prices, renames)
    _add_hazard(frame, config.reporting_lag_days, given)
    return frame.sort(*_KEY, "known_at")


def _read_one(file: Path, given: reading.GivenFiles) -> pl.DataFrame:
    """Read one file into ticker, period_end, item, value and the optional columns, all unparsed."""
    rows, available = given.open(file)
    if {"gvkey", "datadate"} <= {name.lower() for name in available} and not given.config.items:
        return _read_compustat(collect(rows, file), file, given)
    names = {
        ours: given.column_name(ours, available, file)
        for ours in ("ticker", *STATEMENTS)
        if ours in ("ticker", "period_end") or ours in given.columns or ours in available
    }
    if "item" in names and "value" in names:
        frame = collect(rows, file, names).with_columns(reading.ticker_text(), reading.as_text("item"))
        found = sorted(frame["item"].drop_nulls().unique())
        items = _known_items(found, "item", file, given)
        if left_out := sorted({*found} - {*items.values()}):
            given.note(f"{file.name} has items that are not mapped and are ignored: {abbreviate(left_out)}.")
        canonical = pl.DataFrame({"canonical": [*items], "item": [*items.values()]})
        return frame.join(canonical, on="item").drop("item").rename({"canonical": "item"})
    index = {ours: theirs for ours, theirs in names.items() if ours not in ("item", "value")}
    items = _known_items(available, "column", file, given)
    frame = collect(rows, file, index | items).with_columns(reading.ticker_text())
    return unpivot(frame, list(items), list(index), "item", "value")


def _known_items(
    available: Sequence[str], kind: str, file: Path, given: reading.GivenFiles
) -> dict[str, str]:
    """Canonical item -> its name in a file; DataError if one that the config maps is absent, or all are."""
    items, listed = given.config.items, abbreviate(available)
    for ours, theirs in items.items():
        if theirs not in available:
            raise DataError(f"{file} has no {kind} {theirs!r} for the item {ours}; its {kind}s are {listed}")
    known = {ours: items.get(ours, ours) for ours in ITEMS if items.get(ours, ours) in available}
    if not known:
        raise DataError(
            f"{file} has no known statement item; its {kind}s are {listed}: map them in source.items, as "
            f"<Peerglass item>: <{kind} in the file>"
        )
    return known


def _read_compustat(frame: pl.DataFrame, file: Path, given: reading.GivenFiles) -> pl.DataFrame:
    """Read Compustat's file: amounts in millions, firms by gvkey, known on the day after ``rdq``."""
    frame = frame.rename({name: name.lower() for name in frame.columns})
    for column, usual in _FILTERS.items():
        if column in frame.columns:
            frame = frame.filter((reading.as_text(column) == usual) | pl.col(column).is_null())
    frame = frame.with_columns(
        reading.as_text("gvkey").alias("ticker"), pl.col("datadate").alias("period_end")
    )
    dates = ["period_end"]
    if "rdq" in frame.columns:
        frame = frame.with_columns(pl.col("rdq").alias("known_at"))
        dates.append("known_at")
    for column in dates:
        form = recognise_dates(frame.select(pl.col(column).unique()), file, cure="set date_format")
        frame = reading.read_dates(frame, [column], form)
    if "known_at" in dates and frame.schema["known_at"] == pl.Date:
        frame = frame.with_columns(pl.col("known_at").dt.offset_by("1d"))
    found = {item: [name for name in names if name in frame.columns] for item, names in _COMPUSTAT.items()}
    items = {item: names[0] for item, names in found.items() if names}
    if not items:
        raise DataError(
            f"{file} has no known item of Compustat; its columns are {abbreviate(frame.columns)}: map them "
            "in source.items, as <Peerglass item>: <column in the file>"
        )
    quarterly = any(name.endswith(("q", "y")) for name in items.values())
    if "fqtr" in frame.columns:
        frame = reading.read_number(frame, "fqtr")
    elif quarterly:
        frame = frame.with_columns(fqtr=pl.lit(None, dtype=pl.Float64))
    parts = []
    for item, name in items.items():
        amount = pl.col(name).cast(pl.Float64, strict=False) * (1.0 if item == "eps" else _MILLIONS)
        months = 3 * pl.col("fqtr") if name.endswith("y") else pl.lit(3.0 if quarterly else 12.0)
        columns = (pl.lit(item).alias("item"), amount.alias("value"), months.alias("months"))
        parts.append(reading.read_number(frame, name).select("ticker", *dates, *columns))
    kind = "quarterly" if quarterly else "annual"
    known = "; known on the day after rdq" if "known_at" in dates else ""
    given.note(f"{file.name} is read as Compustat's {kind} file: firms by gvkey, amounts in millions{known}.")
    return pl.concat(parts)


def _fill_months(frame: pl.DataFrame, given: int | None) -> pl.DataFrame:
    """Fill in the number of months that a flow covers; null for an instant."""
    value = pl.lit(given, dtype=pl.Int64)
    if "months" in frame.columns:
        frame, value = reading.read_number(frame, "months"), pl.col("months")
        if frame.schema["months"] == pl.Float64 and (frame["months"] % 1 != 0).any():
            value = value.cast(pl.String).str.strip_suffix(".0")  # so that the contract rejects 2.5
    return frame.with_columns(pl.when(pl.col("item").is_in(FLOWS)).then(value).alias("months"))


def _fill_known_at(frame: pl.DataFrame, lag_days: int) -> pl.DataFrame:
    """Fill in missing publication dates from the lag, and mark the rows in ``assumed``."""
    later = reading.day(frame, "period_end").dt.offset_by(f"{lag_days}d")
    if "known_at" not in frame.columns:
        return frame.with_columns(later.alias("known_at"), pl.lit(value=True).alias("assumed"))
    known = pl.col("known_at")
    filled = later.dt.to_string("%Y-%m-%d") if frame.schema["known_at"] == pl.String else later
    return frame.with_columns(known.is_null().alias("assumed"), known.fill_null(filled))


def _add_hazard(frame: pl.DataFrame, lag_days: int, given: reading.GivenFiles) -> None:
    assumed = int(frame["assumed"].sum())
    one_version = not frame.select(pl.struct(_KEY).is_duplicated().any()).item()
    restated = (
        f"{given.label} has one version of every number, presumably the last restated one, so "
        "corrections are seen before they were made"
    )
    if assumed:
        rows = f"all {assumed:,}" if assumed == frame.height else f"{assumed:,} of {frame.height:,}"
        given.hazards.append(
            f"Assumed reporting lag: {rows} rows of {given.label} have no publication date and are assumed "
            f"to be known {lag_days} days after the end of their period (marked assumed)"
            + (f"; {restated}." if one_version else ".")
        )
    elif one_version:
        given.hazards.append(f"Statements as last restated: {restated}.")


def fill_stated_on(
    frame: pl.DataFrame, rule: ShareCountsAsOf, prices: pl.DataFrame, renames: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Fill in missing ``stated_on``; in a history restated ``today``, splits since the period are undone."""
    of_split = pl.col("item").is_in(SPLIT_ITEMS)
    recorded = pl.col("stated_on") if "stated_on" in frame.columns else pl.lit(None)
    if rule == "today" and "split_ratio" in prices.columns:
        frame = _undo_later_splits(frame, prices, renames, of_split & recorded.is_null())
    known = "known_at" if rule == "known_at" else "period_end"
    is_text = pl.String in {frame.schema[c] for c in ("stated_on", known) if c in frame.columns}
    kind = pl.String if is_text else pl.Date
    stated = pl.coalesce(recorded.cast(kind), pl.col(known).cast(kind))
    return frame.with_columns(pl.when(of_split).then(stated).alias("stated_on"))


def _undo_later_splits(
    frame: pl.DataFrame, prices: pl.DataFrame, renames: pl.DataFrame | None, affected: pl.Expr
) -> pl.DataFrame:
    """Undo the splits of a firm, under all of its tickers, since the end of the period."""
    ratio = pl.col("split_ratio").cast(pl.Float64, strict=False)
    splits = prices.select("ticker", reading.day(prices).alias("date"), ratio.alias("ratio"))
    splits = splits.filter((pl.col("ratio") > 0) & (pl.col("ratio") != 1) & pl.col("date").is_not_null())
    rows = frame.with_row_index("row").with_columns(
        end=reading.day(frame, "period_end"), known=reading.day(frame, "known_at")
    )
    if renames is not None:
        names = renames.with_columns(reading.day(renames, "from_date")).drop_nulls(["ticker", *RENAMES])
        splits = renamed(splits, names, ["ticker", "date"], "date")
        rows = renamed(rows, names, ["row"], "known")
    product = pl.col("ratio").cum_prod(reverse=True).over("ticker")
    splits = splits.sort("ticker", "date").select("ticker", "date", later=product).sort("date")
    rows = rows.sort("end").join_asof(
        splits,
        left_on="end",
        right_on="date",
        by="ticker",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,  # both are sorted by their dates
    )
    rows = rows.sort("row").with_columns(frame["ticker"])
    product = pl.col("later").fill_null(1.0)
    factor = pl.when(pl.col("item") == SHARE_COUNT).then(1.0 / product).otherwise(product)
    rows = reading.scale(rows, "value", pl.when(affected).then(factor).otherwise(1.0))
    return rows.select(frame.columns)
