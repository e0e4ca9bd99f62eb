"""Volatility and higher moments, from returns and from price ranges.

Shape suffixes: T sessions, N firms. ``r`` is the day's return. Rolling statistics need at least half of the
window's sessions, else they are NaN.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import FLAT, rolling_max, rolling_mean, rolling_skewness, rolling_std
from features.arrays import FloatArray
from features.library.characteristics.registry import characteristic
from features.library.registry import Compute
from features.panel.derived import column, daily_return
from features.panel.panel import Panel


def half(window: int) -> int:
    """Return the minimum number of known sessions in a window: half of them, rounded up."""
    return (window + 1) // 2


def sign(r_TN: FloatArray) -> FloatArray:
    """Return the sign of a return; 0 if its absolute value is below 1e-12, which is rounding."""
    return np.where(np.abs(r_TN) < 1e-12, 0.0, np.sign(r_TN))


def _volatility(window: int) -> Compute:
    return lambda panel: rolling_std(daily_return(panel), window, half(window))


for _window in (5, 21, 63, 252):
    characteristic(
        f"volatility_{_window}",
        "volatility",
        warmup=_window,
        formula=f"sample standard deviation of r[t-{_window - 1}..t]",
        unit="fraction per day",
        nan_rule=f"fewer than {half(_window)} returns known",
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
    unit="fraction per day",
    nan_rule="fewer than 11 ranges known",
    source="Parkinson 1980",
)
def parkinson(panel: Panel) -> FloatArray:
    """Compute the volatility implied by 21 daily ranges, for a driftless diffusion."""
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
    nan_rule="fewer than 11 ranges known",
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
    nan_rule="fewer than 11 returns known",
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
    nan_rule="fewer than 32 returns known; no variation",
    source="Amaya, Christoffersen, Jacobs and Vasquez 2015",
)
def skewness(panel: Panel) -> FloatArray:
    """Compute the skewness of 63 daily returns."""
    return rolling_skewness(daily_return(panel), 63, half(63))


@characteristic(
    "minimum_return_21",
    "volatility",
    warmup=21,
    formula="min(r[t-20..t])",
    unit="fraction",
    nan_rule="fewer than 11 returns known",
    source="Bali, Cakici and Whitelaw 2011",
)
def minimum_return(panel: Panel) -> FloatArray:
    """Find the smallest daily return of 21 sessions."""
    return -rolling_max(-daily_return(panel), 21, half(21))


@characteristic(
    "kurtosis_63",
    "volatility",
    warmup=63,
    formula="m4 / m2^2 of r[t-62..t], population moments",
    unit="pure number",
    nan_rule="fewer than 32 returns known; no variation",
    source="Amaya, Christoffersen, Jacobs and Vasquez 2015",
)
def kurtosis(panel: Panel) -> FloatArray:
    """Compute the kurtosis of 63 daily returns; 3 for a normal distribution."""
    r_TN = daily_return(panel)
    mean_TN = rolling_mean(r_TN, 63, half(63))
    square_TN = rolling_mean(r_TN * r_TN, 63, half(63))
    cube_TN = rolling_mean(r_TN * r_TN * r_TN, 63, half(63))
    fourth_TN = rolling_mean(r_TN * r_TN * r_TN * r_TN, 63, half(63))
    m2_TN = square_TN - mean_TN * mean_TN
    m4_TN = fourth_TN - 4.0 * mean_TN * cube_TN + 6.0 * mean_TN**2 * square_TN - 3.0 * mean_TN**4
    return np.where(m2_TN > FLAT * square_TN, m4_TN / (m2_TN * m2_TN), np.nan)


@characteristic(
    "downside_share_63",
    "volatility",
    warmup=63,
    formula="sum(r^2 where r < 0) / sum(r^2) over t-62..t",
    unit="fraction",
    nan_rule="fewer than 32 returns known; all of them 0",
    source="Barndorff-Nielsen, Kinnebrock and Shephard 2010; Bollerslev, Li and Zhao 2020",
)
def downside_share(panel: Panel) -> FloatArray:
    """Compute the share of falling days in the realised variance of 63 days."""
    r_TN = daily_return(panel)
    square_TN = r_TN * r_TN
    falling_TN = np.where(r_TN < 0, square_TN, 0.0 * square_TN)
    return rolling_mean(falling_TN, 63, half(63)) / rolling_mean(square_TN, 63, half(63))


@characteristic(
    "volatility_surprise_5_63",
    "volatility",
    warmup=63,
    formula="ln(volatility_5 / volatility_63)",
    unit="log ratio",
    nan_rule="either volatility is unknown or 0",
    source="Ang, Hodrick, Xing and Zhang 2006",
)
def volatility_surprise(panel: Panel) -> FloatArray:
    """Compare the volatility of a week with that of a quarter."""
    r_TN = daily_return(panel)
    return np.log(rolling_std(r_TN, 5, half(5)) / rolling_std(r_TN, 63, half(63)))


@characteristic(
    "garman_klass_21",
    "volatility",
    needs=("close", "open", "high", "low"),
    warmup=20,
    formula="sqrt(mean(ln(high/low)^2 / 2 - (2 ln 2 - 1) ln(close/open)^2 over t-20..t))",
    unit="fraction per day",
    nan_rule="fewer than 11 sessions known; mean below 0",
    source="Garman and Klass 1980",
)
def garman_klass(panel: Panel) -> FloatArray:
    """Compute the volatility implied by 21 daily bars, for a driftless diffusion without overnight moves."""
    range_TN, body_TN = log_range(panel), np.log(panel.close_TN / column(panel, "open"))
    variance_TN = 0.5 * range_TN * range_TN - (2.0 * np.log(2.0) - 1.0) * body_TN * body_TN
    return np.sqrt(rolling_mean(variance_TN, 21, half(21)))


@characteristic(
    "rogers_satchell_21",
    "volatility",
    needs=("close", "open", "high", "low"),
    warmup=20,
    formula="sqrt(mean(ln(h/c) ln(h/o) + ln(l/c) ln(l/o) over t-20..t)), o, h, l, c the day's prices",
    unit="fraction per day",
    nan_rule="fewer than 11 sessions known; mean below 0",
    source="Rogers and Satchell 1991",
)
def rogers_satchell(panel: Panel) -> FloatArray:
    """Compute the volatility implied by 21 daily bars, for a diffusion with any drift."""
    open_TN, high_TN, low_TN = (np.log(column(panel, name)) for name in ("open", "high", "low"))
    close_TN = np.log(panel.close_TN)
    variance_TN = (high_TN - close_TN) * (high_TN - open_TN) + (low_TN - close_TN) * (low_TN - open_TN)
    return np.sqrt(rolling_mean(variance_TN, 21, half(21)))
