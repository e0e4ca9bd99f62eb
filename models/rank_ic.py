"""Rank IC for early stopping, in float64 numpy.

Legend: T dates, N firms.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]


def average_ranks(value_N: FloatArray) -> npt.NDArray[np.float64]:
    """Ranks from 1, ties sharing their average rank."""
    _, inverse_N, count_U = np.unique(value_N, return_inverse=True, return_counts=True)
    last_U = np.cumsum(count_U)
    return (last_U - (count_U - 1) / 2.0)[inverse_N]


def rank_ic(forecast_N: FloatArray, target_N: FloatArray) -> float:
    """Spearman's correlation over the cells that are known on both sides.

    NaN with fewer than three such cells or a constant target; 0 for a constant forecast, which
    knows nothing.
    """
    known_N = np.isfinite(forecast_N) & np.isfinite(target_N)
    if known_N.sum() < 3:
        return float("nan")
    return _correlation(average_ranks(forecast_N[known_N]), average_ranks(target_N[known_N]))


def ic(forecast_N: FloatArray, target_N: FloatArray) -> float:
    """Pearson's correlation, under the same rules as :func:`rank_ic`."""
    known_N = np.isfinite(forecast_N) & np.isfinite(target_N)
    if known_N.sum() < 3:
        return float("nan")
    return _correlation(forecast_N[known_N].astype(np.float64), target_N[known_N].astype(np.float64))


def _correlation(a_N: npt.NDArray[np.float64], b_N: npt.NDArray[np.float64]) -> float:
    constant = np.ptp(a_N) == 0.0
    a_N, b_N = a_N - a_N.mean(), b_N - b_N.mean()
    if np.ptp(b_N) == 0.0:
        return float("nan")
    return 0.0 if constant else float(a_N @ b_N / np.sqrt((a_N @ a_N) * (b_N @ b_N)))


def mean_rank_ic(dates: Iterable[tuple[FloatArray, FloatArray]]) -> float:
    """Mean rank IC over dates, given as (forecast_N, target_N); a date without one does not count.

    NaN if no date has one.
    """
    return _mean_known([rank_ic(forecast_N, target_N) for forecast_N, target_N in dates])


def mean_ic(dates: Iterable[tuple[FloatArray, FloatArray]]) -> float:
    """Mean Pearson correlation over dates; as :func:`mean_rank_ic`."""
    return _mean_known([ic(forecast_N, target_N) for forecast_N, target_N in dates])


def _mean_known(daily: list[float]) -> float:
    daily_T = np.array(daily)
    known_T = np.isfinite(daily_T)
    return float(daily_T[known_T].mean()) if known_T.any() else float("nan")
