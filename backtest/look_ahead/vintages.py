"""Vintages: what was delivered earlier and what is delivered now must agree up to the earlier delivery's end.

This is the general test for data that know the future. Whatever was computed with later values changes when
later values arrive, or is missing at the end of the earlier delivery because they had not arrived.

Of statements, one delivery tells something by itself. ``known_at`` makes a table of them point in time. It
contains look-ahead if a vendor stores the latest value at the original date, or dates statements by the end
of their period.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, Verdict, answer, conclude, skipped

FIRM_SHARE: Final = 0.02
"""Minimum share of a column's firms whose history was rewritten, for a failure. Fewer are corrections of
single errors, which every vendor makes, and a warning."""
ROW_SHARE: Final = 0.002  # minimum share of a column's rows, likewise
FEW: Final = 3  # up to this many rows are never more than a warning
RELATIVE: Final = 1e-6  # files are rounded, and float32 has seven digits
ANNOUNCED: Final = 3e-3
"""Relative tolerance within which a price differs from the earlier one by the splits recorded since."""
_PRICES: Final = ("close", "open", "high", "low", "volume")


class _Table(NamedTuple):
    """A table's key, the date on which a row is known, and the columns that must not change."""

    key: tuple[str, ...]
    known: str
    columns: tuple[str, ...]


_TABLES: Final[Mapping[str, _Table]] = {
    "prices": _Table(("date", "ticker"), "date", (*_PRICES, "split_ratio", "dividend")),
    "inputs": _Table(("name", "date", "ticker"), "date", ("value",)),
    "fundamentals": _Table(("ticker", "period_end", "known_at", "item"), "known_at", ("value",)),
    "securities": _Table(("ticker", "valid_from"), "valid_from", ("sector", "industry")),
    "membership": _Table(("universe", "ticker", "from_date"), "from_date", ("to_date",)),
}
_SCHEMA: Final = {
    **dict.fromkeys(("verdict", "table", "column", "kind"), pl.String),
    **{"rows": pl.Int64, "share": pl.Float64, "firms": pl.Int64, "ticker": pl.String},
    **{"since": pl.Date, "correlation": pl.Float64},
}
"""One difference: rows of one column that were changed, added, withdrawn, of new firms, or announced."""

EARLY_DAYS: Final = 2
"""No firm closes its books, has them audited and publishes them sooner than this after the period's end. The
fastest US firms take about a week, and 10-Q and 10-K filings are due after 40 to 90 days."""
EARLY_SHARE: Final = 0.02
"""Minimum share of statements that are known sooner, for a failure; single ones are errors of a vendor."""
SHORT_LAG_DAYS: Final = 40  # the shortest deadline of a 10-Q; an assumed lag below it is too short
AMENDED: Final = 5
"""Minimum number of amended statements, without any changed value, for a warning. About half of all
amendments change no number, so that 5 in a row have a chance of 1 in 30; but the values cannot tell an
amendment that changed nothing from an original that was overwritten."""
REPEATED: Final = 300
"""Minimum number of values repeated by later filings, without any changed value, for a failure. A few percent
of US comparatives differ, so the probability that none of 300 differs is below 1 in 1,000."""
COLLIDING_SHARE: Final = 0.01  # minimum share of rows with several versions at one known_at for a failure
TWICE_DATED_SHARE: Final = 0.01  # share of filings with several dates, above which the check fails
ENOUGH: Final = 200
"""Minimum number of statements (firm and period) for a warning if none is restated; about 1 in 20 is."""

_PERIOD: Final = ["ticker", "period_end"]
_VALUE: Final = [*_PERIOD, "item"]

_NOT_CHECKABLE: Final = (
    "Not checkable with one delivery: fits on the whole sample (trees and regressions in sample; signs, "
    "means or pairs chosen by later returns; seasonal means), recomputed histories and reclassified groups. "
    "Give the files of an earlier day, 40 sessions or more before the last, with --vintage."
)


def check(data: Delivery) -> Result:
    """Compare the tables with an earlier delivery, up to its last day."""
    if data.older is None:
        return skipped(_NOT_CHECKABLE)
    return compare_vintages(data.older, data.tables)


