"""How good the quantiles are of a model that was fitted to the quantile loss: test scores, level by level."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from features.arrays import IntArray
from models.quantiles import pinball
from pipelines.run.record import Run

Scores = list[dict[str, float]]
_FOLDER = "quantile_scores"


def score_quantiles(
    quantile_DNQ: npt.NDArray[np.float32],
    target_TN: npt.NDArray[np.float32],
    levels: tuple[float, ...],
    train: IntArray,
    test: IntArray,
) -> Scores:
    """Score a task's test quantiles beside those that any firm had in training.

    Parameters
    ----------
    quantile_DNQ
        Forecast quantiles of the test sessions, in the target's unit; NaN outside the universe.
    target_TN
        Targets; NaN where unknown, and then the cell does not count.
    levels
        The Q levels, rising.
    train, test
        Sessions; the reference is the quantile of all known training targets.

    Returns
    -------
    list of dict
        A level each: level; pinball and reference, the mean over dates of the mean over firms of
        ``max(p e, (p - 1) e)``, ``e = target - q``, in the target's unit, lower is better; below, the share
        of targets that do not exceed the quantile, which is the level where quantiles are honest; dates, how
        many had a known target. NaN without any.
    """
    target_DN = target_TN[test]
    dates_D = (np.isfinite(target_DN) & np.isfinite(quantile_DNQ).all(axis=2)).any(axis=1)
    usual_Q = np.nanquantile(target_TN[train].astype(np.float64), levels)
    rows: Scores = []
    for q, level in enumerate(levels):
        forecast_DN = quantile_DNQ[..., q]
        usual_DN = np.where(np.isfinite(forecast_DN), usual_Q[q], np.nan)
        known_DN = np.isfinite(target_DN) & np.isfinite(forecast_DN)
        below_DN = np.where(known_DN, target_DN <= forecast_DN, np.nan)
        rows.append(
            {
                "level": level,
                "pinball": _by_date(_pinball(forecast_DN, target_DN, level)[dates_D]),
                "reference": _by_date(_pinball(usual_DN, target_DN, level)[dates_D]),
                "below": _by_date(below_DN[dates_D]),
                "dates": float(dates_D.sum()),
            }
        )
    return rows


def write_quantile_scores(run: Run, key: tuple[str, int, int], scores: Scores) -> None:
    """Keep the scores of a task (model, fold, seed) in the run's folder."""
    model, fold, seed = key
    run.write_text(f"{_FOLDER}/{model}-fold-{fold}-seed-{seed}.json", json.dumps(scores))


def quantile_score_table(run: Run, folds: Collection[int]) -> pl.DataFrame | None:
    """Mean over folds and seeds, weighted by dates: model, level, pinball, reference, below; None if none.

    ``folds`` are those that all models have, so that their scores are of the same dates.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted((run.folder / _FOLDER).glob("*.json")):
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


def _pinball(
    quantile_DN: npt.NDArray[Any], target_DN: npt.NDArray[np.float32], level: float
) -> npt.NDArray[np.float64]:
    forecast = torch.as_tensor(quantile_DN.astype(np.float64))[..., None]
    scores: npt.NDArray[np.float64] = pinball(
        forecast, torch.as_tensor(target_DN.astype(np.float64)), (level,)
    ).numpy()
    return scores


def _by_date(cell_DN: npt.NDArray[np.float64]) -> float:
    """Mean over dates of the mean over firms."""
    return float(np.nanmean(cell_DN, axis=1).mean()) if len(cell_DN) else float("nan")
