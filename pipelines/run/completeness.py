"""Which tasks of a run have no forecasts, and on which dates its models can be compared.

A model without forecasts of one fold would be measured on different dates than the others. Therefore models
are compared on the dates that all of them forecast, and every comparison names the missing tasks.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import FloatArray
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.run.record import TaskKey


def require_test(config: Config, run_id: str) -> None:
    """Refuse to measure or explain test forecasts of a run whose folds have no test."""
    if config.folds.scheme == "live":
        raise ConfigError(
            f"Run {run_id} was trained for use, through {config.folds.through}, and has no test forecasts; "
            f"score a session with 'peerglass signals {run_id}', or use a config with walk-forward folds."
        )


def committed_tasks(run_id: str, lake: Lake) -> pl.DataFrame:
    """List the tasks of a run with forecasts in the lake: model, fold and seed. No forecast is read."""
    keys = ["model", "fold", "seed"]
    if not lake.exists("forecasts"):
        return pl.DataFrame(schema={"model": pl.String, "fold": pl.Int64, "seed": pl.Int64})
    return lake.distinct("forecasts", keys, pl.col("run_id") == run_id)


def missing_tasks(
    models: Iterable[str], folds: Iterable[int], seeds: Iterable[int], forecasts: pl.DataFrame
) -> tuple[TaskKey, ...]:
    """List the tasks of a run that have no forecasts, in the order of models, folds and seeds."""
    present = set(forecasts.select("model", "fold", "seed").unique().iter_rows())
    planned = [(model, fold, seed) for model in models for fold in folds for seed in seeds]
    return tuple(key for key in planned if key not in present)


def describe_missing(
    missing: Collection[TaskKey], folds: Collection[int], seeds: Collection[int]
) -> str | None:
    """Describe the missing tasks by model, for example ``ridge: fold 1; mlp: seed 2 of fold 0``; or None."""
    parts = [
        f"{model}: {describe_missing_of_model(model, missing, folds, seeds)}"
        for model in dict.fromkeys(key[0] for key in missing)
    ]
    return "; ".join(parts) or None


def describe_missing_of_model(
    model: str, missing: Collection[TaskKey], folds: Collection[int], seeds: Collection[int]
) -> str | None:
    """Describe the missing tasks of one model, for example ``seed 2 of fold 0``; None if there are none."""
    gaps = {fold: [seed for name, at, seed in missing if (name, at) == (model, fold)] for fold in folds}
    if all(len(lacking) == len(seeds) for lacking in gaps.values()):
        return "every fold"
    said = []
    for fold, lacking in gaps.items():
        if lacking:
            named = f"seed{'' if len(lacking) == 1 else 's'} {' and '.join(map(str, lacking))} of "
            said.append(f"{'' if len(lacking) == len(seeds) else named}fold {fold}")
    return ", ".join(said) or None


def forecast_by_all(forecasts: Iterable[FloatArray]) -> npt.NDArray[np.bool_]:
    """Sessions on which every array of shape (T, N) has at least one forecast, shape (T,)."""
    every = [np.isfinite(forecast_TN).any(axis=1) for forecast_TN in forecasts]
    found_T: npt.NDArray[np.bool_] = np.all(every, axis=0)
    return found_T


def common_dates(forecasts: Mapping[str, Mapping[int, FloatArray]]) -> npt.NDArray[np.bool_]:
    """Find the dates on which every seed of every model has at least one forecast."""
    common_T = forecast_by_all(seed_TN for seeds in forecasts.values() for seed_TN in seeds.values())
    if not common_T.any():
        raise DataError(
            f"No date is forecast by all models ({', '.join(forecasts)}), so they cannot be compared; "
            "run 'peerglass train' on the run's config to complete it."
        )
    return common_T


def restrict_to_dates(
    forecasts: Mapping[str, Mapping[int, FloatArray]], dates_T: npt.NDArray[np.bool_]
) -> dict[str, dict[int, FloatArray]]:
    """Replace the forecasts on all other dates by NaN. Arrays without any are returned as they are."""

    def restricted(forecast_TN: FloatArray) -> FloatArray:
        if not (forecast_by_all([forecast_TN]) & ~dates_T).any():
            return forecast_TN
        return np.where(dates_T[:, None], forecast_TN, np.nan)

    return {
        model: {seed: restricted(forecast_TN) for seed, forecast_TN in seeds.items()}
        for model, seeds in forecasts.items()
    }


def comparable_folds(
    folds: Iterable[int], missing: Collection[TaskKey], forecasts: pl.DataFrame
) -> tuple[int, ...]:
    """List the folds on which every model with forecasts is complete: lacking a hard one is no advantage."""
    in_use = set(forecasts.select("model", "seed").unique().iter_rows())
    lacking = {fold for model, fold, seed in missing if (model, seed) in in_use}
    return tuple(fold for fold in folds if fold not in lacking)


def add_missing_column(
    ladder: pl.DataFrame, missing: Collection[TaskKey], folds: Collection[int], seeds: Collection[int]
) -> pl.DataFrame:
    """Add the missing tasks to a ladder, and rows of null numbers for models without forecasts."""
    models = list(dict.fromkeys(key[0] for key in missing))
    absent = [model for model in models if model not in set(ladder["model"])]
    delays = ladder["delay"].unique(maintain_order=True)
    rows = [{"model": model, "delay": delay, "seeds": 0} for delay in delays for model in absent]
    more = pl.DataFrame(rows, schema={key: ladder.schema[key] for key in ("model", "delay", "seeds")})
    words = {model: describe_missing_of_model(model, missing, folds, seeds) for model in models}
    return pl.concat([ladder, more], how="diagonal").with_columns(
        missing=pl.col("model").replace_strict(words, default=None, return_dtype=pl.String)
    )
