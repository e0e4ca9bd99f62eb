"""The registry of channels: what a window over days shows a model of each firm and session.

Shape suffixes: T sessions, N firms, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from features.arrays import Float32Array, FloatArray
from features.derived import carried_close, column, daily_return, dollar_volume, group_mean, market_return
from features.panel import Panel
from features.registry import Compute, compute_stacked, split_by_needs
from features.rolling import lag, rolling_mean


@dataclass(frozen=True, slots=True)
class Channel:
    """A number per firm and session that windows are made of, known at the close of t.

    Attributes
    ----------
    name : str
        Unique name.
    needs : frozenset of str
        Panel fields that it reads.
    formula, unit, source : str
        Definition in terms of the panel's columns, its unit, and the paper it is known from.
    compute : callable
        Panel -> float64 array of shape (T, N); NaN where the firm did not trade, an input is unknown, or the
        formula has no finite value.
    """

    name: str
    needs: frozenset[str]
    formula: str
    unit: str
    source: str
    compute: Compute


CHANNELS: dict[str, Channel] = {}


def channel(
    name: str, *, formula: str, unit: str, source: str, needs: Iterable[str] = ("close",)
) -> Callable[[Compute], Compute]:
    """Register a function as a channel; the NaN rule of `Channel.compute` is applied to it.

    Parameters
    ----------
    name, formula, unit, source, needs
        As in `Channel`.

    Returns
    -------
    callable
        Decorator that registers and returns the function unchanged.
    """

    def register(raw: Compute) -> Compute:
        def compute(panel: Panel) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # no finite value: NaN below
                value_TN = raw(panel)
            return np.where(~np.isnan(panel.close_TN) & np.isfinite(value_TN), value_TN, np.nan)

        assert name not in CHANNELS, f"the channel {name} is registered twice"
        CHANNELS[name] = Channel(name, frozenset(needs), formula, unit, source, compute)
        return raw

    return register


@channel(
    "return",
    formula="close[t] / C[t-1] - 1, C the close carried through halts",
    unit="fraction",
    source="Jegadeesh 1990",
)
def day_return(panel: Panel) -> FloatArray:
    """Compute the day's total return."""
    return daily_return(panel)


@channel(
    "overnight_return",
    needs=("close", "open"),
    formula="open[t] / C[t-1] - 1",
    unit="fraction",
    source="Lou, Polk and Skouras 2019",
)
def overnight_return(panel: Panel) -> FloatArray:
    """Compute the return from the last close to the open."""
    return column(panel, "open") / lag(carried_close(panel), 1) - 1.0


@channel(
    "intraday_range",
    needs=("close", "high", "low"),
    formula="ln(high[t] / low[t])",
    unit="log ratio",
    source="Parkinson 1980",
)
def intraday_range(panel: Panel) -> FloatArray:
    """Compute the day's log range."""
    return np.log(column(panel, "high") / column(panel, "low"))


@channel(
    "close_location",
    needs=("close", "high", "low"),
    formula="(close[t] - low[t]) / (high[t] - low[t]) - 1/2; 0 if high = low",
    unit="fraction of the day's range",
    source="Williams 1973",
)
def close_location(panel: Panel) -> FloatArray:
    """Locate the close in the day's range: -1/2 at the low, 1/2 at the high."""
    low_TN = column(panel, "low")
    range_TN = column(panel, "high") - low_TN
    return np.where(range_TN == 0, 0.0, (panel.close_TN - low_TN) / range_TN - 0.5)


@channel(
    "dollar_volume_surprise",
    needs=("close", "volume"),
    formula="ln(dv[t] / mean(dv[t-20..t])), dv = raw close x volume; NaN at no volume or below 11 sessions",
    unit="log ratio",
    source="Gervais, Kaniel and Mingelgrin 2001",
)
def dollar_volume_surprise(panel: Panel) -> FloatArray:
    """Compare the day's dollar volume with its mean over 21 sessions."""
    volume_TN = dollar_volume(panel)
    return np.log(volume_TN / rolling_mean(volume_TN, 21, 11))


@channel(
    "market_relative_return",
    formula="return minus its mean over the firms that traded at t",
    unit="fraction",
    source="Lo and MacKinlay 1990",
)
def market_relative_return(panel: Panel) -> FloatArray:
    """Compute the day's return beyond that of the equal-weight market.

    Unlike the group-relative return its mean over a group is not zero, so a model that averages a group
    still hears what the group's leaders did.
    """
    return daily_return(panel) - market_return(panel)


@channel(
    "group_relative_return",
    needs=("close", "group"),
    formula="return minus its mean over the group's firms that traded at t; NaN below two of them",
    unit="fraction",
    source="Da, Liu and Schaumburg 2014",
)
def group_relative_return(panel: Panel) -> FloatArray:
    """Compute the day's return beyond that of the firm's group."""
    return daily_return(panel) - group_mean(panel, daily_return(panel))


def available_channels(panel: Panel, names: Iterable[str] | None = None) -> tuple[list[str], list[str]]:
    """Say which channels a panel's columns allow.

    Parameters
    ----------
    panel : Panel
        The data.
    names : iterable of str, optional
        The ones wanted, in this order; all by default.

    Returns
    -------
    usable : list of str
        Those whose inputs the panel has.
    messages : list of str
        One sentence for each of the others, naming what is missing.

    Raises
    ------
    ValueError
        If a name is not registered.
    """
    return split_by_needs("channel", CHANNELS, panel, names)


def compute_channels(panel: Panel, names: Iterable[str] | None = None) -> Float32Array:
    """Compute channels, raw (not scaled).

    Parameters
    ----------
    panel : Panel
        The data.
    names : iterable of str, optional
        Which, in this order; all that the panel allows by default.

    Returns
    -------
    ndarray of float32, shape (T, N, C)
        Values known at the close of t; NaN as in `Channel.compute`.

    Raises
    ------
    ValueError
        If a name is not registered or its inputs are missing; `available_channels` says which.
    """
    return compute_stacked("channel", CHANNELS, panel, names)
