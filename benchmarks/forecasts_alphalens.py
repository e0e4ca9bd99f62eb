"""Metrics of forecasts by alphalens-reloaded, for `forecasts_speed`. It imports nothing of Peerglass."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

Frames = tuple[pd.Series, pd.DataFrame]


def prepare(folder: Path) -> Frames:
    """Load signals and labels as alphalens wants them: by date and asset, with a column per horizon."""
    signal_TN, label_TN = (np.load(folder / f"{name}.npy") for name in ("signal", "label"))
    T, N = signal_TN.shape
    days = pd.bdate_range("2010-01-01", periods=T)
    index = pd.MultiIndex.from_product([days, [f"F{n:04}" for n in range(N)]], names=["date", "asset"])
    return pd.Series(signal_TN.ravel(), index, name="factor"), pd.DataFrame({"1D": label_TN.ravel()}, index)


def compute(given: Frames) -> dict[str, npt.NDArray[np.float64]]:
    """Compute rank IC, quantile returns, turnover of the outer quantiles and rank autocorrelation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from alphalens import performance, utils

        clean = utils.get_clean_factor(*given, quantiles=5)
        means, _ = performance.mean_return_by_quantile(clean, by_date=True, demeaned=False)
        quantile = clean["factor_quantile"]
        return {
            "rank_ic": performance.factor_information_coefficient(clean)["1D"].to_numpy(),
            "quantiles": means["1D"].unstack(0).to_numpy(),
            "autocorrelation": performance.factor_rank_autocorrelation(clean).to_numpy()[1:],
            "top_turnover": performance.quantile_turnover(quantile, 5).to_numpy()[1:],
            "bottom_turnover": performance.quantile_turnover(quantile, 1).to_numpy()[1:],
        }
