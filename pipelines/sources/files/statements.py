"""Statements from a user's files: one row per ticker and period (wide), or one row per item (long)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import FLOWS, ITEMS, SHARE_COUNT, SPLIT_ITEMS
from pipelines.sources.files.opening import abbreviate, collect, columns_of, file_label, resolve, scan
from pipelines.sources.files.reading import (
    ReadOptions,
    as_text,
    concat_parts,
    read_number,
    scale,
    ticker_text,
)
from pipelines.sources.files.recognise import recognise_dates

_OPTIONAL: Final = ("known_at", "unit", "filing_id", "months", "stated_on")
STATEMENTS: Final = ("period_end", "item", "value", *_OPTIONAL)
_DATES: Final = ("period_end", "known_at", "stated_on")
_STATED_AS_OF: Final[Mapping[ShareCountsAsOf, str]] = {
    "period_end": "the end of the period",
    "known_at": "the date of publication",
    "today": "today, so that all later splits are undone",
}
_KEY: Final = ["ticker", "period_end", "item"]
_COMPUSTAT: Final[Mapping[str, tuple[str, ...]]] = {
    item: tuple(names.split())
    for item, names in {
        "revenue": "revtq saleq revt sale",
        "cost_of_revenue": "cogsq cogs",
        "gross_profit": "gpq gp",
        "research_and_development": "xrdq xrd",
        "selling_general_admin": "xsgaq xsga",
        "operating_income": "oiadpq oiadp",
        "interest_expense": "xintq xint",
        "income_tax": "txtq txt",
        "net_income": "niq ibq ni ib",
        "depreciation": "dpq dp",
        "operating_cash_flow": "oancfy oancf",
        "capital_expenditure": "capxy capx",
        "dividends_paid": "dvy dv",
        "eps": "epspxq epspx",
        "total_assets": "atq at",
        "current_assets": "actq act",
        "cash": "chq ch",
        "receivables": "rectq rect",
        "inventory": "invtq invt",
        "fixed_assets": "ppentq ppent",
        "total_liabilities": "ltq lt",
        "current_liabilities": "lctq lct",
        "accounts_payable": "apq ap",
        "short_term_debt": "dlcq dlc",
        "long_term_debt": "dlttq dltt",
        "book_equity": "ceqq ceq",
        "retained_earnings": "req re",
        "shares_outstanding": "cshoq csho",
    }.items()
}
"""Item -> its names in Compustat's quarterly and annual files. A name that ends in y is the year to date."""
_FILTERS: Final = {"indfmt": "INDL", "datafmt": "STD", "consol": "C"}
"""Compustat's standard format; other rows repeat a statement in another one."""
_MILLIONS: Final = 1e6


