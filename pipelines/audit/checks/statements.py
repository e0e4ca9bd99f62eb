"""Statements that are known too early: restated values under the first date, and dates nobody published on.

What makes a table of statements point in time is its ``known_at``. A vendor who keeps the latest value under
the first date, or who dates statements by the end of their period, hands out the future.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from pipelines.audit.result import Result, Verdict
from pipelines.audit.subject import Subject

NAME = "statements"
EARLY_DAYS: Final = 10
"""Sooner than this after the period's end practically nobody reports: US earnings come out about a month
after it, and 10-Q and 10-K are due after 40 to 90 days."""
EARLY_SHARE: Final = 0.5
SHORT_LAG_DAYS: Final = 40
"""An assumed lag below the shortest deadline of a 10-Q."""
AMENDED: Final = 5
"""Amended statements without any changed value from which on they cannot be what was first published: an
amendment that changes nothing is rare, so five in a row are a vendor's copies."""
REPEATED: Final = 300
"""The same for rows that a later filing repeats beside its own period; of US comparatives a few in a hundred
differ, so of 300 none differs with a chance below 1 in 1,000."""
COLLIDING_SHARE: Final = 0.01
"""Share of statements of which several versions claim one known_at."""
TWICE_DATED_SHARE: Final = 0.01
"""Share of filings that claim several dates."""
ENOUGH: Final = 200
"""Statements (firm and period) among which not one restatement is remarkable: about one in twenty is
restated."""

_PERIOD: Final = ["ticker", "period_end"]
_VALUE: Final = [*_PERIOD, "item"]


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    what: str
    count: int
    sentence: str


def check(subject: Subject) -> Result:
    """Hold the dates and versions of statements against how statements come out."""
    table = subject.tables.get("fundamentals")
    if table is None or table.is_empty():
        return Result(NAME, "skipped", "The lake has no statements.")
    found = [
        *_colliding(subject, table),
        *_twice_dated(table),
        *_overwritten(table),
        *_early(table),
        *_single_versions(table),
    ]
    evidence = pl.DataFrame(
        [
            {"verdict": one.verdict, "what": one.what, "count": one.count, "says": one.sentence}
            for one in found
        ]
    )
    if not found:
        periods = table.select(_PERIOD).n_unique()
        return Result(
            NAME,
            "pass",
            f"{periods:,} statements: dates, versions and restatements are as published ones are.",
        )
    worst = min(found, key=lambda one: one.verdict != "fail")
    return Result(NAME, worst.verdict, worst.sentence, evidence)


def _colliding(subject: Subject, table: pl.DataFrame) -> Iterator[_Finding]:
    """Versions of one item that share a known_at; the contract keeps them out, the quarantine knows them."""
    if subject.quarantine is None:
        return
    kept_out = subject.quarantine.filter(
        (pl.col("table") == "fundamentals") & pl.col("rule").str.contains("primary_key|unique|duplicate")
    )
    if kept_out.is_empty():
        return
    share = kept_out.height / (table.height + kept_out.height)
    yield _Finding(
        "fail" if share >= COLLIDING_SHARE else "warn",
        "versions share a known_at",
        kept_out.height,
        f"Restated values at the original date: {kept_out.height:,} statement rows ({share:.1%}) are "
        "versions of one (ticker, period_end, item) under one known_at and were quarantined; the source "
        "does not say when the later one became known.",
    )


def _twice_dated(table: pl.DataFrame) -> Iterator[_Finding]:
    """Filings that are known on several dates: one filing is published once."""
    filings = table.drop_nulls("filing_id").group_by("ticker", "filing_id").agg(pl.col("known_at").n_unique())
    if filings.is_empty():
        return
    twice = filings.filter(pl.col("known_at") > 1)
    share = twice.height / filings.height
    if share > TWICE_DATED_SHARE:
        yield _Finding(
            "fail",
            "a filing has several dates",
            twice.height,
            f"Restated values at the original date: {twice.height:,} of {filings.height:,} filings "
            f"({share:.1%}) stand under more than one known_at, such as {twice['filing_id'][0]} of "
            f"{twice['ticker'][0]}; a filing is published once.",
        )


def _overwritten(table: pl.DataFrame) -> Iterator[_Finding]:
    """Later versions that repeat what stands under the first date: the first value was overwritten."""
    first = (
        table.sort("known_at")
        .group_by(_VALUE, maintain_order=True)
        .agg(pl.col("known_at").first().alias("first_known"), pl.col("value").first().alias("first_value"))
    )
    later = table.join(first, on=_VALUE).filter(pl.col("known_at") > pl.col("first_known"))
    if later.is_empty():
        return
    newest = table.group_by("ticker", "known_at").agg(pl.col("period_end").max().alias("newest"))
    later = later.join(newest, on=["ticker", "known_at"]).with_columns(
        differs=pl.col("value") != pl.col("first_value"),
        repeats=pl.col("newest") > pl.col("period_end"),  # comparatives, printed beside a newer period
    )
    amended = later.filter(~pl.col("repeats")).group_by(_PERIOD).agg(pl.col("differs").any())
    if amended.height >= AMENDED and not amended["differs"].any():
        yield _Finding(
            "fail",
            "amendments change nothing",
            amended.height,
            f"Restated values at the original date: {amended.height:,} statements were amended later and "
            "not one value differs from what stands under the first date, which therefore holds the "
            "restated values.",
        )
    repeated = later.filter(pl.col("repeats"))
    if repeated.height >= REPEATED and not repeated["differs"].any():
        yield _Finding(
            "fail",
            "comparatives change nothing",
            repeated.height,
            f"Restated values at the original date: {repeated.height:,} values were published again with a "
            "later period and not one differs from what stands under the first date, which therefore holds "
            "the latest values.",
        )


def _early(table: pl.DataFrame) -> Iterator[_Finding]:
    """Statements that are known about when their period ends, and lags that are assumed."""
    lag = (pl.col("known_at") - pl.col("period_end")).dt.total_days()
    first = table.group_by(_PERIOD).agg(lag.min().alias("lag"), pl.col("assumed").any())
    soon = first.filter(pl.col("lag") < EARLY_DAYS)
    share = soon.height / first.height
    if share >= EARLY_SHARE:
        yield _Finding(
            "fail",
            "known at the period's end",
            soon.height,
            f"Statements known too early: {share:.0%} of {first.height:,} statements are known within "
            f"{EARLY_DAYS} days of their period's end, when hardly anybody has reported; known_at is not "
            "when they were published.",
        )
    assumed = first.filter(pl.col("assumed"))
    if not assumed.is_empty():
        days = int(assumed["lag"].median())  # type: ignore[arg-type]
        short = f", less than the shortest deadline of {SHORT_LAG_DAYS}" if days < SHORT_LAG_DAYS else ""
        yield _Finding(
            "warn",
            "assumed lag",
            assumed.height,
            f"Assumed lag: {assumed.height:,} of {first.height:,} statements have no publication date and "
            f"are taken as known {days} days after their period's end{short}.",
        )


def _single_versions(table: pl.DataFrame) -> Iterator[_Finding]:
    """A table without any restatement holds the latest values or the first ones; nobody can tell which."""
    versions = table.group_by(_VALUE).agg(pl.col("known_at").n_unique())
    periods = table.select(_PERIOD).n_unique()
    if periods >= ENOUGH and not (versions["known_at"] > 1).any():
        yield _Finding(
            "warn",
            "no restatement at all",
            periods,
            f"Not one of {periods:,} statements was ever restated, where about one in twenty is: the values "
            "may be the latest ones under their first dates.",
        )
