"""Characteristics rounded to float16 against float32: the change of the validation IC on Nasdaq.

Every model of `configs/nasdaq.yaml` is fitted twice per seed on the same training sessions, with
characteristics as float32 and with the same ones rounded to the nearest float16. Everything else is equal,
and training is deterministic, so that a difference comes from the rounding alone. Only validation sessions
are scored. The standard deviation over seeds is a scale for the differences.

    python benchmarks/half_features.py --data ../shared/data --seeds 0 1
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from published_inputs import CONFIGS, FILES, tables_of

from backtest.forecasts.metrics import forecast_metrics
from pipelines.audit.subject import temporary_run
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import build_dataset
from pipelines.dataset.folds import plan_folds
from pipelines.train import walkforward
from pipelines.train.task import Arrays, Task, collect_arrays, to_tensors

LIMIT = 0.0002
"""Largest change of a validation IC that would be accepted."""
Row = tuple[str, int, str, float, float]
"""Model, seed, precision, validation IC, and mean correlation with the forecasts of float32."""


def halved(arrays: Arrays) -> Arrays:
    """Round characteristics to float16; computing goes on in float32."""
    values_TNF = np.asarray(arrays.characteristics_TNF)
    return replace(arrays, characteristics_TNF=values_TNF.astype(np.float16).astype(np.float32))


def compare(task: Task, arrays: Arrays) -> list[Row]:
    """Fit a task in both precisions and score the validation sessions."""
    import torch

    from models.fitting.fit import fit

    torch.set_num_threads(1)
    started, valid, rows, first_BN = time.monotonic(), task.fold.valid, [], None
    for precision, chosen in (("float32", arrays), ("float16", halved(arrays))):
        data = to_tensors(chosen, task.inputs, "cpu")
        fitted = fit(
            task.registered,
            task.options,
            data,
            task.fold.train,
            valid,
            fit_config=task.fit,
            seed=task.seed,
        )
        forecast_BN = fitted.forecast(data, valid)
        first_BN = forecast_BN if first_BN is None else first_BN
        score = forecast_metrics(forecast_BN, arrays.label_TN[valid])
        same = forecast_metrics(forecast_BN, first_BN)
        rows.append((task.model, task.seed, precision, score.ic, same.ic))
    name, seed, taken = task.model, task.seed, time.monotonic() - started
    print(
        f"{name:<22}{seed:>5}{rows[0][3]:>11.5f}{rows[1][3]:>11.5f}{rows[1][3] - rows[0][3]:>+11.5f}"
        f"{rows[1][4]:>13.6f}{taken:>8.0f} s",
        flush=True,
    )
    return rows


def plan(config: Config) -> tuple[list[Task], Arrays]:
    """Make the tasks of a config's only fold, and the arrays that they read."""
    dataset = build_dataset(tables_of(config), config)
    (fold,) = plan_folds(dataset, config)
    with temporary_run(config) as run:
        tasks = list(walkforward.plan_tasks(run, dataset, [fold]))
    return tasks, collect_arrays(dataset, config.features.window)


def main() -> None:
    """Print a row per model and seed, and a summary per model; exit code 1 if a change exceeds the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=CONFIGS.parents[1] / "shared" / "data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    args = parser.parse_args()
    needed = {name: args.data / file for name, file in FILES.items() if name != "PEERGLASS_RSR"}
    if missing := [path.name for path in needed.values() if not path.is_file()]:
        sys.exit(f"{args.data} has no {', '.join(missing)}: set the folder with --data")
    os.environ.update({name: str(path) for name, path in needed.items()})
    config = load_config(CONFIGS / "nasdaq.yaml")
    tasks, arrays = plan(config.model_copy(update={"seeds": tuple(args.seeds)}))
    print(f"{'model':<22}{'seed':>5}{'float32':>11}{'float16':>11}{'change':>11}{'correlation':>13}")
    found = Parallel(n_jobs=os.cpu_count() or 1, batch_size=1)(
        delayed(compare)(task, arrays) for task in tasks
    )
    rows = [row for pair in found for row in pair]
    print(f"\n{'model':<22}{'largest change':>16}{'std over seeds':>16}")
    worst = 0.0
    for model in config.models:
        ic = {
            p: np.array([r[3] for r in rows if r[0] == model and r[2] == p]) for p in ("float32", "float16")
        }
        change = float(np.abs(ic["float16"] - ic["float32"]).max())
        spread = f"{ic['float32'].std(ddof=1):.5f}" if len(args.seeds) > 1 else "-"
        print(f"{model:<22}{change:>16.5f}{spread:>16}")
        worst = max(worst, change)
    print(f"The largest change is {worst:.5f}; the limit is {LIMIT}.")
    sys.exit(worst > LIMIT)


if __name__ == "__main__":
    main()
