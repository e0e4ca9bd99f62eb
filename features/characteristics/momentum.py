"""Momentum: what the last months did, which the next months tend to continue.

Shape suffixes: T sessions, N firms. Adjusted prices; ``C`` is the close carried through halts.
"""

from __future__ import annotations

from features.arrays import FloatArray
from features.characteristics.registry import characteristic
from features.characteristics.reversal import traded_return, trailing_return
from features.derived import group_mean
from features.panel import Panel
from features.registry import Compute
from features.rolling import rolling_max

GROUP_WINDOWS = (1, 5, 21)


def _trailing(window: int, skip: int) -> Compute:
    return lambda panel: trailing_return(panel, window, skip)


def _group_return(window: int) -> Compute:
    return lambda panel: group_mean(panel, traded_return, window)


for _window, _skip in ((63, 0), (126, 0), (252, 21)):
    characteristic(
        f"momentum_{_window}" + (f"_{_skip}" if _skip else ""),
        "momentum",
        warmup=_window,
        formula=f"C[t-{_skip}] / C[t-{_window}] - 1",
        unit="fraction",
        source="Jegadeesh and Titman 1993",
    )(_trailing(_window, _skip))

for _window in GROUP_WINDOWS:
    characteristic(
        f"group_return_{_window}",
        "momentum",
        needs=("close", "group"),
        warmup=_window,
        formula=f"mean of return_{_window} over the group's firms that traded at t; NaN below two",
        unit="fraction",
        source="Moskowitz and Grinblatt 1999; Hou 2007",
    )(_group_return(_window))


@characteristic(
    "high_distance_252",
    "momentum",
    warmup=252,
    formula="close[t] / max(close[t-251..t]) - 1",
    unit="fraction, at most 0",
    source="George and Hwang 2004",
)
def high_distance(panel: Panel) -> FloatArray:
    """Compute the distance of the close from the highest close of 252 sessions."""
    return panel.close_TN / rolling_max(panel.close_TN, 252, 126) - 1.0
