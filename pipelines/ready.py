"""What the workers of a pool do before they get tasks, while the command is busy with something else.

A worker needs seconds to import PyTorch, and on a new machine the loops of the accounts and of the scores
need more than ten to compile. Both happen on a core that the command does not use before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from pipelines.config.schema import Config
from pipelines.device import resolve_device
from pipelines.execution.pool import early_workers, in_own_process

IMPORT_TRAINING = f"{__name__}:import_training"
IMPORT_EXPLAINING = f"{__name__}:import_explaining"
COMPILE_LOOPS = f"{__name__}:compile_loops"


@contextmanager
def workers_made_ready(config: Config) -> Iterator[Callable[[Config, int, str], None]]:
    """Yield a function that starts workers for a number of tasks and has them call a function above.

    Its arguments are the config with the number of workers that have room, the number of tasks, and the name
    of the function. It does nothing if tasks are computed in the command's own process, or on a cluster. On a
    new machine, another process compiles loops that the stages need.
    """
    has_to_compile = _has_pool(config) and not _accounts_are_compiled()
    with early_workers() as start, in_own_process(COMPILE_LOOPS) if has_to_compile else nullcontext():

        def start_for(config: Config, tasks: int, prepare: str) -> None:
            workers = min(config.execution.workers, tasks)
            if workers > 1 and _has_pool(config) and resolve_device(config.device) == "cpu":
                start(workers, prepare)

        yield start_for


def _has_pool(config: Config) -> bool:
    return config.execution.engine == "pool" and config.execution.workers > 1


def _accounts_are_compiled() -> bool:
    """Whether numba's cache has the loops of the accounts; those of another version of them count as well."""
    from backtest.accounts import positions

    loop = cast("Any", positions.run_lanes)
    cache = getattr(getattr(loop, "stats", None), "cache_path", None)  # None if nothing can be cached
    return cache is None or any(Path(cache).glob(f"{Path(positions.__file__).stem}.{loop.__name__}-*.nbi"))


def import_training() -> None:
    """Import what training needs."""
    import pipelines.train.work  # noqa: F401


def import_explaining() -> None:
    """Import what explanations need."""
    import pipelines.explain.games  # noqa: F401


def compile_loops() -> None:
    """Compile loops into numba's cache, in the order in which the stages of a run need them.

    Meant for a process of its own, whose search for garbage it makes rarer.
    """
    import gc

    import numpy as np

    from backtest.accounts.accounting import run_book
    from backtest.books.quantile_long_short import QuantileLongShort
    from backtest.costs import CostModel
    from backtest.forecasts.daily import SortedPanel, persistence
    from backtest.forecasts.metrics import forecast_metrics
    from features.arithmetic import rolling, transforms

    # The compiler leaves few cycles, and a search for them after 700 objects takes 15% of the time.
    gc.set_threshold(50_000, 20, 100)
    index_TN = np.array([[1.0, 1.0, 1.0], [1.1, 0.9, 1.0], [1.2, 0.8, 1.1]])
    single_TN, all_TN = index_TN.astype(np.float32), np.ones(index_TN.shape, dtype=np.bool_)
    # The dataset needs other loops before these.
    rolling.rolling_std(index_TN, 3, 2)
    rolling.rolling_mean(index_TN, 3, 2)
    rolling.rolling_max(index_TN, 3, 2)
    rolling.rolling_skewness(index_TN, 3, 3)
    rolling.rolling_regression(index_TN, index_TN, 3, 3)
    transforms.rank_normal(single_TN, all_TN)
    forecast_metrics(single_TN, single_TN)
    target_TN = QuantileLongShort(quantiles=2).select(index_TN)
    run_book(target_TN, index_TN, all_TN, CostModel(), 1)
    persistence(SortedPanel("forecast", index_TN), (1,), quantiles=2)
