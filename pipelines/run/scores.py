"""Validation scores and learning curves of the tasks in a run's folder."""

from __future__ import annotations

import json

import polars as pl

from pipelines.run.record import Run


def score_file(model: str, fold: int, seed: int) -> str:
    """Path of the file with a task's scores, relative to the run's folder."""
    return f"scores/{model}-fold-{fold}-seed-{seed}.json"


def read_scores(run: Run) -> pl.DataFrame:
    """Read the scores of all finished tasks.

    Returns
    -------
    polars.DataFrame
        model, fold, seed, valid_rank_ic, valid_ic, pretrain_loss (null without pretraining), and
        calibration_slope with its standard error (null for a loss with a scale).
    """
    rows = []
    for path in sorted((run.folder / "scores").glob("*.json")):
        model, _, rest = path.stem.rpartition("-fold-")
        fold, _, seed = rest.partition("-seed-")
        rows.append({"model": model, "fold": int(fold), "seed": int(seed), **json.loads(path.read_text())})
    return pl.DataFrame(
        rows,
        schema={
            "model": pl.String,
            "fold": pl.Int64,
            "seed": pl.Int64,
            "valid_rank_ic": pl.Float64,
            "valid_ic": pl.Float64,
            "pretrain_loss": pl.Float64,
            "calibration_slope": pl.Float64,
            "calibration_error": pl.Float64,
        },
    )


def read_curves(run: Run) -> pl.DataFrame:
    """Read the learning curves of all tasks: model, fold, seed, epoch, train_loss, valid_rank_ic and more."""
    rows = []
    for path in sorted((run.folder / "curves").glob("*.jsonl")):
        model, _, rest = path.stem.rpartition("-fold-")
        fold, _, seed = rest.partition("-seed-")
        for line in path.read_text().splitlines():
            rows.append({"model": model, "fold": int(fold), "seed": int(seed), **json.loads(line)})
    return pl.DataFrame(rows)
