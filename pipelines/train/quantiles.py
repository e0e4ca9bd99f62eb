"""Test scores of forecast quantiles by level, for models that were fitted to the quantile loss."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from features.arrays import IntArray
from models.quantiles import pinball
from pipelines.run.record import RecordedRun

Scores = list[dict[str, float]]
FOLDER = "quantile_scores"
"""Folder of the score files in a run's folder."""


def score_quantiles(
    quantile_DNQ: npt.NDArray[np.float32],
    target_TN: npt.NDArray[np.float32],
    levels: tuple[float, ...],
    train: IntArray,
    test: IntArray,
) -> Scores:
    """Score a task's test quantiles, and compare them with constant quantiles of the training targets."""
    target_DN = target_TN[test]
    dates_D = (np.isfinite(target_DN) & np.isfinite(quantile_DNQ).all(axis=2)).any(axis=1)
    reference_Q = np.nanquantile(target_TN[train].astype(np.float64), levels)
    rows: Scores = []
    for q, level in enumerate(levels):
        forecast_DN = quantile_DNQ[..., q]
        reference_DN = np.where(np.isfinite(forecast_DN), reference_Q[q], np.nan)
        known_DN = np.isfinite(target_DN) & np.isfinite(forecast_DN)
        below_DN = np.where(known_DN, target_DN <= forecast_DN, np.nan)
        rows.append(
            {
                "level": level,
                "pinball": _by_date(_pinball(forecast_DN, target_DN, level)[dates_D]),
                "reference": _by_date(_pinball(reference_DN, target_DN, level)[dates_D]),
                "below": _by_date(below_DN[dates_D]),
                "dates": float(dates_D.sum()),
            }
        )
    return rows


def write_quantile_scores(run: RecordedRun, key: tuple[str, int, int], scores: Scores) -> None:
    """Write the scores of a task (model, fold, seed) to the run's folder."""
    model, fold, seed = key
    run.write_text(f"{FOLDER}/{model}-fold-{fold}-seed-{seed}.json", json.dumps(scores))


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
