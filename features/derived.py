"""Series that several features share, computed once a panel and remembered while the panel lives.

All are causal to the bit. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec
from weakref import WeakKeyDictionary

import numpy as np

from features.arrays import FloatArray
from features.panel import Panel
from features.rolling import carry, lag, last_known_index

HALT = 20
"""Sessions without a price over which a close is carried; a longer silence is taken as an ending
(`features.endings`), and a firm that trades again starts anew. It bounds how far back a feature can reach."""

Settings = ParamSpec("Settings")
_remembered: WeakKeyDictionary[Panel, dict[tuple[object, ...], FloatArray]] = WeakKeyDictionary()


def once_a_panel(
    compute: Callable[Concatenate[Panel, Settings], FloatArray],
) -> Callable[Concatenate[Panel, Settings], FloatArray]:
    """Remember a series with its panel and settings; panels are immutable, so it cannot go stale."""

    @wraps(compute)
    def remembered(panel: Panel, *args: Settings.args, **kwargs: Settings.kwargs) -> FloatArray:
        series = _remembered.setdefault(panel, {})
        key = (compute.__module__, compute.__qualname__, *args, *sorted(kwargs.items()))
        if key not in series:
            array = compute(panel, *args, **kwargs)
            array.setflags(write=False)
            series[key] = array
        return series[key]

    return remembered


def column(panel: Panel, name: str) -> FloatArray:
    """Give a panel column that a feature's ``needs`` has declared.

    Raises
    ------
    ValueError
        If the source of this panel has no such column.
    """
    array: FloatArray | None = getattr(panel, f"{name}_TN")
    if array is None:
        msg = f"This panel has no {name}: leave out the features that need it (see `available_...`)."
        raise ValueError(msg)
    return array


@once_a_panel
def carried_close(panel: Panel) -> FloatArray:
    """Give the adjusted close, carried through halts: ``close[s]``, s the last session <= t with a trade.

    NaN where ``t - s`` exceeds `HALT`, so that row t depends on rows t-HALT..t alone.
    """
    return np.where(sessions_quiet(panel) <= HALT, carry(panel.close_TN), np.nan)


@once_a_panel
def sessions_quiet(panel: Panel) -> FloatArray:
    """Count the sessions since a firm's last price: 0 on a trade, infinite before the first."""
    seen_TN = last_known_index(~np.isnan(panel.close_TN))
    age_TN = np.arange(len(seen_TN))[:, None] - seen_TN
    return np.where(seen_TN >= 0, age_TN, np.inf)


@once_a_panel
def daily_return(panel: Panel) -> FloatArray:
    """Compute ``close[t] / carried_close[t-1] - 1``; NaN without a trade (a halt's return is its end's).

    NaN after a silence longer than `HALT` as well: that is not the return of a day.
    """
    return panel.close_TN / lag(carried_close(panel), 1) - 1.0


@once_a_panel
def market_return(panel: Panel) -> FloatArray:
    """Compute the equal-weight mean of the day's returns over the firms that traded, shape (T, 1)."""
    return row_mean(daily_return(panel))


@once_a_panel
def dollar_volume(panel: Panel) -> FloatArray:
    """Compute raw close times shares traded."""
    return panel.raw_close_TN * column(panel, "volume")


def row_mean(x_TN: FloatArray) -> FloatArray:
    """Average each session's known values, shape (T, 1); NaN on a session without one."""
    known_TN = ~np.isnan(x_TN)
    count_T1 = known_TN.sum(axis=1, keepdims=True)
    total_T1 = np.where(known_TN, x_TN, 0.0).sum(axis=1, keepdims=True)
    mean_T1: FloatArray = np.where(count_T1 > 0, total_T1 / np.maximum(count_T1, 1), np.nan)
    return mean_T1


def group_mean(panel: Panel, x_TN: FloatArray) -> FloatArray:
    """Average x over the firms of each firm's group as of t.

    Parameters
    ----------
    panel : Panel
        Gives the groups.
    x_TN : ndarray of shape (T, N)
        What is known at t.

    Returns
    -------
    ndarray of shape (T, N)
        The mean over the group's firms with a known x, the firm itself included; NaN where the group is
        unknown or has fewer than two such firms (a firm is no peer of itself).
    """
    n_groups = max(len(panel.groups_S), 1)
    use_TN = ~np.isnan(x_TN) & (panel.group_TN >= 0)
    cell_TN = np.arange(len(x_TN))[:, None] * n_groups + np.maximum(panel.group_TN, 0)
    size = len(x_TN) * n_groups
    total = np.bincount(cell_TN[use_TN], weights=x_TN[use_TN], minlength=size)  # adds in row order: causal
    count = np.bincount(cell_TN[use_TN], minlength=size)
    mean = np.where(count >= 2, total / np.maximum(count, 1), np.nan)
    out_TN: FloatArray = np.where(panel.group_TN >= 0, mean[cell_TN], np.nan)
    return out_TN
