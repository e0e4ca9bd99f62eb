"""The information coefficient of each date by scipy: the reference for the score of early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy import stats

Pairs = Iterable[tuple[np.ndarray, np.ndarray]]


def one_date(forecast_N: np.ndarray, target_N: np.ndarray, *, ranks: bool) -> float:
    """NaN with fewer than three known firms or a constant target, 0 for a constant forecast."""
    known_N = np.isfinite(forecast_N) & np.isfinite(target_N)
    x, y = forecast_N[known_N].astype(np.float64), target_N[known_N].astype(np.float64)
    if len(x) < 3 or len(set(y)) == 1:
        return math.nan
    if len(set(x)) == 1:
        return 0.0
    if ranks:
        x, y = stats.rankdata(x), stats.rankdata(y)
    return float(stats.pearsonr(x, y).statistic)


def mean_rank_ic(dates: Pairs) -> float:
    """Mean over the dates that have a rank correlation."""
    return float(np.nanmean([one_date(x, y, ranks=True) for x, y in dates]))


def mean_ic(dates: Pairs) -> float:
    """Mean over the dates that have a correlation."""
    return float(np.nanmean([one_date(x, y, ranks=False) for x, y in dates]))
