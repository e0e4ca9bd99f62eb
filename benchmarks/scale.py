"""Wall time and peak memory of every stage as the market grows, with fitted exponents and a plot.

A simulated market (random walks, written as the Parquet files of a user) goes through the real commands:
ingest, dataset, training of one fold per model, scoring of the newest session, backtest and report. Every
stage is a process of its own. Its peak is the largest sum of anonymous and shared memory over the process and
its workers, sampled every 50 ms. Pages of mapped files are not counted, because the kernel drops them when
memory is short; the column ``maxrss`` counts them for the main process.

    python benchmarks/scale.py                      # the grid of the published table
    python benchmarks/scale.py --sizes 500x1000 --models ridge
    python benchmarks/scale.py --sizes 8000x6300 --together --folder big   # continues if it was stopped
    python benchmarks/scale.py --config configs/nasdaq.yaml   # the stages of a config, with its own data
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "from pipelines.cli.main import main; main()"]
DATASET = [
    sys.executable,
    "-c",
    "from pathlib import Path; from pipelines.config.load import load_config; "
    "from pipelines.progress import Progress; from pipelines.run.open import prepare_run; "
    "prepare_run(load_config(Path('scale.yaml')), Progress(), record=False)",
]
SIZES = "500x1000,1000x1000,2000x1000,500x2000,500x4000,1000x2000"
FIRMS_PER_FILE = 500
MODELS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "lightgbm": {"rounds": 20},
    "temporal_transformer": {"encoder": {"width": 32, "layers": 1}},
    "temporal_peer": {"encoder": {"width": 32}},
}


@dataclass(frozen=True)
class Stage:
    """What one stage of one size took: seconds, and GiB at the peak."""

    firms: int
    sessions: int
    stage: str
    seconds: float
    peak: float
    maxrss: float


def write_market(folder: Path, firms: int, sessions: int) -> None:
    """Write daily bars of random walks, and industries, as files of a user."""
    days: list[date] = []
    day = date(2000, 1, 3)
    while len(days) < sessions:
        if day.weekday() < 5:
            days.append(day)
        day += timedelta(days=1)
    rng = np.random.default_rng(17)
    market_T = rng.normal(0.0, 0.008, sessions)
    names = [f"F{n:05d}" for n in range(firms)]
    for start in range(0, firms, FIRMS_PER_FILE):
        part = names[start : start + FIRMS_PER_FILE]
        shape = (sessions, len(part))
        close = 30.0 * np.exp(np.cumsum(market_T[:, None] + rng.normal(0.0, 0.018, shape), axis=0))
        close = np.clip(close, 2.0, 5_000.0)
        opened = close * np.exp(rng.normal(0.0, 0.006, shape))
        spread = np.abs(rng.normal(0.0, 0.008, shape))
        high, low = np.maximum(close, opened) * (1 + spread), np.minimum(close, opened) * (1 - spread)
        volume = np.round(np.exp(rng.normal(12.0, 0.6, shape)))
        columns = {"open": opened, "high": high, "low": low, "close": close, "volume": volume}
        pl.DataFrame(
            {
                "date": np.repeat(np.array(days, dtype="datetime64[D]"), len(part)),
                "ticker": part * sessions,
                **{name: np.round(values, 4).ravel() for name, values in columns.items()},
            }
        ).write_parquet(folder / f"prices-{start:05d}.parquet")
    pl.DataFrame({"ticker": names, "industry": [f"industry {n % 60}" for n in range(firms)]}).write_csv(
        folder / "securities.csv"
    )


def write_config(folder: Path, sessions: int, workers: int) -> None:
    """Write the config: all characteristics and channels, one fold, one epoch of 50 dates."""
    valid = test = max(60, sessions // 20)
    settings = {
        "name": "scale",
        "source": {"kind": "files", "prices": "prices-*.parquet", "securities": "securities.csv"},
        "lake": "lake",
        "output": "runs",
        "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "mlartifacts"},
        "universe": {"min_history": 60},
        "features": {"window": 16, "group_by": "industry"},
        "label": {"horizon": 1, "delay": 1, "transform": "rank"},
        "folds": {
            "scheme": "expanding",
            "train": sessions - valid - test - 60 - 8,
            "valid": valid,
            "test": test,
            "embargo": 1,
            "max_folds": 1,
        },
        "fit": {"epochs": 1, "dates_per_epoch": 50, "batch_dates": 8},
        "models": MODELS,
        "seeds": [0],
        "execution": {"engine": "pool", "workers": workers},
        "audit": {"enabled": False},
        "device": "cpu",
    }
    (folder / "scale.yaml").write_text(yaml.safe_dump(settings))
    for model, options in MODELS.items():
        one = {**settings, "models": {model: options}}
        (folder / f"{model}.yaml").write_text(yaml.safe_dump(one))


def measure(command: Sequence[str], folder: Path) -> tuple[float, float, float, str]:
    """Run a command; return its seconds, its peak and its maxrss in GiB, and what it printed."""
    started, peak, ended = time.monotonic(), 0, threading.Event()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)

        def watch() -> None:
            nonlocal peak
            while not ended.wait(0.05):
                peak = max(peak, memory_of_tree(process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        ended.set()
        watcher.join()
        seconds = time.monotonic() - started
        out.seek(0)
        err.seek(0)
        printed = out.read()
        if status:
            raise RuntimeError(f"{' '.join(command[:4])}: {printed[-2000:]}\n{err.read()[-4000:]}")
    return seconds, peak / 2**30, usage.ru_maxrss / 2**20, printed


def memory_of_tree(pid: int) -> int:
    """Sum the anonymous and shared memory of a process and its descendants, in bytes."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            status = Path(f"/proc/{one}/status").read_text()
            waiting += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:  # it has just ended
            continue
        total += sum(
            1024 * int(line.split()[1])
            for line in status.splitlines()
            if line.startswith(("RssAnon", "RssShmem"))
        )
    return total


