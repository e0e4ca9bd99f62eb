"""Ingest of one new session into 7.5 million rows, compared with the first load of those rows.

Both use `pipelines.ingest.ingest.ingest`: contracts, quality rules, quarantine, one commit per table. A live
source delivers only the new session, or a few corrected rows. Files deliver everything each night: unchanged,
with one more session, or without some rows, which are then withdrawn. Two limits of the machine are measured
as well: writing the table's bytes to the same disk with fsync, and writing the same rows as plain Parquet
with polars.

The target: one new session is at least 10 times faster than the first load.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.ingest.ingest import ingest
from pipelines.lake.lake import Lake
from pipelines.sources.base import SourceTables, StoredData


class Live:
    """A live source with one batch of bars in memory."""

    name = "memory"

    def __init__(self, prices: pl.DataFrame) -> None:
        self._prices = prices

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        """Answer with the bars."""
        yield SourceTables(tables={"prices": self._prices})


class Given:
    """A source that delivers its whole scope: bars in memory."""

    name = "memory"

    def __init__(self, prices: pl.DataFrame) -> None:
        self._prices = prices

    def fetch(self) -> SourceTables:
        """Answer with the bars."""
        return SourceTables(tables={"prices": self._prices})


def bars(firms: int, first: int, sessions: int) -> pl.DataFrame:
    """Make random daily bars of sessions ``first`` to ``first + sessions - 1``."""
    rng = np.random.default_rng(first)
    days = [date(2005, 1, 3) + timedelta(days=7 * (i // 5) + i % 5) for i in range(first, first + sessions)]
    walk = np.random.default_rng(0).uniform(10, 200, firms) * np.exp(
        np.cumsum(rng.normal(0, 0.015, (sessions, firms)), axis=0)
    )
    close = walk.clip(1.0).round(2).ravel()
    opened = (close * rng.normal(1, 0.003, close.size)).round(2)
    return pl.DataFrame(
        {
            "date": pl.Series(days).gather(np.repeat(np.arange(sessions), firms)),
            "ticker": pl.Series([f"F{i:04}" for i in range(firms)]).gather(
                np.tile(np.arange(firms), sessions)
            ),
            "open": opened,
            "high": np.maximum(opened, close) * 1.005,
            "low": np.minimum(opened, close) * 0.995,
            "close": close,
            "volume": rng.integers(10_000, 10_000_000, close.size).astype(float),
        }
    )


def seconds(act: Callable[[], object]) -> float:
    """Wall-clock time of a call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def data_bytes(folder: Path) -> int:
    """Bytes of the Parquet files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def raw_write(folder: Path, size: int) -> float:
    """Seconds to write this many bytes to one file and flush them to the disk."""
    block = os.urandom(1 << 20)

    def write() -> None:
        with (folder / "raw").open("wb") as file:
            for _ in range(size >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())

    return seconds(write)


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=2520)
    parser.add_argument("--runs", type=int, default=5, help="new sessions and corrections, one after another")
    parser.add_argument("--loads", type=int, default=2, help="first loads, each into an empty lake")
    args = parser.parse_args()
    whole = bars(args.firms, 0, args.sessions)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took: dict[str, list[float]] = {}

    def print_times(name: str) -> None:
        values = took[name]
        ratio = statistics.median(took["first load"]) / statistics.median(values)
        print(
            f"{name:<34}median {statistics.median(values):8.2f} s  ({min(values):.2f} to {max(values):.2f}, "
            f"{len(values)} runs)  first load / this {ratio:7.1f}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(f"{whole.height:,} rows: {args.firms:,} firms x {args.sessions:,} sessions", flush=True)
        for load in range(args.loads):
            lake = Lake(root / f"lake-{load}")
            took.setdefault("first load", []).append(seconds(partial(ingest, Given(whole), lake)))
        print_times("first load")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        size = data_bytes(Path(lake.root))
        took["plain Parquet of the same rows"] = [
            seconds(lambda: whole.write_parquet(root / "plain.parquet"))
        ]
        print_times("plain Parquet of the same rows")
        took["the same bytes, raw, with fsync"] = [raw_write(root, size) for _ in range(args.runs)]
        print_times("the same bytes, raw, with fsync")

        for run in range(args.runs):
            session = bars(args.firms, args.sessions + run, 1)
            took.setdefault("one new session", []).append(seconds(partial(ingest, Live(session), lake)))
        print_times("one new session")
        for run in range(args.runs):
            rows = whole.slice((run + 1) * whole.height // (args.runs + 2), 5)
            fixed = rows.with_columns(volume=pl.col("volume") + 1)
            took.setdefault("five corrected rows", []).append(seconds(partial(ingest, Live(fixed), lake)))
        print_times("five corrected rows")
        held_rows = lake.read("prices").select(whole.columns)
        took["the whole file, unchanged"] = [seconds(lambda: ingest(Given(held_rows), lake))]
        print_times("the whole file, unchanged")
        grown = pl.concat([held_rows, bars(args.firms, args.sessions + args.runs, 1)])
        took["the whole file, one more session"] = [seconds(lambda: ingest(Given(grown), lake))]
        print_times("the whole file, one more session")
        fewer = grown.filter((pl.col("date").dt.day() != 7) | (pl.col("ticker") != "F0007"))
        took["the whole file, without some rows"] = [seconds(lambda: ingest(Given(fewer), lake))]
        print_times("the whole file, without some rows")
        assert_complete(lake, fewer.height)
        total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"data files {size / 1e6:.0f} MB; peak memory {loaded:.2f} GiB with only the delivery, {peak:.2f} GiB"
    )
    print(f"after the first load, {total:.2f} GiB at the end")


def assert_complete(lake: Lake, rows: int) -> None:
    """Raise an AssertionError unless the table has exactly the delivered rows, each key once."""
    stored = lake.read("prices", columns=["date", "ticker"])
    if stored.height != rows or stored.n_unique() != rows:
        raise AssertionError(
            f"{stored.height:,} rows are stored, {stored.n_unique():,} keys; expected {rows:,}"
        )


if __name__ == "__main__":
    main()
