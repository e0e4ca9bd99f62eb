"""Seconds and memory of a night on the 1,026 Nasdaq firms, with the share of each step.

The prices end on one session, and a first night trains the champion. Then the file grows by one session and a
night without training is measured, and after it a night with nothing new. Limits: 60 s and 3 GiB, and 5 s.
Every night is a process of its own on two cores.

Seconds of one new session, measured on 22 November 2026 on two cores without other work:

================================  =====  =============
step                              ridge  temporal_peer
================================  =====  =============
ingest                              3.8            3.5
imports, the page and the rest      3.3            3.2
data                                1.4            1.4
tracking                            1.3            1.2
monitoring                          0.9            0.9
signals                             0.3            0.4
book and checks                     0.2            0.2
attribution                         0.0            1.2
all                                11.2           12.1
processor time                     14.5           15.4
peak memory, GiB                    1.6            1.6
================================  =====  =============

A night with nothing new took 0.8 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import yaml

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "from pipelines.cli.main import main; main()"]
LAST = (date(2017, 12, 6), date(2017, 12, 7))
"""The first night and the measured one; the data themselves end with a session of half the firms."""
MODELS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "temporal_peer": {"encoder": {"width": 32}, "fit": {"epochs": 1, "dates_per_epoch": 100}},
}


@dataclass(frozen=True)
class Measured:
    """One command: its seconds, its processor time in seconds, and what it printed."""

    seconds: float
    processor: float
    out: str


def play(folder: Path) -> Measured:
    """Play the night of the newest session."""
    started, before = time.monotonic(), processor_seconds()
    done = subprocess.run(
        [*COMMAND, "nightly", "night.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"{done.stdout}\n{done.stderr[-3000:]}")
    return Measured(seconds, processor_seconds() - before, done.stdout)


def processor_seconds() -> float:
    """Return the processor time of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def write_night(folder: Path, prices: pl.DataFrame, model: str) -> None:
    """Write the config of a night and the prices up to the first night."""
    nasdaq = yaml.safe_load((ROOT / "configs" / "nasdaq.yaml").read_text())
    data = ROOT.parent / "shared" / "data"
    settings = {
        **nasdaq,
        "name": f"night_{model}",
        "root": ".",
        "source": {**nasdaq["source"], "prices": "prices.parquet"},
        "lake": "lake",
        "output": "runs",
        "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "mlartifacts"},
        "label": {"horizon": 1, "delay": 1, "transform": "demean", "clip": 0.1},
        "models": {model: MODELS[model]},
        "audit": {"enabled": False},
        "nightly": {
            "book": "long_short",
            "train": 1000,
            "valid": 125,
            "retrain": {"when": "never"},
            "checks": {"retry_minutes": 0},
        },
    }
    settings["source"]["securities"] = str(data / "nasdaq_industry.csv")
    del settings["source"]["end"]
    (folder / "night.yaml").write_text(yaml.safe_dump(settings))
    deliver(folder, prices, LAST[0])


def deliver(folder: Path, prices: pl.DataFrame, last: date) -> None:
    """Write the prices up to a session."""
    partial = folder / "next.parquet"
    prices.filter(pl.col("date") <= last).write_parquet(partial)
    partial.replace(folder / "prices.parquet")


def main() -> None:
    """Print the seconds, the memory and the share of each step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    args = parser.parse_args()
    file = ROOT.parent / "shared" / "data" / "nasdaq_prices.parquet"
    if not file.is_file():
        print(f"{file} is not there; nothing is measured")
        return
    prices = pl.read_parquet(file)
    for model in args.models:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_night(folder, prices, model)
            first = play(folder)
            print(f"{model}: first night, with training: {first.seconds:.1f} s", flush=True)
            deliver(folder, prices, LAST[1])
            night = play(folder)
            path = folder / "runs" / "nights" / f"night_{model}" / LAST[1].isoformat() / "result.json"
            result = json.loads(path.read_text())
            steps, gib = result["seconds"], result["peak_memory_bytes"] / 2**30
            print(f"{model}: one new session: {night.seconds:.1f} s, {gib:.2f} GiB at most")
            print(f"{model}: processor time {night.processor:.1f} s")
            print(night.out)
            shares = {**steps, "imports, the page and the rest": night.seconds - sum(steps.values())}
            for step, seconds in sorted(shares.items(), key=lambda item: -item[1]):
                print(f"  {step:<30}{seconds:>7.1f} s  {seconds / night.seconds:>5.0%}")
            nothing = play(folder)
            print(
                f"{model}: nothing new: {nothing.seconds:.1f} s, processor time {nothing.processor:.1f} s: "
                f"{nothing.out.strip()}",
                flush=True,
            )


if __name__ == "__main__":
    main()
