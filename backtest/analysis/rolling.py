"""Rolling Sharpe ratio, volatility and IC with their standard errors, and returns by month.

Shape suffixes: T sessions, W sessions of a window, K = T - W + 1 windows.
"""

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from features.arrays import FloatArray
from features.panel.periods import SESSIONS_PER_YEAR

Z = 1.96  # half-width of a band in standard errors: 95% for a normal estimate
_WINDOWS = (126, 63)


def rolling_window(sessions: int) -> int:
    """Length of the window: 126 or 63 sessions if the test has four times as many, else a quarter of it."""
    for window in _WINDOWS:
        if sessions >= 4 * window:
            return window
    return max(2, sessions // 4)


def rolling_risk(book: pl.DataFrame, window: int, year: float = SESSIONS_PER_YEAR) -> pl.DataFrame:
    """Rolling net Sharpe ratio and volatility of one book, per year, with a row for each whole window.

    ``book`` has date, nav_net, and optionally excess_net, in order of time. NAV before the first session is
    1. Without excess_net the Sharpe ratio is that of the returns. Windows with an unknown return are null.
    The columns are date (its last session), sharpe, sharpe_error, volatility and volatility_error. With p
    sessions in a year, and mean m, standard deviation s (ddof 1), skewness g and kurtosis k of the W returns
    of a window: ``sharpe = sqrt(p) m / s``, its error ``sqrt(p (1 - g m/s + (k - 1)/4 (m/s)^2) / W)``
    (Mertens 2002), ``volatility = sqrt(p) s``, and its error ``volatility sqrt((k - 1) / (4 W))``. Both
    errors assume returns without autocorrelation.
    """
    nav_T = book["nav_net"].cast(pl.Float64).fill_nan(None).to_numpy()
    return_T = nav_T / np.concatenate([[1.0], nav_T[:-1]]) - 1.0
    excess_T = book["excess_net"].cast(pl.Float64).to_numpy() if "excess_net" in book.columns else return_T
    if len(return_T) < window:
        return pl.DataFrame(
            schema={"date": pl.Date}
            | dict.fromkeys(("sharpe", "sharpe_error", "volatility", "volatility_error"), pl.Float64)
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_K, std_K, skew_K, kurt_K = _moments(sliding_window_view(excess_T, window))
        ratio_K = np.where(std_K > 0, mean_K / std_K, np.nan)
        variance_K = 1.0 - skew_K * ratio_K + 0.25 * (kurt_K - 1.0) * ratio_K**2
        _, risk_K, _, tail_K = _moments(sliding_window_view(return_T, window))
        return pl.DataFrame(
            {
                "date": book["date"][window - 1 :],
                "sharpe": np.sqrt(year) * ratio_K,
                "sharpe_error": np.sqrt(year * np.maximum(variance_K, 0.0) / window),
                "volatility": np.sqrt(year) * risk_K,
                "volatility_error": np.sqrt(year) * risk_K * np.sqrt((tail_K - 1.0) / (4.0 * window)),
            }
        ).with_columns(pl.exclude("date").fill_nan(None))


def rolling_mean_ic(series: pl.DataFrame, window: int, lags: int) -> pl.DataFrame:
    """Rolling mean of the daily rank ICs of one model with its Newey-West error: date, rank_ic and error.

    ``series`` has date and rank_ic in order of time. At least half of the dates of a window must be known;
    unknown ICs are left out of the mean and of the autocovariances. ``lags`` are those of the Newey-West
    estimate with Bartlett weights: one less than the number of dates whose labels overlap.
    """
    ic_T = series["rank_ic"].cast(pl.Float64).fill_nan(None).to_numpy()
    if len(ic_T) < window:
        return pl.DataFrame(schema={"date": pl.Date, "rank_ic": pl.Float64, "error": pl.Float64})
    ic_KW = sliding_window_view(ic_T, window)
    known_KW = np.isfinite(ic_KW)
    count_K = known_KW.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_K = np.where(known_KW, ic_KW, 0.0).sum(axis=1) / count_K
        centred_KW = np.where(known_KW, ic_KW - mean_K[:, None], 0.0)
        total_K = (centred_KW**2).sum(axis=1)
        for lag in range(1, min(lags, window - 1) + 1):
            weight = 1.0 - lag / (lags + 1.0)
            total_K = total_K + 2.0 * weight * (centred_KW[:, lag:] * centred_KW[:, :-lag]).sum(axis=1)
        error_K = np.sqrt(np.maximum(total_K, 0.0)) / count_K
    enough_K = 2 * count_K >= window
    return pl.DataFrame(
        {
            "date": series["date"][window - 1 :],
            "rank_ic": np.where(enough_K, mean_K, np.nan),
            "error": np.where(enough_K, error_K, np.nan),
        }
    ).with_columns(pl.exclude("date").fill_nan(None))


def monthly_returns(book: pl.DataFrame) -> pl.DataFrame:
    """Net return of one book by month and by year: year, month (1 to 12; 0 is the year) and net.

    ``book`` has date and nav_net in order of time. NAV before the first session is 1. Months and years at the
    ends of the test may be partial.
    """
    path = book.select("date", nav=pl.col("nav_net").cast(pl.Float64)).with_columns(
        year=pl.col("date").dt.year().cast(pl.Int64), month=pl.col("date").dt.month().cast(pl.Int64)
    )
    parts = []
    for keys in (["year", "month"], ["year"]):
        ends = path.group_by(keys, maintain_order=True).agg(pl.col("nav").last())
        ends = ends.with_columns(net=pl.col("nav") / pl.col("nav").shift(1, fill_value=1.0) - 1.0)
        parts.append(ends if "month" in keys else ends.with_columns(month=pl.lit(0, dtype=pl.Int64)))
    return pl.concat([part.select("year", "month", "net") for part in parts]).sort("year", "month")


def _moments(x_KW: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Mean, standard deviation (ddof 1), skewness and kurtosis (not excess) of each window, shape (K,)."""
    window = x_KW.shape[1]
    mean_K = x_KW.mean(axis=1)
    centred_KW = x_KW - mean_K[:, None]
    square_KW = centred_KW * centred_KW  # a power of an array is slow
    second_K = square_KW.mean(axis=1)
    third_K, fourth_K = (square_KW * centred_KW).mean(axis=1), (square_KW * square_KW).mean(axis=1)
    std_K = np.sqrt(second_K * window / (window - 1))
    return mean_K, std_K, third_K / second_K**1.5, fourth_K / second_K**2
