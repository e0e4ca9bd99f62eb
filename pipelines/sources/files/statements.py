"""Statements from a user's files: one row per ticker and period (wide), or one row per item (long)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import DataError
from pipelines.sources.base import FLOWS, ITEMS, SHARE_COUNT, SPLIT_ITEMS, vendor_names
from pipelines.sources.files import reading
from pipelines.sources.files.opening import abbreviate, collect, columns_of, scan
from pipelines.sources.files.prices import unpivot
from pipelines.sources.files.recognise import recognise_dates
from pipelines.sources.settings import FilesSourceConfig, ShareCountsAsOf

_OPTIONAL: Final = ("known_at", "unit", "filing_id", "months", "stated_on")
STATEMENTS: Final = ("period_end", "item", "value", *_OPTIONAL)
_STATED_AS_OF: Final[Mapping[ShareCountsAsOf, str]] = {
    "period_end": "the end of the period",
    "known_at": "the date of publication",
    "today": "today, so that all later splits are undone",
}
_KEY: Final = ["ticker", "period_end", "item"]
_COMPUSTAT: Final = vendor_names("compustat")
"""Item -> its names in Compustat's files. A name that ends in y is the year to date."""
_FILTERS: Final = {"indfmt": "INDL", "datafmt": "STD", "consol": "C"}
"""Compustat's standard format; other rows repeat a statement in another one."""
_MILLIONS: Final = 1e6


def read_statements(
    given: reading.GivenFiles, config: FilesSourceConfig, prices: pl.DataFrame
) -> pl.DataFrame:
    """Read statements into rows of (ticker, period_end, known_at, item, value, ...).

    The prices provide the splits if share counts are restated for all later splits. Empty values are dropped
    and counted. A row without a publication date gets one from the assumed lag and is marked in ``assumed``.
    """
    frame = reading.read_number(
        reading.concat_parts([_read_one(file, given, config.items) for file in given.files]), "value"
    )
    if given.units:
        factor = pl.col("item").replace_strict(dict(given.units), default=1.0, return_dtype=pl.Float64)
        frame = reading.scale(frame, "value", factor)
    frame = given.dates(frame, ("period_end", "known_at", "stated_on"))
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
    frame = fill_stated_on(frame, config.share_counts_as_of, prices)
    _add_hazard(frame, config.reporting_lag_days, given)
    return frame.sort(*_KEY, "known_at")


def _read_one(file: Path, given: reading.GivenFiles, items: Mapping[str, str]) -> pl.DataFrame:
    """Read one file into ticker, period_end, item, value and the optional columns, all unparsed."""
    rows = scan(file, given.text)
    available = columns_of(rows, file)
    if {"gvkey", "datadate"} <= {name.lower() for name in available} and not items:
        return _read_compustat(collect(rows, file), file, given)
    names = {
        ours: given.column_name(ours, available, file)
        for ours in ("ticker", *STATEMENTS)
        if ours in ("ticker", "period_end") or ours in given.columns or ours in available
    }
    if "item" in names and "value" in names:
        frame = collect(rows.select(pl.col(theirs).alias(ours) for ours, theirs in names.items()), file)
        return _to_canonical_items(frame.with_columns(reading.ticker_text()), items, file, given)
    index = {ours: theirs for ours, theirs in names.items() if ours not in ("item", "value")}
    item_columns = {item: items.get(item, item) for item in ITEMS if item in items or item in available}
    for item, theirs in item_columns.items():
        if theirs not in available:
            listed = abbreviate(available)
            raise DataError(f"{file} has no column {theirs!r} for the item {item}; its columns are {listed}")
    if not item_columns:
        raise _no_item(f"{file} has no known statement item; its columns are", available, "column")
    named = (pl.col(theirs).alias(ours) for ours, theirs in (index | item_columns).items())
    frame = collect(rows.select(named), file).with_columns(reading.ticker_text())
    return unpivot(frame, list(item_columns), list(index), "item", "value")


def _no_item(problem: str, names: list[str], kind: str) -> DataError:
    return DataError(
        f"{problem} {abbreviate(names)}: map them in source.items, as <Peerglass item>: <{kind} in the file>"
    )


def _read_compustat(frame: pl.DataFrame, file: Path, given: reading.GivenFiles) -> pl.DataFrame:
    """Read Compustat's quarterly or annual file: amounts in millions, firms by gvkey.

    A quarter is known on the day after ``rdq``, the date of the announcement, which may come after the close.
    """
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
        problem = f"{file} has no item of Compustat that is known; its columns are"
        raise _no_item(problem, frame.columns, "column")
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


