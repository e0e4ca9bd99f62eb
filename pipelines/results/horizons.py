"""Test metrics by horizon, for models that also forecast horizons shorter than the label's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.forecasts.metrics import forecast_metrics
from pipelines.dataset.folds import path_of_tests, plan_folds
from pipelines.dataset.market import Market, to_panel
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.results.evaluate import ensemble, label_overlap
from pipelines.run.record import Run


def horizon_table(
    run: Run, lake: Lake, dataset: Market, dates_T: npt.NDArray[np.bool_]
) -> pl.DataFrame | None:
    """Measure the seed ensemble of a run's forecasts at every horizon, including the label's.

    Parameters
    ----------
    run
        The run.
    lake
        Lake with its forecasts.
    dataset
        Labels.
    dates_T
        True on the dates that all models of the run forecast; only these are measured.

    Returns
    -------
    polars.DataFrame or None
        model, horizon (sessions), seeds, ic, ic_t (Newey-West over overlapping labels), icir, rank_ic on the
        test sessions; None if no model of the run forecasts shorter horizons than the label's.
    """
    label = run.config.label
    if not label.shorter_horizons:
        return None
    path = path_of_tests(dataset, plan_folds(dataset, run.config))
    stored = stored_forecasts(run, lake).join(path, on=["date", "fold"], how="semi")
    with_path = stored.filter(pl.col("horizon") < label.horizon)["model"].unique().to_list()
    if not with_path:
        return None
    labels = {**dataset.shorter_labels, label.horizon: dataset.labels[label.delay]}
    rows = []
    every = stored.filter(pl.col("model").is_in(with_path)).partition_by(["model", "horizon"], as_dict=True)
    for (model, horizon), part in sorted(every.items()):
        seeds = {
            int(seed): to_panel(frame, "forecast", dataset.panel)
            for (seed,), frame in part.partition_by(["seed"], as_dict=True).items()
        }
        joint_TN, label_TN = ensemble(seeds), labels[int(horizon)]
        rows_T = np.flatnonzero(np.isfinite(joint_TN).any(axis=1) & dates_T)
        metrics = forecast_metrics(
            joint_TN[rows_T], label_TN[rows_T], horizon=label_overlap(rows_T, int(horizon))
        )
        rows.append(
            {
                "model": model,
                "horizon": horizon,
                "seeds": len(seeds),
                "ic": metrics.ic,
                "ic_t": metrics.ic_t,
                "icir": metrics.icir,
                "rank_ic": metrics.rank_ic,
            }
        )
    return pl.DataFrame(rows)


def stored_forecasts(run: Run, lake: Lake) -> pl.DataFrame:
    """Read the stored forecasts of a run at all horizons.

    Returns
    -------
    polars.DataFrame
        Columns of the lake's table ``forecasts``, and ``horizon`` in sessions. All models have rows at the
        label's horizon; models that forecast shorter horizons also have rows at these.
    """
    forecasts = _rows_of(run, lake, "forecasts").with_columns(
        pl.lit(run.config.label.horizon, dtype=pl.Int64).alias("horizon")
    )
    if not lake.exists("forecast_paths"):
        return forecasts
    return pl.concat([_rows_of(run, lake, "forecast_paths").select(forecasts.columns), forecasts])


def _rows_of(run: Run, lake: Lake, table: str) -> pl.DataFrame:
    if run.config.folds.scheme == "live":  # it has no test, and its lake may have no forecasts at all
        return schema(table).create_empty()
    return lake.read(table, filters=pl.col("run_id") == run.run_id)
