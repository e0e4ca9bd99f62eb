"""Test scores of forecast quantiles by level, for models that were fitted to the quantile loss."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from features.arrays import IntArray
from models.quantiles import pinball
from pipelines.run.record import Run

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
    """Score a task's test quantiles, and compare them with constant quantiles of the training targets.

    Parameters
    ----------
    quantile_DNQ
        Forecast quantiles of the test sessions, in the unit of the target; NaN outside the universe.
    target_TN
        Targets of all sessions; NaN where unknown. Unknown targets are not scored.
    levels
        The Q levels, ascending.
    train, test
        Indices of the training and test sessions.

    Returns
    -------
    list of dict
        One per level. ``level``: the level p. ``pinball``: the loss ``max(p e, (p - 1) e)`` with
        ``e = target - q``, averaged over firms and then over dates, in the unit of the target; lower is
        better. ``reference``: the same loss of the quantile of all known training targets. ``below``: the
        share of targets that do not exceed the quantile; calibrated quantiles give p. ``dates``: the number
        of dates with a known target. The scores are NaN if there is no such date.
    """
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


def write_quantile_scores(run: Run, key: tuple[str, int, int], scores: Scores) -> None:
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
