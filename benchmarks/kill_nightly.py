"""SIGKILL at random moments of `peerglass nightly`, over a season with trainings and promotions.

Every night is first played undisturbed. Then the folder is put back, the same night is killed a few times in
a row with its whole process group, and a last call completes it. Signals, books, aliases, the table of
nights, the files of the night and the runs in the tracking store must equal those of the undisturbed night,
each key once. The first of the nights makes the lake and trains the champion.

The id of a run depends on the ids of the lake's tables, which differ when the first night makes the lake
again. Versions are therefore compared by their order of training.
`tests/pipelines/nightly/test_nightly_kill.py` kills one night after chosen steps.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from pipelines.lake.lake import Lake
from pipelines.lake.schemas import keys

COMMAND = [sys.executable, "-c", "from pipelines.cli.main import main; main()"]
ROOT = Path(__file__).resolve().parents[1]
TABLES = ("signals", "books", "holdings", "accounts", "positions", "profits", "promotions", "nights")
TIMES = ("created_at", "seconds", "peak_memory_bytes")
"""Columns that say when and how long, which two plays of a night do not share."""
SKIPPED = ["cross_section", "shuffled_labels", "fit_scope", "backfill", "too_good", "warm_up", "forecasts"]
"""Checks of the audit that take most of its time. The guard of a promotion needs an audit, not all checks."""
SETTINGS: dict[str, Any] = {
    "name": "season",
    "source": {
        "kind": "simulated",
        "seed": 5,
        "market": {"firms": 24, "sessions": 360, "delay": 1, "bad_ticks": 3},
    },
    "lake": "lake",
    "output": "runs",
    "universe": {"min_price": 1.0, "min_history": 30},
    "features": {
        "window": 5,
        "channels": ["return", "intraday_range"],
        "characteristics": ["return_1", "return_5", "volatility_21", "range", "log_market_equity"],
    },
    "label": {"horizon": 1, "delay": 1},
    "folds": {"scheme": "rolling", "train": 150, "valid": 30, "test": 30, "embargo": 1},
    "fit": {"epochs": 3, "batch_dates": 16, "lr": 0.003},
    "seeds": [0, 1],
    "models": {"temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}}},
    "backtest": {"books": {"long_short": {"kind": "quantile_long_short", "quantiles": 4}}},
    "audit": {"sessions": 1, "skip": SKIPPED},
    "nightly": {
        "retrain": {"when": "sessions", "every": 3},
        "promotion": {"automatic": True, "min_sessions": 1, "margin": 1.0},
        "checks": {"retry_minutes": 0},
    },
    "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "mlartifacts"},
    "execution": {"engine": "serial"},
    "device": "cpu",
}


def require(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError unless the condition holds."""
    if not holds:
        raise AssertionError(otherwise)


@dataclass(frozen=True)
class State:
    """What a night leaves, without times: rows by table, files by path, and runs in the tracking store."""

    tables: dict[str, pl.DataFrame]
    files: dict[str, bytes]
    tracked: pl.DataFrame

    def difference(self, other: State) -> str | None:
        """Name the first difference; None if both are equal."""
        for table in TABLES:
            mine, theirs = self.tables[table], other.tables[table]
            if not mine.equals(theirs):
                return f"{table} differs: {mine.height} and {theirs.height} rows"
        if self.files != other.files:
            names = sorted(set(self.files) ^ set(other.files)) or [
                name for name in self.files if self.files[name] != other.files[name]
            ]
            return f"files differ: {', '.join(names[:5])}"
        if not self.tracked.equals(other.tracked):
            return f"the tracking store has {self.tracked.rows()} and {other.tracked.rows()}"
        return None


@dataclass
class Season:
    """A folder with a config, in which nights are played."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=lambda: SETTINGS)

    def __post_init__(self) -> None:
        """Write the config."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "season.yaml").write_text(yaml.safe_dump(self.settings))

    def start(self, day: date) -> subprocess.Popen[str]:
        """Start a night in its own process group."""
        return subprocess.Popen(
            [*COMMAND, "nightly", "season.yaml", "--date", day.isoformat()],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, day: date) -> float:
        """Play a night to its end and return its seconds."""
        started = time.monotonic()
        with self.start(day) as process:
            out, events = process.communicate()
        require(process.returncode == 0, f"{out}\n{events[-3000:]}")
        return time.monotonic() - started

    def kill(self, day: date, after: float) -> bool:
        """Start a night and kill its process group after some seconds; False if it had ended."""
        with self.start(day) as process:
            try:
                process.communicate(timeout=after)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        code = process.returncode  # 0 also if the night ended between the timeout and the signal
        require(code in {0, -signal.SIGKILL}, f"a night ended with exit code {code}")
        return code == -signal.SIGKILL

    def state(self) -> State:
        """Read what the nights so far have left; raise an AssertionError if a key occurs twice."""
        lake = Lake(self.folder / "lake")
        runs = lake.read("promotions").sort("number")["version"].drop_nulls().str.split("/").list.first()
        orders = {run: f"run {order}" for order, run in enumerate(runs.unique(maintain_order=True), start=1)}

        def in_order(rows: pl.DataFrame) -> pl.DataFrame:
            """Drop the times, and replace ids of runs by their order."""
            return rows.drop(TIMES, strict=False).with_columns(pl.col(pl.String).str.replace_many(orders))

        tables = {}
        for table in TABLES:
            rows = lake.read(table)
            require(
                not rows.select(pl.struct(keys(table)).is_duplicated().any()).item(), f"{table}: key twice"
            )
            tables[table] = in_order(rows)
        nights = self.folder / "runs" / "nights"
        partial = list(nights.rglob("*.partial"))
        require(not partial, f"a killed night left {partial}")
        books = {
            str(path.relative_to(nights)): in_order(pl.read_csv(path)).write_csv().encode()
            for path in sorted(nights.rglob("*.csv"))
        }
        frames = {
            str(path.relative_to(nights)): in_order(pl.read_parquet(path)).write_json().encode()
            for path in sorted(nights.rglob("*.parquet"))
        }
        return State(tables, {**books, **frames}, in_order(self._tracked()).sort(pl.all()))

    def _tracked(self) -> pl.DataFrame:
        """Return experiment and name of every MLflow run that was not deleted."""
        with sqlite3.connect(self.folder / "mlflow.db") as database:
            rows = database.execute(
                "SELECT experiments.name, runs.name FROM runs JOIN experiments USING (experiment_id) "
                "WHERE runs.lifecycle_stage = 'active'"
            ).fetchall()
        return pl.DataFrame(rows, schema={"experiment": pl.String, "run": pl.String}, orient="row")


