"""Bitwise comparison of datasets and fits, and fits of a config's models through the pipeline's own tasks.

A difference means look-ahead. Shape suffixes: T sessions, N firms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from backtest.splits.folds import Fold
from features.arrays import IntArray
from models.registry import MODELS
from pipelines.audit.subject import Subject, small_fit_config, temporary_run
from pipelines.config.load import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import FoldInputs
from pipelines.device import resolve_device
from pipelines.run.record import TaskKey
from pipelines.train import walkforward
from pipelines.train.task import Arrays, Outcome, Task, collect_arrays
from pipelines.train.work import groups_of, run_groups

Array = npt.NDArray[Any]
_FIELDS: Final = (
    *("raw_close_TN", "close_TN", "open_TN", "high_TN", "low_TN", "volume_TN"),
    *("total_return_index_TN", "delisted_TN", "unknown_TN"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """An array that differs."""

    what: str  # name of the array, such as ``channel return``
    session: int = -1  # first row that differs; -1 if the shapes differ
    column: int = -1  # of the first cell that differs; -1 if there is none


def difference(left: Array, right: Array, what: str) -> list[Difference]:
    """Compare two arrays to the bit; empty if they are equal, else the first cell that differs."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return [Difference(what)]
    if left.tobytes() == right.tobytes():
        return []
    same = (left == right) | (pd.isna(left) & pd.isna(right))
    if same.all():
        return [Difference(f"{what} (a sign or a NaN's payload)")]
    first = np.argwhere(np.atleast_1d(~same))[0]  # atleast_1d, because a scalar has no axis
    return [Difference(what, int(first[0]), int(first[1]) if len(first) > 1 else -1)]


def differences_until(
    t: int, true: Dataset, noisy: Dataset, horizon: int = 1, path_delay: int = 1
) -> list[Difference]:
    """Compare arrays up to ``t``, labels that end by then, by ticker and in the order of computation."""
    sessions = difference(true.panel.dates_T[: t + 1], noisy.panel.dates_T[: t + 1], "the list of sessions")
    if sessions:
        return sessions
    if (true.channel_names, true.characteristic_names) != (noisy.channel_names, noisy.characteristic_names):
        return [Difference("the list of features")]
    own, theirs = common_firms(true, noisy)
    gone = np.setdiff1d(np.arange(true.panel.n_firms), own)
    if true.panel.members_TN is not None:  # firms that join later may be unknown
        gone = gone[true.panel.members_TN[t, gone]]
    if np.isfinite(true.panel.close_TN[: t + 1, gone]).any():
        return [Difference("the list of firms")]
    found = []
    if noisy.universe_TN[: t + 1, np.setdiff1d(np.arange(noisy.panel.n_firms), theirs)].any():
        found.append(Difference("the universe (a firm that is listed later)"))
    if set(true.panel.statements) != set(noisy.panel.statements):
        found.append(Difference("the list of statement items"))
    codes = {name: code for code, name in enumerate(true.panel.groups_S)}
    right = {what: array_TN for what, array_TN, _ in _arrays(noisy, codes, t, horizon, path_delay)}
    for what, left_TN, until in _arrays(true, codes, t, horizon, path_delay):
        right_TN = right.get(what)
        if left_TN is None or right_TN is None:
            found += [Difference(what)] if left_TN is not right_TN else []
            continue
        left, other = np.ascontiguousarray(left_TN[:until][:, own]), right_TN[:until][:, theirs]
        for one in difference(left, np.ascontiguousarray(other), what):
            found.append(replace(one, column=own[one.column] if one.column >= 0 else -1))
    return found


def common_firms(left: Dataset, right: Dataset) -> tuple[list[int], list[int]]:
    """Columns of the firms that two datasets share, in either, in the order of the second."""
    place = {ticker: n for n, ticker in enumerate(left.panel.tickers_N)}
    theirs = [n for n, ticker in enumerate(right.panel.tickers_N) if ticker in place]
    return [place[right.panel.tickers_N[n]] for n in theirs], theirs