def run_size(
    firms: int,
    sessions: int,
    models: Sequence[str],
    workers: int,
    folder: Path,
    *,
    together: bool = False,
) -> list[Stage]:
    """Take one market through all stages; stages that ``folder`` holds the figures of are not run again."""
    done = folder / "stages.jsonl"
    found = [Stage(**json.loads(line)) for line in done.read_text().splitlines()] if done.is_file() else []
    write_config(folder, sessions, workers)
    if not (folder / "securities.csv").is_file():  # which is written last
        write_market(folder, firms, sessions)

    def stage(name: str, command: Sequence[str]) -> None:
        if any(one.stage == name for one in found):
            return
        seconds, peak, maxrss, _ = measure(command, folder)
        found.append(Stage(firms, sessions, name, round(seconds, 1), round(peak, 3), round(maxrss, 3)))
        line = json.dumps(asdict(found[-1]))
        with done.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    stage("ingest", [*COMMAND, "ingest", "scale.yaml"])
    stage("dataset", DATASET)
    stage("dataset, again", DATASET)
    if together:
        stage("train all", [*COMMAND, "train", "scale.yaml"])
    for model in [] if together else models:
        stage(f"train {model}", [*COMMAND, "train", f"{model}.yaml"])
    stage("score a night", [*COMMAND, "signals", "latest", "--output", "runs", "--model", models[-1]])
    stage("backtest", [*COMMAND, "backtest", "latest", "--output", "runs"])
    stage("report", [*COMMAND, "report", "latest", "--output", "runs"])
    return found


