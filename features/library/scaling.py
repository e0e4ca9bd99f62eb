"""Scaling of channels, fitted on a fold's training sessions only and stored with the fold.

Shape suffixes: T sessions, N firms, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray, require_shape


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
    """

    mean_C: FloatArray
    std_C: FloatArray
    clip: float = 5.0

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
        scaled_TNC[np.isnan(scaled_TNC)] = 0.0
        return scaled_TNC


def fit_channel_scaler(
    channels_TNC: AnyFloatArray, universe_TN: BoolArray, sessions: IntArray
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
        Training sessions; no other session is read.

    Returns
    -------
    ChannelScaler
        Fitted in float64. A channel with fewer than two distinct known values on these sessions gets an
        infinite deviation.
    """
    require_shape("the universe", universe_TN, channels_TNC.shape[:2])
    n_channels = channels_TNC.shape[2]
    mean_C, std_C = np.zeros(n_channels), np.zeros(n_channels)
    inside_RN = universe_TN[sessions]
    for c in range(n_channels):  # one at a time: a copy of all of them would double the memory
        known_R = channels_TNC[sessions, :, c][inside_RN].astype(np.float64)
        known_R = known_R[np.isfinite(known_R)]
        if known_R.size:
            known_R = np.clip(known_R, *np.quantile(known_R, [0.001, 0.999]))
            mean_C[c], std_C[c] = known_R.mean(), known_R.std()
        if not std_C[c] > 0:
            std_C[c] = np.inf
    return ChannelScaler(mean_C, std_C)
