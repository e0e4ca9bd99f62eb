"""Backfilled values: a gap that was filled with the next known value contains look-ahead."""

from __future__ import annotations

from typing import Final

import polars as pl

from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "backfill"
MIN_RUN: Final = 5
"""Minimum length of a run of one value at the start of a firm's series. It must exceed all later runs."""
FIRM_SHARE: Final = 0.25
"""Minimum share of firms whose input starts with such a run. In a causal input, the first run is the longest
only by chance: with k runs, in one of k firms."""
FIRST_DAYS: Final = 10
"""Days after a firm's first price within which a run begins that was filled backwards. One that begins later
must be longer than the usual one by this factor."""
LONGER: Final = 1.2
CONSTANT_ROWS: Final = 20
"""Minimum length of such a run in prices: rows without volume before the first trade."""
CONSTANT_FIRMS: Final = 2
CONSTANT_SHARE: Final = 0.02
MIN_FILLED: Final = 5
"""Minimum number of prices, on sessions without volume, that equal the next traded price."""
FOUR_TIMES: Final = 4


def check(subject: Subject) -> Result:
    """Look for series that start with, or fill a gap with, a value that becomes known only later."""
    rows = [row for name in subject.inputs for row in _input(subject, name)]
    prices = subject.rows("prices")
    rows += _constant_starts(prices)
    rows += _before_listing(subject, prices)
    rows += _filled_gaps(prices)
    failed = [row for row in rows if row["failed"]]
    evidence = pl.DataFrame(rows, infer_schema_length=None)
    if failed:
        return Result(NAME, "fail", f"Backfilled: {failed[0]['finding']}.", evidence)
    return Result(
        NAME,
        "pass",
        "No price or input starts with, or fills a gap with, a value that becomes known only later.",
        evidence,
    )


def _runs(frame: pl.DataFrame) -> pl.DataFrame:
    """One row per run of equal values, in order: ticker, value, length, number of the run."""
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
    """Firms whose first run has at least this length, is longer than any later run, and is not of zeros."""
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
    rows = subject.rows("inputs").filter(pl.col("name") == name)
    runs = _runs(rows)
    firms = runs["ticker"].n_unique()
    first = subject.rows("prices").group_by("ticker").agg(pl.col("date").min().alias("listed"))
    starts = _starts(runs, MIN_RUN).join(first, on="ticker")
    # an average over a window that fills up starts later, and repeats a value for as long as its window
    usual = float(starts["length"].median() or 0.0)  # type: ignore[arg-type]
    early = (pl.col("since") - pl.col("listed")).dt.total_days() <= FIRST_DAYS
    starts = starts.filter(early | (pl.col("length") > LONGER * usual))
    share = starts.height / max(firms, 1)
    return [
        {
            "column": f"input {name}",
            "firms": starts.height,
            "of": firms,
            "failed": starts.height > CONSTANT_FIRMS and share >= FIRM_SHARE,
            "finding": f"input {name} starts with one value repeated for {starts.height} of {firms} firms, "
            "longer than any value is repeated later",
        }
    ]


def _constant_starts(prices: pl.DataFrame) -> list[dict[str, object]]:
    """Constant prices without volume from a firm's first row to its first trade."""
    if prices["volume"].null_count() == prices.height:
        return []
    untraded = (pl.col("volume").fill_null(0.0) == 0).all()
    still = (pl.col("close").sort_by("date").head(CONSTANT_ROWS).n_unique() == 1).alias("still")
    firms = prices.group_by("ticker").agg(still)
    candidates = prices.join(firms.filter("still"), on="ticker", how="semi")
    runs = _runs(candidates.select("ticker", "date", pl.col("close").alias("value")))
    starts = _starts(runs, CONSTANT_ROWS)
    constant = (
        candidates.join(starts.select("ticker", "until"), on="ticker")
        .filter(pl.col("date") < pl.col("until"))
        .group_by("ticker")
        .agg(untraded.alias("untraded"))
        .filter(pl.col("untraded"))
    )
    return [
        {
            "column": "price close",
            "firms": constant.height,
            "of": firms.height,
            "failed": constant.height > CONSTANT_FIRMS and constant.height >= CONSTANT_SHARE * firms.height,
            "finding": f"price close is constant without volume from the first row on for {constant.height} "
            f"of {firms.height} firms",
        }
    ]


def _before_listing(subject: Subject, prices: pl.DataFrame) -> list[dict[str, object]]:
    """Constant prices before the firm's listing date."""
    securities = subject.tables.get("securities")
    if securities is None or securities["listed_on"].null_count() == securities.height:
        return []
    listed = securities.group_by("ticker").agg(pl.col("listed_on").min()).drop_nulls()
    early = prices.join(listed, on="ticker").filter(pl.col("date") < pl.col("listed_on"))
    before = early.group_by("ticker").agg(pl.len().alias("rows"), pl.col("close").n_unique().alias("values"))
    constant = before.filter((pl.col("rows") >= MIN_RUN) & (pl.col("values") == 1)).height
    return [
        {
            "column": "price close",
            "firms": constant,
            "of": listed.height,
            "failed": constant > CONSTANT_FIRMS
            or (constant > 0 and constant >= CONSTANT_SHARE * listed.height),
            "finding": f"price close is constant before the listing date for {constant} of {listed.height} "
            "firms",
        }
    ]


def _filled_gaps(prices: pl.DataFrame) -> list[dict[str, object]]:
    """Prices on sessions without volume: carried forward from the last trade, or back from the next."""
    if prices["volume"].null_count() == prices.height:
        return []
    traded = pl.col("volume").fill_null(0.0) > 0
    halted = prices.filter(~traded).select("ticker").unique()
    ordered = prices.join(halted, on="ticker", how="semi").sort("ticker", "date")
    ordered = ordered.select("ticker", "close", traded=traded)
    last = pl.when("traded").then("close").forward_fill().over("ticker")
    following = pl.when("traded").then("close").backward_fill().over("ticker")
    untraded = ordered.with_columns(last=last, following=following).filter(~pl.col("traded"))
    untraded = untraded.filter(pl.col("last") != pl.col("following"))
    back = untraded.filter(pl.col("close") == pl.col("following")).height
    forward = untraded.filter(pl.col("close") == pl.col("last")).height
    return [
        {
            "column": "price close",
            "firms": back,
            "of": untraded.height,
            "failed": back >= MIN_FILLED and back > FOUR_TIMES * forward,
            "finding": f"{back} prices on sessions without volume equal the next trade, and {forward} equal "
            "the last one",
        }
    ]
