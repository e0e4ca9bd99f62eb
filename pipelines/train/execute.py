"""Run tasks in this process or in a pool of single-threaded processes, and explain fits without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from models.fitted import NoTrainingSignal
from models.fitting.fit import Diverged
from models.spec import IncompatibleConfig
from pipelines.errors import ConfigError, DivergedError
from pipelines.run.snapshots import FileSnapshotStore
from pipelines.train.task import Arrays, Outcome, Task, run_task


def execute(tasks: Sequence[Task], arrays: Arrays, workers: int) -> Iterator[tuple[Task, Outcome]]:
    """Run tasks in this process, or in a pool of single-threaded processes that memory-map the arrays.

    Outcomes are yielded as tasks finish. A pool is used if there are at least two tasks, more than one worker
    and no GPU.
    """
    if workers == 1 or len(tasks) < 2 or tasks[0].device != "cpu":
        for index, _ in enumerate(tasks):
            yield tasks[index], _attempt(index, tasks, arrays)[1]
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    for index, outcome in pool(delayed(_attempt)(index, tasks, arrays) for index in range(len(tasks))):
        yield tasks[index], outcome


def _attempt(index: int, tasks: Sequence[Task], arrays: Arrays) -> tuple[int, Outcome]:
    task = tasks[index]
    snapshots = None if task.snapshot is None else FileSnapshotStore(task.snapshot)
    with translate_fit_errors(task, f"seed {task.seed}"):
        return index, run_task(task, arrays, snapshots)


@contextmanager
def translate_fit_errors(task: Task, seeds: str) -> Iterator[None]:
    """Turn errors of a fit into one sentence: exit code 5, or 2 if the options do not fit the data."""
    subject = f"{task.model}, fold {task.fold.index}, {seeds}"
    try:
        yield
    except IncompatibleConfig as error:
        raise ConfigError(f"models.{task.model}: {error}") from None
    except NoTrainingSignal as error:
        raise DivergedError(f"{subject}: {error} Finished folds are kept.") from None
    except Diverged as error:
        cure = f"Lower models.{task.model}.fit.lr (now {task.fit.lr}); finished folds are kept."
        raise DivergedError(f"{subject}: {error} {cure}") from None
    except torch.OutOfMemoryError:
        raise DivergedError(
            f"{subject}: the device {task.device} ran out of memory at fit.batch_dates "
            f"{task.fit.batch_dates}. {_less_memory(task, seeds)}; finished folds are kept."
        ) from None


def _less_memory(task: Task, seeds: str) -> str:
    if task.fit.batch_dates > 1:
        cure = f"Lower models.{task.model}.fit.batch_dates"
        return cure if seeds.startswith("seed ") else f"{cure}, or set stack_seeds: false"
    return "A single date is too large: use a smaller model or universe, or set device: cpu"
