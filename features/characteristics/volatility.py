"""Volatility: how much a price moves, by returns and by ranges.

Shape suffixes: T sessions, N firms. ``r`` is the day's return. Rolling statistics need at least half of the
window's sessions, else NaN.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray
from features.characteristics.registry import characteristic
from features.derived import column, daily_return
from features.panel import Panel
from features.registry import Compute
from features.rolling import rolling_max, rolling_mean, rolling_skewness, rolling_std


def half(window: int) -> int:
    """Give the least number of known sessions that a window's statistic needs: half of them, rounded up."""
    return (window + 1) // 2


def _volatility(window: int) -> Compute:
    return lambda panel: rolling_std(daily_return(panel), window, half(window))


for _window in (5, 21, 63):
    characteristic(
        f"volatility_{_window}",
        "volatility",
        warmup=_window,
        formula=f"sample standard deviation of r[t-{_window - 1}..t]",
        unit="fraction a day",
        source="Ang, Hodrick, Xing and Zhang 2006",
    )(_volatility(_window))


def log_range(panel: Panel) -> FloatArray:
    """Compute ``ln(high[t] / low[t])``."""
    range_TN: FloatArray = np.log(column(panel, "high") / column(panel, "low"))
    return range_TN


@characteristic(
    "parkinson_21",
    "volatility",
    needs=("close", "high", "low"),
    warmup=20,
    formula="sqrt(mean(ln(high/low)^2 over t-20..t) / (4 ln 2))",
    unit="fraction a day",
    source="Parkinson 1980",
)
def parkinson(panel: Panel) -> FloatArray:
    """Compute the volatility that the last 21 daily ranges imply for a driftless diffusion."""
    range_TN = log_range(panel)
    parkinson_TN: FloatArray = np.sqrt(rolling_mean(range_TN * range_TN, 21, half(21)) / (4.0 * np.log(2.0)))
    return parkinson_TN


@characteristic(
    "range",
    "volatility",
    needs=("close", "high", "low"),
    warmup=0,
    formula="ln(high[t] / low[t])",
    unit="log ratio",
    source="Alizadeh, Brandt and Diebold 2002",
)
def daily_range(panel: Panel) -> FloatArray:
    """Compute the day's log range."""
    return log_range(panel)


@characteristic(
    "range_surprise_21",
    "volatility",
    needs=("close", "high", "low"),
    warmup=20,
    formula="range[t] / mean(range[t-20..t]) - 1",
    unit="fraction",
    source="Alizadeh, Brandt and Diebold 2002",
)
def range_surprise(panel: Panel) -> FloatArray:
    """Compare the day's range with its mean over 21 sessions."""
    range_TN = log_range(panel)
    return range_TN / rolling_mean(range_TN, 21, half(21)) - 1.0


@characteristic(
    "maximum_return_21",
    "volatility",
    warmup=21,
    formula="max(r[t-20..t])",
    unit="fraction",
    source="Bali, Cakici and Whitelaw 2011",
)
def maximum_return(panel: Panel) -> FloatArray:
    """Find the largest daily return of 21 sessions."""
    return rolling_max(daily_return(panel), 21, half(21))


@characteristic(
    "skewness_63",
    "volatility",
    warmup=63,
    formula="m3 / m2^1.5 of r[t-62..t], population moments",
    unit="pure number",
    source="Amaya, Christoffersen, Jacobs and Vasquez 2015",
)
def skewness(panel: Panel) -> FloatArray:
    """Compute the skewness of 63 daily returns."""
    return rolling_skewness(daily_return(panel), 63, half(63))
