"""Statements that are known too early: restated values at the original date, and implausible dates.

``known_at`` makes a table of statements point in time. It contains look-ahead if a vendor stores the latest
value at the original date, or dates statements by the end of their period.
"""

from collections.abc import Iterator
from typing import Final

import polars as pl

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, Verdict, conclude, skipped

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


def check(data: Delivery) -> Result:
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
