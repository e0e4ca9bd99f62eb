"""Momentum: returns over past months, which tend to continue.

Shape suffixes: T sessions, N firms. Prices are adjusted; ``C`` is the close carried through halts.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import lag, rolling_max, rolling_mean
from features.arrays import FloatArray
from features.library.characteristics.registry import characteristic
from features.library.characteristics.reversal import average_distance, traded_return, trailing_return
from features.library.characteristics.volatility import half, sign
from features.library.registry import Compute
from features.panel.derived import daily_return, group_mean
from features.panel.panel import Panel

GROUP_WINDOWS = (1, 5, 21, 126)


def _trailing(window: int, skip: int) -> Compute:
    return lambda panel: trailing_return(panel, window, skip)


def _group_return(window: int) -> Compute:
    return lambda panel: group_mean(panel, traded_return, window)


for _window, _skip, _source in (
    (63, 0, "Jegadeesh and Titman 1993"),
    (126, 0, "Jegadeesh and Titman 1993"),
    (126, 21, "Jegadeesh and Titman 1993"),
    (252, 21, "Jegadeesh and Titman 1993; Fama and French 1996"),
    (252, 126, "Novy-Marx 2012"),
):
    characteristic(
        f"momentum_{_window}" + (f"_{_skip}" if _skip else ""),
        "momentum",
        warmup=_window,
        formula=f"C[t{f'-{_skip}' if _skip else ''}] / C[t-{_window}] - 1",
        unit="fraction",
        source=_source,
    )(_trailing(_window, _skip))

for _window in GROUP_WINDOWS:
    characteristic(
        f"group_return_{_window}",
        "momentum",
        needs=("close", "group"),
        warmup=_window,
        formula=f"mean of close[t] / C[t-{_window}] - 1 over the group's firms that traded at t",
        unit="fraction",
        nan_rule="group unknown, or fewer than two such firms",
        source="Moskowitz and Grinblatt 1999; Hou 2007",
    )(_group_return(_window))


@characteristic(
    "high_distance_252",
    "momentum",
    warmup=252,
    formula="close[t] / max(close[t-251..t]) - 1",
    unit="fraction, at most 0",
    nan_rule="fewer than 126 closes known",
    source="George and Hwang 2004",
)
def high_distance(panel: Panel) -> FloatArray:
    """Compute the distance of the close from the highest close of 252 sessions."""
    return panel.close_TN / rolling_max(panel.close_TN, 252, 126) - 1.0


@characteristic(
    "low_distance_252",
    "momentum",
    warmup=252,
    formula="close[t] / min(close[t-251..t]) - 1",
    unit="fraction, at least 0",
    nan_rule="fewer than 126 closes known",
    source="George and Hwang 2004",
)
def low_distance(panel: Panel) -> FloatArray:
    """Compute the distance of the close from the lowest close of 252 sessions."""
    return panel.close_TN / -rolling_max(-panel.close_TN, 252, 126) - 1.0


for _window in (50, 200):
    characteristic(
        f"average_distance_{_window}",
        "momentum",
        warmup=_window - 1,
        formula=f"close[t] / mean(C[t-{_window - 1}..t]) - 1",
        unit="fraction",
        source="Brock, Lakonishok and LeBaron 1992; Han, Zhou and Zhu 2016",
    )(average_distance(_window))


@characteristic(
    "momentum_change_126",
    "momentum",
    warmup=252,
    formula="(C[t] / C[t-126] - 1) - (C[t-126] / C[t-252] - 1)",
    unit="fraction",
    source="Gettleman and Marks 2006",
)
def momentum_change(panel: Panel) -> FloatArray:
    """Compute the return of the last half year minus that of the half year before."""
    return trailing_return(panel, 126) - trailing_return(panel, 252, 126)


@characteristic(
    "group_relative_momentum_252_21",
    "momentum",
    needs=("close", "group"),
    warmup=252,
    formula="momentum_252_21 minus its mean over the group's firms that traded at t",
    unit="fraction",
    nan_rule="group unknown, or fewer than two such firms",
    source="Asness, Porter and Stevens 2000",
)
def group_relative_momentum(panel: Panel) -> FloatArray:
    """Compute the firm's momentum minus that of its group."""
    return traded_return(panel, 252, 21) - group_mean(panel, traded_return, 252, 21)


@characteristic(
    "information_discreteness_252_21",
    "momentum",
    warmup=252,
    formula="-sign(momentum_252_21) mean(sign(r[t-251..t-21])); |r| < 1e-12 counts as 0",
    unit="pure number, -1 (continuous) to 1",
    nan_rule="fewer than 116 returns known",
    source="Da, Gurun and Warachka 2014",
)
def information_discreteness(panel: Panel) -> FloatArray:
    """Compare the number of days with returns in the direction of the momentum and against it."""
    daily_TN = lag(rolling_mean(sign(daily_return(panel)), 231, half(231)), 21)
    direction_TN: FloatArray = np.sign(trailing_return(panel, 252, 21))
    return -direction_TN * daily_TN