def _arrays(
    data: Dataset, codes: dict[str, int], t: int, horizon: int, path_delay: int
) -> Iterator[tuple[str, Array | None, int]]:
    """Yield each array of a dataset by name, and the number of its rows that were known at t."""
    # group codes with the numbers of the other dataset: names are enumerated over the whole sample
    own = [codes.get(name, len(codes) + code) for code, name in enumerate(data.panel.groups_S)]
    for field in _FIELDS:
        yield f"the panel's {field.removesuffix('_TN').replace('_', ' ')}", getattr(data.panel, field), t + 1
    yield "the panel's group", np.array([*own, -1], dtype=np.int64)[data.panel.group_TN], t + 1
    for item in sorted(data.panel.statements):
        yield f"statement {item}", data.panel.statements[item], t + 1
    yield "the universe", data.universe_TN, t + 1
    for c, name in enumerate(data.channel_names):
        yield f"channel {name}", data.channels_TNC[:, :, c], t + 1
    for f, name in enumerate(data.characteristic_names):
        yield f"characteristic {name}", data.characteristics_TNF[:, :, f], t + 1
    for delay, label_TN in data.labels.items():
        yield f"the label at delay {delay}", label_TN, max(t - delay - horizon + 1, 0)
    for k, (shorter, label_TN) in enumerate(data.shorter_labels.items()):
        closed = max(t - path_delay - shorter + 1, 0)
        yield f"the label of horizon {shorter}", label_TN, closed
        path_TN = None if data.path_TNK is None else data.path_TNK[:, :, k]
        yield f"the target of horizon {shorter}", path_TN, closed


def models_to_fit(subject: Subject) -> tuple[str, ...]:
    """Select the models that are fitted: all except those without parameters."""
    names = subject.config.models
    return tuple(name for name in names if MODELS[registry_name(subject.config, name)].build.learns)


def fits(config: Config, dataset: Dataset, fold: Fold) -> list[tuple[Task, Outcome]]:
    """Fit a reduced config's models on a dataset: tasks and their outcomes."""
    with temporary_run(config) as run:
        planned = list(walkforward.plan_tasks(run, dataset, [fold]))
    return train_again(planned, collect_arrays(dataset, config.features.window), config)


def train_again(planned: Sequence[Task], arrays: Arrays, config: Config) -> list[tuple[Task, Outcome]]:
    """Train tasks where a training would train them, and store nothing of them."""
    outcomes: dict[TaskKey, Outcome] = {}
    groups = groups_of(planned, (), config.stack_seeds)
    for group, ended in run_groups(groups, arrays, config.execution, device=resolve_device(config.device)):
        outcomes |= {task.key: outcome for task, outcome in zip(group, ended.result, strict=True)}
    return [(task, outcomes[task.key]) for task in planned]


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
    ours, theirs = left.scaler.arrays(), right.scaler.arrays()
    pairs = [(ours[name], theirs[name], f"the channel scaler's {name}") for name in ours]
    pairs.append((np.array(left.groups), np.array(right.groups), "the groups"))
    return [one for pair in pairs for one in difference(*pair)]


def weights_differ(left: Outcome, right: Outcome, model: str) -> list[Difference]:
    """Compare the tensors and the validation scores of two fits to the bit."""
    diffs = [Difference(f"{model}'s tensors")] if set(left.state.tensors) != set(right.state.tensors) else []
    for name in sorted(set(left.state.tensors) & set(right.state.tensors)):
        diffs += difference(left.state.tensors[name], right.state.tensors[name], f"{model}'s {name}")
    scores = [np.array([record.valid_rank_ic for record in fit.history]) for fit in (left, right)]
    return diffs + difference(scores[0], scores[1], f"{model}'s validation scores")


def sample_columns(dataset: Dataset, sessions: npt.NDArray[np.integer], count: int, seed: int) -> IntArray:
    """Sample firms that are in the universe on at least one of the sessions."""
    present = np.flatnonzero(dataset.universe_TN[sessions].any(axis=0))
    if len(present) <= count:
        return present.astype(np.int64)
    drawn = np.random.default_rng(seed).choice(present, count, replace=False)
    return np.sort(drawn).astype(np.int64)
