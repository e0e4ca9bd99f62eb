"""Table of a run's quantile scores, averaged over folds and seeds."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import polars as pl

from pipelines.run.record import Run
from pipelines.train.quantiles import FOLDER


def quantile_score_table(run: Run, folds: Collection[int]) -> pl.DataFrame | None:
    """Average the quantile scores of a run over folds and seeds, weighted by the number of dates.

    Parameters
    ----------
    run
        The run.
    folds
        Folds that all models have, so that the scores of all models are from the same dates.

    Returns
    -------
    polars.DataFrame or None
        model, level, pinball, reference, below (see `score_quantiles`); None if no model has quantiles.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted((run.folder / FOLDER).glob("*.json")):
        model, _, rest = path.stem.rpartition("-fold-")
        if int(rest.partition("-seed-")[0]) not in folds:
            continue
        rows += [{"model": model, **row} for row in json.loads(path.read_text())]
    if not rows:
        return None
    weight = pl.col("dates") / pl.col("dates").sum()
    means = [(pl.col(name) * weight).sum() for name in ("pinball", "reference", "below")]
    known = pl.DataFrame(rows).filter(pl.col("dates") > 0)
    order = pl.col("model").replace_strict({name: i for i, name in enumerate(run.config.models)})
    return known.group_by("model", "level").agg(means).sort(order, "level")
