"""Tasks of the walk-forward: fit one model on one fold with one seed, and forecast the test of the fold.

:func:`run_task` is what one task does; :mod:`pipelines.train.work` hands tasks to an engine.

A task is a pure function of its arguments and is computed on one thread, so that repeating it after an
interruption gives the same numbers. A network saves a snapshot after every epoch and resumes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from backtest.forecasts.metrics import forecast_metrics
from backtest.splits.folds import Fold
from features.arrays import IntArray
from features.options import Options
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, Fitted, FittedState, NoTrainingSignal, OnEpoch
from models.fitting.config import PORTFOLIO, FitConfig
from models.fitting.fit import NeuralFitted, fit, fit_stacked, refit
from models.fitting.snapshot import UnusableSnapshot
from models.fitting.stacked import can_stack
from models.forecaster import lags_of
from models.panel_memory import exceeds_device, is_out_of_memory
from models.quantiles import pinball
from models.registry import model_entry
from models.spec import IncompatibleConfig
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import FoldInputs
from pipelines.device import keep_compiled_steps
from pipelines.errors import ConfigError, DivergedError
from pipelines.machine import GIB
from pipelines.run.checkpoints import FileSnapshotStore
from pipelines.run.record import TaskKey


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The arrays of a dataset that a task reads, before the fold's `FoldInputs` are applied."""

    channels_TNC: npt.NDArray[np.float32]
    characteristics_TNF: npt.NDArray[np.float32]
    universe_TN: npt.NDArray[np.bool_]
    group_TN: npt.NDArray[np.integer]
    groups: tuple[str, ...]
    target_TN: npt.NDArray[np.float32]
    label_TN: npt.NDArray[np.float64]
    path_TNK: npt.NDArray[np.float32] | None
    characteristic_names: tuple[str, ...]
    tickers: tuple[str, ...]
    window: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A model to be fitted on one fold with one seed."""

    model: str  # entry of ``models`` in the config
    registered: str  # name of the model in the registry
    options: Options
    fit: FitConfig
    fold: Fold
    seed: int
    inputs: FoldInputs  # channel scales and groups, fitted on the fold's training sessions
    device: str  # device of the panel and the network; ``cpu`` for baselines, which compute on the processor
    snapshot: Path  # of an unfinished training, in the run's folder; only the parent reads and writes it
    start: FittedState | None = None  # a fitted model whose day encoder it starts from
    is_member: bool = False  # whether an ensemble combines its forecasts (`pipelines.train.walkforward`)

    @property
    def key(self) -> TaskKey:
        """Model, fold and seed, which identify the task in its run."""
        return self.model, self.fold.index, self.seed


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Result of a task."""

    test_BN: npt.NDArray[np.float32]  # of sessions (live folds: none); NaN outside the universe
    valid_rank_ic: float
    valid_ic: float
    history: tuple[EpochRecord, ...]  # learning curve; with ``fit.refit``, that of the first fit
    state: FittedState
    path_BNK: npt.NDArray[np.float32] | None = None  # forecasts at the K shorter horizons, if any
    quantile_scores: Scores | None = None  # on the test; None for a model without quantiles
    valid_BN: npt.NDArray[np.float32] | None = None  # a member's, by the model scored on validation
    seconds: float | None = None  # in its process (a stack's divided evenly); None until known


def task_device(registered: str, device: str) -> str:
    """Device of a model's tasks: that of the config for networks, the processor for baselines."""
    return device if model_entry(registered).kind == "neural" else "cpu"


def collect_arrays(dataset: Dataset, window: int) -> Arrays:
    """Collect the arrays that tasks read."""
    delay = next(iter(dataset.labels))
    return Arrays(
        channels_TNC=dataset.channels_TNC,
        characteristics_TNF=dataset.characteristics_TNF,
        universe_TN=dataset.universe_TN,
        group_TN=dataset.panel.group_TN,
        groups=dataset.panel.groups_S,
        target_TN=dataset.target_TN,
        label_TN=np.where(dataset.universe_TN, dataset.labels[delay], np.nan),
        path_TNK=dataset.path_TNK,
        characteristic_names=dataset.characteristic_names,
        tickers=tuple(dataset.panel.tickers_N),
        window=window,
    )


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
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        cure = "A single date is too large: use a smaller model or universe, or set device: cpu"
        if task.fit.batch_dates > 1:
            cure = f"Lower models.{task.model}.fit.batch_dates"
            cure += "" if seeds.startswith("seed ") else ", or set stack_seeds: false"
        raise DivergedError(
            f"{subject}: the device {task.device} ran out of memory at fit.batch_dates "
            f"{task.fit.batch_dates}. {cure}; finished folds are kept."
        ) from None


