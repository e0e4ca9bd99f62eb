"""Scaling of channels, fitted on a fold's training sessions only and stored with the fold.

A channel that a window gives relative to its last session is scaled by day, after the division: the ratio of
a price to that of 59 sessions later varies more than that to the next session's.

Shape suffixes: T sessions, N firms, W days of a window, C channels, R known values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray, require_shape

_CELLS = 100_000
"""Training cells, about, on which the ratios of a window are measured; more do not change their scale."""


@dataclass(frozen=True, slots=True, eq=False)
class RelativeScale:
    """Channels whose value in a window that ends at t is ``x[t - d] / base[t]``, and the scale of each day.

    Attributes
    ----------
    base_C : ndarray of int, shape (C,)
        The channel whose value at t divides; -1 for a channel that is not relative.
    mean_WC, std_WC : ndarray of shape (W, C)
        Mean and standard deviation of the ratio on each day of a window, the oldest first; 0 and infinite for
        other channels, and infinite without variation.
    """

    base_C: IntArray
    mean_WC: FloatArray
    std_WC: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ChannelScaler:
    """A fitted scaling: ``clip((x - mean) / std, -clip, clip)``. Unknown values become 0, the mean.

    Attributes
    ----------
    mean_C, std_C : ndarray of shape (C,)
        Mean and standard deviation over the training sessions, in the channels' units. A channel without
        variation on these sessions has an infinite deviation and is scaled to 0 everywhere.
    clip : float
        Limit on both sides, in standard deviations.
    relative : RelativeScale, optional
        Channels that are scaled in the window instead (`models.panel_memory.RelativeWindows`). Here they
        keep their values, as they have a mean of 0 and a deviation of 1, without a limit; 0 is unknown.
    """

    mean_C: FloatArray
    std_C: FloatArray
    clip: float = 5.0
    relative: RelativeScale | None = None

    def arrays(self) -> dict[str, AnyFloatArray | IntArray]:
        """Return the fitted arrays by name; those of relative channels only where there are any."""
        own: dict[str, AnyFloatArray | IntArray] = {"mean_C": self.mean_C, "std_C": self.std_C}
        relative = self.relative
        return (
            own
            if relative is None
            else {**own, **{one.name: getattr(relative, one.name) for one in fields(relative)}}
        )

    @classmethod
    def of(cls, arrays: dict[str, Any], clip: float) -> ChannelScaler:
        """Make a scaler of the result of :meth:`arrays`."""
        mean_C, std_C = arrays.pop("mean_C"), arrays.pop("std_C")
        return cls(mean_C, std_C, clip, RelativeScale(**arrays) if arrays else None)

    def apply(self, channels_TNC: AnyFloatArray) -> Float32Array:
        """Scale channels.

        Parameters
        ----------
        channels_TNC : ndarray of shape (T, N, C)
            Raw channels; NaN = unknown.

        Returns
        -------
        ndarray of float32, shape (T, N, C)
            Scaled and clipped, without NaN. The operation is elementwise, so causal to the bit.

        Raises
        ------
        ValueError
            If the number of channels differs from that of the fit.
        """
        require_shape("the channels' last axis", channels_TNC[:0, :0], (0, 0, len(self.mean_C)))
        mean_C, std_C = self.mean_C.astype(np.float32), self.std_C.astype(np.float32)
        scaled_TNC: Float32Array = channels_TNC.astype(np.float32, copy=False) - mean_C
        scaled_TNC /= std_C
        np.clip(scaled_TNC, -self.clip, self.clip, out=scaled_TNC)
        if self.relative is not None:
            own_C = self.relative.base_C >= 0
            scaled_TNC[..., own_C] = channels_TNC[..., own_C]
        scaled_TNC[np.isnan(scaled_TNC)] = 0.0
        return scaled_TNC


def fit_channel_scaler(
    channels_TNC: AnyFloatArray,
    universe_TN: BoolArray,
    sessions: IntArray,
    base_C: IntArray | None = None,
    window: int = 1,
) -> ChannelScaler:
    """Fit means and standard deviations on the universe's known values of the given sessions only.

    Values are first clipped at their 0.1% and 99.9% quantiles, so that bad ticks do not determine the scale.

    Parameters
    ----------
    channels_TNC : ndarray of shape (T, N, C)
        Raw channels; NaN = unknown.
    universe_TN : ndarray of bool, shape (T, N)
        Firms in the universe.
    sessions : ndarray of int
        Training sessions. No other session is read, except those of their windows for relative channels.
    base_C : ndarray of int, optional
        As in `RelativeScale`. Default: no channel is relative.
    window : int
        Days of a window, of which relative channels have a scale each.

    Returns
    -------
    ChannelScaler
        Fitted in float64. A channel with fewer than two distinct known values on these sessions gets an
        infinite deviation.
    """
    require_shape("the universe", universe_TN, channels_TNC.shape[:2])
    n_channels = channels_TNC.shape[2]
    base_C = np.full(n_channels, -1) if base_C is None else base_C
    mean_C, std_C = np.zeros(n_channels), np.ones(n_channels)
    inside_RN = universe_TN[sessions]
    for c in np.flatnonzero(base_C < 0):  # one at a time: a copy of all of them would double the memory
        mean_C[c], std_C[c] = _scale(channels_TNC[sessions, :, c][inside_RN].astype(np.float64))
    if (base_C < 0).all():
        return ChannelScaler(mean_C, std_C)
    mean_WC, std_WC = np.zeros((window, n_channels)), np.full((window, n_channels), np.inf)
    few = sessions[:: max(1, int(inside_RN.sum()) // _CELLS)]
    for c in np.flatnonzero(base_C >= 0):
        last_DN = np.where(universe_TN[few], _known(channels_TNC[few, :, base_C[c]]), np.nan)
        for w in range(window):
            then = few - (window - 1 - w)
            ratio_DN = _known(channels_TNC[then[then >= 0], :, c]) / last_DN[then >= 0]
            mean_WC[w, c], std_WC[w, c] = _scale(ratio_DN.ravel())
    return ChannelScaler(mean_C, std_C, relative=RelativeScale(base_C, mean_WC, std_WC))


def _known(level_DN: AnyFloatArray) -> FloatArray:
    """Levels; NaN for 0, which in a window is unknown."""
    return np.where(level_DN == 0, np.nan, level_DN).astype(np.float64)


def _scale(value_R: FloatArray) -> tuple[float, float]:
    """Mean and standard deviation of the finite values; an infinite deviation if there are no two of them."""
    known_R = value_R[np.isfinite(value_R)]
    if not known_R.size:
        return 0.0, np.inf
    known_R = np.clip(known_R, *np.quantile(known_R, [0.001, 0.999]))
    return float(known_R.mean()), float(known_R.std()) or np.inf