@dataclass(frozen=True, slots=True)
class StatementFiles:
    """Files of statements and how to interpret them.

    ``path``: CSV, Excel or Parquet, wildcards allowed. Wide: ticker, period_end, one column per item. Long:
    ticker, period_end, item, value. Both may have known_at (the date by whose close it was public), unit,
    filing_id, months (the span of a flow) and stated_on (the last date whose splits a share count or
    per-share amount includes). ``items``: canonical item (`pipelines.sources.base`) -> name in the file;
    items with canonical names need no entry. ``reporting_lag_days``: days from the end of a period until its
    statement is assumed to be known, where there is no known_at. ``months``: span of every flow if the file
    has no such column; None if unknown. ``zero_means_missing``: items in which a zero means "not reported".
    ``share_counts_as_of``: date as of which counts and per-share amounts without a stated_on are stated
    (`pipelines.sources.files.statements.fill_stated_on`).
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
                    f"source.{setting} names {', '.join(unknown)}, which is not a statement item; "
                    f"choose from {', '.join(ITEMS)}"
                )


def read_statements(
    given: StatementFiles, options: ReadOptions, prices: pl.DataFrame
) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Read statements into rows of (ticker, period_end, known_at, item, value, ...), with notes and hazards.

    ``prices`` provide the splits if share counts are restated for all later splits. Empty values are dropped
    and counted. A row without a publication date gets one from the assumed lag and is marked in ``assumed``.

    Raises DataError if a file is unreadable, lacks a column, or holds no known item.
    """
    files = resolve(given.path)
    parts = [_read_one(file, given, options) for file in files]
    notes = list(dict.fromkeys(note for _, part_notes in parts for note in part_notes))
    frame = concat_parts([part for part, _ in parts])
    frame = read_number(frame, "value")
    factor = pl.col("item").replace_strict(dict(options.units), default=1.0, return_dtype=pl.Float64)
    if options.units:
        frame = scale(frame, "value", factor)
    frame = options.dates(frame, [c for c in _DATES if c in frame.columns])

    unknown = pl.col("value").cast(pl.Float64, strict=False) == 0
    zeros = unknown & pl.col("item").is_in(given.zero_means_missing)
    dropped = int(frame.select(zeros.sum()).item())
    if dropped:
        notes.append(
            f"{dropped:,} zeros of {', '.join(given.zero_means_missing)} in {file_label(files)} are treated "
            "as not reported."
        )
    frame = frame.filter(~zeros.fill_null(value=False))
    empty = frame["value"].null_count()
    if empty:
        notes.append(f"{empty:,} empty values of {file_label(files)} are ignored.")
    frame = frame.drop_nulls("value")
    if frame.is_empty():
        raise DataError(f"{file_label(files)} holds no value of any item: use a file with statements")
    frame = _fill_known_at(_fill_months(frame, given), given.reporting_lag_days)
    if "stated_on" not in frame.columns and not frame.filter(pl.col("item").is_in(SPLIT_ITEMS)).is_empty():
        notes.append(
            f"{file_label(files)} does not say as of when share counts and per-share amounts are stated; "
            f"assumed: {_STATED_AS_OF[given.share_counts_as_of]} "
            f"(source.share_counts_as_of: {given.share_counts_as_of})."
        )
    frame = fill_stated_on(frame, given.share_counts_as_of, prices)
    return frame.sort(*_KEY, "known_at"), notes, _hazards(frame, given, files)


def _read_one(file: Path, given: StatementFiles, options: ReadOptions) -> tuple[pl.DataFrame, list[str]]:
    """Read one file into ticker, period_end, item, value and the optional columns, all unparsed."""
    rows = scan(file, options.text)
    available = columns_of(rows, file)
    if {"gvkey", "datadate"} <= {name.lower() for name in available} and not given.items:
        return _read_compustat(collect(rows, file), file)
    names = {ours: options.column_name(ours, available, file) for ours in ("ticker", "period_end")}
    for ours in ("item", "value", *_OPTIONAL):
        if ours in options.columns or ours in available:
            names[ours] = options.column_name(ours, available, file)
    if "item" in names and "value" in names:
        frame = collect(rows.select(pl.col(theirs).alias(ours) for ours, theirs in names.items()), file)
        return _to_canonical_items(frame.with_columns(ticker_text()), given.items, file)
    index = {ours: theirs for ours, theirs in names.items() if ours not in ("item", "value")}
    item_columns = {item: given.items.get(item, item) for item in ITEMS}
    item_columns = {
        item: theirs for item, theirs in item_columns.items() if item in given.items or theirs in available
    }
    for item, theirs in item_columns.items():
        if theirs not in available:
            raise DataError(
                f"{file} has no column {theirs!r} for the item {item}; its columns are "
                f"{abbreviate(available)}"
            )
    if not item_columns:
        raise DataError(
            f"{file} has no known statement item; its columns are {abbreviate(available)}: map them in "
            "source.items, as <Peerglass item>: <column in the file>"
        )
    frame = collect(
        rows.select(pl.col(theirs).alias(ours) for ours, theirs in (index | item_columns).items()), file
    ).with_columns(ticker_text())
    numeric = all(frame.schema[item].is_numeric() for item in item_columns)
    frame = frame.with_columns(pl.col(list(item_columns)).cast(pl.Float64 if numeric else pl.String))
    return frame.unpivot(
        on=list(item_columns), index=list(index), variable_name="item", value_name="value"
    ), []


