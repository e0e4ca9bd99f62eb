"""Training again without the test: a run's stored weights must not depend on what they are tested on.

One task of each model runs again in the executor of the training (its pool of processes, or its stack of
seeds), on arrays whose sessions outside training and validation are noise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from backtest.splits.folds import Fold
from features.arrays import IntArray
from pipelines.audit.checks.models.fit_scope import replace_outside, window_sessions
from pipelines.audit.compare import difference
from pipelines.audit.refit import train_again
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.device import resolve_device
from pipelines.run.provenance import TaskDone, read_provenance
from pipelines.train import walkforward
from pipelines.train.stacks import stacks_of
from pipelines.train.task import Outcome, Task, collect_arrays

NAME = "retrained"
MINUTES: Final = 15.0
"""Recorded training time of all tasks up to which they are trained again; longer models are named instead."""


def check(subject: Subject) -> Result:
    """Train one task of each model again with noise for the test, and compare with the stored weights.

    The first fold is trained, because it has the fewest sessions, with the first seed (all seeds of a stack).
    The comparison is to the bit. Weights of another device differ by rounding, so they are not compared.
    """
    if subject.run is None:
        return Result(NAME, "skipped", "A config has no stored weights; audit a run.")
    if resolve_device(subject.config.device) != "cpu":
        return Result(NAME, "skipped", "Training on a GPU does not repeat to the bit.")
    fold = subject.folds[0]
    chosen, left_out = _within_budget(subject, fold)
    if not chosen:
        return Result(NAME, "skipped", f"Training takes more than {MINUTES:.0f} minutes for every model.")
    rows: list[dict[str, object]] = []
    for task, outcome in _train(subject, fold, chosen):
        what = _differs_from_stored(subject, task, outcome)
        if what is not None:
            rows.append({"model": task.model, "fold": fold.index, "seed": task.seed, "what": what})
    if rows:
        one = rows[0]
        return Result(
            NAME,
            "fail",
            f"The stored weights of {one['model']}, fold {one['fold']}, seed {one['seed']} depend on "
            f"sessions outside its training and validation: trained again with noise there, "
            f"{one['what']} differ. "
            "The test was used in training, or the checkpoint is not of these settings.",
            pl.DataFrame(rows),
        )
    without = f"; not trained again, because it takes too long: {', '.join(left_out)}" if left_out else ""
    return Result(
        NAME,
        "pass",
        f"{', '.join(chosen)}: fold {fold.index}, trained again with noise for its test, has the stored "
        f"weights to the bit{without}.",
    )


def _within_budget(subject: Subject, fold: Fold) -> tuple[list[str], list[str]]:
    """Models whose recorded training times fit into the budget, shortest first, and all others."""
    assert subject.run is not None
    seconds: dict[str, float] = dict.fromkeys(subject.config.models, 0.0)
    for event in read_provenance(subject.run):
        if isinstance(event, TaskDone) and event.fold == fold.index and event.model in seconds:
            seconds[event.model] = max(seconds[event.model], event.seconds or 0.0)
    chosen: list[str] = []
    spent = 0.0
    for model in sorted(seconds, key=seconds.__getitem__):
        spent += seconds[model]
        if spent <= 60.0 * MINUTES:
            chosen.append(model)
    return [m for m in seconds if m in chosen], [m for m in seconds if m not in chosen]


def _train(subject: Subject, fold: Fold, models: list[str]) -> list[tuple[Task, Outcome]]:
    run, config = subject.run, subject.config
    assert run is not None
    sessions = subject.dataset.panel.n_sessions
    seen: IntArray = np.concatenate([fold.train, fold.valid])
    span = np.arange(fold.train[0], fold.train[-1] + 1)  # pretraining reads windows between decisions
    kept_T = np.zeros(sessions, dtype=np.bool_)
    kept_T[seen] = True
    windows_T = window_sessions(np.concatenate([span, fold.valid]), config.features.window, subject.dataset)
    noisy = replace_outside(subject.dataset, kept_T, windows_T, subject.seed + 3)
    arrays = collect_arrays(noisy, config.features.window)
    planned = [task for task in walkforward.plan_tasks(run, noisy, [fold]) if task.model in models]
    stacked = {task.key for stack in stacks_of(planned, (), config.stack_seeds) for task in stack}
    first = config.seeds[0]
    kept = [task for task in planned if task.seed == first or task.key in stacked]
    return train_again(kept, arrays, config)


def _differs_from_stored(subject: Subject, task: Task, outcome: Outcome) -> str | None:
    """Name the first part of the stored model that differs; None if all are equal."""
    from pipelines.run.checkpoints import load_checkpoint

    assert subject.run is not None
    fitted, _ = load_checkpoint(subject.run.checkpoint(task.model, task.fold.index, task.seed))
    stored: dict[str, Any] = dict(fitted.state().tensors)
    again = dict(outcome.state.tensors)
    if set(stored) != set(again):
        return "its tensors"
    for name in sorted(again):
        if difference(np.asarray(again[name]), np.asarray(stored[name]), name) is not None:
            return f"the values of {name}"
    ours, theirs = (
        np.array([list(line.values()) for line in state.config.get("calibration", ())], dtype=np.float64)
        for state in (outcome.state, fitted.state())
    )
    return None if difference(ours, theirs, "the calibration") is None else "its calibration"