def _to_canonical_items(
    frame: pl.DataFrame, items: Mapping[str, str], file: Path, given: reading.GivenFiles
) -> pl.DataFrame:
    """Rename a long file's items to the canonical ones; those that are not mapped are left out."""
    frame = frame.with_columns(reading.as_text("item"))
    available = sorted(frame["item"].drop_nulls().unique())
    for ours, theirs in items.items():
        if theirs not in available:
            raise DataError(
                f"{file} has no item {theirs!r} for {ours}; its items are {abbreviate(available)}"
            )
    pairs = [(ours, items.get(ours, ours)) for ours in ITEMS if items.get(ours, ours) in available]
    if not pairs:
        raise _no_item(f"{file} has no known statement item; its items are", available, "item")
    if left_out := sorted({*available} - {theirs for _, theirs in pairs}):
        given.note(f"{file.name} has items that are not mapped and are ignored: {abbreviate(left_out)}.")
    names = pl.DataFrame(pairs, schema=["ours", "item"], orient="row")
    return frame.join(names, on="item").drop("item").rename({"ours": "item"})


def _fill_months(frame: pl.DataFrame, given: int | None) -> pl.DataFrame:
    """Fill in the number of months that a flow covers; null for an instant."""
    value = pl.lit(given, dtype=pl.Int64)
    if "months" in frame.columns:
        frame = reading.read_number(frame, "months")
        value = pl.col("months")
        if frame.schema["months"] == pl.Float64:
            whole, fractional = (
                value.cast(pl.Int64, strict=False),
                (value != value.floor()).fill_null(value=False),
            )
            # text if one is fractional, so that the contract rejects its row
            texts = pl.when(fractional).then(value.cast(pl.String)).otherwise(whole.cast(pl.String))
            value = texts if frame.select(fractional.any()).item() else whole
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


def fill_stated_on(frame: pl.DataFrame, rule: ShareCountsAsOf, prices: pl.DataFrame) -> pl.DataFrame:
    """Fill in ``stated_on`` of share counts and per-share amounts where the file lacks it.

    If the vendor restated its whole history (``today``), the splits in the prices after the end of the period
    are undone; prices without ``split_ratio`` undo nothing, because they are split-adjusted as well. Dates
    may be text if one of them is unreadable.
    """
    of_split = pl.col("item").is_in(SPLIT_ITEMS)
    recorded = pl.col("stated_on") if "stated_on" in frame.columns else pl.lit(None)
    if rule == "today" and "split_ratio" in prices.columns:
        frame = _undo_later_splits(frame, prices, of_split & recorded.is_null())
    known = "known_at" if rule == "known_at" else "period_end"
    is_text = pl.String in {frame.schema[c] for c in ("stated_on", known) if c in frame.columns}
    kind = pl.String if is_text else pl.Date
    stated = pl.coalesce(recorded.cast(kind), pl.col(known).cast(kind))
    return frame.with_columns(pl.when(of_split).then(stated).alias("stated_on"))


def _undo_later_splits(frame: pl.DataFrame, prices: pl.DataFrame, affected: pl.Expr) -> pl.DataFrame:
    ratio = pl.col("split_ratio").cast(pl.Float64, strict=False)
    splits = (
        prices.select("ticker", reading.day(prices).alias("date"), ratio.alias("ratio"))
        .filter((pl.col("ratio") > 0) & (pl.col("ratio") != 1) & pl.col("date").is_not_null())
        .sort("ticker", "date")
        .select("ticker", "date", later=pl.col("ratio").cum_prod(reverse=True).over("ticker"))
        .sort("date")
    )
    rows = frame.with_row_index("row").with_columns(reading.day(frame, "period_end").alias("end"))
    later = (
        rows.select("row", "ticker", "end")
        .drop_nulls()
        .sort("end")
        .join_asof(
            splits, left_on="end", right_on="date", by="ticker", strategy="forward", allow_exact_matches=False
        )
        .select("row", "later")
    )
    rows = rows.join(later, on="row", how="left", maintain_order="left")
    product = pl.col("later").fill_null(1.0)
    factor = pl.when(pl.col("item") == SHARE_COUNT).then(1.0 / product).otherwise(product)
    rows = reading.scale(rows, "value", pl.when(affected).then(factor).otherwise(1.0))
    return rows.select(frame.columns)
