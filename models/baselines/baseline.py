"""The base class of baselines, and functions that several of them share.

Legend: N firms, F characteristics, M firms with a known target at a date, D dates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from features.arrays import AnyFloatArray, Float32Array, FloatArray, IntArray
from models.batch import Batch, PanelTensors
from models.fitted import EpochRecord, OnEpoch, Tensors


class Baseline(ABC):
    """A forecaster with its own fit method.

    Attributes
    ----------
    reads_windows
        Whether it reads windows of channels. If not, a training does not copy the channels.
    has_unit
        Whether its forecasts are in the target's unit. A fixed rule that ranks firms has none.
    """

    reads_windows: ClassVar[bool] = True
    has_unit: ClassVar[bool] = True

    @abstractmethod
    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch | None
    ) -> tuple[EpochRecord, ...]:
        """Fit to the training dates; select by mean rank IC over the validation dates."""

    @abstractmethod
    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Fit to ``dates`` with the setting that :meth:`fit` selected; ``history`` is its result."""

    @abstractmethod
    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecasts [N] for a batch of one date that contains only firms in the universe."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return the learned parameters as arrays."""

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """Load the result of :meth:`tensors`; raise ValueError if it is damaged."""


def no_score_message(model: str) -> str:
    """Error message for validation dates with constant targets."""
    return (
        f"{model} has no validation score, because the targets of the validation dates are constant; "
        "look at them, or move the fold."
    )


def known_cells(data: PanelTensors, date: int) -> tuple[FloatArray, FloatArray]:
    """Characteristics [M, F] and targets [M] of the firms with a known target at a date, in float64."""
    known_N = known_firms(data, date)
    z_MF = data.characteristics_TNF[date][known_N]
    return z_MF.double().cpu().numpy(), data.target_TN[date][known_N].double().cpu().numpy()


def known_firms(data: PanelTensors, date: int) -> Tensor:
    """Bool [N] on the host: the firms in the universe with a known target at a date."""
    return data.known_TN[date]


def pad_by_date(rows: Sequence[AnyFloatArray]) -> FloatArray:
    """Stack rows of different lengths, one per date, into an array [D, M], padded with NaN."""
    out_DM = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for out_M, row in zip(out_DM, rows, strict=True):
        out_M[: len(row)] = row
    return out_DM