def compare_vintages(
    older: Mapping[str, pl.DataFrame], newer: Mapping[str, pl.DataFrame], through: dt.date | None = None
) -> Result:
    """Compare two deliveries of the same lake tables up to the last day of the earlier one, or another day.

    Tables that only one of them has are left out; the later one must have prices. ``fail`` if more than a few
    rows were rewritten, added or withdrawn; ``warn`` for single ones. A price that differs by exactly the
    splits recorded since is told apart: it is announced.
    """
    if through is None:  # the last day of its prices, or, without prices, of what it has
        names = ("prices",) if "prices" in older else [name for name in _TABLES if name in older]
        days = [day for name in names if isinstance(day := older[name][_TABLES[name].known].max(), dt.date)]
        through = max(days, default=dt.date.min)
    found = [
        one
        for name in _TABLES
        if name in older and name in newer
        for one in _differences(name, older[name], newer[name], through, newer["prices"])
    ]
    evidence = pl.DataFrame(found, schema=_SCHEMA)
    announced = [_sentence(one) for one in found if one["kind"] == "announced"]
    aside = "".join(f" {sentence[0].upper()}{sentence[1:]}." for sentence in announced)
    real = [one for one in found if one["kind"] != "announced"]
    if not real:
        return answer("pass", f"History up to {through} is that of the earlier delivery.{aside}", evidence)
    worst = min(
        real, key=lambda one: (one["verdict"] != "fail", -abs(one["correlation"] or 0.0), -one["share"])
    )
    more = f" ({len(real) - 1} more)" if len(real) > 1 else ""
    head = "History was rewritten" if worst["verdict"] == "fail" else "Single rows of history differ"
    sentence = (
        f"{head}: compared with the delivery up to {through}, {_sentence(worst)}{more}. Ask the source for "
        f"values as they were first published.{aside}"
    )
    return answer(worst["verdict"], sentence, evidence)


def _sentence(one: Mapping[str, Any]) -> str:
    what, since, rows = f"{one['table']} {one['column']}".strip(), one["since"], one["rows"]
    firms = f"{one['firms']:,} firm{'s' if one['firms'] > 1 else ''}, such as {one['ticker']}"
    size = f"{rows:,} row{'s' if rows > 1 else ''} ({one['share']:.1%}) of {firms}"
    later = ""
    if one["correlation"] is not None:
        later = f", and the changes correlate by {one['correlation']:+.2f} with the returns that came after"
    return {
        "announced": f"{what} of {size} differ by the splits that were recorded since, which is announced",
        "added": f"{what} has {size} since {since} that the earlier delivery did not have for dates it "
        "covers, as if they become known later than their date",
        "new": f"{what} has {size}, whose history was added since: firms that are added later were chosen "
        "with what is known later",
        "withdrawn": f"{what} lacks {size} since {since} that the earlier delivery had",
        "changed": f"{what} differs in {size} since {since}{later}",
    }[one["kind"]]


