"""What a champion's daily rank IC is compared with: its own backtest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.inference.means import newey_west_error, newey_west_lags
from backtest.monitoring.cusum import Reference
from features.arrays import FloatArray
from pipelines.config.schema import Config
from pipelines.nightly.data import NightData
from pipelines.nightly.monitor.validation import validation_ics
from pipelines.nightly.version import ModelVersion
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import Run, list_records, open_run

_SAME: Final = ("universe", "features", "label", "seeds")
"""Parts of a run's identity that must agree, so that its ICs are what the champion's should be."""
_PURGE: Final = "max_delay"
"""Part of the label's settings that changes the purge but not what is forecast."""


@dataclass(frozen=True, slots=True)
class BacktestReference:
    """The distribution of daily rank IC in a backtest.

    Attributes
    ----------
    reference
        Mean, standard deviation and number of sessions.
    origin
        Where it is from, as it stands in sentences.
    """

    reference: Reference
    origin: str


def backtest_reference(config: Config, data: NightData, champion: ModelVersion) -> BacktestReference | None:
    """Return the distribution of daily rank IC in the newest complete walk-forward run of the same config.

    The run has the same name, universe, features, label, seeds and settings of the model, and forecast its
    tests at the label's delay. Only sessions before the night's are used. Without such a run, it is the
    distribution on the champion's validation sessions. None if the rank IC does not vary, as that of a model
    without forecasts.

    Parameters
    ----------
    config
        The configuration.
    data
        The data of the night.
    champion
        The version that is watched.
    """
    output = Path(config.output)
    own = open_run(champion.run_id, output)
    for folder, record in list_records(output):
        settings = record["identity"]["settings"]
        if not _is_backtest(settings, own, champion.model):
            continue
        run = open_run(str(folder), output)
        if run.config.name != config.name:
            continue
        rank_ic_T = _rank_ics(run, champion.model, config.label.delay, data)
        if rank_ic_T is not None:
            reference = reference_of(rank_ic_T, config.label.horizon)
            if reference is not None:
                n = reference.n
                return BacktestReference(reference, f"the backtest {run.run_id} ({n} sessions)")
    rank_ic_V = validation_ics(own, champion.model, data)["rank_ic"].to_numpy()
    reference = reference_of(rank_ic_V, config.label.horizon)
    if reference is None:
        return None
    return BacktestReference(
        reference,
        f"its {reference.n} validation sessions, which it was selected on, so that this is too high "
        "('peerglass run CONFIG' makes a backtest to compare with)",
    )


def reference_of(rank_ic_T: FloatArray, overlap: int) -> Reference | None:
    """Return mean and long-run standard deviation of daily rank ICs; None without variation.

    Neighbouring ICs are alike: skill changes slowly, and labels of several sessions overlap. The deviation is
    the Newey-West error of the mean times ``sqrt(n)``, with at least ``3 (overlap - 1)`` lags: a sum of ICs
    varies as if they were independent with this deviation.
    """
    known_T = rank_ic_T[~np.isnan(rank_ic_T)]
    if len(known_T) < 2:
        return None
    lags = max(newey_west_lags(len(known_T)), 3 * (overlap - 1))
    std = newey_west_error(known_T, lags) * math.sqrt(len(known_T))
    return Reference(float(known_T.mean()), std, len(known_T)) if std > 0 else None


def _is_backtest(settings: dict[str, Any], own: Run, model: str) -> bool:
    """Whether a run's settings are those of the champion but for the folds, which have tests."""
    assert own.identity is not None, "an opened run has recorded its identity"
    mine = own.identity.settings
    if settings["folds"]["scheme"] in ("live", "combinatorial") or model not in settings["models"]:
        return False
    same = all(_without_purge(settings[part]) == _without_purge(mine[part]) for part in _SAME)
    return same and bool(settings["models"][model] == mine["models"][model])


def _without_purge(part: Any) -> Any:  # noqa: ANN401 (settings hold anything)
    return {k: v for k, v in part.items() if k != _PURGE} if isinstance(part, dict) else part


def _rank_ics(run: Run, model: str, delay: int, data: NightData) -> FloatArray | None:
    """Return the daily rank ICs of a run's newest complete evaluation; None if it has none."""
    for evaluation in list_evaluations(run):
        if evaluation.record.incomplete is not None:
            continue
        series = evaluation.table("ic_series").filter(
            (pl.col("model") == model) & (pl.col("delay") == delay) & (pl.col("date") < data.session)
        )
        rank_ic_T = series["rank_ic"].drop_nulls().to_numpy()
        if np.isfinite(rank_ic_T).sum() > 1:
            return rank_ic_T
    return None
