"""Fit scope: fitted objects may depend only on training sessions, and on validation only for early stopping.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.splits.folds import Fold
from features.arrays import BoolArray
from pipelines.audit.compare import Difference, difference
from pipelines.audit.refit import (
    few_firms,
    fit_inputs,
    fits,
    inputs_differ,
    models_to_fit,
    sample_columns,
    weights_differ,
)
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject, shorter, small_fit_config
from pipelines.dataset.build import Dataset
from pipelines.dataset.fold_inputs import FoldInputs
from pipelines.train.task import Outcome

NAME = "fit_scope"
FloatT = TypeVar("FloatT", np.float32, np.float64)
_SCOPES = {
    "train": "its training sessions",
    "choose": "its training and validation sessions",
}


def check(subject: Subject) -> Result:
    """Replace all data outside a fold's training sessions and require identical fitted objects.

    - Scaler and groups must not change when all other sessions are replaced. For a run, the stored ones
      are compared as well.
    - Weights and early stopping must not change when all but training and validation sessions are replaced.
    - Training losses must not change when the validation sessions are replaced as well.

    All comparisons are to the bit.
    """
    rows: list[dict[str, object]] = []
    folds = subject.folds[-subject.budget.folds :]
    for fold in folds:
        rows += [{"fold": fold.index, **row} for row in _inputs_of_fold(subject, fold)]
    models = models_to_fit(subject)
    try:
        rows += [{"fold": folds[-1].index, **row} for row in _weights_of_fold(subject, folds[-1], models)]
    except ValueError as error:
        return Result(NAME, "skipped", f"Models could not be fitted on a small fold: {error}")
    if rows:
        first = rows[0]
        return Result(
            NAME,
            "fail",
            f"{str(first['what'])[0].upper()}{str(first['what'])[1:]} of fold {first['fold']} depend on "
            f"sessions outside {first['scope']}.",
            pl.DataFrame(rows, infer_schema_length=None),
        )
    listed = ", ".join(models) or "none"
    stored = " and the stored ones" if subject.run is not None else ""
    return Result(
        NAME,
        "pass",
        f"Channel scaler and groups{stored} of {len(folds)} fold(s) are bitwise identical when all "
        f"other sessions are replaced, and so are weights and early stopping ({listed}).",
    )


def _inputs_of_fold(subject: Subject, fold: Fold) -> list[dict[str, object]]:
    true = fit_inputs(subject.config, subject.dataset, fold)
    train_T = _rows(fold.train, subject.dataset)
    # scaler and groups do not read characteristics, and copies of all would take memory
    without = replace(subject.dataset, characteristics_TNF=subject.dataset.characteristics_TNF[:, :, :1])
    replaced = replace_outside(without, train_T, train_T, subject.seed)
    diffs = inputs_differ(true, fit_inputs(subject.config, replaced, fold))
    rows = [_row(one, "train") for one in diffs]
    for where, stored in _stored_inputs(subject, fold):
        for one in inputs_differ(true, stored):
            rows.append(_row(Difference(f"{one.what} stored in {where}"), "train"))
    return rows


def _stored_inputs(subject: Subject, fold: Fold) -> list[tuple[str, FoldInputs]]:
    if subject.run is None:
        return []
    from pipelines.run.checkpoints import load_checkpoint

    run = subject.run
    keys = [(model, seed) for model in run.config.models for seed in run.config.seeds]
    return [
        (f"{model}, seed {seed}", load_checkpoint(run.checkpoint(model, fold.index, seed))[1])
        for model, seed in keys
    ]


def _weights_of_fold(subject: Subject, fold: Fold, models: tuple[str, ...]) -> list[dict[str, object]]:
    if not models:
        return []
    budget, config = subject.budget, subject.config
    small = shorter(fold, budget.train, budget.valid, 2)
    seen = np.concatenate([small.train, small.valid])
    columns = sample_columns(subject.dataset, seen, budget.firms, subject.seed)
    dataset = few_firms(subject.dataset, columns)
    window, reduced = config.features.window, small_fit_config(config, models, budget.epochs)
    span = np.arange(small.train[0], small.train[-1] + 1)  # pretraining reads windows between decisions
    without_test = replace_outside(
        dataset,
        _rows(seen, dataset),
        window_sessions(np.concatenate([span, small.valid]), window, dataset),
        subject.seed + 1,
    )
    train_alone = replace_outside(
        dataset, _rows(small.train, dataset), window_sessions(span, window, dataset), subject.seed + 2
    )
    rows = []
    variants = (dataset, without_test, train_alone)
    for (task, left), (_, right), (_, other) in zip(*fits(reduced, variants, small), strict=True):
        rows += [_row(one, "choose") for one in weights_differ(left, right, task.model)]
        path = _paths_differ(left, other, task.model)
        rows += [_row(path, "train")] if path is not None else []
    return rows


def _paths_differ(left: Outcome, right: Outcome, model: str) -> Difference | None:
    """Compare the training losses of the epochs in both fits: validation may only end training."""
    losses = [np.array([record.train_loss for record in fit.history]) for fit in (left, right)]
    common = min(len(loss) for loss in losses)
    return difference(losses[0][:common], losses[1][:common], f"{model}'s training losses")


def _row(diff: Difference, scope: str) -> dict[str, object]:
    return {"what": diff.what, "scope": _SCOPES[scope]}


def _rows(sessions: npt.NDArray[np.integer], dataset: Dataset) -> BoolArray:
    kept_T = np.zeros(dataset.panel.n_sessions, dtype=np.bool_)
    kept_T[sessions] = True
    return kept_T


def window_sessions(sessions: npt.NDArray[np.integer], window: int, dataset: Dataset) -> BoolArray:
    """Flag the sessions in windows that end on the given sessions."""
    kept_T = np.zeros(dataset.panel.n_sessions, dtype=np.bool_)
    for back in range(window):
        kept_T[np.maximum(sessions - back, 0)] = True
    return kept_T


def replace_outside(dataset: Dataset, kept_T: BoolArray, windows_T: BoolArray, seed: int) -> Dataset:
    """Replace a dataset's arrays by noise on all sessions except the kept ones.

    Parameters
    ----------
    dataset
        The true dataset.
    kept_T
        Sessions whose universe, characteristics, groups and labels are kept.
    windows_T
        Sessions whose channels are kept.
    seed
        Seed of the noise.
    """
    rng = np.random.default_rng(seed)
    replaced_T = ~kept_T
    count = int(replaced_T.sum())
    n_firms = dataset.panel.n_firms

    def noisy(array: npt.NDArray[FloatT], replaced: BoolArray, scale: float) -> npt.NDArray[FloatT]:
        out = array.copy()
        shape = (int(replaced.sum()), *array.shape[1:])
        out[replaced] = scale * rng.standard_normal(shape, dtype=np.float32)
        return out

    universe_TN = dataset.universe_TN.copy()
    universe_TN[replaced_T] = rng.random((count, n_firms)) < 0.7
    group_TN = dataset.panel.group_TN.copy()
    group_TN[replaced_T] = rng.integers(-1, len(dataset.panel.groups_S) + 1, (count, n_firms))
    return replace(
        dataset,
        panel=replace(dataset.panel, group_TN=group_TN, groups_S=(*dataset.panel.groups_S, "a new group")),
        universe_TN=universe_TN,
        channels_TNC=noisy(dataset.channels_TNC, ~windows_T, 5.0),
        characteristics_TNF=noisy(dataset.characteristics_TNF, replaced_T, 2.0),
        target_TN=noisy(dataset.target_TN, replaced_T, 2.0),
        path_TNK=None if dataset.path_TNK is None else noisy(dataset.path_TNK, replaced_T, 2.0),
        labels={delay: noisy(label_TN, replaced_T, 0.1) for delay, label_TN in dataset.labels.items()},
    )
