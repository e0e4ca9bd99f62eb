"""Seasonality: what a firm did at this time of other years, and on this day of other weeks.

Shape suffixes: T sessions, N firms. ``C`` is the close carried through halts, ``r`` the day's return. A year
is 252 sessions, a month 21 and a week 5.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray
from features.characteristics.registry import characteristic
from features.characteristics.reversal import trailing_return
from features.derived import HALT, daily_return
from features.panel import Panel
from features.rolling import lag


@characteristic(
    "same_month_return_1y",
    "seasonality",
    warmup=252,
    formula="C[t-231] / C[t-252] - 1",
    unit="fraction",
    source="Heston and Sadka 2008",
)
def same_month_return(panel: Panel) -> FloatArray:
    """Compute what the month that is about to start brought a year ago."""
    return trailing_return(panel, 252, 231)


@characteristic(
    "same_month_return_3y",
    "seasonality",
    warmup=504,
    window=756 + 1 + HALT,
    formula="mean(C[t-252k+21] / C[t-252k] - 1 over k = 1..3)",
    unit="fraction",
    nan_rule="fewer than 2 of the 3 known",
    source="Heston and Sadka 2008",
)
def same_month_returns(panel: Panel) -> FloatArray:
    """Compute what the month that is about to start brought in the last three years, on average."""
    return _mean_of([trailing_return(panel, 252 * k, 252 * k - 21) for k in (1, 2, 3)], least=2)


@characteristic(
    "same_weekday_return_100",
    "seasonality",
    warmup=100,
    formula="mean(r[t+1-5k] over k = 1..20)",
    unit="fraction a day",
    nan_rule="fewer than 10 of the 20 known",
    source="Keloharju, Linnainmaa and Nyberg 2016",
)
def same_weekday_return(panel: Panel) -> FloatArray:
    """Compute the mean return of the sessions a whole number of weeks before the next one."""
    r_TN = daily_return(panel)
    return _mean_of([lag(r_TN, 5 * k - 1) for k in range(1, 21)], least=10)


def _mean_of(parts: list[FloatArray], least: int) -> FloatArray:
    total_TN, count_TN = np.zeros_like(parts[0]), np.zeros_like(parts[0])
    for part_TN in parts:
        known_TN = ~np.isnan(part_TN)
        total_TN[known_TN] += part_TN[known_TN]
        count_TN += known_TN
    return np.where(count_TN >= least, total_TN / count_TN, np.nan)
