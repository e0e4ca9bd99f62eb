"""What training left in a run's folder beside its checkpoints: scores of tasks, and learning curves."""

from __future__ import annotations

import json

import polars as pl

from pipelines.run.record import Run


def score_file(model: str, fold: int, seed: int) -> str:
    """Name of the file in the run's folder that holds the scores of a task."""
    return f"scores/{model}-fold-{fold}-seed-{seed}.json"


def read_scores(run: Run) -> pl.DataFrame:
    """Scores of the finished tasks: model, fold, seed, valid_ic, valid_rank_ic, pretrain_loss (or null)."""
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
        },
    )


def read_curves(run: Run) -> pl.DataFrame:
    """Learning curves of the finished tasks: model, fold, seed, epoch, train_loss, valid_rank_ic, ..."""
    rows = []
    for path in sorted((run.folder / "curves").glob("*.jsonl")):
        model, _, rest = path.stem.rpartition("-fold-")
        fold, _, seed = rest.partition("-seed-")
        for line in path.read_text().splitlines():
            rows.append({"model": model, "fold": int(fold), "seed": int(seed), **json.loads(line)})
    return pl.DataFrame(rows)
