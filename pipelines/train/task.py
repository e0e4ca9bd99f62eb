"""A task of the walk-forward: one model, one fold, one seed; its arrays, its outcome, and doing it.

A task is a pure function of its arguments, computed on one thread, so that doing it again after a kill gives
the same numbers. A network leaves a snapshot after every epoch, and goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from backtest.metrics import forecast_metrics
from backtest.splits import Fold
from features.arrays import IntArray
from models.batch import PanelTensors
from models.fitted import Fitted, OnEpoch
from models.fitting.fit import EpochRecord, FitConfig, FittedState, NeuralFitted, fit, refit
from models.fitting.snapshot import UnusableSnapshot
from pipelines.dataset.build import FoldInputs
from pipelines.run.snapshots import FileSnapshotStore
from pipelines.run.warm_start import load_warm_start
from pipelines.train.quantiles import Scores, score_quantiles

Key = tuple[str, int, int]
"""Model, fold and seed of a task."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The part of a dataset that a task reads, before its fold's `FoldInputs`."""

    channels_TNC: npt.NDArray[np.float32]
    characteristics_TNF: npt.NDArray[np.float32]
    universe_TN: npt.NDArray[np.bool_]
    group_TN: npt.NDArray[np.int64]
    target_TN: npt.NDArray[np.float32]
    label_TN: npt.NDArray[np.float64]
    path_TNK: npt.NDArray[np.float32] | None
    characteristic_names: tuple[str, ...]
    tickers: tuple[str, ...]
    window: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One model to be fitted on one fold with one seed."""

    model: str  # the entry of the config
    registered: str  # the model that it is
    settings: Mapping[str, Any]
    fit: FitConfig
    fold: Fold
    seed: int
    inputs: FoldInputs
    device: str
    curve: Path
    snapshot: Path | None = None  # where an unfinished training is kept; None: nowhere
    start: Path | None = None  # checkpoint of an earlier run whose day encoder it begins with

    @property
    def key(self) -> Key:
        """What it is done under."""
        return self.model, self.fold.index, self.seed


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a task answers: forecasts of its validation and test sessions, and the fitted state."""

    test_BN: npt.NDArray[np.float32]
    valid_rank_ic: float
    valid_ic: float
    history: tuple[EpochRecord, ...]
    state: FittedState
    path_BNK: npt.NDArray[np.float32] | None = (
        None  # test forecasts of the shorter horizons, if there are some
    )
    quantile_scores: Scores | None = None  # of the test, of a model that was fitted to quantiles


def run_task(task: Task, arrays: Arrays, snapshots: FileSnapshotStore | None = None) -> Outcome:
    """Fit, choose on validation, fit again if asked to, forecast the test once, on one thread on a CPU.

    With a keeper, an unfinished training goes on from its snapshot; what comes out is the same to the bit.
    """
    if task.device == "cpu":
        torch.set_num_threads(1)
    data, start = to_tensors(arrays, task.inputs, task.device), load_warm_start(task.start)
    with learning_curve(task.curve) as on_epoch, _going_on(snapshots):
        chosen = fit(
            task.registered,
            task.settings,
            data,
            data.shape,
            task.fold.train,
            task.fold.valid,
            fit_config=task.fit,
            seed=task.seed,
            on_epoch=on_epoch,
            snapshots=snapshots,
            start=start,
        )
    if not task.fit.refit:
        return outcome_of(task, arrays, data, chosen)
    again = None if snapshots is None else snapshots.sibling("refit")
    with _going_on(again):
        fitted = refit(
            chosen,
            data,
            task.fold.train,
            task.fold.valid,
            fit_config=task.fit,
            seed=task.seed,
            snapshots=again,
            start=start,
        )
    return outcome_of(task, arrays, data, chosen, fitted)


@contextmanager
def _going_on(snapshots: FileSnapshotStore | None) -> Iterator[None]:
    """Say which file holds a snapshot that cannot be continued."""
    try:
        yield
    except UnusableSnapshot as error:
        assert snapshots is not None, "a snapshot came from somewhere"
        raise snapshots.unusable(error) from None


@contextmanager
def learning_curve(path: Path) -> Iterator[OnEpoch]:
    """Open a learning curve; what is given writes a line an epoch, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as curve:

        def on_epoch(record: EpochRecord) -> None:
            curve.write(json.dumps(asdict(record)) + "\n")
            curve.flush()

        yield on_epoch


def outcome_of(
    task: Task, arrays: Arrays, data: PanelTensors, chosen: Fitted, refitted: Fitted | None = None
) -> Outcome:
    """Measure a fitted model on its task's validation, and let it forecast its test once.

    Where it was fitted again with validation among its training sessions, the one that was chosen by them is
    measured, and the other forecasts.
    """
    valid = forecast_metrics(chosen.forecast(data, task.fold.valid), arrays.label_TN[task.fold.valid])
    fitted = chosen if refitted is None else refitted
    return Outcome(
        test_BN=fitted.forecast(data, task.fold.test),
        valid_rank_ic=valid.rank_ic,
        valid_ic=valid.ic,
        history=tuple(fitted.history),
        state=fitted.state(),
        path_BNK=_path(fitted, data, task.fold.test),
        quantile_scores=_quantile_scores(task, arrays, data, fitted),
    )


def _quantile_scores(task: Task, arrays: Arrays, data: PanelTensors, fitted: Fitted) -> Scores | None:
    """Score the test's quantiles, of a model that was fitted to some."""
    if not isinstance(fitted, NeuralFitted) or fitted.module.quantile_head is None:
        return None
    levels, fold = fitted.module.quantile_head.levels, task.fold
    quantile_BNQ = fitted.quantiles(data, fold.test)
    target_TN = np.where(arrays.universe_TN, arrays.target_TN, np.float32(np.nan))
    return score_quantiles(quantile_BNQ, target_TN, levels, fold.train, fold.test)


def _path(fitted: Fitted, data: PanelTensors, dates: IntArray) -> npt.NDArray[np.float32] | None:
    """Forecasts of the horizons below the label's, of a model that has some."""
    if not isinstance(fitted, NeuralFitted) or fitted.module.n_horizons == 1:
        return None
    return fitted.horizons(data, dates)[..., :-1]


def to_tensors(arrays: Arrays, inputs: FoldInputs, device: str) -> PanelTensors:
    """Put a fold's panel on the device, channels and groups as the fold's training sessions know them."""
    return PanelTensors.from_arrays(
        channels_TNC=inputs.scaler.apply(arrays.channels_TNC),
        characteristics_TNF=np.asarray(arrays.characteristics_TNF),
        mask_TN=np.asarray(arrays.universe_TN),
        group_TN=inputs.known_groups(arrays.group_TN),
        target_TN=np.asarray(arrays.target_TN),
        window=arrays.window,
        n_groups=len(inputs.groups_G),
        characteristic_names=arrays.characteristic_names,
        firm_names=arrays.tickers,
        path_TNK=None if arrays.path_TNK is None else np.asarray(arrays.path_TNK),
        device=device,
    )
