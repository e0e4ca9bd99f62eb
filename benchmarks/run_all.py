"""Run the benchmarks in turn for at most half an hour, and list those left out (`make bench`).

A benchmark that still runs at the end of the half hour is stopped. It and those after it are listed as left
out. The exit code is 1 if a benchmark missed its target or failed.
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
    "calibration": (),
    "accounts": ("--runs", "1"),
    "analysis": (),
    "books": (),
    "risk": (),
    "promotion": ("--pairs", "200", "--guard-only"),
    "market_calibration": ("--signals", "200", "--pairs", "100", "--searches", "20"),
    "lake": (),
    "seeds": ("--models", "temporal_transformer", "temporal_peer", "--epochs", "1", "--runs", "1"),
    "attention": ("--runs", "1", "--longest", "1024"),
    "peer_layer": ("--firms", "500", "1000", "2000", "--runs", "1"),
    "kill_ingest": ("--kills", "10"),
    "gpu_check": ("--device", "cpu", "--minutes", "0.3"),
    "waits": (),
    "explorer": ("--followers", "200"),
}
"""Benchmarks in order, with arguments that shorten them; without arguments the full benchmark runs."""

LEFT_OUT: Mapping[str, str] = {
    "forecasts_speed": "needs pip install '.[dev]': python benchmarks/forecasts_speed.py",
    "demo_time": "about half an hour on two idle cores: python benchmarks/demo_time.py --before CHECKOUT",
    "kill_nightly": "half an hour on two cores: python benchmarks/kill_nightly.py",
    "kill_engines": "about half an hour on two cores: python benchmarks/kill_engines.py",
    "mutations": "an hour and more, in a checkout of its own: python benchmarks/mutations.py",
    "half_features": "needs the Nasdaq prices next to the checkout: python benchmarks/half_features.py",
    "nightly": "needs the Nasdaq prices next to the checkout: python benchmarks/nightly.py",
    "alarms": "about a quarter of an hour on one core: python benchmarks/alarms.py",
    "attribution": "some ten minutes on one core: python benchmarks/attribution.py --threads 1",
    "audit_cases": "about twenty minutes on one core: python benchmarks/audit_cases.py --data ../shared/data",
    "audit_false_alarms": "needs the data: python benchmarks/audit_false_alarms.py --data ../shared/data",
    "audit_early": "needs the data: python benchmarks/audit_early.py --data ../shared/data",
    "audit_selection": "needs the data: python benchmarks/audit_selection.py --data ../shared/data",
    "guard_cases": "needs the Nasdaq prices: python benchmarks/guard_cases.py --data ../shared/data",
    "audit_speed": "needs the Nasdaq prices next to the checkout: python benchmarks/audit_speed.py",
    "network_accuracy": "some minutes on one core: python benchmarks/network_accuracy.py",
    "ladder": "about an hour on two cores: python benchmarks/ladder.py",
    "planted": "half an hour on one core: python benchmarks/planted.py",
    "pretraining": "a quarter of an hour on two cores: python benchmarks/pretraining.py",
    "verdict_calibration": "a quarter of an hour on one core: python benchmarks/verdict_calibration.py",
    "multiverse": "about a quarter of an hour on two cores: python benchmarks/multiverse.py",
    "scaling": "an hour and a quarter on two cores: python benchmarks/scaling.py",
    "scale": "about an hour on two cores: python benchmarks/scale.py",
    "published_inputs": "needs the published data set: python benchmarks/published_inputs.py --data FOLDER",
}
"""Benchmarks that are not run, with the reason."""


def run_all(
    folder: Path, benchmarks: Mapping[str, Sequence[str]], left_out: Mapping[str, str], minutes: float
) -> int:
    """Run benchmarks within the time, print durations and those left out; return 1 if one failed."""
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
                os.killpg(process.pid, signal.SIGKILL)  # including its child processes
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
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description="Run the benchmarks within a time limit.")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    args = parser.parse_args()
    sys.exit(run_all(HERE, BENCHMARKS, LEFT_OUT, args.minutes))


if __name__ == "__main__":
    main()