def run_task(
    task: Task,
    arrays: Arrays,
    snapshots: FileSnapshotStore | None = None,
    on_epoch: OnEpoch | None = None,
    *,
    note: Callable[[str], None] = lambda _: None,
    threads: int = 1,
) -> Outcome:
    """Fit (or resume from a snapshot, to the bit), select, refit if it is set, and forecast the test once."""
    _prepare(task.device)
    windows = model_entry(task.registered).build.reads_windows or lags_of(task.options) > 0
    returns = task.fit.loss in PORTFOLIO
    data = to_tensors(arrays, task.inputs, task.device, windows=windows, returns=returns, note=note)
    on = (data, task.fold.train, task.fold.valid)
    how: dict[str, Any] = {"fit_config": task.fit, "seed": task.seed, "start": task.start}
    how |= {"note": note, "threads": threads}
    with _named_snapshot(snapshots):
        chosen = fit(task.registered, task.options, *on, on_epoch=on_epoch, snapshots=snapshots, **how)
    if not task.fit.refit:
        return outcome_of(task, arrays, data, chosen)
    again = None if snapshots is None else snapshots.of_refit()
    with _named_snapshot(again):
        fitted = refit(chosen, *on, snapshots=again, **how)
    return outcome_of(task, arrays, data, chosen, fitted)


@contextmanager
def _named_snapshot(snapshots: FileSnapshotStore | None) -> Iterator[None]:
    """Turn an error about an unusable snapshot into one that names its file."""
    try:
        yield
    except UnusableSnapshot as error:
        assert snapshots is not None, "an unusable snapshot was read from a store"
        raise snapshots.unusable(error) from None


def outcome_of(
    task: Task, arrays: Arrays, data: PanelTensors, chosen: Fitted, refitted: Fitted | None = None
) -> Outcome:
    """Score a model on validation before any refit, and forecast the test once after it."""
    valid_BN = chosen.forecast(data, task.fold.valid)
    valid = forecast_metrics(valid_BN, arrays.label_TN[task.fold.valid])
    fitted, test = chosen if refitted is None else refitted, task.fold.test
    path_BNK, quantile_scores = None, None
    if isinstance(fitted, NeuralFitted):
        if fitted.module.n_horizons > 1:
            path_BNK = fitted.horizons(data, test)[..., :-1]
        if fitted.module.quantile_head is not None and len(test):
            target_TN = np.where(arrays.universe_TN, arrays.target_TN, np.float32(np.nan))
            levels, quantile_BNQ = fitted.module.quantile_head.levels, fitted.quantiles(data, test)
            quantile_scores = score_quantiles(quantile_BNQ, target_TN, levels, task.fold.train, test)
    return Outcome(
        test_BN=fitted.forecast(data, test),
        valid_rank_ic=valid.rank_ic,
        valid_ic=valid.ic,
        history=tuple(chosen.history),
        state=fitted.state(),
        path_BNK=path_BNK,
        quantile_scores=quantile_scores,
        valid_BN=valid_BN if task.is_member else None,
    )