def _differences(
    name: str, older: pl.DataFrame, newer: pl.DataFrame, through: dt.date, prices: pl.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield the differences of a table; each input is a table of its own."""
    table = _TABLES[name]
    parts = older["name"].unique().sort().to_list() if name == "inputs" else [""]
    for part in parts:
        left, right = (
            (frame.filter(pl.col("name") == part) if part else frame).filter(pl.col(table.known) <= through)
            for frame in (older, newer)
        )
        if left.is_empty() or (part and newer.filter(pl.col("name") == part).is_empty()):
            continue
        if name == "membership":  # a spell that has ended since was open then
            open_then = pl.when(pl.col("to_date") <= through).then("to_date").otherwise(None)
            left, right = (frame.with_columns(to_date=open_then) for frame in (left, right))
        right = right.filter(pl.col(table.known) >= left[table.known].min())
        added = right.join(left, on=table.key, how="anti")
        is_new = ~pl.col("ticker").is_in(left["ticker"].unique().implode())
        withdrawn = left.join(right, on=table.key, how="anti")
        of_kinds = {"added": added.filter(~is_new), "new": added.filter(is_new), "withdrawn": withdrawn}
        for kind, rows in of_kinds.items():
            if not rows.is_empty() and (name != "securities" or kind == "withdrawn"):
                yield _row(name, left, part, kind, rows)
        columns = [column for column in table.columns if column in left.columns and column in right.columns]
        then = left.select(*table.key, pl.col(columns).name.suffix(":then"))
        both = right.select(*table.key, *columns).join(then, on=table.key)
        for column in columns:
            rows = both.filter(_differs(column, both))
            if name == "prices" and column in _PRICES and rows.height:
                announced = _announced(rows, column, prices)
                if announced.height:
                    yield _row(name, left, column, "announced", announced)
                rows = rows.join(announced, on=["date", "ticker"], how="anti")
            if rows.height:
                later = _with_later(rows, column, prices) if name in ("prices", "inputs") else None
                yield _row(name, left, part or column, "changed", rows, later=later)


def _row(
    name: str, left: pl.DataFrame, column: str, kind: str, rows: pl.DataFrame, *, later: float | None = None
) -> dict[str, Any]:
    """Row of a difference from what the earlier delivery has in a table (or of an input)."""
    known, total = _TABLES[name].known, left.height
    if name == "inputs" and kind == "added":  # of one session: what always arrives late lacks on the last
        total = int(left.group_by(known).len()["len"].median() or 1)  # type: ignore[arg-type]
    counts = rows["ticker"].value_counts().sort("count", "ticker", descending=[True, False])
    share = min(rows.height / total, 1.0)
    enough = counts.height >= FIRM_SHARE * left["ticker"].n_unique() or share >= ROW_SHARE
    many = rows.height > FEW and kind != "new" and enough
    verdict = "pass" if kind == "announced" else "fail" if many else "warn"
    size, first = (rows.height, share, counts.height), (counts["ticker"][0], rows[known].min())
    return dict(zip(_SCHEMA, (verdict, name, column, kind, *size, *first, later), strict=True))


def _differs(column: str, both: pl.DataFrame) -> pl.Expr:
    now, then = pl.col(column), pl.col(f"{column}:then")
    if not both.schema[column].is_float():
        return now.ne_missing(then)
    off = (now - then).abs() > RELATIVE * pl.max_horizontal(now.abs(), then.abs())
    return off.fill_null(value=False) | (now.is_null() != then.is_null())


def _announced(rows: pl.DataFrame, column: str, prices: pl.DataFrame) -> pl.DataFrame:
    """Rows whose ratio to the earlier value is the product of all later recorded splits of the firm."""
    splits = prices.filter(pl.col("split_ratio") != 1.0).select("ticker", "date", "split_ratio")
    if splits.is_empty():
        return rows.clear()
    later = (
        rows.select("ticker", "date")
        .join(splits, on="ticker", suffix="_split")
        .filter(pl.col("date_split") > pl.col("date"))
        .group_by("ticker", "date")
        .agg(pl.col("split_ratio").product().alias("factor"), pl.col("split_ratio").last().alias("newest"))
    )
    ratio = pl.col(f"{column}:then") / pl.col(column)
    ratio = 1.0 / ratio if column == "volume" else ratio
    off = pl.min_horizontal((ratio / pl.col(name) - 1.0).abs() for name in ("factor", "newest"))
    return rows.join(later, on=["ticker", "date"]).filter(off < ANNOUNCED).select(rows.columns)


def _with_later(rows: pl.DataFrame, column: str, prices: pl.DataFrame) -> float | None:
    """Correlation of the changes with the returns of the 21 sessions after."""
    ordered = prices.select("ticker", "date", "close").sort("ticker", "date")
    later = ordered.with_columns(later=pl.col("close").shift(-21).over("ticker") / pl.col("close") - 1.0)
    change = pl.col(column) - pl.col(f"{column}:then")
    scale = (pl.col(column).abs() + pl.col(f"{column}:then").abs()).clip(1e-12)
    joined = rows.with_columns(change=change / scale).join(later, on=["ticker", "date"])
    joined = joined.drop_nulls(["change", "later"])
    if joined.height < 20:
        return None
    value = np.corrcoef(joined["change"].to_numpy(), joined["later"].clip(-0.5, 0.5).to_numpy())[0, 1]
    return float(value) if np.isfinite(value) else None


def statements(data: Delivery) -> Result:
    """Compare the dates and versions of statements with how statements are published."""
    table = data.tables.get("fundamentals")
    if table is None or table.is_empty():
        return skipped("The lake has no statements.")
    rules = (_twice_dated, _overwritten, _early, _single_versions)
    found = [*_colliding(data, table), *(one for rule in rules for one in rule(table))]
    periods = table.select(_PERIOD).n_unique()
    return conclude(found, f"{periods:,} statements: dates, versions and restatements are plausible.")


def _colliding(data: Delivery, table: pl.DataFrame) -> Iterator[Finding]:
    """Versions of one item with the same known_at; the contract rejects them, so they are quarantined."""
    twice = pl.col("rule").str.contains("primary_key|unique|duplicate")
    rejected = pl.DataFrame() if data.rejected is None else data.rejected
    kept_out = rejected.filter(twice & (pl.col("table") == "fundamentals")) if rejected.height else rejected
    if kept_out.is_empty():
        return
    share = kept_out.height / (table.height + kept_out.height)
    sentence = (
        f"Restated values at the original date: {kept_out.height:,} statement rows ({share:.1%}) have the "
        "same (ticker, period_end, item) and known_at as another version and were quarantined. The source "
        "does not give the date of the later version."
    )
    verdict: Verdict = "fail" if share >= COLLIDING_SHARE else "warn"
    yield Finding("versions share a known_at", verdict, sentence, kept_out.height)


def _twice_dated(table: pl.DataFrame) -> Iterator[Finding]:
    """Filings with several dates, although a filing is published only once."""
    by = table.drop_nulls("filing_id").group_by("ticker", "filing_id", maintain_order=True)
    filings = by.agg(pl.col("known_at").n_unique())
    if filings.is_empty():
        return
    twice = filings.filter(pl.col("known_at") > 1)
    share = twice.height / filings.height
    if share > TWICE_DATED_SHARE:
        sentence = (
            f"Restated values at the original date: {twice.height:,} of {filings.height:,} filings "
            f"({share:.1%}) have more than one known_at, such as {twice['filing_id'][0]} of "
            f"{twice['ticker'][0]}. A filing is published only once."
        )
        yield Finding("a filing has several dates", "fail", sentence, twice.height)


def _overwritten(table: pl.DataFrame) -> Iterator[Finding]:
    """Later versions that equal the value at the original date: the original value was overwritten."""
    versions = table.sort("known_at").with_columns(
        first_known=pl.col("known_at").first().over(_VALUE),
        differs=pl.col("value") != pl.col("value").first().over(_VALUE),
        # comparatives, reported together with a newer period
        repeats=pl.col("period_end").max().over("ticker", "known_at") > pl.col("period_end"),
    )
    later = versions.filter(pl.col("known_at") > pl.col("first_known"))
    amended = later.filter(~pl.col("repeats")).group_by(_PERIOD).agg(pl.col("differs").any())
    if amended.height >= AMENDED and not amended["differs"].any():
        chance = 2.0**-amended.height
        sentence = (
            f"Restated values at the original date, or amendments that changed nothing: {amended.height:,} "
            "statements were amended later, but no value differs from that at the original date (a chance of "
            f"{chance:.1g} if every second amendment changes a number). Compare with an earlier delivery "
            "(audit --vintage), or with the first filing of one of them."
        )
        yield Finding("amendments change nothing", "warn", sentence, amended.height)
    repeated = later.filter(pl.col("repeats"))
    if repeated.height >= REPEATED and not repeated["differs"].any():
        sentence = (
            f"Restated values at the original date: {repeated.height:,} values were published again with a "
            "later period, but none differs from that at the original date. The original values were "
            "probably overwritten."
        )
        yield Finding("comparatives change nothing", "fail", sentence, repeated.height)


def _early(table: pl.DataFrame) -> Iterator[Finding]:
    """Statements known at the end of their period, and assumed lags."""
    lag = (pl.col("known_at") - pl.col("period_end")).dt.total_days()
    first = table.group_by(_PERIOD, maintain_order=True).agg(lag.min().alias("lag"), pl.col("assumed").any())
    soon = first.filter(pl.col("lag") <= EARLY_DAYS)
    share = soon.height / first.height
    if soon.height > AMENDED and share >= EARLY_SHARE:
        sentence = (
            f"Statements known too early: {share:.0%} of {first.height:,} statements are known within "
            f"{EARLY_DAYS} days of their period's end, such as {soon['ticker'][0]} for "
            f"{soon['period_end'][0]}, when no firm has reported: known_at is not the publication date. Map "
            "the filing date, or set reporting_lag_days."
        )
        yield Finding("known at the period's end", "fail", sentence, soon.height)
    assumed = first.filter(pl.col("assumed"))
    if not assumed.is_empty():
        days = int(assumed["lag"].median())  # type: ignore[arg-type]
        short = f", below the shortest deadline of {SHORT_LAG_DAYS} days" if days < SHORT_LAG_DAYS else ""
        sentence = (
            f"Assumed lag: {assumed.height:,} of {first.height:,} statements have no publication date and "
            f"are assumed to be known {days} days after their period's end{short}."
        )
        yield Finding("assumed lag", "warn", sentence, assumed.height)


def _single_versions(table: pl.DataFrame) -> Iterator[Finding]:
    """A table without any restatement may contain the latest values instead of the original ones."""
    versions = table.group_by(_VALUE).agg(pl.col("known_at").n_unique())
    periods = table.select(_PERIOD).n_unique()
    if periods >= ENOUGH and not (versions["known_at"] > 1).any():
        sentence = (
            f"None of {periods:,} statements was ever restated, although about 1 in 20 usually is: the "
            "values may be the latest ones, stored at their original dates."
        )
        yield Finding("no restatement at all", "warn", sentence, periods)
