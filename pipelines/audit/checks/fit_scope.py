"""What fits saw: only training sessions, and validation sessions only for early stopping.

``fit_scope`` fits small folds with noise outside their sessions. ``retrained`` trains one task of each model
of a run again, where its training ran, with noise for the test.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from backtest.look_ahead.finding import Result, compared, skipped
from backtest.splits.folds import Fold
from features.arrays import BoolArray, IntArray
from pipelines.audit.refit import (
    Difference,
    difference,
    few_firms,
    fit_inputs,
    fits,
    inputs_differ,
    models_to_fit,
    sample_columns,
    train_again,
    weights_differ,
)
from pipelines.audit.subject import Subject, shorter, small_fit_config
from pipelines.dataset.build import Dataset
from pipelines.device import resolve_device
from pipelines.run.provenance import TaskDone, read_provenance
from pipelines.run.record import Run
from pipelines.train import walkforward
from pipelines.train.task import Outcome, Task, collect_arrays, stacks_of

FloatT = TypeVar("FloatT", np.float32, np.float64)
MINUTES: Final = 15.0
"""Recorded training time of all tasks up to which they are trained again; longer models are named instead."""
_TRAIN, _CHOOSE = "its training sessions", "its training and validation sessions"


def fit_scope(subject: Subject) -> Result:
    """Replace all data outside a fold's training sessions and require identical fitted objects, to the bit.

    Scaler and groups, also stored ones, must not change when all other sessions are replaced; weights and
    early stopping when all but training and validation are; training losses when validation is as well.
    """
    folds, models = subject.folds[-subject.budget.folds :], models_to_fit(subject)
    rows = [
        {"fold": fold.index, "what": one.what, "scope": _TRAIN}
        for fold in folds
        for one in _inputs_of_fold(subject, fold)
    ]
    try:
        weights = list(_weights_of_fold(subject, folds[-1], models))
    except ValueError as error:
        return skipped(f"Models could not be fitted on a small fold: {error}")
    rows += [{"fold": folds[-1].index, "what": one.what, "scope": scope} for one, scope in weights]
    stored = " and the stored ones" if subject.run is not None else ""
    return compared(
        rows,
        lambda first: (
            f"{first['what'][0].upper()}{first['what'][1:]} of fold {first['fold']} depend on sessions "
            f"outside {first['scope']}."
        ),
        f"Channel scaler and groups{stored} of {len(folds)} fold(s) are bitwise identical when all other "
        f"sessions are replaced, and so are weights and early stopping ({', '.join(models) or 'none'}).",
    )


def _inputs_of_fold(subject: Subject, fold: Fold) -> Iterator[Difference]:
    true = fit_inputs(subject.config, subject.dataset, fold)
    train_T = _flags(fold.train, subject.dataset)
    # scaler and groups do not read characteristics, and copies of all would take memory
    without = replace(subject.dataset, characteristics_TNF=subject.dataset.characteristics_TNF[:, :, :1])
    replaced = replace_outside(without, train_T, train_T, subject.seed)
    yield from inputs_differ(true, fit_inputs(subject.config, replaced, fold))
    if subject.run is None:
        return
    from pipelines.run.checkpoints import load_checkpoint

    for model, seed in product(subject.config.models, subject.config.seeds):
        stored = load_checkpoint(subject.run.checkpoint(model, fold.index, seed))[1]
        for one in inputs_differ(true, stored):
            yield Difference(f"{one.what} stored in {model}, seed {seed}")


def _weights_of_fold(
    subject: Subject, fold: Fold, models: tuple[str, ...]
) -> Iterator[tuple[Difference, str]]:
    if not models:
        return
    budget, config = subject.budget, subject.config
    small = shorter(fold, budget.train, budget.valid, 2)
    columns = sample_columns(
        subject.dataset, np.concatenate([small.train, small.valid]), budget.firms, subject.seed
    )
    dataset, window = few_firms(subject.dataset, columns), config.features.window
    variants = (
        dataset,
        _noise_outside(dataset, (small.train, small.valid), window, subject.seed + 1),
        _noise_outside(dataset, (small.train,), window, subject.seed + 2),
    )
    reduced = small_fit_config(config, models, budget.epochs)
    for (task, left), (_, right), (_, other) in zip(*fits(reduced, variants, small), strict=True):
        yield from ((one, _CHOOSE) for one in weights_differ(left, right, task.model))
        # validation may only end training: the losses of the epochs in both fits are compared
        losses = [np.array([record.train_loss for record in fit.history]) for fit in (left, other)]
        common = min(len(loss) for loss in losses)
        path = difference(losses[0][:common], losses[1][:common], f"{task.model}'s training losses")
        if path is not None:
            yield path, _TRAIN


def _flags(sessions: npt.NDArray[np.integer], dataset: Dataset) -> BoolArray:
    kept_T = np.zeros(dataset.panel.n_sessions, dtype=np.bool_)
    kept_T[sessions] = True
    return kept_T


def _noise_outside(dataset: Dataset, segments: tuple[IntArray, ...], window: int, seed: int) -> Dataset:
    """Noise outside the sessions that a training on some segments reads; the first one is the training."""
    span = np.arange(segments[0][0], segments[0][-1] + 1)  # pretraining reads windows between decisions
    ends = np.concatenate([span, *segments[1:]])
    windows = np.maximum(ends[:, None] - np.arange(window), 0).ravel()
    return replace_outside(dataset, _flags(np.concatenate(segments), dataset), _flags(windows, dataset), seed)


def replace_outside(dataset: Dataset, kept_T: BoolArray, windows_T: BoolArray, seed: int) -> Dataset:
    """Replace a dataset's arrays by noise, except on the kept sessions; channels have their own."""
    rng = np.random.default_rng(seed)
    replaced_T, panel = ~kept_T, dataset.panel
    shape = (int(replaced_T.sum()), panel.n_firms)

    def noisy(array: npt.NDArray[FloatT], replaced: BoolArray, scale: float) -> npt.NDArray[FloatT]:
        out = array.copy()
        drawn = rng.standard_normal((int(replaced.sum()), *array.shape[1:]), dtype=np.float32)
        out[replaced] = scale * drawn
        return out

    universe_TN, group_TN = dataset.universe_TN.copy(), panel.group_TN.copy()
    universe_TN[replaced_T] = rng.random(shape) < 0.7
    group_TN[replaced_T] = rng.integers(-1, len(panel.groups_S) + 1, shape)
    return replace(
        dataset,
        panel=replace(panel, group_TN=group_TN, groups_S=(*panel.groups_S, "a new group")),
        universe_TN=universe_TN,
        channels_TNC=noisy(dataset.channels_TNC, ~windows_T, 5.0),
        characteristics_TNF=noisy(dataset.characteristics_TNF, replaced_T, 2.0),
        target_TN=noisy(dataset.target_TN, replaced_T, 2.0),
        path_TNK=None if dataset.path_TNK is None else noisy(dataset.path_TNK, replaced_T, 2.0),
        labels={delay: noisy(label_TN, replaced_T, 0.1) for delay, label_TN in dataset.labels.items()},
    )


