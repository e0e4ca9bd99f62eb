"""The tasks of a run, the tasks that are done, and the arrays that all tasks read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from backtest.splits import Fold
from models.fitting.fit import FitConfig
from pipelines.config.load import build_settings, settings_of
from pipelines.config.models import registry_name
from pipelines.dataset.build import Dataset
from pipelines.dataset.fold_inputs import fit_inputs
from pipelines.device import resolve_device
from pipelines.lake.lake import Lake
from pipelines.run.checkpoints import checkpoint_exists
from pipelines.run.record import Run
from pipelines.run.scores import score_file
from pipelines.run.warm_start import warm_start_checkpoint
from pipelines.train.task import Arrays, Key, Task


def collect_arrays(dataset: Dataset, window: int) -> Arrays:
    """Collect the arrays that tasks read."""
    delay = next(iter(dataset.labels))
    return Arrays(
        channels_TNC=dataset.channels_TNC,
        characteristics_TNF=dataset.characteristics_TNF,
        universe_TN=dataset.universe_TN,
        group_TN=dataset.panel.group_TN.astype(np.int64),
        target_TN=dataset.target_TN,
        label_TN=np.where(dataset.universe_TN, dataset.labels[delay], np.nan),
        path_TNK=dataset.path_TNK,
        characteristic_names=dataset.characteristic_names,
        tickers=tuple(dataset.panel.tickers_N),
        window=window,
    )


def plan_tasks(run: Run, dataset: Dataset, folds: Sequence[Fold]) -> Iterator[Task]:
    """Yield all tasks of a run, ordered by fold, seed and model. Inputs are fitted once per fold."""
    device = resolve_device(run.config.device)
    inputs = {fold.index: fit_inputs(dataset, fold) for fold in folds}
    for fold in folds:
        for seed in run.config.seeds:
            for model in run.config.models:
                settings, fit_settings = settings_of(run.config, model)
                yield Task(
                    model=model,
                    registered=registry_name(run.config, model),
                    settings=settings,
                    fit=build_settings(FitConfig, fit_settings, f"models.{model}.fit"),
                    fold=fold,
                    seed=seed,
                    inputs=inputs[fold.index],
                    device=device,
                    curve=run.curve(model, fold.index, seed),
                    snapshot=run.snapshot(model, fold.index, seed),
                    start=warm_start_checkpoint(run.config, dataset, fold, model, seed),
                )


def constant_channels(tasks: Sequence[Task], dataset: Dataset) -> list[str]:
    """Describe the channels that are constant on a fold's training sessions; its models ignore them."""
    constant = {
        (name, task.fold.index)
        for task in tasks
        for name, std in zip(dataset.channel_names, task.inputs.scaler.std_C, strict=True)
        if np.isinf(std)
    }
    return [
        f"Channel {name} is constant on the training sessions of fold {fold}, so its models ignore it."
        for name, fold in sorted(constant)
    ]


def done_tasks(run: Run, lake: Lake) -> set[Key]:
    """Return the tasks whose forecasts are committed and whose checkpoint and scores exist."""
    if not lake.exists("forecasts"):
        return set()
    keys = lake.read(
        "forecasts", filters=pl.col("run_id") == run.run_id, columns=["model", "fold", "seed"]
    ).unique()
    return {
        (model, fold, seed)
        for model, fold, seed in keys.iter_rows()
        if checkpoint_exists(run.checkpoint(model, fold, seed))
        and (run.folder / score_file(model, fold, seed)).is_file()
    }