def _read_compustat(frame: pl.DataFrame, file: Path) -> tuple[pl.DataFrame, list[str]]:
    """Read Compustat's quarterly or annual file: amounts in millions, firms by gvkey.

    A quarter is known on the day after ``rdq``, the date of the announcement, which may come after the close.
    """
    frame = frame.rename({name: name.lower() for name in frame.columns})
    for column, usual in _FILTERS.items():
        if column in frame.columns:
            frame = frame.filter((as_text(column) == usual) | pl.col(column).is_null())
    frame = frame.with_columns(as_text("gvkey").alias("ticker"), pl.col("datadate").alias("period_end"))
    dates = ["period_end"]
    if "rdq" in frame.columns:
        frame = frame.with_columns(pl.col("rdq").alias("known_at"))
        dates.append("known_at")
    for column in dates:
        form = recognise_dates(frame.select(pl.col(column).unique()), file, cure="set date_format")
        frame = ReadOptions(date_format=form).dates(frame, [column])
    if "known_at" in dates and frame.schema["known_at"] == pl.Date:
        frame = frame.with_columns(pl.col("known_at").dt.offset_by("1d"))
    items = {
        item: next(name for name in names if name in frame.columns)
        for item, names in _COMPUSTAT.items()
        if any(name in frame.columns for name in names)
    }
    if not items:
        raise DataError(
            f"{file} has no item of Compustat that is known; its columns are {abbreviate(frame.columns)}: "
            "map them in source.items, as <Peerglass item>: <column in the file>"
        )
    quarterly = any(name.endswith(("q", "y")) for name in items.values())
    if "fqtr" in frame.columns:
        frame = read_number(frame, "fqtr")
    elif quarterly:
        frame = frame.with_columns(fqtr=pl.lit(None, dtype=pl.Float64))
    parts = []
    for item, name in items.items():
        factor = 1.0 if item == "eps" else _MILLIONS
        months = 3 * pl.col("fqtr") if name.endswith("y") else pl.lit(3.0 if quarterly else 12.0)
        part = read_number(frame, name).select(
            "ticker",
            *dates,
            pl.lit(item).alias("item"),
            pl.col(name).cast(pl.Float64, strict=False).alias("value") * factor,
            months.alias("months"),
        )
        parts.append(part)
    kind = "quarterly" if quarterly else "annual"
    known = "; known on the day after rdq" if "known_at" in dates else ""
    note = f"{file.name} is read as Compustat's {kind} file: firms by gvkey, amounts in millions{known}."
    return pl.concat(parts), [note]


def _to_canonical_items(
    frame: pl.DataFrame, items: Mapping[str, str], file: Path
) -> tuple[pl.DataFrame, list[str]]:
    """Rename a long file's items to the canonical ones, and list the unmapped items in a note."""
    frame = frame.with_columns(as_text("item"))
    available = set(frame["item"].unique().drop_nulls())
    if absent := [f"{ours}: {theirs!r}" for ours, theirs in items.items() if theirs not in available]:
        raise DataError(
            f"{file} has no item {absent[0].partition(': ')[2]} for {absent[0].partition(': ')[0]}; its "
            f"items are {abbreviate(sorted(available))}"
        )
    pairs = [(ours, items.get(ours, ours)) for ours in ITEMS if items.get(ours, ours) in available]
    if not pairs:
        raise DataError(
            f"{file} has no known statement item; its items are {abbreviate(sorted(available))}: map them in "
            "source.items, as <Peerglass item>: <item in the file>"
        )
    left_out = sorted(available - {theirs for _, theirs in pairs})
    names = pl.DataFrame(pairs, schema={"ours": pl.String, "item": pl.String}, orient="row")
    notes = (
        [f"{file.name} has items that are not mapped and are ignored: {abbreviate(left_out)}."]
        if left_out
        else []
    )
    return frame.join(names, on="item").drop("item").rename({"ours": "item"}), notes


def _fill_months(frame: pl.DataFrame, given: StatementFiles) -> pl.DataFrame:
    """Fill in the number of months that a flow covers; null for an instant."""
    if "months" in frame.columns:
        frame = read_number(frame, "months")
        value = pl.col("months")
        if frame.schema["months"] == pl.Float64:
            whole = value.cast(pl.Int64, strict=False)
            fractional = (value != value.floor()).fill_null(value=False)
            invalid = frame.select(fractional.any()).item()  # text, so that the contract rejects the rows
            kept = pl.when(fractional).then(value.cast(pl.String)).otherwise(whole.cast(pl.String))
            value = kept if invalid else whole
    else:
        value = pl.lit(given.months, dtype=pl.Int64)
    return frame.with_columns(pl.when(pl.col("item").is_in(FLOWS)).then(value).alias("months"))