def run_config(config: Path, workers: int, folder: Path) -> list[Stage]:
    """Take a config with its own data through all stages, in another lake and with one short epoch."""
    own = {
        "lake": folder / "lake",
        "output": folder / "runs",
        "tracking.uri": f"sqlite:///{folder}/mlflow.db",
        "tracking.artifacts": folder / "mlartifacts",
        "feature_store.folder": folder / "features",
        "execution.workers": workers,
        "fit.epochs": 1,
        "fit.dates_per_epoch": 50,
    }
    changed = [
        str(config.resolve()),
        *(word for key, value in own.items() for word in ("--set", f"{key}={value}")),
    ]
    of_run = ["latest", "--output", str(folder / "runs")]
    found = []
    for name, command in {
        "ingest": ["ingest", *changed],
        "audit": ["audit", *changed],
        "train all": ["train", *changed],
        "backtest": ["backtest", *of_run],
        "report": ["report", *of_run],
    }.items():
        seconds, peak, maxrss, _ = measure([*COMMAND, *command], ROOT)
        found.append(Stage(0, 0, name, round(seconds, 1), round(peak, 3), round(maxrss, 3)))
        print(json.dumps(asdict(found[-1])), flush=True)
    return found


def exponents(found: Sequence[Stage]) -> pl.DataFrame:
    """Fit ``log y = a + b log firms + c log sessions`` per stage; too few sizes give null."""
    rows = []
    for name in dict.fromkeys(one.stage for one in found):
        own = [one for one in found if one.stage == name]
        design = np.array([[1.0, math.log(one.firms), math.log(one.sessions)] for one in own])
        row: dict[str, Any] = {"stage": name}
        for column in ("seconds", "peak"):
            y = np.log([max(getattr(one, column), 1e-3) for one in own])
            fitted = np.linalg.matrix_rank(design) == 3
            b = np.linalg.lstsq(design, y, rcond=None)[0] if fitted else [math.nan] * 3
            row |= {f"{column}_firms": round(float(b[1]), 2), f"{column}_sessions": round(float(b[2]), 2)}
        rows.append(row)
    return pl.DataFrame(rows)


def plot(found: Sequence[Stage], path: Path) -> None:
    """Draw the peak of every stage over the cells of the market, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    for name in dict.fromkeys(one.stage for one in found):
        own = sorted((one.firms * one.sessions, one.peak, one.seconds) for one in found if one.stage == name)
        cells = [cell / 1e6 for cell, _, _ in own]
        axes[0].loglog(cells, [peak for _, peak, _ in own], marker="o", label=name)
        axes[1].loglog(cells, [seconds for _, _, seconds in own], marker="o", label=name)
    axes[0].set_ylabel("peak memory, GiB")
    axes[1].set_ylabel("seconds")
    for axis in axes:
        axis.set_xlabel("million cells (firms x sessions)")
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure the sizes and print the table and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES, help="firms x sessions, separated by commas")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--together", action="store_true", help="train all models as one command, not one command each"
    )
    parser.add_argument("--folder", type=Path, help="keep the files here, and continue where a run stopped")
    parser.add_argument("--config", type=Path, help="measure the stages of this config instead")
    parser.add_argument("--json", type=Path, help="write the measurements here")
    parser.add_argument("--plot", type=Path, help="write the plot here")
    arguments = parser.parse_args()
    if arguments.config is not None:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            stages = run_config(arguments.config, arguments.workers, Path(name))
        print(pl.DataFrame([asdict(one) for one in stages]).drop("firms", "sessions"))
        return
    found: list[Stage] = []
    for size in arguments.sizes.split(","):
        firms, sessions = map(int, size.split("x"))
        if arguments.folder is None:
            folder = Path(tempfile.mkdtemp(prefix="scale-"))
        else:
            folder = arguments.folder.resolve() / size
            folder.mkdir(parents=True, exist_ok=True)
        try:
            found += run_size(
                firms, sessions, arguments.models, arguments.workers, folder, together=arguments.together
            )
        finally:
            if arguments.folder is None:
                shutil.rmtree(folder)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found]))
    if arguments.plot:
        plot(found, arguments.plot)
    with pl.Config(tbl_rows=-1):
        print(pl.DataFrame([asdict(one) for one in found]))
        print(exponents(found))


if __name__ == "__main__":
    main()
