"""The thirty features of the benchmark, and the market they are computed on.

The market has daily prices with listings, delistings, halts of a few sessions and days without a move. There
are no splits or dividends, so that all engines start from the same numbers.

A feature is known if the firm trades and had a price one warm-up earlier. The other engines apply that rule
before cross-sectional transforms (`WARMUPS`); elsewhere they may have more values than we do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

RANKED = ("momentum_252_21", "volatility_21", "log_dollar_volume_21", "zero_return_days_21")
CHARACTERISTICS = (
    *RANKED,
    "return_21",
    "high_distance_252",
    "low_distance_252",
    "group_relative_return_5",
    "residual_return_1",
    "volatility_63",
    "parkinson_21",
    "maximum_return_21",
    "skewness_63",
    "beta_63",
    "idiosyncratic_volatility_63",
    "amihud_21",
    "volume_trend_5_63",
    "return_volume_correlation_63",
)
"""Names as in `peerglass features`."""

MEDIANS = ("median_dollar_volume_21", "median_dollar_volume_63", "median_dollar_volume_126")

CROSS_SECTIONS = (
    *(("rank", name) for name in RANKED),
    ("zscore", "volatility_63"),
    ("zscore", "beta_63"),
    ("winsorised", "amihud_21"),
    ("demeaned", "return_21"),
    ("demeaned", "momentum_252_21"),
)
"""Pairs of cross-sectional transform and feature; ``demeaned`` subtracts the mean of the firm's industry."""

WARMUPS = {
    "momentum_252_21": 252,
    "volatility_21": 21,
    "volatility_63": 63,
    "beta_63": 63,
    "log_dollar_volume_21": 20,
    "amihud_21": 21,
    "zero_return_days_21": 21,
    "return_21": 21,
}
"""Warm-up in sessions, of the features that are transformed."""

NAMES = (*CHARACTERISTICS, *MEDIANS, *(f"{kind}_{name}" for kind, name in CROSS_SECTIONS))

MAX_HALT = 20  # sessions over which a close is carried
TAIL = 0.01  # share winsorised on each side
INDUSTRIES = 49

FloatArray = npt.NDArray[np.float64]


def half(window: int) -> int:
    """Return the minimum number of known sessions of a rolling statistic."""
    return (window + 1) // 2


def write_market(folder: Path, firms: int, sessions: int, seed: int = 7) -> None:
    """Write ``close``, ``high``, ``low``, ``volume`` of shape (T, N) and ``industry`` (N,) as npy files."""
    rng = np.random.default_rng(seed)
    T, N = sessions, firms
    market_T1 = rng.normal(0.0003, 0.01, (T, 1))
    return_TN = market_T1 * rng.uniform(0.4, 1.6, N) + 0.02 * rng.standard_t(5, (T, N)) * rng.uniform(
        0.4, 1.2, N
    )
    return_TN[rng.random((T, N)) < 0.03] = 0.0
    close_TN = rng.uniform(5.0, 200.0, N) * np.exp(np.cumsum(return_TN, axis=0))
    start_N = np.where(rng.random(N) < 0.3, rng.integers(0, max(T // 2, 1), N), 0)
    end_N = np.where(rng.random(N) < 0.2, rng.integers(T // 2, T, N), T)
    t_T1 = np.arange(T)[:, None]
    halted_TN = rng.random((T, N)) < 0.002
    halted_TN[1:] |= halted_TN[:-1] & (rng.random((T - 1, N)) < 0.5)
    gone_TN = (t_T1 < start_N) | (t_T1 >= end_N) | halted_TN
    move_TN = np.diff(close_TN, axis=0, prepend=np.nan) != 0
    close_TN = np.where(move_TN, close_TN, np.vstack([close_TN[:1], close_TN[:-1]]))
    high_TN = close_TN * (1.0 + np.abs(rng.normal(0.0, 0.01, (T, N))))
    low_TN = close_TN * (1.0 - np.minimum(np.abs(rng.normal(0.0, 0.01, (T, N))), 0.5))
    volume_TN = np.round(np.exp(rng.normal(12.0, 1.0, (T, N))))
    for name, array_TN in (("close", close_TN), ("high", high_TN), ("low", low_TN), ("volume", volume_TN)):
        array_TN[gone_TN] = np.nan
        np.save(folder / f"{name}.npy", array_TN)
    np.save(folder / "industry.npy", rng.integers(0, INDUSTRIES, N).astype(np.int16))
    np.save(
        folder / "dates.npy",
        np.busday_offset(np.datetime64("2010-01-04"), np.arange(T)).astype("datetime64[D]"),
    )


def read(folder: Path, name: str) -> npt.NDArray[np.generic]:
    """Read one of the arrays."""
    array: npt.NDArray[np.generic] = np.load(folder / f"{name}.npy")
    return array
