"""SIGKILL at random moments of `peerglass train` on each engine: nothing is left, lost or stored twice.

Every trial is compared with an undisturbed run of the serial engine on the same data:

- ``pool``, ``ray``: the command is killed at random moments, on the pool and on a Ray that it starts itself.
  After each kill, the seconds are measured until no process of the command is left (allowed: 90). The same
  command is then started again, until one ends by itself.
- ``workers``, ``machine``, ``command``, ``nothing``: on a Ray cluster of two machines (Ray's cluster
  utilities), workers are killed at random moments, one machine is killed half-way, the command is killed
  half-way and started again, or nothing is killed. A command whose task was lost three times ends with an
  error; it is started again.

Forecasts must be equal, and each key must be stored once. Exit code 1 if not. ``--config`` trains another
config than the tiny one of this file, such as ``configs/demo.yaml``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from pipelines.config.load import load_config
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config

COMMAND = [sys.executable, "-c", "from pipelines.cli.main import main; main()", "train", "config.yaml"]
MARK = "PEERGLASS_KILLED_RUN"
"""Environment variable that all processes of a command inherit, so that they can be found."""
ALLOWED_SECONDS = 90.0  # the agents of a Ray stay for up to a minute
SETTINGS: dict[str, Any] = {
    "name": "killed",
    "source": {"kind": "simulated", "seed": 3, "market": {"firms": 24, "sessions": 420}},
    "universe": {"min_price": 1.0, "min_history": 30},
    "features": {"window": 5},
    "label": {"horizon": 1, "delay": 0},
    "folds": {"scheme": "expanding", "train": 150, "valid": 25, "test": 40, "embargo": 1, "max_folds": 3},
    "fit": {"epochs": 6, "patience": 6, "batch_dates": 16, "lr": 0.003},
    "models": {"ridge": {}, "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}}},
    "seeds": [0, 1],
}


@dataclass
class Killed:
    """What happened in a trial."""

    kills: int = 0
    between: int = 0
    seconds_left: list[float] = field(default_factory=list)
    starts: int = 0
    wrong: list[str] = field(default_factory=list)


def prepare(folder: Path, settings: dict[str, Any], execution: dict[str, Any]) -> None:
    """Write a config into a new folder, and ingest the same data as in every other folder."""
    folder.mkdir(parents=True)
    tracking = {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": str(folder / "artifacts")}
    own = {"root": None, "lake": str(folder / "lake"), "output": str(folder / "runs"), "tracking": tracking}
    (folder / "config.yaml").write_text(yaml.safe_dump({**settings, **own, "execution": execution}))
    ingest_config(load_config(folder / "config.yaml"), echo=lambda _: None, progress=Progress(quiet=True))


class Command:
    """A running command; ``steps`` counts the tasks that it has committed."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.steps = uuid.uuid4().hex, 0
        self.began = threading.Event()
        self.process = subprocess.Popen(
            COMMAND,
            cwd=folder,
            env={**os.environ, MARK: self.mark, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            event = json.loads(line) if line.startswith("{") else {}
            if not event:
                self._errors.append(line)
            if event.get("stage") == "train":
                self.began.set()
                self.steps += event["event"] == "step"
        self.began.set()

    def kill(self) -> float:
        """Kill the command; return the seconds until no process of it is left, infinity if some stay."""
        children = descendants(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return seconds_until_gone(
            lambda: [*marked(self.mark), *(pid for pid in children if children[pid] == start_of(pid))]
        )

    def finish(self) -> None:
        """Wait for the end; RuntimeError with the messages if the command failed."""
        if self.process.wait():
            self._reader.join()
            raise RuntimeError("".join(self._errors))


def seconds_until_gone(left: Callable[[], list[int]]) -> float:
    """Wait until no process is left; after the allowed time, name and kill them and return infinity."""
    started = time.monotonic()
    while pids := left():
        if time.monotonic() - started > ALLOWED_SECONDS:
            for pid in pids:
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    print(f"left after {ALLOWED_SECONDS:.0f} s: {command[:200]}", file=sys.stderr)
                    os.kill(pid, signal.SIGKILL)
            return float("inf")
        time.sleep(0.05)
    return time.monotonic() - started


def marked(mark: str) -> list[int]:
    """Processes that inherited a mark; zombies are not counted."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def start_of(pid: int) -> str | None:
    """When a process started, in ticks of the system; None if it does not run."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else fields[18]


def descendants(pid: int) -> dict[int, str]:
    """All processes that descend from a process, with their starts. Ray's workers overwrite their mark."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    new = [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found |= {child: start for child in new if (start := start_of(child)) is not None}
    return found


def forecasts(folder: Path) -> pl.DataFrame:
    """All forecasts of a folder's lake without the run id, sorted."""
    lake = Lake(folder / "lake")
    keys = ["model", "fold", "seed", "date", "ticker"]
    if not lake.exists("forecasts"):
        return pl.DataFrame(schema=dict.fromkeys(keys, pl.String))
    return lake.read("forecasts").drop("run_id").sort(keys)


def check(folder: Path, expected: pl.DataFrame, result: Killed) -> None:
    """Compare the forecasts of a folder with those of the undisturbed run."""
    frame = forecasts(folder)
    if frame.select("model", "fold", "seed", "date", "ticker").is_duplicated().any():
        result.wrong.append("a key is stored twice")
    if not frame.equals(expected):
        result.wrong.append(f"{frame.height} forecasts differ from the {expected.height} of one process")


def killed_parent(
    root: Path, settings: dict[str, Any], engine: str, kills: int, expected: pl.DataFrame
) -> Killed:
    """Kill the command at random moments, and start it again until it has been killed often enough."""
    rng, result, folder = random.Random(5), Killed(), root / f"{engine}-0"  # noqa: S311 (no secret)
    prepare(folder, settings, {"engine": engine, "workers": 2})
    command = Command(folder)
    command.began.wait()
    started = time.monotonic()
    command.finish()
    seconds = time.monotonic() - started  # of an undisturbed training
    check(folder, expected, result)
    while result.kills < kills:
        if forecasts(folder).height == expected.height:
            folder = root / f"{engine}-{result.starts + 1}"
            prepare(folder, settings, {"engine": engine, "workers": 2})
        command = Command(folder)
        result.starts += 1
        if rng.random() < 0.9:  # the other kills fall into the start-up
            command.began.wait()
        try:
            command.process.wait(timeout=rng.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            result.seconds_left.append(command.kill())
            result.kills += 1
            result.between += 0 < forecasts(folder).height < expected.height
        else:
            command.finish()  # it was faster than the kill
            check(folder, expected, result)
    Command(folder).finish()
    check(folder, expected, result)
    if max(result.seconds_left) > ALLOWED_SECONDS:
        result.wrong.append("a process was left after 90 s")
    return result


@contextlib.contextmanager
def machines() -> Iterator[Any]:
    """Open a Ray cluster of a head and one more machine, with a core each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    size: dict[str, Any] = {"num_cpus": 1, "memory": 3 * 2**30, "object_store_memory": 2**29}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    cluster.add_node(**size)
    try:
        yield cluster
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]  # as Ray ships it


def busy_workers() -> list[int]:
    """Workers of Ray on this machine that compute a task."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(b"ray::_attempt"):
                found.append(int(process.name))
    return found


def killed_in_a_cluster(
    root: Path, settings: dict[str, Any], trial: str, kills: int, expected: pl.DataFrame
) -> Killed:
    """Kill workers, a machine half-way, the command half-way, or nothing, on a cluster of two machines."""
    rng, result = random.Random(6), Killed()  # noqa: S311 (no secret)
    tasks = expected.select("model", "fold", "seed").n_unique()
    with machines() as cluster:
        for number in range(1000):
            folder = root / f"{trial}-{number}"
            prepare(folder, settings, {"engine": "ray", "workers": 2, "address": cluster.address})
            command = Command(folder)
            result.starts += 1
            command.began.wait()
            if trial == "workers":
                kill_workers(command, folder, rng, result, kills)
            else:
                if trial != "nothing":
                    while command.process.poll() is None and command.steps * 2 < tasks:
                        time.sleep(0.05)
                    result.kills += 1
                    result.between += 0 < forecasts(folder).height < expected.height
                if trial == "machine":
                    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
                if trial == "command":
                    command.process.kill()
                    command.process.wait()
                    result.seconds_left.append(seconds_until_gone(partial(processes_of, command.mark)))
                    command = Command(folder)
                    result.starts += 1
                command.finish()
            check(folder, expected, result)
            if trial != "workers" or result.kills >= kills:
                break
    if max(result.seconds_left, default=0.0) > ALLOWED_SECONDS:
        result.wrong.append("a process was left after 90 s")
    return result


def processes_of(mark: str) -> list[int]:
    """Processes of a command that computes on a cluster, with its tasks there."""
    return [*marked(mark), *busy_workers()]


def kill_workers(command: Command, folder: Path, rng: random.Random, result: Killed, kills: int) -> None:
    """Kill workers at random moments until it was enough, and until a command has ended without an error."""
    while True:
        while command.process.poll() is None:
            time.sleep(rng.uniform(0.5, 8.0))
            pids = busy_workers()
            if pids and result.kills < kills and command.process.poll() is None:
                os.kill(rng.choice(pids), signal.SIGKILL)
                result.kills += 1
                result.between += command.steps > 0
        try:
            command.finish()
        except RuntimeError as error:
            if "The worker was lost in each of" not in str(error):
                raise
            command = Command(folder)
            result.starts += 1
            command.began.wait()
        else:
            return


def main() -> int:
    """Run the trials and print one row of a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", nargs="+", default=["pool", "ray", "workers", "machine", "command"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--worker-kills", type=int, default=10)
    parser.add_argument("--config", type=Path)
    options = parser.parse_args()
    settings = SETTINGS
    if options.config is not None:
        settings = load_config(options.config).model_dump(
            mode="json", exclude={"lake", "output", "execution"}
        )
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        root = Path(home)
        prepare(root / "serial", settings, {"engine": "serial"})
        Command(root / "serial").finish()
        expected = forecasts(root / "serial")
        if expected.height < 1000:
            raise ValueError(f"{expected.height} forecasts are too few to compare")
        print("| trial | kills | between two tasks | starts | longest until no process is left | wrong |")
        print("|---|---|---|---|---|---|", flush=True)
        for trial in options.trials:
            if trial in ("pool", "ray"):
                result = killed_parent(root, settings, trial, options.kills, expected)
            else:
                result = killed_in_a_cluster(root, settings, trial, options.worker_kills, expected)
            longest = f"{max(result.seconds_left):.2f} s" if result.seconds_left else "-"
            print(
                f"| {trial} | {result.kills} | {result.between} | {result.starts} | {longest} | "
                f"{'; '.join(result.wrong) or 'nothing'} |",
                flush=True,
            )
            wrong += result.wrong
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
