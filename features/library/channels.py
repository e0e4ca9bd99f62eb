"""The registry of channels: the daily inputs of a firm that a model sees over a window of sessions.

Shape suffixes: T sessions, N firms. ``C`` is the close carried through halts of at most `MAX_HALT` sessions.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import lag, rolling_mean, rolling_std
from features.arrays import FloatArray
from features.library.factors import FACTORS, MONTH, WINDOW, factor_residual
from features.library.registry import Registry
from features.panel.derived import (
    MAX_HALT,
    carried_close,
    column,
    daily_return,
    dollar_volume,
    group_mean,
    market_return,
)
from features.panel.panel import Panel

CHANNELS = Registry("channel", ("channel",), renamed={"close_location": "centred_close_location"})
channel = CHANNELS.register

_DAY = MAX_HALT + 2  # a daily return depends on the last close, at most MAX_HALT + 1 sessions before t


@channel(
    "return",
    "channel",
    window=_DAY,
    formula="close[t] / C[t-1] - 1, C the close carried through halts",
    unit="fraction",
    source="Jegadeesh 1990",
)
def day_return(panel: Panel) -> FloatArray:
    """Compute the day's total return."""
    return daily_return(panel)


@channel(
    "overnight_return",
    "channel",
    window=_DAY,
    needs=("close", "open"),
    formula="open[t] / C[t-1] - 1",
    unit="fraction",
    source="Lou, Polk and Skouras 2019",
)
def overnight_return(panel: Panel) -> FloatArray:
    """Compute the return from the previous close to the open."""
    return column(panel, "open") / lag(carried_close(panel), 1) - 1.0


@channel(
    "intraday_range",
    "channel",
    needs=("close", "high", "low"),
    formula="ln(high[t] / low[t])",
    unit="log ratio",
    source="Parkinson 1980",
)
def intraday_range(panel: Panel) -> FloatArray:
    """Compute the day's log range."""
    return np.log(column(panel, "high") / column(panel, "low"))


@channel(
    "centred_close_location",
    "channel",
    needs=("close", "high", "low"),
    formula="(close[t] - low[t]) / (high[t] - low[t]) - 1/2; 0 if high = low",
    unit="fraction of the day's range",
    source="Lane 1984 (stochastic %K over one day), minus 1/2",
)
def centred_close_location(panel: Panel) -> FloatArray:
    """Compute the position of the close in the day's range: -1/2 at the low, 1/2 at the high."""
    low_TN = column(panel, "low")
    range_TN = column(panel, "high") - low_TN
    return np.where(range_TN == 0, 0.0, (panel.close_TN - low_TN) / range_TN - 0.5)


@channel(
    "dollar_volume_surprise",
    "channel",
    window=21,
    needs=("close", "volume"),
    formula="ln(dv[t] / mean(dv[t-20..t])), dv = raw close x volume",
    nan_rule="no volume; fewer than 11 known dv",
    unit="log ratio",
    source="Gervais, Kaniel and Mingelgrin 2001",
)
def dollar_volume_surprise(panel: Panel) -> FloatArray:
    """Compare the day's dollar volume with its mean over 21 sessions."""
    volume_TN = dollar_volume(panel)
    return np.log(volume_TN / rolling_mean(volume_TN, 21, 11))


@channel(
    "market_relative_return",
    "channel",
    window=_DAY,
    formula="return minus its mean over the firms that traded at t",
    unit="fraction",
    source="Lo and MacKinlay 1990",
)
def market_relative_return(panel: Panel) -> FloatArray:
    """Compute the day's return minus the return of the equal-weight market.

    Unlike the group-relative return, its mean over a group is not zero. A model that averages over a group
    therefore still receives the moves of the group's leaders.
    """
    return daily_return(panel) - market_return(panel)


@channel(
    "group_relative_return",
    "channel",
    window=_DAY,
    needs=("close", "group"),
    formula="return minus its mean over the group's firms that traded at t",
    nan_rule="group unknown, or fewer than two such firms",
    unit="fraction",
    source="Da, Liu and Schaumburg 2014",
)
def group_relative_return(panel: Panel) -> FloatArray:
    """Compute the day's return minus the mean return of the firm's group."""
    return daily_return(panel) - group_mean(panel, daily_return)


@channel(
    "scaled_return",
    "channel",
    window=64 + MAX_HALT,
    warmup=63,
    formula="return / std(return over t-62..t)",
    nan_rule="fewer than 32 returns known, or no variation",
    unit="standard deviations",
    source="Barroso and Santa-Clara 2015",
)
def scaled_return(panel: Panel) -> FloatArray:
    """Compute the day's return in units of the firm's own volatility, which makes firms comparable."""
    r_TN = daily_return(panel)
    return r_TN / rolling_std(r_TN, 63, 32)


@channel(
    "factor_residual",
    "channel",
    window=WINDOW + MONTH + 1 + MAX_HALT,
    warmup=WINDOW + MONTH,
    formula="residual of the return on 20 statistical factors / std(return over t-62..t)",
    nan_rule="fewer than 32 returns known, or no variation",
    unit="standard deviations",
    source="Avellaneda and Lee 2010",
)
def scaled_factor_residual(panel: Panel) -> FloatArray:
    """Compute the day's return that 20 statistical factors do not explain, scaled by volatility."""
    return factor_residual(panel, FACTORS) / rolling_std(daily_return(panel), 63, 32)
