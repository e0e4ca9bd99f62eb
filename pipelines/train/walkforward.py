"""Walk-forward training: each combination of model, fold and seed is a task that is done exactly once.

A task fits a model on the fold's training sessions and selects on its validation sessions. With ``fit.refit``
the selected model is refitted on both. The task then forecasts its test sessions once. Its checkpoint is
written first, then its forecasts are committed to the lake in one transaction, then its scores are written,
which marks it as done. A task is a pure function of its arguments and is computed on one thread, so that
repeating it after an interruption gives the same numbers. A network saves a snapshot after every epoch and
resumes from it.
"""

from __future__ import annotations

import time
from itertools import chain

from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import fold_table, plan_folds
from pipelines.device import resolve_device
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.checkpoints import remove_partial_checkpoints
from pipelines.run.completeness import describe_missing
from pipelines.run.hazards import collect_hazards
from pipelines.run.provenance import TrainingEnded, TrainingStarted, environment, record
from pipelines.run.record import Run
from pipelines.run.warm_start import write_folds
from pipelines.train.commit import commit
from pipelines.train.execute import execute
from pipelines.train.plan import collect_arrays, constant_channels, done_tasks, plan_tasks
from pipelines.train.stacks import run_stacks, stacks_of
from pipelines.train.trials import record_trials, trial_count
from pipelines.train.watch import watch_curves


def train(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> None:
    """Run all tasks of a run that are not done, and commit each as soon as it finishes."""
    folds = plan_folds(dataset, run.config)
    remove_partial_checkpoints(run.folder / "checkpoints")
    done = done_tasks(run, lake)
    assert run.identity is not None, "only recorded runs are trained"
    record_trials(run.folder.parent, run.run_id, run.config, dict(run.identity.settings))
    write_folds(run, dataset, folds)
    run.write_table("folds", fold_table(dataset, folds))
    planned = list(plan_tasks(run, dataset, folds))
    tasks = [task for task in planned if task.key not in done]
    stacks = stacks_of(planned, done, run.config.stack_seeds)
    stacked = {task.key for stack in stacks for task in stack}
    alone = [task for task in tasks if task.key not in stacked]
    if tasks:
        record(run, _started(run, dataset, lake, done=len(planned) - len(tasks), planned=len(planned)))
    left = {task.key for task in tasks}
    started = time.monotonic()
    with progress.stage("train", total=len(tasks)), watch_curves(run.folder / "curves", progress):
        for note in constant_channels(tasks, dataset):
            progress.note(note)
        if done:
            progress.note(f"{len(done)} of {len(planned)} tasks were already done and are skipped.")
        arrays = collect_arrays(dataset, run.config.features.window)
        try:
            for task, outcome in chain(
                execute(alone, arrays, run.config.workers), run_stacks(stacks, arrays, done)
            ):
                commit(run, lake, dataset, task, outcome)
                left.remove(task.key)
                progress.step(
                    f"{task.model} fold {task.fold.index} seed {task.seed}: "
                    f"validation rank IC {outcome.valid_rank_ic:+.4f}"
                )
        finally:
            if left:
                ordered = [task.key for task in tasks if task.key in left]
                missing = describe_missing(ordered, [fold.index for fold in folds], run.config.seeds)
                progress.note(
                    f"The run is incomplete. Missing: {missing}. Repeat the command to train the rest."
                )
    if tasks:
        record(run, TrainingEnded(seconds=round(time.monotonic() - started, 1)))


def _started(run: Run, dataset: Dataset, lake: Lake, *, done: int, planned: int) -> TrainingStarted:
    """Describe the training session that is about to start."""
    hazards, notes = collect_hazards(run, dataset, lake)
    return TrainingStarted(
        environment=environment(),
        device=resolve_device(run.config.device),
        versions=dict(run.versions),
        hazards=tuple(hazards),
        notes=tuple(notes),
        trials=trial_count(run.folder.parent),
        done=done,
        planned=planned,
    )
