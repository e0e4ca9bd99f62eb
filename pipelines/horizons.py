"""What models with several horizons forecast on the way to the label's: their test metrics by horizon."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.metrics import forecast_metrics
from pipelines.dataset import Dataset, spread
from pipelines.evaluate import ensemble, overlapping
from pipelines.lake import Lake
from pipelines.runs import Run


def horizon_table(
    run: Run, lake: Lake, dataset: Dataset, dates_T: npt.NDArray[np.bool_]
) -> pl.DataFrame | None:
    """Measure a run's forecasts of every horizon, the label's included, by the seed ensemble.

    Parameters
    ----------
    run, lake, dataset
        Whose forecasts, where they are, and the labels.
    dates_T
        The dates that all models of the run forecast; no others are measured.

    Returns
    -------
    polars.DataFrame or None
        model, horizon (sessions), seeds, ic, ic_t (Newey-West over overlapping labels), icir, rank_ic on the
        test sessions; None if no model of the run has shorter horizons than the label's.
    """
    paths = _of(run, lake, "forecast_paths")
    if paths is None or paths.is_empty():
        return None
    label = run.config.label
    own = _of(run, lake, "forecasts")
    assert own is not None, "a path is stored before the forecasts that it leads to"
    own = own.filter(pl.col("model").is_in(paths["model"].unique().to_list()))
    longest = own.with_columns(pl.lit(label.horizon, dtype=pl.Int64).alias("horizon"))
    labels = {**dataset.shorter, label.horizon: dataset.labels[label.delay]}
    rows = []
    every = pl.concat([paths.select(longest.columns), longest]).partition_by(
        ["model", "horizon"], as_dict=True
    )
    for (model, horizon), part in sorted(every.items()):
        seeds = {
            int(seed): spread(frame, "forecast", dataset.panel)
            for (seed,), frame in part.partition_by(["seed"], as_dict=True).items()
        }
        joint_TN, label_TN = ensemble(seeds), labels[int(horizon)]
        rows_T = np.flatnonzero(np.isfinite(joint_TN).any(axis=1) & dates_T)
        metrics = forecast_metrics(
            joint_TN[rows_T], label_TN[rows_T], horizon=overlapping(rows_T, int(horizon))
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


def _of(run: Run, lake: Lake, table: str) -> pl.DataFrame | None:
    return lake.read(table, filters=pl.col("run_id") == run.run_id) if lake.exists(table) else None
