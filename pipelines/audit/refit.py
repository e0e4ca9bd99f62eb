"""Fitting a config's models through the pipeline's own tasks, with a small budget.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from backtest.splits.fold import Fold
from features.arrays import IntArray
from models.registry import MODELS
from pipelines.audit.compare import Difference, difference
from pipelines.audit.subject import Subject, small_fit_config, temporary_run
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.fold_inputs import FoldInputs
from pipelines.train import task as tasks
from pipelines.train import walkforward
from pipelines.train.task import Arrays, Outcome, Task, collect_arrays


def models_to_fit(subject: Subject) -> tuple[str, ...]:
    """Select models within the budget: first the last neural model, then the fitted baselines."""
    registered = {name: registry_name(subject.config, name) for name in subject.config.models}
    fitted = [name for name, model in registered.items() if model not in ("zero", "reversal")]
    neural = [name for name in reversed(fitted) if MODELS[registered[name]].kind == "neural"]
    others = [name for name in fitted if name not in neural]
    ranked = [*neural[:1], *others, *neural[1:]]
    return tuple(ranked[: subject.budget.models])


def fits(
    config: Config, models: tuple[str, ...], dataset: Dataset, fold: Fold, columns_N: IntArray | None = None
) -> list[tuple[Task, Outcome]]:
    """Fit models on one fold as ``peerglass train`` does, with a reduced config.

    Parameters
    ----------
    config
        The models' settings.
    models
        Models to fit.
    dataset, fold
        Data and dates to fit on.
    columns_N
        Firms to fit on; None for all.
    """
    arrays = collect_arrays(dataset, config.features.window)
    if columns_N is not None:
        arrays = select_firms(arrays, columns_N)
    with temporary_run(small_fit_config(config, models)) as run:
        planned = walkforward.plan_tasks(run, dataset, [fold])
        return [(task, tasks.run_task(task, arrays)) for task in planned]


def select_firms(arrays: Arrays, columns_N: IntArray) -> Arrays:
    """Select some firms of the arrays that a task reads."""
    return replace(
        arrays,
        channels_TNC=np.ascontiguousarray(arrays.channels_TNC[:, columns_N]),
        characteristics_TNF=np.ascontiguousarray(arrays.characteristics_TNF[:, columns_N]),
        universe_TN=np.ascontiguousarray(arrays.universe_TN[:, columns_N]),
        group_TN=np.ascontiguousarray(arrays.group_TN[:, columns_N]),
        target_TN=np.ascontiguousarray(arrays.target_TN[:, columns_N]),
        label_TN=np.ascontiguousarray(arrays.label_TN[:, columns_N]),
        path_TNK=None if arrays.path_TNK is None else np.ascontiguousarray(arrays.path_TNK[:, columns_N]),
        tickers=tuple(arrays.tickers[n] for n in columns_N),
    )


def fit_inputs(config: Config, dataset: Dataset, fold: Fold) -> FoldInputs:
    """Fit a fold's inputs (scaler and groups) with the pipeline's own code."""
    with temporary_run(small_fit_config(config, tuple(config.models)[:1])) as run:
        return next(iter(walkforward.plan_tasks(run, dataset, [fold]))).inputs


def inputs_differ(left: FoldInputs, right: FoldInputs) -> list[Difference]:
    """Compare two folds' inputs to the bit."""
    pairs = (
        (left.scaler.mean_C, right.scaler.mean_C, "the channel scaler's means"),
        (left.scaler.std_C, right.scaler.std_C, "the channel scaler's deviations"),
        (np.array(left.groups), np.array(right.groups), "the groups"),
    )
    return [diff for one in pairs if (diff := difference(*one)) is not None]


def weights_differ(left: Outcome, right: Outcome, model: str) -> list[Difference]:
    """Compare the tensors and the validation scores of two fits to the bit."""
    diffs = [Difference(f"{model}'s tensors")] if set(left.state.tensors) != set(right.state.tensors) else []
    for name in sorted(set(left.state.tensors) & set(right.state.tensors)):
        one = difference(left.state.tensors[name], right.state.tensors[name], f"{model}'s {name}")
        diffs += [one] if one is not None else []
    scores = [np.array([record.valid_rank_ic for record in fit.history]) for fit in (left, right)]
    choice = difference(scores[0], scores[1], f"{model}'s validation scores")
    return [*diffs, *([choice] if choice is not None else [])]


def sample_columns(dataset: Dataset, sessions: npt.NDArray[np.integer], count: int, seed: int) -> IntArray:
    """Sample firms that are in the universe on at least one of the sessions."""
    present = np.flatnonzero(dataset.universe_TN[sessions].any(axis=0))
    if len(present) <= count:
        return present.astype(np.int64)
    drawn = np.random.default_rng(seed).choice(present, count, replace=False)
    return np.sort(drawn).astype(np.int64)
