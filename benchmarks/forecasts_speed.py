"""IC, ranks, quantiles and turnover on one panel: Peerglass and alphalens-reloaded compared.

Each engine computes the same metrics of the same signal in its own process; the engines alternate. Reading
the input and converting it to the engine's own form (arrays, or a pandas frame by date and asset) is not
timed. The memory reported is the peak of the process, input included. Before timing, the results are
compared: the number of firms is a multiple of the number of quantiles and no signals are tied, so all
definitions agree (docs/backtesting.md says where they do not).

The targets: at least 20 times faster than alphalens, at most 2.0 GiB.

alphalens-reloaded is in the extra ``dev``. If its requirements do not fit an environment, ``--peer PYTHON``
runs it with the interpreter of another one. (The files have the prefix ``forecasts_`` because a file
``alphalens.py`` would hide the package.)
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from worker import Worker

ENGINES = ("ours", "alphalens")
TARGET, GIB, MOST_GIB = 20.0, 2.0**30, 2.0
TOLERANCE = 1e-9


def work(name: str, folder: Path) -> None:
    """Run as a worker: load the input, then compute for each input line ``run`` or ``save``."""
    answers, sys.stdout = sys.stdout, sys.stderr  # alphalens prints
    engine: Any = importlib.import_module(f"forecasts_{name}")
    started = time.perf_counter()
    engine.compute(engine.prepare(folder / "small"))  # loads the code, and compiles it if it is not cached
    first = time.perf_counter() - started
    given = engine.prepare(folder)
    print(json.dumps({"first": first, "input": _resident("VmRSS")}), file=answers, flush=True)
    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        started, worked = time.perf_counter(), time.process_time()
        out = engine.compute(given)
        answer = {
            "seconds": time.perf_counter() - started,
            "processor": time.process_time() - worked,
            "peak": _resident("VmHWM"),
        }
        if line.strip() == "save":
            np.savez(folder / f"{name}.npz", **out)
        del out
        print(json.dumps(answer), file=answers, flush=True)


def _resident(field: str) -> float:
    """Resident bytes of the process (``VmRSS``), or their peak since it was last reset (``VmHWM``)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux.")


def write_panel(folder: Path, firms: int, sessions: int) -> None:
    """Write a persistent signal and returns that it forecasts a little, without ties."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    signal_TN = rng.standard_normal((sessions, firms))
    for t in range(1, sessions):
        signal_TN[t] += 0.9 * signal_TN[t - 1]
    np.save(folder / "signal.npy", signal_TN)
    np.save(folder / "label.npy", 0.02 * rng.standard_t(4, (sessions, firms)) + 0.0005 * signal_TN)


def compare(folder: Path) -> None:
    """Print the largest difference of each metric; raise if one is above 1e-9."""
    ours, theirs = (np.load(folder / f"{engine}.npz") for engine in ENGINES)
    print("\nlargest difference between the engines")
    for name in ours.files:
        worst = float(np.abs(ours[name] - theirs[name]).max())
        print(f"  {name:<16}{worst:.1e} over {ours[name].size:,} values")
        if not worst <= TOLERANCE or ours[name].shape != theirs[name].shape:
            raise RuntimeError(f"{name} differs by {worst:.1e}, so times cannot be compared.")


def main() -> None:
    """Compare results, time the engines in turn, and print medians, ratios and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=3000, help="a multiple of 5")
    parser.add_argument("--sessions", type=int, default=2520)
    parser.add_argument(
        "--runs", type=int, default=3, help="number of rounds, after the one whose results are compared"
    )
    parser.add_argument("--peer", default=sys.executable, help="Python that has alphalens-reloaded")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], Path(arguments.worker[1]))
        return
    found = subprocess.run([arguments.peer, "-c", "import alphalens"], capture_output=True, check=False)
    if found.returncode:
        parser.exit(2, "alphalens-reloaded is not installed: pip install '.[dev]', or --peer PYTHON.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_panel(folder, arguments.firms, arguments.sessions)
        write_panel(folder / "small", 50, 60)
        pythons = (sys.executable, arguments.peer)
        workers = {
            engine: Worker([python, __file__, "--worker", engine, str(folder)])
            for engine, python in zip(ENGINES, pythons, strict=True)
        }
        print(f"{arguments.firms:,} firms x {arguments.sessions:,} sessions")
        for engine, worker in workers.items():
            print(
                f"  {engine:<10}first call, on a small panel {worker.start['first']:.2f} s; "
                f"with the input {worker.start['input'] / GIB:.2f} GiB"
            )
        for worker in workers.values():
            worker.ask("save")
        compare(folder)
        rounds = [{engine: workers[engine].ask("run") for engine in ENGINES} for _ in range(arguments.runs)]
        for worker in workers.values():
            worker.stop()
    report(rounds)


def report(rounds: list[dict[str, dict[str, float]]]) -> None:
    """Print medians, ratios of the rounds, and whether the targets were met."""
    print(f"\nmedians of {len(rounds)} rounds")
    for engine in ENGINES:
        seconds = [done[engine]["seconds"] for done in rounds]
        processor = statistics.median(done[engine]["processor"] for done in rounds)
        peak = max(done[engine]["peak"] for done in rounds) / GIB
        print(
            f"  {engine:<10}{statistics.median(seconds):8.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{processor:.2f} s of CPU time, at most {peak:.2f} GiB"
        )
    ratios = [done["alphalens"]["seconds"] / done["ours"]["seconds"] for done in rounds]
    ratio, peak = statistics.median(ratios), max(done["ours"]["peak"] for done in rounds) / GIB
    processor = statistics.median(
        done["alphalens"]["processor"] / done["ours"]["processor"] for done in rounds
    )
    print(
        f"  {ratio:.0f} times faster ({min(ratios):.0f} to {max(ratios):.0f}), {processor:.0f} times less "
        f"CPU time; the target is {TARGET:.0f}: {'met' if ratio >= TARGET else 'NOT MET'}"
    )
    print(f"  {peak:.2f} GiB; the target is {MOST_GIB:.1f}: {'met' if peak <= MOST_GIB else 'NOT MET'}")
    sys.exit(int(ratio < TARGET or peak > MOST_GIB))


if __name__ == "__main__":
    main()
