"""The seed ensembles of a run as a table: one signal and one seed dispersion per date and firm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from features.arrays import FloatArray
from features.panel.panel import Panel
from pipelines.lake.pipeline_tables import EnsembleForecasts
from pipelines.results.evaluate import ensemble, seed_dispersion
from pipelines.run.completeness import forecast_by_all


def ensemble_table(forecasts: Mapping[str, Mapping[int, FloatArray]], panel: Panel) -> pl.DataFrame:
    """Compute every model's seed ensemble, on the dates and firms that all its seeds forecast.

    Parameters
    ----------
    forecasts
        model -> seed -> array of shape (T, N), known at the close of session t.
    panel
        Dates and tickers of the rows and columns.

    Returns
    -------
    polars.DataFrame
        model, date, ticker, signal (mean over seeds of the forecasts standardised within the date),
        seed_dispersion (standard deviation over seeds of the standardised forecasts; null for a single seed)
        and seeds (the number of seeds). A row that violates the contract
        `pipelines.lake.pipeline_tables.EnsembleForecasts` is a bug and raises an error.
    """
    dates_T, tickers_N = panel.dates_T.astype("datetime64[D]"), np.asarray(panel.tickers_N)
    parts = []
    for model, seeds in forecasts.items():
        rows_T = forecast_by_all(seeds.values())
        of_rows = {seed: forecast_TN[rows_T] for seed, forecast_TN in seeds.items()}
        signal_RN, seed_dispersion_RN = ensemble(of_rows), seed_dispersion(of_rows)
        r, n = np.nonzero(np.isfinite(signal_RN))
        columns = {"date": dates_T[rows_T][r], "ticker": tickers_N[n], "signal": signal_RN[r, n]}
        frame = pl.DataFrame({**columns, "seed_dispersion": seed_dispersion_RN[r, n]}).select(
            pl.lit(model).alias("model"),
            "date",
            "ticker",
            "signal",
            pl.col("seed_dispersion").fill_nan(None),
            pl.lit(len(seeds), dtype=pl.Int64).alias("seeds"),
        )
        parts.append(EnsembleForecasts.validate(frame))
    return pl.concat(parts)
