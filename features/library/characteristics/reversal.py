"""Reversal: returns over past days, which tend to reverse in part.

Shape suffixes: T sessions, N firms. Prices are adjusted. ``r`` is the day's return
(`features.panel.derived.daily_return`) and ``C`` the close carried through halts of at most
`features.panel.derived.MAX_HALT` sessions.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import lag, rolling_correlation, rolling_mean
from features.arrays import FloatArray
from features.library.characteristics.registry import characteristic
from features.library.characteristics.volatility import half
from features.library.registry import Compute
from features.panel.derived import carried_close, column, daily_return, group_mean
from features.panel.panel import Panel

RETURN_WINDOWS = (1, 2, 3, 5, 10, 21)
LAGS = (1, 2, 3, 4)
AVERAGE_WINDOWS = (5, 10, 20, 30)
RELATIVE_WINDOWS = (1, 5, 21)


def trailing_return(panel: Panel, window: int, skip: int = 0) -> FloatArray:
    """Compute the return from the close ``window`` sessions ago to the one ``skip`` sessions ago.

    Parameters
    ----------
    panel : Panel
        The data.
    window, skip : int
        Sessions, ``window > skip >= 0``.

    Returns
    -------
    ndarray of shape (T, N)
        ``C[t-skip] / C[t-window] - 1``, a fraction; NaN before the firm's first price.
    """
    close_TN = carried_close(panel)
    return lag(close_TN, skip) / lag(close_TN, window) - 1.0


def traded_return(panel: Panel, window: int, skip: int = 0) -> FloatArray:
    """Compute `trailing_return` for the firms that traded at t; NaN for the others."""
    return np.where(np.isnan(panel.close_TN), np.nan, trailing_return(panel, window, skip))


def _overnight(panel: Panel) -> FloatArray:
    return column(panel, "open") / lag(carried_close(panel), 1) - 1.0


def _intraday(panel: Panel) -> FloatArray:
    return panel.close_TN / column(panel, "open") - 1.0


def _mean_of(series: Compute, window: int) -> Compute:
    return lambda panel: rolling_mean(series(panel), window, half(window))


def _trailing(window: int) -> Compute:
    return lambda panel: trailing_return(panel, window)


def _lagged(k: int) -> Compute:
    return lambda panel: lag(daily_return(panel), k)


def average_distance(window: int) -> Compute:
    """Return a function that compares the close with the mean of the last ``window`` carried closes."""

    def compute(panel: Panel) -> FloatArray:
        return panel.close_TN / rolling_mean(carried_close(panel), window, window) - 1.0

    return compute


def _group_relative(window: int) -> Compute:
    return lambda panel: traded_return(panel, window) - group_mean(panel, traded_return, window)


for _window in RETURN_WINDOWS:
    characteristic(
        f"return_{_window}",
        "reversal",
        warmup=_window,
        formula=f"close[t] / C[t-{_window}] - 1",
        unit="fraction",
        source="Jegadeesh 1990; Lehmann 1990",
    )(_trailing(_window))

for _k in LAGS:
    characteristic(
        f"lagged_return_{_k}",
        "reversal",
        warmup=_k + 1,
        formula=f"r[t-{_k}]",
        nan_rule=f"no trade at t-{_k}",
        unit="fraction",
        source="Lehmann 1990; Lo and MacKinlay 1990",
    )(_lagged(_k))

for _window in AVERAGE_WINDOWS:
    characteristic(
        f"average_distance_{_window}",
        "reversal",
        warmup=_window - 1,
        formula=f"close[t] / mean(C[t-{_window - 1}..t]) - 1",
        unit="fraction",
        source="Brock, Lakonishok and LeBaron 1992; Han, Zhou and Zhu 2016",
    )(average_distance(_window))

for _window in RELATIVE_WINDOWS:
    characteristic(
        f"group_relative_return_{_window}",
        "reversal",
        needs=("close", "group"),
        warmup=_window,
        formula=f"return_{_window} minus its mean over the group's firms that traded at t",
        unit="fraction",
        nan_rule="group unknown, or fewer than two such firms",
        source="Da, Liu and Schaumburg 2014; Hameed and Mian 2015",
    )(_group_relative(_window))


@characteristic(
    "overnight_return",
    "reversal",
    needs=("close", "open"),
    warmup=1,
    formula="open[t] / C[t-1] - 1",
    unit="fraction",
    source="Lou, Polk and Skouras 2019",
)
def overnight_return(panel: Panel) -> FloatArray:
    """Compute the return from the previous close to today's open, splits and dividends included."""
    return _overnight(panel)


@characteristic(
    "intraday_return",
    "reversal",
    needs=("close", "open"),
    warmup=0,
    formula="close[t] / open[t] - 1",
    unit="fraction",
    source="Lou, Polk and Skouras 2019",
)
def intraday_return(panel: Panel) -> FloatArray:
    """Compute the return from today's open to today's close."""
    return _intraday(panel)


for _name, _series, _warmup, _what in (
    ("overnight_return_21", _overnight, 21, "open[s] / C[s-1] - 1"),
    ("intraday_return_21", _intraday, 20, "close[s] / open[s] - 1"),
):
    characteristic(
        _name,
        "reversal",
        needs=("close", "open"),
        warmup=_warmup,
        formula=f"mean({_what} over s = t-20..t)",
        unit="fraction per day",
        nan_rule="fewer than 11 known",
        source="Lou, Polk and Skouras 2019",
    )(_mean_of(_series, 21))


@characteristic(
    "high_return",
    "reversal",
    needs=("close", "high"),
    warmup=1,
    formula="high[t] / C[t-1] - 1",
    unit="fraction",
    source="after George and Hwang 2004 and Bali, Cakici and Whitelaw 2011, who use other extremes",
)
def high_return(panel: Panel) -> FloatArray:
    """Compute the return from the previous close to today's high."""
    return column(panel, "high") / lag(carried_close(panel), 1) - 1.0


@characteristic(
    "close_location",
    "reversal",
    needs=("close", "high", "low"),
    warmup=0,
    formula="(close[t] - low[t]) / (high[t] - low[t])",
    nan_rule="high = low",
    unit="fraction of the day's range",
    source="Lane 1984 (stochastic %K over one day)",
)
def close_location(panel: Panel) -> FloatArray:
    """Compute the position of the close in the day's range: 0 at the low, 1 at the high."""
    low_TN = column(panel, "low")
    return (panel.close_TN - low_TN) / (column(panel, "high") - low_TN)


@characteristic(
    "long_reversal_756_252",
    "reversal",
    warmup=756,
    formula="C[t-252] / C[t-756] - 1",
    unit="fraction",
    source="De Bondt and Thaler 1985",
)
def long_reversal(panel: Panel) -> FloatArray:
    """Compute the return over the two years before the last year."""
    return trailing_return(panel, 756, 252)


@characteristic(
    "autocorrelation_63",
    "reversal",
    warmup=64,
    formula="correlation of r[s] with r[s-1] over s = t-62..t",
    unit="pure number",
    nan_rule="fewer than 32 pairs known, or no variation",
    source="Lo and MacKinlay 1988; Campbell, Grossman and Wang 1993",
)
def autocorrelation(panel: Panel) -> FloatArray:
    """Compute the first-order autocorrelation of daily returns."""
    return rolling_correlation(daily_return(panel), lag(daily_return(panel), 1), 63, half(63))