@dataclass(frozen=True)
class Verdict:
    """Summary of a season of kills."""

    kills: int
    nights: int
    outcomes: Counter[str]  # what the killed night had left: the last file of its folder, or "nothing"
    orphan_files: int
    versions: int
    promotions: int

    def __str__(self) -> str:
        met = ", ".join(f"{count} after {outcome}" for outcome, count in self.outcomes.most_common())
        return (
            f"{self.kills} kills in {self.nights} nights ({met}); {self.versions} versions trained, "
            f"{self.promotions} promotions; {self.orphan_files} data files left by interrupted writes; every "
            "night as undisturbed, no key lost or duplicated"
        )


def sessions_of_the_market(settings: dict[str, Any]) -> list[date]:
    """Return the sessions of the season's market."""
    from pipelines.config.load import check_config
    from pipelines.run.fetch import make_source
    from pipelines.sources.base import LiveSource

    source = make_source(check_config(settings, origin="season"))
    assert not isinstance(source, LiveSource)  # noqa: S101
    return list(source.fetch().tables["prices"]["date"].unique().sort())


def run_kills(folder: Path, *, kills: int, nights: int, in_a_row: int, seed: int = 7) -> Verdict:
    """Kill this many nights of a season; raise an AssertionError if one ends otherwise than undisturbed."""
    rng = random.Random(seed)  # noqa: S311
    days = sessions_of_the_market(SETTINGS)[-nights:]
    season = Season(folder / "season")
    before, outcomes, done, orphans = folder / "before", Counter[str](), 0, 0
    for place, day in enumerate(days):
        keep(season.folder, before)
        seconds = season.finish(day)
        expected = season.state()
        while done < round(kills * (place + 1) / nights):
            keep(before, season.folder)
            wanted = min(in_a_row, round(kills * (place + 1) / nights) - done)
            for _ in range(wanted):
                after = rng.uniform(0.0, 1.05 * seconds)
                if not season.kill(day, after):
                    break
                done += 1
                left = last_step(season.folder / "runs" / "nights" / "season" / day.isoformat())
                outcomes[left] += 1
                print(f"{day} kill {done:>3} at {after:5.1f} of {seconds:5.1f} s, after {left}", flush=True)
            season.finish(day)
            difference = season.state().difference(expected)
            require(difference is None, f"{day}: {difference}")
    lake = Lake(season.folder / "lake")
    orphans = orphan_files(lake)
    aliases = lake.read("promotions")
    promoted = aliases.filter((pl.col("alias") == "champion") & (pl.col("number") > 1)).height
    return Verdict(done, nights, outcomes, orphans, aliases["version"].drop_nulls().n_unique(), promoted)


def keep(source: Path, target: Path) -> None:
    """Make a folder an exact copy of another, with its times."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def last_step(folder: Path) -> str:
    """Name the last step that a night's journal has recorded."""
    from pipelines.nightly.play.journal import read_journal

    journal = read_journal(folder)
    if journal is None:
        return "nothing"
    if journal.seconds:
        return list(journal.seconds)[-1]
    return "the beginning"


def orphan_files(lake: Lake) -> int:
    """Count the data files on disk that no version refers to."""
    from pipelines.lake.upkeep import table_files

    count = 0
    for table in lake.versions():
        opened = lake.storage.open(table)
        if opened is None:
            raise AssertionError(f"{table} has a version and cannot be opened")
        count += len(table_files(lake.storage, table, opened).unreferenced())
    return count


def main() -> None:
    """Print every kill and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--nights", type=int, default=10)
    parser.add_argument("--in-a-row", type=int, default=3, help="kills of a night before it is completed")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = run_kills(
            Path(folder), kills=args.kills, nights=args.nights, in_a_row=args.in_a_row, seed=args.seed
        )
    print(f"{verdict}  ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    main()
