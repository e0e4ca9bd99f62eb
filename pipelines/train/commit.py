"""Commit the results of a task: its checkpoint, its forecasts in one transaction, and its scores."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import polars as pl

from pipelines.dataset.build import Dataset
from pipelines.lake.lake import Lake
from pipelines.run.checkpoints import save_checkpoint
from pipelines.run.provenance import TaskDone, record
from pipelines.run.record import Run
from pipelines.run.scores import score_file
from pipelines.run.snapshots import FileSnapshotStore
from pipelines.train.quantiles import write_quantile_scores
from pipelines.train.task import Outcome, Task


def commit(run: Run, lake: Lake, dataset: Dataset, task: Task, outcome: Outcome) -> None:
    """Store the outcome of a task. The score file is written last and marks the task as done."""
    save_checkpoint(run.checkpoint(task.model, task.fold.index, task.seed), outcome.state, task.inputs)
    if outcome.path_BNK is not None:
        steps = zip(dataset.shorter_labels.items(), np.moveaxis(outcome.path_BNK, 2, 0), strict=True)
        parts = [
            _rows(run, dataset, task, path_BN, label_TN).with_columns(
                pl.lit(horizon, dtype=pl.Int64).alias("horizon")
            )
            for (horizon, label_TN), path_BN in steps
        ]
        lake.upsert("forecast_paths", pl.concat(parts))
    label_TN = dataset.labels[run.config.label.delay]
    lake.upsert("forecasts", _rows(run, dataset, task, outcome.test_BN, label_TN))
    scores = {"valid_rank_ic": outcome.valid_rank_ic, "valid_ic": outcome.valid_ic}
    if outcome.state.config.get("pretraining"):
        scores["pretrain_loss"] = outcome.state.config["pretraining"][-1]["train_loss"]
    if outcome.quantile_scores is not None:
        write_quantile_scores(run, task.key, outcome.quantile_scores)
    # the event comes before the score file, so that every task that counts as done has its event
    record(run, TaskDone(model=task.model, fold=task.fold.index, seed=task.seed))
    run.write_text(score_file(task.model, task.fold.index, task.seed), json.dumps(scores))
    if task.snapshot is not None:
        snapshots = FileSnapshotStore(task.snapshot)
        snapshots.delete()
        snapshots.sibling("refit").delete()


def _rows(
    run: Run,
    dataset: Dataset,
    task: Task,
    forecast_BN: npt.NDArray[np.float32],
    label_TN: npt.NDArray[np.float64],
) -> pl.DataFrame:
    """Convert a task's test forecasts to rows of the lake's table, one per date and firm."""
    rows, columns = np.nonzero(np.isfinite(forecast_BN))
    return pl.DataFrame(
        {
            "date": dataset.panel.dates_T[task.fold.test][rows],
            "ticker": np.asarray(dataset.panel.tickers_N)[columns],
            "forecast": forecast_BN[rows, columns].astype(np.float64),
            "label": label_TN[task.fold.test][rows, columns],
        }
    ).select(
        pl.lit(run.run_id).alias("run_id"),
        pl.lit(task.model).alias("model"),
        pl.lit(task.fold.index, dtype=pl.Int64).alias("fold"),
        pl.lit(task.seed, dtype=pl.Int64).alias("seed"),
        pl.col("date").cast(pl.Date),
        "ticker",
        "forecast",
        pl.col("label").fill_nan(None),
    )
