"""Run the benchmarks one after another in half an hour, and say which are left out and why (`make bench`).

A benchmark that is still at work when the half hour is over is stopped; it and those after it are named with
those left out. The exit code is 1 if a benchmark missed its bar or broke.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
MINUTES = 30.0

BENCHMARKS: Mapping[str, Sequence[str]] = {
    "start_up": (),
    "features_speed": (),
    "windows": (),
    "lake": (),
    "seeds": ("--models", "temporal_transformer", "temporal_peer", "--epochs", "1", "--runs", "1"),
    "attention": ("--runs", "1", "--longest", "1024"),
    "kill_ingest": ("--kills", "10"),
    "gpu": ("--device", "cpu", "--tiny"),
}
"""In this order, with the arguments that make it short; without arguments a benchmark is run whole."""

LEFT_OUT: Mapping[str, str] = {
    "ladder": "about an hour on two cores: python benchmarks/ladder.py",
    "pretraining": "a quarter of an hour on two cores: python benchmarks/pretraining.py",
    "published_inputs": "needs the published data set: python benchmarks/published_inputs.py --data FOLDER",
}
"""What is not run at all, and why."""


def run_all(
    folder: Path, benchmarks: Mapping[str, Sequence[str]], left_out: Mapping[str, str], minutes: float
) -> int:
    """Run them within the time, print how long each took and what was left out; 1 if one failed."""
    end = time.monotonic() + 60 * minutes
    missed, failed = dict(left_out), []
    for name, arguments in benchmarks.items():
        again = " ".join(["python", f"benchmarks/{name}.py", *arguments])
        started = time.monotonic()
        if started >= end:
            missed[name] = f"the {minutes:g} minutes were over: {again}"
            continue
        print(f"== {name} {' '.join(arguments)}".rstrip(), flush=True)
        process = subprocess.Popen(
            [sys.executable, folder / f"{name}.py", *arguments], start_new_session=True
        )
        try:
            code = process.wait(timeout=end - started)
        except subprocess.TimeoutExpired:
            missed[name] = f"stopped when the {minutes:g} minutes were over: {again}"
            continue
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
                process.wait()
        print(f"== {name} took {time.monotonic() - started:.0f} s", flush=True)
        if code:
            failed.append(name)
    for name, reason in missed.items():
        print(f"left out: {name} ({reason})")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description="Run the benchmarks within a time.")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    asked = parser.parse_args()
    sys.exit(run_all(HERE, BENCHMARKS, LEFT_OUT, asked.minutes))


if __name__ == "__main__":
    main()
