"""Ensembles of a run: combine the stored forecasts of their members, fold by fold.

A member of an ensemble leaves its validation and test forecasts in the run's folder. The validation forecasts
are those of the fit that validation has scored: with ``fit.refit`` the stored model has seen these sessions.
Once all members of a fold are done, the weights are chosen from the validation forecasts of all seeds, and
every seed of the ensemble combines the forecasts of its seed (`models.ensemble`). Its checkpoint contains its
members, so that a night, an explanation or MLflow needs no other file. Nothing is trained or forecast again.
"""

import math
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backtest.forecasts.metrics import forecast_metrics
from models.ensemble import EnsembleConfig, EnsembleFitted, combine
from models.fitted import EpochRecord
from models.registry import model_entry
from pipelines.dataset.build import Dataset
from pipelines.files import damaged, replacing
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import RecordedRun
from pipelines.train.task import Key, Outcome, Task, collect_arrays


def kept_file(run: RecordedRun, key: Key) -> Path:
    """File with the validation and test forecasts of a member's task."""
    model, fold, seed = key
    return run.folder / "members" / f"{model}-fold-{fold}-seed-{seed}.npz"


def keep_forecasts(run: RecordedRun, key: Key, outcome: Outcome) -> None:
    """Store what an ensemble needs of a member's task."""
    assert outcome.valid_BN is not None, "the task of a member has validation forecasts"
    with replacing(kept_file(run, key)) as partial, partial.open("wb") as file:
        np.savez(file, valid_BN=outcome.valid_BN, test_BN=outcome.test_BN)


def combine_members(
    run: RecordedRun, dataset: Dataset, tasks: Sequence[Task]
) -> Iterator[tuple[Task, Outcome]]:
    """Yield the outcomes of the tasks of ensembles; all tasks of their members are done."""
    own = [task for task in tasks if model_entry(task.registered).kind == "ensemble"]
    own.sort(key=lambda task: (task.fold.index, task.model))
    for _, group in groupby(own, key=lambda task: (task.fold.index, task.model)):
        yield from _combine_fold(run, dataset, list(group))


def _combine_fold(
    run: RecordedRun, dataset: Dataset, tasks: Sequence[Task]
) -> Iterator[tuple[Task, Outcome]]:
    """Combine a fold, whose weights are those of all seeds; yield the seeds that have a task."""
    started, fold, config = time.monotonic(), tasks[0].fold, tasks[0].options
    assert isinstance(config, EnsembleConfig)
    valid_KSDN, test_KSDN = (
        [
            [_kept(run, (member, fold.index, seed), part) for seed in run.config.seeds]
            for member in config.members
        ]
        for part in ("valid_BN", "test_BN")
    )
    arrays = collect_arrays(dataset, run.config.features.window)
    target_DN = np.where(arrays.universe_TN, arrays.target_TN, np.float32(np.nan))[fold.valid]
    found = dict(zip(run.config.seeds, combine(config, valid_KSDN, test_KSDN, target_DN), strict=True))
    for task in tasks:
        combination, valid_BN, test_BN = found[task.seed]
        valid = forecast_metrics(valid_BN, arrays.label_TN[fold.valid])
        folders = {name: run.checkpoint(name, fold.index, task.seed) for name in config.members}
        members = {name: load_checkpoint(folder)[0] for name, folder in folders.items()}
        shape, seconds = members[config.members[0]].shape, time.monotonic() - started
        history = (EpochRecord(0, math.nan, valid.rank_ic, 0.0, seconds, valid.ic),)
        fitted = EnsembleFitted(task.registered, config, shape, history, members, combination)
        yield (
            task,
            Outcome(
                test_BN=test_BN,
                valid_rank_ic=valid.rank_ic,
                valid_ic=valid.ic,
                history=history,
                state=fitted.state(),
                seconds=seconds,
            ),
        )
        started = time.monotonic()


def _kept(run: RecordedRun, key: Key, part: str) -> npt.NDArray[np.float32]:
    file, cure = kept_file(run, key), "delete it and train again, which repeats this task of the member alone"
    with (
        damaged(f"The file {file}", cure),
        file.open("rb") as content,
        np.load(content, allow_pickle=False) as stored,
    ):
        kept: npt.NDArray[np.float32] = stored[part]
        return kept
