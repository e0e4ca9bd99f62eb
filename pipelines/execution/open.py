"""Open the engine that a config names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipelines.config.execution import ExecutionConfig
from pipelines.execution.pool import PoolEngine
from pipelines.execution.protocol import Engine, Work
from pipelines.execution.serial import SerialEngine

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def open_engine(
    config: ExecutionConfig, work: Work[Shared, Item, Result], jobs: int
) -> Iterator[Engine[Item, Result]]:
    """Open an engine for a number of tasks; everything that it starts ends with the ``with`` block.

    ``pool`` computes in this process if there is nothing to share out: one worker, one task, or a GPU.

    Parameters
    ----------
    config
        The section ``execution``.
    work
        What is computed.
    jobs
        Number of tasks.

    Raises
    ------
    ConfigError
        If the engine cannot be started, or no machine of the cluster is large enough for a task.
    """
    workers = max(1, min(config.workers, jobs))
    if config.engine == "ray":
        from pipelines.execution.ray import RayEngine

        with RayEngine(config, work, workers) as on_ray:
            yield on_ray
    elif config.engine == "serial" or workers == 1 or work.device != "cpu":
        yield SerialEngine(work)
    else:
        with PoolEngine(work, workers) as pool:
            yield pool
