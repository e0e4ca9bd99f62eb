"""SIGKILL at random moments of `peerglass ingest`: the lake must open, without lost or duplicate keys.

The real command runs in its own process group and is killed with the whole group. Two kinds of ingest
alternate: the first load into an empty lake (an append), and a delivery that corrects stored rows, adds
sessions and withdraws some old rows (a merge). After every kill, each table must be exactly as before or as
after the ingest, readers must get all tables of one state, the hazards of an ingest must be recorded if any
of its rows are stored, and a further ingest must complete it. `tests/pipelines/lake/test_lake_kill.py` does
the same on a small file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import keys

COMMAND = [sys.executable, "-c", "from pipelines.cli.main import main; main()", "ingest"]
ROOT = Path(__file__).resolve().parents[1]
HAZARD = "The prices are made up."
COLUMNS = {
    "prices": ["date", "ticker", "close", "volume"],
    "membership": ["universe", "ticker", "from_date"],
}


def require(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError unless the condition holds."""
    if not holds:
        raise AssertionError(otherwise)


@dataclass(frozen=True)
class Verdict:
    """Summary of a series of kills."""

    kills: int
    outcomes: Counter[
        str
    ]  # state of the lake after a kill: "before", "after" or "between", by kind of ingest
    orphan_files: int  # data files left by interrupted writes, which no version refers to
    rows: int

    def __str__(self) -> str:
        met = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return (
            f"{self.kills} kills ({met}); {self.orphan_files} files left by interrupted writes; after a "
            f"further ingest {self.rows:,} rows, no key lost or duplicated"
        )