def retrained(subject: Subject) -> Result:
    """Train one task of each model again with noise for the test, and compare with the stored weights.

    The first fold is trained, because it has the fewest sessions, with the first seed (all seeds of a stack).
    The comparison is to the bit. Weights of another device differ by rounding, so they are not compared.
    """
    run, config = subject.run, subject.config
    if run is None:
        return skipped("A config has no stored weights; audit a run.")
    if resolve_device(config.device) != "cpu":
        return skipped("Training on a GPU does not repeat to the bit.")
    fold = subject.folds[0]
    chosen = _within_budget(run, fold)
    if not chosen:
        return skipped(f"Training takes more than {MINUTES:.0f} minutes for every model.")
    window = config.features.window
    noisy = _noise_outside(subject.dataset, (fold.train, fold.valid), window, subject.seed + 3)
    planned = [task for task in walkforward.plan_tasks(run, noisy, [fold]) if task.model in chosen]
    stacked = {task.key for stack in stacks_of(planned, (), config.stack_seeds) for task in stack}
    kept = [task for task in planned if task.seed == config.seeds[0] or task.key in stacked]
    rows = [
        {"model": task.model, "fold": fold.index, "seed": task.seed, "what": what}
        for task, outcome in train_again(kept, collect_arrays(noisy, window), config)
        if (what := _differs_from_stored(run, task, outcome)) is not None
    ]
    left_out = ", ".join(model for model in config.models if model not in chosen)
    return compared(
        rows,
        lambda one: (
            f"The stored weights of {one['model']}, fold {one['fold']}, seed {one['seed']} depend on "
            f"sessions outside its training and validation: trained again with noise there, {one['what']} "
            "differ. The test was used in training, or the checkpoint is not of these settings."
        ),
        f"{', '.join(chosen)}: fold {fold.index}, trained again with noise for its test, has the stored "
        "weights to the "
        f"bit{f'; not trained again, because it takes too long: {left_out}' if left_out else ''}.",
    )


def _within_budget(run: Run, fold: Fold) -> list[str]:
    """Models whose recorded training times fit into the budget, shortest first."""
    seconds: dict[str, float] = dict.fromkeys(run.config.models, 0.0)
    for event in read_provenance(run):
        if isinstance(event, TaskDone) and event.fold == fold.index and event.model in seconds:
            seconds[event.model] = max(seconds[event.model], event.seconds or 0.0)
    shortest = sorted(seconds, key=seconds.__getitem__)
    spent = np.cumsum([seconds[model] for model in shortest])
    chosen = {model for model, total in zip(shortest, spent, strict=True) if total <= 60.0 * MINUTES}
    return [model for model in seconds if model in chosen]


def _differs_from_stored(run: Run, task: Task, outcome: Outcome) -> str | None:
    """Name the first part of the stored model that differs; None if all are equal."""
    from pipelines.run.checkpoints import load_checkpoint

    fitted, _ = load_checkpoint(run.checkpoint(task.model, task.fold.index, task.seed))
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
