"""Compiling the loops of features and accounts in a second process, while the first one loads the data.

The loops are compiled on their first call and then cached on disk (`features.arithmetic.kernels`). On the
first run after an installation this takes some 20 s of one core. A second process calls them on a small
simulated market, and the command finds their machine code in the cache when it needs it. No number depends on
this: if the second process fails or is slow, the command compiles what it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from features.arithmetic.parallel import n_cores
from pipelines.config.schema import Config

_ROOT = str(Path(__file__).parents[1])
_START = (
    "import json, sys; root, path, folder, settings, parent = json.loads(sys.argv[1]); "
    "sys.path[:] = [root, *path]; from pipelines.compile_ahead import compile_loops; "
    "compile_loops(folder, settings, parent)"
)
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"),
    "1",
)


@contextmanager
def compiling_ahead(config: Config) -> Iterator[None]:
    """Compile in a second process during the ``with`` block.

    There is none if the loops are compiled already, or if the config or the machine allows one process only.
    """
    alone = config.execution.engine == "serial" or config.execution.workers == 1 or n_cores() == 1
    if alone or is_compiled():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="peerglass-compile-", ignore_cleanup_errors=True) as folder:
        given = json.dumps([_ROOT, sys.path, folder, small_settings(config), os.getpid()])
        process = subprocess.Popen(  # noqa: S603 (our own interpreter and code)
            [sys.executable, "-c", _START, given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def is_compiled() -> bool:
    """Whether the cache holds the longest loop, or there is no cache."""
    from backtest.accounts.kernels.positions import run_lanes

    cache = getattr(run_lanes, "stats").cache_path  # noqa: B009 (typed as the function that it was)
    return cache is None or any(Path(cache).glob("positions.run_lanes-*.nbi"))


def small_settings(config: Config) -> dict[str, object]:
    """Settings of a run that computes the features and books of a config on a small simulated market."""
    whole = config.model_dump(mode="json")
    return {
        "name": "compile",
        "lake": "lake",
        "output": "runs",
        "source": {"kind": "simulated", "market": {"sessions": 400, "firms": 40}},
        "features": {**whole["features"], "group_by": "industry", "inputs": None},
        "label": {"horizon": 1, "delay": 0, "extra_delays": [1]},
        "folds": {"scheme": "expanding", "train": 200, "valid": 30, "test": 60, "embargo": 1, "max_folds": 1},
        "backtest": {"books": whole["backtest"]["books"]},
        "models": {"reversal": {}, "ridge": {}},
        "seeds": [0],
        "execution": {"engine": "serial"},
    }


def compile_loops(folder: str, settings: dict[str, object], parent: int) -> None:
    """Ingest, train and backtest the settings in a folder; called in the second process.

    It gives way to other processes, and ends when ``parent`` ends.
    """
    from pipelines.execution.worker import end_with

    end_with(parent)
    os.nice(5)
    from pipelines.config.load import load_config
    from pipelines.progress import Silent
    from pipelines.results.backtest import evaluate_run
    from pipelines.run.fetch import ingest_config
    from pipelines.run.locks import Locks
    from pipelines.run.open import prepare_run
    from pipelines.train.walkforward import train

    path = Path(folder) / "compile.yaml"
    path.write_text(json.dumps(settings))  # every JSON document is YAML
    config, progress = load_config(path), Silent()
    ingest_config(config, progress.note, progress)
    with Locks(wait=False, notify=progress.note) as locks:
        run, dataset, lake = prepare_run(config, progress, locks=locks)
        train(run, dataset, lake, progress)
        evaluate_run(run, dataset, lake, progress)
