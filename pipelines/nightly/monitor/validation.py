"""Daily rank ICs of a version on its validation sessions, for a config without a backtest."""

from __future__ import annotations

import numpy as np
import polars as pl

from features.information_coefficient import rank_ic_by_date
from pipelines.config.schema import Config
from pipelines.dataset.build import add_features
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.nightly.data import NightData
from pipelines.nightly.monitor.features import features_of
from pipelines.nightly.monitor.stored import computed_once
from pipelines.nightly.signals.score import scoring_market
from pipelines.results.evaluate import ensemble
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import Run
from pipelines.train.task import collect_arrays, to_tensors


def validation_ics(run: Run, model: str, data: NightData) -> pl.DataFrame:
    """Return the daily rank IC of a version's seed ensemble on the validation sessions of its last fold.

    The model was selected on these sessions, so the mean is too high. Computed once per version.

    Returns
    -------
    polars.DataFrame
        session, rank_ic.
    """
    return computed_once(run, model, "validation", lambda: _measure(run, model, data))


def _measure(run: Run, model: str, data: NightData) -> pl.DataFrame:
    folds = run.read_table("folds")
    assert folds is not None, "a trained run has stored its folds"
    fold = folds.sort("fold").row(-1, named=True)
    dataset = add_features(scoring_market(run, data), data.tables, _with_names(run))
    dates_T = dataset.panel.dates_T.astype("datetime64[D]")
    inside_T = (dates_T >= np.datetime64(fold["valid_from"])) & (dates_T <= np.datetime64(fold["valid_to"]))
    sessions = np.flatnonzero(inside_T & dataset.universe_TN.any(axis=1))
    arrays = collect_arrays(dataset, run.config.features.window)
    forecasts = {}
    for seed in run.config.seeds:
        fitted, inputs = load_checkpoint(run.checkpoint(model, fold["fold"], seed))
        tensors = to_tensors(arrays, inputs, "cpu")
        forecasts[seed] = fitted.forecast(tensors, sessions).astype(np.float64)
    rank_ic_V = rank_ic_by_date(ensemble(forecasts), arrays.label_TN[sessions])
    return pl.DataFrame({"session": dates_T[sessions], "rank_ic": rank_ic_V}).filter(
        pl.col("rank_ic").is_not_nan()
    )


def _with_names(run: Run) -> Config:
    """Return a run's config with the features that it was trained on; newer data may give more."""
    features = features_of(run)
    names = {
        kind: tuple(one.name.removeprefix(INPUT_PREFIX) for one in features if one.kind == kind)
        for kind in ("channel", "characteristic", "input")
    }
    changes = {
        "channels": names["channel"],
        "characteristics": names["characteristic"],
        "inputs": names["input"],
    }
    named = run.config.features.model_copy(update=changes)
    return run.config.model_copy(update={"features": named})
