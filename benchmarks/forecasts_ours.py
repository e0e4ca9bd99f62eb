"""Metrics of forecasts by Peerglass, for `forecasts_speed`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from backtest.forecasts.daily import SortedPanel, daily_metrics, persistence

Arrays = dict[str, npt.NDArray[np.float64]]


def prepare(folder: Path) -> Arrays:
    """Load signals and labels."""
    return {name: np.load(folder / f"{name}.npy") for name in ("signal", "label")}


def compute(given: Arrays) -> Arrays:
    """Compute IC, rank IC, quantile returns, turnover of the outer quantiles and rank autocorrelation."""
    signal, label = SortedPanel("signal", given["signal"]), SortedPanel("label", given["label"])
    daily, kept = daily_metrics(signal, label), persistence(signal, (1,))[1]
    return {
        "rank_ic": daily.rank_ic_T,
        "quantiles": daily.quantile_TQ,
        "autocorrelation": kept.rank_autocorrelation_T,
        "top_turnover": kept.top_turnover_T,
        "bottom_turnover": kept.bottom_turnover_T,
    }
