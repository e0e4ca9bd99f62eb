"""Fitting a config's models through the pipeline's own tasks, with a small budget.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from backtest.splits.folds import Fold
from features.arrays import IntArray
from pipelines.audit.compare import Difference, difference
from pipelines.audit.subject import Subject, small_fit_config, temporary_run
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import FoldInputs
from pipelines.execution.open import open_engine
from pipelines.execution.protocol import Failed, Tell, Work, run_jobs
from pipelines.train import walkforward
from pipelines.train.task import Arrays, Key, Outcome, Task, collect_arrays
from pipelines.train.work import GroupItem, groups_of, run_groups, train_group, work_on_arrays


def models_to_fit(subject: Subject) -> tuple[str, ...]:
    """Select the models that are fitted: all except those without parameters."""
    names = subject.config.models
    return tuple(name for name in names if registry_name(subject.config, name) not in ("zero", "reversal"))


@dataclass(frozen=True, slots=True, eq=False)
class _VariantItem(GroupItem):
    """A group, and the number of the variant of the data that it is trained on."""

    variant: int = 0


def fits(config: Config, datasets: Sequence[Dataset], fold: Fold) -> list[list[tuple[Task, Outcome]]]:
    """Fit the models of a reduced config on variants of a dataset as ``peerglass train`` does.

    The tasks run where those of a training would run: in its pool of processes if the config has more than
    one worker, and as a stack if its seeds are stacked. The engine is started once for all variants.

    Parameters
    ----------
    config
        The models and their settings (`small_fit_config`).
    datasets, fold
        Data to fit on, and dates.

    Returns
    -------
    list of list of tuple
        For each dataset: tasks in the order of the models and their outcomes.
    """
    arrays = tuple(collect_arrays(dataset, config.features.window) for dataset in datasets)
    with temporary_run(config) as run:
        planned = [list(walkforward.plan_tasks(run, dataset, [fold])) for dataset in datasets]
    jobs = [
        _VariantItem(group, {}, variant)
        for variant, tasks in enumerate(planned)
        for group in groups_of(tasks, (), config.stack_seeds)
    ]
    if not jobs:
        return [[] for _ in datasets]
    models = {task.registered for job in jobs for task in job.group}
    own = work_on_arrays(train_group, arrays[0], jobs[0].group[0].device, models)
    work = Work(_train_variant, arrays, own.memory, own.device, own.code)
    outcomes: dict[tuple[int, Key], Outcome] = {}
    with open_engine(config.execution, work, len(jobs)) as engine:
        for ended in run_jobs(engine, len(jobs), jobs.__getitem__):
            if isinstance(ended, Failed):
                raise ended.error
            job = jobs[ended.job]
            for task, outcome in zip(job.group, ended.result, strict=True):
                outcomes[job.variant, task.key] = outcome
    return [[(task, outcomes[v, task.key]) for task in tasks] for v, tasks in enumerate(planned)]


def _train_variant(arrays: tuple[Arrays, ...], item: _VariantItem, tell: Tell) -> tuple[Outcome, ...]:
    return train_group(arrays[item.variant], item, tell)


def train_again(planned: Sequence[Task], arrays: Arrays, config: Config) -> list[tuple[Task, Outcome]]:
    """Train tasks where a training would train them, and store nothing of them."""
    trained: list[tuple[Task, Outcome]] = []
    groups = groups_of(planned, (), config.stack_seeds)
    for group, ended in run_groups(groups, arrays, config.execution):
        if isinstance(ended, Failed):
            raise ended.error
        trained.extend(zip(group, ended.result, strict=True))
    return trained


def few_firms(dataset: Dataset, columns_N: IntArray) -> Dataset:
    """Select some firms of a dataset, as far as tasks read it: of its panel, the groups and tickers."""
    panel = dataset.panel
    own = tuple(panel.tickers_N[n] for n in columns_N)
    return replace(
        dataset,
        panel=replace(panel, tickers_N=own, group_TN=panel.group_TN[:, columns_N]),
        universe_TN=dataset.universe_TN[:, columns_N],
        channels_TNC=dataset.channels_TNC[:, columns_N],
        characteristics_TNF=dataset.characteristics_TNF[:, columns_N],
        target_TN=dataset.target_TN[:, columns_N],
        path_TNK=None if dataset.path_TNK is None else dataset.path_TNK[:, columns_N],
        labels={delay: label_TN[:, columns_N] for delay, label_TN in dataset.labels.items()},
        shorter_labels={h: label_TN[:, columns_N] for h, label_TN in dataset.shorter_labels.items()},
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