def bars(firms: int, sessions: int) -> pl.DataFrame:
    """Make random daily bars, sorted by date and ticker."""
    rng = np.random.default_rng(7)
    days = [date(2000, 1, 3) + timedelta(days=7 * (i // 5) + i % 5) for i in range(sessions)]
    close = (50 * np.exp(np.cumsum(rng.normal(0, 0.01, (sessions, firms)), axis=0))).round(2).ravel()
    spread = rng.uniform(1.0, 1.01, close.size)
    return pl.DataFrame(
        {
            "date": pl.Series(days).gather(np.repeat(np.arange(sessions), firms)),
            "ticker": pl.Series([f"F{i:04}" for i in range(firms)]).gather(
                np.tile(np.arange(firms), sessions)
            ),
            "open": close,
            "high": close * spread,
            "low": close / spread,
            "close": close,
            "volume": rng.integers(1_000, 1_000_000, close.size).astype(float),
        }
    )


def members_of(prices: pl.DataFrame, later: int) -> pl.DataFrame:
    """Make a universe of the firms; every third one joins some days later."""
    firms = prices.select("ticker").unique().sort("ticker").with_row_index()
    joined = pl.lit(date(2000, 1, 3)) + pl.duration(days=(pl.col("index") % 3 == 0).cast(pl.Int64) * later)
    return firms.select(pl.lit("all").alias("universe"), "ticker", from_date=joined)


class Trial:
    """A folder with two deliveries, a lake, and the two allowed states of the lake."""

    def __init__(self, folder: Path, firms: int, sessions: int, command: list[str]) -> None:
        self.folder, self.command = folder, command
        full = bars(firms, sessions)
        split = full["date"].unique().sort()[int(0.8 * sessions)]
        first = full.filter(pl.col("date") < split).with_columns(
            close=pl.when(pl.col("date").dt.day() == 15).then(pl.col("low")).otherwise("close")
        )
        second = full.filter(~((pl.col("date").dt.day() == 7) & (pl.col("ticker") < "F0009")))
        members = members_of(first, later=0), members_of(first, later=1)
        self.states: dict[str, list[Mapping[str, pl.DataFrame]]] = {
            "load": [{}, {"prices": first, "membership": members[0]}],
            "correct": [
                {"prices": first, "membership": members[0]},
                {"prices": second, "membership": members[1]},
            ],
        }
        for kind, (_, after) in self.states.items():
            after["prices"].write_parquet(folder / f"{kind}.parquet")
            after["membership"].write_parquet(folder / f"{kind}-members.parquet")
            settings = {
                "name": "kill",
                "source": {
                    "kind": "files",
                    "prices": f"{kind}.parquet",
                    "membership": f"{kind}-members.parquet",
                    "hazards": [HAZARD],
                },
                "lake": "lake",
                "folds": {"scheme": "expanding", "train": 9, "valid": 9, "test": 9, "embargo": 1},
                "models": {"zero": {}},
            }
            (folder / f"{kind}.yaml").write_text(json.dumps(settings))

    def lake(self) -> Lake:
        """Open the lake."""
        return Lake(self.folder / "lake")

    def start(self, kind: str) -> subprocess.Popen[str]:
        """Start the command in its own process group."""
        return subprocess.Popen(
            [*self.command, f"{kind}.yaml"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, kind: str) -> float:
        """Run the command to its end and return the seconds of its ingest stage."""
        with self.start(kind) as process:
            _, events = process.communicate()
        require(process.returncode == 0, events)
        return float(next(json.loads(e)["seconds"] for e in events.splitlines() if '"end"' in e))

    def kill(self, kind: str, after: float, *, early: bool) -> bool:
        """Kill the command some seconds after its ingest (or the command) starts; False if it had ended."""
        with self.start(kind) as process:
            if process.stderr is None:
                raise AssertionError("the command was started without a pipe for its progress")
            if not early:
                line = process.stderr.readline()
                require('"start"' in line, line)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            try:
                process.wait(timeout=after)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()  # it may have ended between the timeout and the signal
            require(code in {0, -signal.SIGKILL}, f"the command ended with exit code {code}")
        return code == -signal.SIGKILL

    def state(self, kind: str) -> str:
        """Return whether the tables are as before this kind of ingest, as after it, or a mixture."""
        lake = self.lake()
        try:
            read = lake.versions_to_read()
        except DataError:  # a first load that has not ended
            read = {}
        of_readers, states = (self._states(kind, versions) for versions in (read, lake.versions()))
        require(len(of_readers) == 1, "readers get tables of two states")
        if any(lake.exists(table) for table in COLUMNS):
            require(HAZARD in lake.read("sources")["hazards"].item(), "rows are stored before their hazards")
        return states.pop() if len(states) == 1 else "between"

    def _states(self, kind: str, versions: Mapping[str, int]) -> set[str]:
        before, after = self.states[kind]
        return {
            self._state_of(table, versions.get(table), before.get(table), after[table]) for table in COLUMNS
        }

    def _state_of(
        self, table: str, version: int | None, before: pl.DataFrame | None, after: pl.DataFrame
    ) -> str:
        columns = COLUMNS[table]
        if version is None:
            require(before is None, f"committed rows of {table} are lost")
            return "before"
        stored = self.lake().read(table, version, columns)
        require(not stored.select(pl.struct(keys(table)).is_duplicated().any()).item(), "a key is duplicated")
        if stored.equals(after.select(columns)):
            return "after"
        if before is None:
            raise AssertionError(f"only part of the first load of {table} is stored")
        require(stored.equals(before.select(columns)), f"{table} equals neither its old nor its new state")
        return "before"

    def reset(self, kind: str, prepared: Path) -> None:
        """Reset the lake to the state before this kind of ingest."""
        shutil.rmtree(self.folder / "lake", ignore_errors=True)
        if kind == "correct":
            shutil.copytree(prepared, self.folder / "lake")

    def orphan_files(self) -> int:
        """Count the data files on disk that no version refers to."""
        from pipelines.lake.upkeep import table_files

        lake, count = self.lake(), 0
        for table in lake.versions():
            opened = lake.storage.open(table)
            if opened is None:
                raise AssertionError(f"{table} has a version and cannot be opened")
            count += len(table_files(lake.storage, table, opened).unreferenced())
        return count


def run_kills(
    folder: Path, firms: int, sessions: int, *, kills: int, seed: int = 7, command: list[str] = COMMAND
) -> Verdict:
    """Kill this many running ingests; raise an AssertionError if rows are lost or duplicated."""
    trial, rng = Trial(folder, firms, sessions, command), random.Random(seed)  # noqa: S311
    seconds = {"load": trial.finish("load")}
    prepared = folder / "prepared"
    shutil.copytree(folder / "lake", prepared)
    seconds["correct"] = trial.finish("correct")
    require(trial.state("correct") == "after", "the ingest is not complete")
    print(
        f"undisturbed: first load {seconds['load']:.1f} s, correction {seconds['correct']:.1f} s", flush=True
    )

    outcomes: Counter[str] = Counter()
    kind, done, left = "load", 0, 0
    trial.reset(kind, prepared)
    while done < kills:
        early = done % 10 == 9
        delay = rng.uniform(0.0, 2.0 if early else 1.05 * seconds[kind])
        ended = not trial.kill(kind, delay, early=early)
        state = trial.state(kind)
        if ended:
            require(state == "after", "a command ended without storing its rows")
        else:
            done += 1
            outcomes[f"{state} the {'first load' if kind == 'load' else 'correction'}"] += 1
            print(f"kill {done:>3} at {delay:5.2f} s of {kind:<8} the tables are {state}", flush=True)
        if state == "after" or rng.random() < 0.3:
            left += trial.orphan_files()
            trial.finish(kind)  # files left by a kill must not prevent this
            require(trial.state(kind) == "after", "the ingest is not complete")
            kind = "correct" if kind == "load" else "load"
            trial.reset(kind, prepared)
    left += trial.orphan_files()
    for last in dict.fromkeys((kind, "correct")):
        trial.finish(last)
        require(trial.state(last) == "after", "the ingest is not complete")
    return Verdict(kills, outcomes, left, trial.lake().read("prices", columns=["date"]).height)


def main() -> None:
    """Print every kill and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--firms", type=int, default=640, help="640 firms x 2,500 sessions: 1.6 million rows")
    parser.add_argument("--sessions", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = run_kills(Path(folder), args.firms, args.sessions, kills=args.kills, seed=args.seed)
    print(f"{verdict}  ({time.monotonic() - started:.0f} s, {args.firms * args.sessions:,} rows delivered)")


if __name__ == "__main__":
    main()
