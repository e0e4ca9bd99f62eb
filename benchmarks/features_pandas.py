"""The thirty features in pandas, on wide frames (sessions by firms), its fastest layout for rolling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from features_market import CROSS_SECTIONS, MAX_HALT, TAIL, WARMUPS, FloatArray, half, read
from scipy.special import ndtri


@dataclass(frozen=True, slots=True)
class Wide:
    """The market, one frame per column."""

    close: pd.DataFrame
    high: pd.DataFrame
    low: pd.DataFrame
    volume: pd.DataFrame
    industry: pd.Series


def prepare(folder: Path) -> Wide:
    """Build the frames."""
    dates = pd.DatetimeIndex(read(folder, "dates"))
    close, high, low, volume = (
        pd.DataFrame(read(folder, name), index=dates) for name in ("close", "high", "low", "volume")
    )
    return Wide(close, high, low, volume, pd.Series(read(folder, "industry")))


def _log(x: pd.DataFrame) -> pd.DataFrame:
    return cast("pd.DataFrame", np.log(x))  # the stubs declare an array, but pandas returns a frame


def _mean(x: pd.DataFrame, window: int) -> pd.DataFrame:
    return x.rolling(window, min_periods=half(window)).mean()


def compute(market: Wide) -> dict[str, pd.DataFrame]:
    """Compute all features."""
    close = market.close
    traded = close.notna()
    carried = close.ffill(limit=MAX_HALT)
    r = close / carried.shift(1) - 1
    span = _log(market.high / market.low)
    dv = close * market.volume
    out = {
        "return_21": close / carried.shift(21) - 1,
        "momentum_252_21": carried.shift(21) / carried.shift(252) - 1,
        "high_distance_252": close / close.rolling(252, min_periods=half(252)).max() - 1,
        "low_distance_252": close / close.rolling(252, min_periods=half(252)).min() - 1,
        "volatility_21": r.rolling(21, min_periods=half(21)).std(),
        "volatility_63": r.rolling(63, min_periods=half(63)).std(),
        "parkinson_21": np.sqrt(_mean(span * span, 21) / (4 * np.log(2))),
        "maximum_return_21": r.rolling(21, min_periods=half(21)).max(),
    }
    n = r.rolling(63, min_periods=1).count()
    # pandas corrects skewness for bias; the feature is the ratio of population moments
    out["skewness_63"] = (
        r.rolling(63, min_periods=half(63)).skew() * ((n - 2) / np.sqrt(n * (n - 1)))
    ).where(traded)
    market_return = r.mean(axis=1)
    m = r.notna().mul(market_return, axis=0).where(r.notna())
    mean_r, mean_m = _mean(r, 63), _mean(m, 63)
    cov = _mean(r * m, 63) - mean_r * mean_m
    var_m = _mean(m * m, 63) - mean_m * mean_m
    var_r = _mean(r * r, 63) - mean_r * mean_r
    beta = cov / var_m
    out["beta_63"] = beta
    out["idiosyncratic_volatility_63"] = np.sqrt((var_r - beta * cov) * n / (n - 2))
    out["residual_return_1"] = r - beta.shift(1).mul(market_return, axis=0)
    out["log_dollar_volume_21"] = np.log(_mean(dv, 21))
    out["amihud_21"] = 1e6 * _mean(r.abs() / dv.where(dv > 0), 21)
    out["volume_trend_5_63"] = np.log(_mean(dv, 5) / _mean(dv, 63))
    surprise = _log(dv / _mean(dv, 21))
    both = r.notna() & surprise.notna()
    a, b = r.where(both), surprise.where(both)
    mean_a, mean_b = _mean(a, 63), _mean(b, 63)
    var_a, var_b = _mean(a * a, 63) - mean_a * mean_a, _mean(b * b, 63) - mean_b * mean_b
    out["return_volume_correlation_63"] = (_mean(a * b, 63) - mean_a * mean_b) / np.sqrt(var_a * var_b)
    out["zero_return_days_21"] = _mean((r.abs() < 1e-12).where(r.notna()).astype(np.float64), 21)
    for window in (21, 63, 126):
        out[f"median_dollar_volume_{window}"] = dv.rolling(window, min_periods=half(window)).median()
    return_5 = close / carried.shift(5) - 1
    relative = return_5.T.groupby(market.industry)
    peers = relative.transform("count").T >= 2
    out["group_relative_return_5"] = (return_5 - relative.transform("mean").T).where(peers)
    for name, warmup in WARMUPS.items():
        out[name] = out[name].where(traded & carried.shift(warmup).notna())
    for kind, name in CROSS_SECTIONS:
        x = out[name]
        if kind == "rank":
            x = x.astype(np.float32)  # as in the pipeline; in float64, rounding would decide near ties
            out[f"{kind}_{name}"] = ndtri(x.rank(axis=1).sub(0.5).div(x.count(axis=1), axis=0))
        elif kind == "zscore":
            out[f"{kind}_{name}"] = x.sub(x.mean(axis=1), axis=0).div(x.std(axis=1, ddof=0), axis=0)
        elif kind == "winsorised":
            cuts = x.quantile([TAIL, 1 - TAIL], axis=1)
            out[f"{kind}_{name}"] = x.clip(cuts.loc[TAIL], cuts.loc[1 - TAIL], axis=0)
        else:
            out[f"{kind}_{name}"] = x - x.T.groupby(market.industry).transform("mean").T
    return out


def values(out: dict[str, pd.DataFrame], name: str, every: int) -> FloatArray:
    """Return one feature for every ``every``-th firm, (T, n)."""
    x_TN: FloatArray = out[name].to_numpy(np.float64)
    return np.ascontiguousarray(x_TN[:, ::every])
