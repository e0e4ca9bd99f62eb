"""What the workers of a pool do before they get tasks, while the command is busy with something else.

A worker needs seconds to import PyTorch, and on a new machine the loops of the accounts need ten more to
compile. Both happen on a core that the command does not use before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pipelines.config.schema import Config
from pipelines.execution.pool import early_workers

IMPORT_TRAINING = f"{__name__}:import_training"
IMPORT_EXPLAINING = f"{__name__}:import_explaining"
COMPILE_ACCOUNTS = f"{__name__}:compile_accounts"


@contextmanager
def workers_made_ready(config: Config) -> Iterator[Callable[[Config, int, str], None]]:
    """Yield a function that starts workers for a number of tasks and has them call a function above.

    Its arguments are the config with the number of workers that have room, the number of tasks, and the name
    of the function. It does nothing if tasks are computed in the command's own process, or on a cluster. On a
    new machine, a first worker starts at once and compiles the loops of the accounts, which the audit needs.
    """
    with early_workers() as start:

        def start_for(config: Config, tasks: int, prepare: str) -> None:
            workers = min(config.execution.workers, tasks)
            if workers > 1 and _uses_pool(config):
                start(workers, prepare)

        if _uses_pool(config) and not _accounts_are_compiled():
            start(1, COMPILE_ACCOUNTS)
        yield start_for


def _uses_pool(config: Config) -> bool:
    from pipelines.device import resolve_device

    execution = config.execution
    return execution.engine == "pool" and execution.workers > 1 and resolve_device(config.device) == "cpu"


def _accounts_are_compiled() -> bool:
    """Whether numba's cache has the loops of the accounts; those of another version of them count as well."""
    from backtest.accounts.kernels import positions

    loop = cast("Any", positions.run_lanes)
    cache = getattr(getattr(loop, "stats", None), "cache_path", None)  # None if nothing can be cached
    return cache is None or any(Path(cache).glob(f"{Path(positions.__file__).stem}.{loop.__name__}-*.nbi"))


def import_training() -> None:
    """Import what training needs."""
    import pipelines.train.work  # noqa: F401


def import_explaining() -> None:
    """Import what explanations need."""
    import pipelines.explain.fold  # noqa: F401


def compile_accounts() -> None:
    """Compile the loops of the accounts, into numba's cache, by accounting for a book of two firms."""
    import numpy as np

    from backtest.accounts.accounting import run_book
    from backtest.costs.model import CostModel

    index_TN = np.array([[1.0, 1.0], [1.1, 0.9], [1.2, 0.8]])
    run_book(np.full(index_TN.shape, 0.5), index_TN, np.ones(index_TN.shape, dtype=np.bool_), CostModel(), 1)
    import_training()
