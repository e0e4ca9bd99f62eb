"""Backfilled values: a gap that was closed with the next known value knows it before it happened."""

from __future__ import annotations

from typing import Final

import polars as pl

from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "backfill"
PREFIX: Final = 5
"""Least rows of one value at the start of a firm's series, and more than it ever repeats a value later."""
FIRMS: Final = 0.25
"""Share of the firms whose input starts so. A causal input starts with its longest run by chance alone, in
one firm of as many as it has runs."""
QUIET: Final = 20
"""The same for prices: rows without volume before the first trade."""
QUIET_FIRMS: Final = 2
QUIET_SHARE: Final = 0.02
FILLED: Final = 5
"""Prices on sessions without volume that equal the next trade and not the last one."""
FOUR_TIMES: Final = 4


def check(subject: Subject) -> Result:
    """Look for series that start, or cross a gap, with a value that is first known later."""
    rows = [row for name in subject.inputs for row in _input(subject, name)]
    rows += _quiet_starts(subject.tables["prices"])
    rows += _before_listing(subject)
    rows += _filled_gaps(subject.tables["prices"])
    failed = [row for row in rows if row["wrong"]]
    evidence = pl.DataFrame(rows, infer_schema_length=None)
    if failed:
        return Result(NAME, "fail", f"Backfilled: {failed[0]['says']}.", evidence)
    return Result(
        NAME,
        "pass",
        "No price or input starts or crosses a gap with a value that is first known later.",
        evidence,
    )


def _runs(frame: pl.DataFrame) -> pl.DataFrame:
    """One row a run of equal values, in order: ticker, value, length, number of the run."""
    ordered = frame.sort("ticker", "date")
    starts = (pl.col("value") != pl.col("value").shift(1)).fill_null(value=True).over("ticker")
    return (
        ordered.with_columns(run=starts.cast(pl.Int64).cum_sum().over("ticker"))
        .group_by("ticker", "run", maintain_order=True)
        .agg(
            pl.col("value").first(),
            pl.len().alias("length"),
            pl.col("date").first().alias("since"),
            pl.col("date").last().alias("until"),
        )
    )


def _starts(runs: pl.DataFrame, least: int) -> pl.DataFrame:
    """Firms whose first run is at least so long, longer than any later one, and not a run of zeros."""
    later = pl.col("length").filter(pl.col("run") > 1).max()
    first = runs.group_by("ticker", maintain_order=True).agg(
        pl.col("length").first(),
        pl.col("value").first(),
        pl.col("since").first(),
        pl.col("until").first(),
        later.alias("longest_later"),
        pl.len().alias("runs"),
    )
    return first.filter(
        (pl.col("length") >= least) & (pl.col("value") != 0) & (pl.col("length") > pl.col("longest_later"))
    )


def _input(subject: Subject, name: str) -> list[dict[str, object]]:
    rows = subject.tables["inputs"].filter(pl.col("name") == name)
    runs = _runs(rows)
    firms = runs["ticker"].n_unique()
    found = _starts(runs, PREFIX)
    share = found.height / max(firms, 1)
    return [
        {
            "column": f"input {name}",
            "firms": found.height,
            "of": firms,
            "wrong": found.height > QUIET_FIRMS and share >= FIRMS,
            "says": f"input {name} starts with one value repeated for {found.height} of {firms} firms, "
            "longer than any value is repeated later",
        }
    ]


def _quiet_starts(prices: pl.DataFrame) -> list[dict[str, object]]:
    """Prices that stand still without volume from a firm's first row to its first trade."""
    if prices["volume"].null_count() == prices.height:
        return []
    silent = (pl.col("volume").fill_null(0.0) == 0).all()
    runs = _runs(prices.select("ticker", "date", pl.col("close").alias("value")))
    found = _starts(runs, QUIET)
    still = (
        prices.join(found.select("ticker", "until"), on="ticker")
        .filter(pl.col("date") < pl.col("until"))
        .group_by("ticker")
        .agg(silent.alias("silent"))
        .filter(pl.col("silent"))
    )
    firms = runs["ticker"].n_unique()
    return [
        {
            "column": "price close",
            "firms": still.height,
            "of": firms,
            "wrong": still.height > QUIET_FIRMS and still.height >= QUIET_SHARE * firms,
            "says": f"price close stands still without volume from the first row on for {still.height} of "
            f"{firms} firms",
        }
    ]


def _before_listing(subject: Subject) -> list[dict[str, object]]:
    """Prices that stand still before the day on which the firm was listed."""
    securities = subject.tables.get("securities")
    if securities is None or securities["listed_on"].null_count() == securities.height:
        return []
    listed = securities.group_by("ticker").agg(pl.col("listed_on").min()).drop_nulls()
    prices = subject.tables["prices"].join(listed, on="ticker").filter(pl.col("date") < pl.col("listed_on"))
    before = prices.group_by("ticker").agg(pl.len().alias("rows"), pl.col("close").n_unique().alias("values"))
    still = before.filter((pl.col("rows") >= PREFIX) & (pl.col("values") == 1)).height
    return [
        {
            "column": "price close",
            "firms": still,
            "of": listed.height,
            "wrong": still > QUIET_FIRMS or (still > 0 and still >= QUIET_SHARE * listed.height),
            "says": f"price close stands still before the day of listing for {still} of {listed.height} "
            "firms",
        }
    ]


def _filled_gaps(prices: pl.DataFrame) -> list[dict[str, object]]:
    """Prices on sessions without volume: carried forward from the last trade, or back from the next."""
    if prices["volume"].null_count() == prices.height:
        return []
    ordered = prices.sort("ticker", "date").select(
        "ticker", "close", traded=pl.col("volume").fill_null(0.0) > 0
    )
    last = pl.when("traded").then("close").forward_fill().over("ticker")
    following = pl.when("traded").then("close").backward_fill().over("ticker")
    silent = ordered.with_columns(last=last, following=following).filter(~pl.col("traded"))
    silent = silent.filter(pl.col("last") != pl.col("following"))
    back = silent.filter(pl.col("close") == pl.col("following")).height
    forward = silent.filter(pl.col("close") == pl.col("last")).height
    return [
        {
            "column": "price close",
            "firms": back,
            "of": silent.height,
            "wrong": back >= FILLED and back > FOUR_TIMES * forward,
            "says": f"{back} prices on sessions without volume equal the next trade, and {forward} the last "
            "one",
        }
    ]
