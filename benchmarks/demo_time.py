"""Seconds of the demo, by stage, of this checkout and of another one, taking turns.

Every run starts in an empty folder. The first runs of a checkout also start without compiled loops, as after
an installation (`--warm` keeps them from an earlier run of the same checkout). The table has medians over the
runs in seconds of wall-clock time, and the processor seconds of all processes together.

    git worktree add ../before COMMIT
    python benchmarks/demo_time.py --before ../before --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TOTAL, PROCESSOR = "wall clock", "processor"


def seconds_of_demo(checkout: Path, compiled: Path, options: list[str]) -> dict[str, float]:
    """Stage -> seconds of one demo of a checkout, with the whole and the processor time."""
    call = (
        f"import sys; sys.path.insert(0, {str(checkout)!r}); from pipelines.cli.main import main; "
        f"sys.argv = ['peerglass', 'demo', *{options!r}]; main()"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="peerglass-demo-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", call],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"The demo of {checkout} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = {}
    for line in done.stderr.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "end":
            found[event["stage"]] = found.get(event["stage"], 0.0) + event["seconds"]
    found[TOTAL] = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found[PROCESSOR] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def main() -> None:
    """Alternate the checkouts, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--before", type=Path, help="another checkout; without it, this one is measured alone"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="keep compiled loops between the runs")
    parser.add_argument("options", nargs="*", help="options of the demo, after --")
    given = parser.parse_args()
    sides = {"before": given.before.resolve()} if given.before else {}
    sides["after"] = HERE
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="peerglass-compiled-") as folder:
        for _ in range(given.runs):
            for side, checkout in sides.items():
                compiled = Path(folder) / side
                runs[side].append(seconds_of_demo(checkout, compiled, given.options))
                if not given.warm:
                    shutil.rmtree(compiled, ignore_errors=True)
                print(side, {stage: round(s, 1) for stage, s in runs[side][-1].items()}, file=sys.stderr)
    print(f"| stage | {' | '.join(sides)} |\n|---|{'---|' * len(sides)}")
    for stage in runs["after"][0]:
        medians = [statistics.median(run.get(stage, 0.0) for run in runs[side]) for side in sides]
        print(f"| {stage} | {' | '.join(f'{seconds:.1f}' for seconds in medians)} |")


if __name__ == "__main__":
    main()
