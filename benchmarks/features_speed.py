"""Thirty rolling and cross-sectional features on one market: Peerglass, polars and pandas compared.

Each engine computes the same features (`features_market`) in its own process; the engines alternate. The
memory reported is the peak during the computation minus the memory with the input and the code loaded.
Before timing, the results are compared on the cells where all three have a value.

The targets: at least 5 times faster than polars, 10 times faster than pandas, at most 1.0 GiB above the
input. (The files have the prefix `features_` because a file `features.py` would hide the package `features`.)
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from features_market import NAMES, write_market
from worker import Worker

from features.arithmetic.parallel import n_threads

ENGINES = ("ours", "polars", "pandas")
TARGETS = {"polars": 5.0, "pandas": 10.0}
GIB = 2.0**30
EVERY = 10  # every tenth firm is compared
TOLERANCE = 1e-5


def work(name: str, folder: Path) -> None:
    """Run as a worker: load the input, then compute for each input line ``run`` or ``save``."""
    engine: Any = importlib.import_module(f"features_{name}")
    small = folder / "small"
    started = time.perf_counter()
    engine.compute(engine.prepare(small))  # loads the code, and compiles it if it is not cached
    first = time.perf_counter() - started
    market = engine.prepare(folder)
    before = _resident()
    print(json.dumps({"first": first, "input": before}), flush=True)
    for line in sys.stdin:
        _reset_peak()
        started, worked = time.perf_counter(), time.process_time()
        out = engine.compute(market)
        answer = {
            "seconds": time.perf_counter() - started,
            "processor": time.process_time() - worked,
            "above": _resident("VmHWM") - before,
        }
        if line.strip() == "save":
            for feature in NAMES:
                np.save(folder / f"{name}_{feature}.npy", engine.values(out, feature, EVERY))
        del out
        print(json.dumps(answer), flush=True)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _resident(field: str = "VmRSS") -> float:
    """Resident bytes of the process, or with ``VmHWM`` their peak since it was last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux.")


def compare(folder: Path) -> None:
    """Print the deviations of the other engines from ours; raise if one is above 1e-5.

    The deviation is relative to the value, or to the feature's mean absolute value if that is larger.
    """
    print(f"\nlargest relative deviation from ours, for every {EVERY}th firm, where all have a value")
    worst = 0.0
    for feature in NAMES:
        ours, *peers = (np.load(folder / f"{name}_{feature}.npy").astype(np.float64) for name in ENGINES)
        common = ~(np.isnan(ours) | np.isnan(peers[0]) | np.isnan(peers[1]))
        share = common.sum() / max(int((~np.isnan(ours)).sum()), 1)
        floor = float(np.mean(np.abs(ours[common])))
        deviations = [
            float(np.max(np.abs(peer - ours)[common] / np.maximum(np.abs(ours[common]), floor)))
            for peer in peers
        ]
        worst = max(worst, *deviations)
        print(
            f"  {feature:<34}polars {deviations[0]:.1e}  pandas {deviations[1]:.1e}  {share:.1%} of our cells"
        )
        if share < 0.99:
            raise RuntimeError(f"{feature}: the other engines have only {share:.1%} of our cells.")
    if not worst <= TOLERANCE:
        raise RuntimeError(
            f"The results differ by {worst:.1e}, more than {TOLERANCE:.0e}, so times cannot be compared."
        )


def main() -> None:
    """Compare results, time the engines in turn, and print medians, ratios and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=2520)
    parser.add_argument(
        "--runs", type=int, default=3, help="number of rounds, after the one whose results are compared"
    )
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], Path(arguments.worker[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small").mkdir()
        write_market(folder, arguments.firms, arguments.sessions)
        write_market(folder / "small", 60, 300)
        workers = {
            engine: Worker([sys.executable, __file__, "--worker", engine, str(folder)]) for engine in ENGINES
        }
        cells = arguments.firms * arguments.sessions
        print(
            f"{len(NAMES)} features, {arguments.firms:,} firms x {arguments.sessions:,} sessions, "
            f"{n_threads()} threads"
        )
        for engine, worker in workers.items():
            print(
                f"  {engine:<7} first call, on a small market {worker.start['first']:.2f} s; "
                f"with the input {worker.start['input'] / GIB:.2f} GiB"
            )
        for worker in workers.values():
            worker.ask("save")
        compare(folder)
        rounds = [{engine: workers[engine].ask("run") for engine in ENGINES} for _ in range(arguments.runs)]
        for worker in workers.values():
            worker.stop()
    report(rounds, cells)


def report(rounds: list[dict[str, dict[str, float]]], cells: int) -> None:
    """Print medians, ratios of the rounds, and whether the targets were met."""
    print(f"\nmedians of {len(rounds)} rounds")
    for engine in ENGINES:
        seconds = [done[engine]["seconds"] for done in rounds]
        above = max(done[engine]["above"] for done in rounds) / GIB
        processor = statistics.median(done[engine]["processor"] for done in rounds)
        rate = processor / cells / len(NAMES) * 1e9
        print(
            f"  {engine:<7}{statistics.median(seconds):8.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{processor:.2f} s of CPU time ({rate:.1f} ns per cell and feature), "
            f"at most {above:.2f} GiB above the input"
        )
    for engine, target in TARGETS.items():
        ratios = [done[engine]["seconds"] / done["ours"]["seconds"] for done in rounds]
        ratio = statistics.median(ratios)
        print(
            f"  {ratio:5.1f} times faster than {engine} ({min(ratios):.1f} to {max(ratios):.1f}); "
            f"the target is {target:.0f}: {'met' if ratio >= target else 'NOT MET'}"
        )
    above = max(done["ours"]["above"] for done in rounds) / GIB
    print(f"  {above:.2f} GiB above the input; the target is 1.00: {'met' if above <= 1.0 else 'NOT MET'}")


if __name__ == "__main__":
    main()