def to_tensors(
    arrays: Arrays,
    inputs: FoldInputs,
    device: str,
    *,
    windows: bool = True,
    returns: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> PanelTensors:
    """Move a fold's panel to the device, scaled; what fills half of a GPU stays in the host's memory.

    ``windows`` False: without channels. ``returns``: with the raw label, which a portfolio's loss needs.
    """
    size = 4 * (arrays.characteristics_TNF.size + windows * arrays.channels_TNC.size)
    in_host_memory = exceeds_device(device, size)
    if in_host_memory:
        note(
            f"The panel of {size / GIB:.1f} GiB stays in the memory of the machine, because it "
            f"needs more than half of the free memory of {device}."
        )
    return PanelTensors.from_arrays(
        channels_TNC=arrays.channels_TNC,
        characteristics_TNF=np.asarray(arrays.characteristics_TNF),
        mask_TN=np.asarray(arrays.universe_TN),
        group_TN=inputs.known_groups(arrays.group_TN, arrays.groups),
        target_TN=np.asarray(arrays.target_TN),
        window=arrays.window,
        n_groups=len(inputs.groups),
        characteristic_names=arrays.characteristic_names,
        firm_names=arrays.tickers,
        path_TNK=None if arrays.path_TNK is None else np.asarray(arrays.path_TNK),
        return_TN=arrays.label_TN.astype(np.float32) if returns else None,
        device=device,
        scaler=inputs.scaler,
        complete=True,
        windows=windows,
        in_host_memory=in_host_memory,
    )


def stacks_of(tasks: Sequence[Task], done: Collection[TaskKey], stack_seeds: bool | None) -> list[list[Task]]:
    """Group the tasks that are trained together, without groups in which all tasks are done."""
    groups: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        stack = task.device != "cpu" if stack_seeds is None else stack_seeds
        if stack and task.start is None and can_stack(task.registered, task.fit):
            groups.setdefault((task.model, task.fold.index), []).append(task)
    return [
        group for group in groups.values() if len(group) > 1 and any(task.key not in done for task in group)
    ]


def _prepare(device: str) -> None:
    """One thread on a CPU; on a GPU, a place for what is compiled."""
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        keep_compiled_steps()


def run_stack(
    stack: Sequence[Task], arrays: Arrays, on_epoch: Sequence[OnEpoch], note: Callable[[str], None]
) -> list[Outcome]:
    """Train the seeds of a stack together, and forecast the test once with each."""
    first = stack[0]
    _prepare(first.device)
    data = to_tensors(arrays, first.inputs, first.device, returns=first.fit.loss in PORTFOLIO, note=note)
    models = fit_stacked(
        first.registered,
        first.options,
        data,
        first.fold.train,
        first.fold.valid,
        fit_config=first.fit,
        seeds=[task.seed for task in stack],
        on_epoch=on_epoch,
        note=note,
    )
    return [outcome_of(task, arrays, data, fitted) for task, fitted in zip(stack, models, strict=True)]


Scores = list[dict[str, float]]


def score_quantiles(
    quantile_DNQ: npt.NDArray[np.float32],
    target_TN: npt.NDArray[np.float32],
    levels: tuple[float, ...],
    train: IntArray,
    test: IntArray,
) -> Scores:
    """Score a task's test quantiles, and compare them with constant quantiles of the training targets."""
    target_DN = target_TN[test].astype(np.float64)
    dates_D = (np.isfinite(target_DN) & np.isfinite(quantile_DNQ).all(axis=2)).any(axis=1)
    target = torch.as_tensor(target_DN[dates_D])

    def by_date(cell_DN: npt.NDArray[np.float64]) -> float:
        """Mean over dates of the mean over firms."""
        return float(np.nanmean(cell_DN, axis=1).mean()) if len(cell_DN) else float("nan")

    def score(quantile_DN: npt.NDArray[np.float64], level: float) -> float:
        quantile = torch.as_tensor(quantile_DN[dates_D])[..., None]
        return by_date(pinball(quantile, target, (level,)).numpy())

    reference_Q = np.nanquantile(target_TN[train].astype(np.float64), levels)
    rows: Scores = []
    for q, level in enumerate(levels):
        forecast_DN = quantile_DNQ[..., q].astype(np.float64)
        reference_DN = np.where(np.isfinite(forecast_DN), reference_Q[q], np.nan)
        known_DN = np.isfinite(target_DN) & np.isfinite(forecast_DN)
        below_DN = np.where(known_DN, target_DN <= forecast_DN, np.nan)
        rows.append(
            {
                "level": level,
                "pinball": score(forecast_DN, level),
                "reference": score(reference_DN, level),
                "below": by_date(below_DN[dates_D]),
                "dates": float(dates_D.sum()),
            }
        )
    return rows