def _fill_known_at(frame: pl.DataFrame, lag_days: int) -> pl.DataFrame:
    """Fill in missing publication dates from the lag, and mark the rows in ``assumed``."""
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
        f"{file_label(files)} has one version of every number, presumably the last restated one, so "
        "corrections are seen before they were made"
    )
    if not assumed:
        return [f"Statements as last restated: {restated}."] if one_version else []
    rows = f"all {assumed:,}" if assumed == frame.height else f"{assumed:,} of {frame.height:,}"
    return [
        f"Assumed reporting lag: {rows} rows of {file_label(files)} have no publication date and are assumed "
        f"to be known {given.reporting_lag_days} days after the end of their period (marked assumed)"
        + (f"; {restated}." if one_version else ".")
    ]


ShareCountsAsOf = Literal["period_end", "known_at", "today"]
_LATER_SPLITS: Final = "later_splits"


def fill_stated_on(frame: pl.DataFrame, rule: ShareCountsAsOf, prices: pl.DataFrame) -> pl.DataFrame:
    """Fill in ``stated_on`` of share counts and per-share amounts where the file lacks it.

    By ``rule``, the numbers include the splits up to the end of the period (``period_end``), those up to the
    date of publication, as in filings (``known_at``), or all of them, because the vendor restated its whole
    history (``today``): the splits in the prices after the end of the period are then undone. Prices without
    ``split_ratio`` undo nothing, because they are split-adjusted as well. ``stated_on`` is null for items
    that are neither counts nor per-share amounts. Dates may be text if one of them is unreadable.
    """
    of_split = pl.col("item").is_in(SPLIT_ITEMS)
    recorded = pl.col("stated_on") if "stated_on" in frame.columns else pl.lit(None)
    if rule == "today":
        frame = _undo_later_splits(frame, prices, of_split & recorded.is_null())
    day = pl.col("known_at" if rule == "known_at" else "period_end")
    is_text = pl.String in {
        frame.schema[c] for c in ("stated_on", day.meta.output_name()) if c in frame.columns
    }
    kind = pl.String if is_text else pl.Date
    stated = pl.coalesce(recorded.cast(kind), day.cast(kind))
    return frame.with_columns(pl.when(of_split).then(stated).alias("stated_on"))


def _undo_later_splits(frame: pl.DataFrame, prices: pl.DataFrame, affected: pl.Expr) -> pl.DataFrame:
    if "split_ratio" not in prices.columns:
        return frame
    ratio = pl.col("split_ratio").cast(pl.Float64, strict=False)
    splits = (
        prices.select("ticker", _as_day(prices, "date").alias("date"), ratio.alias("ratio"))
        .filter((pl.col("ratio") > 0) & (pl.col("ratio") != 1) & pl.col("date").is_not_null())
        .sort("ticker", "date")
        .with_columns(pl.col("ratio").cum_prod(reverse=True).over("ticker").alias(_LATER_SPLITS))
    )
    rows = frame.with_row_index("row").with_columns(_as_day(frame, "period_end").alias("end"))
    later = (
        rows.select("row", "ticker", "end")
        .drop_nulls()
        .sort("end")
        .join_asof(
            splits.sort("date").select("ticker", "date", _LATER_SPLITS),
            left_on="end",
            right_on="date",
            by="ticker",
            strategy="forward",
            allow_exact_matches=False,
        )
        .select("row", pl.col(_LATER_SPLITS).fill_null(1.0))
    )
    rows = rows.join(later, on="row", how="left", maintain_order="left")
    product = pl.col(_LATER_SPLITS).fill_null(1.0)
    factor = pl.when(pl.col("item") == SHARE_COUNT).then(1.0 / product).otherwise(product)
    rows = scale(rows, "value", pl.when(affected).then(factor).otherwise(1.0))
    return rows.select(frame.columns)


def _as_day(frame: pl.DataFrame, column: str) -> pl.Expr:
    """Return a column of dates, which may be stored as text, as dates."""
    value = pl.col(column)
    return value.str.to_date("%Y-%m-%d", strict=False) if frame.schema[column] == pl.String else value
