"""What every baseline answers, and what several of them share.

Legend: N firms, F characteristics, M known cells of a date, D dates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from features.arrays import AnyFloatArray, Float32Array, FloatArray, IntArray
from models.batch import Batch, PanelTensors
from models.fitted import EpochRecord, OnEpoch, Tensors


class Baseline(ABC):
    """A forecaster that fits itself."""

    @abstractmethod
    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch | None
    ) -> tuple[EpochRecord, ...]:
        """Learn from the training dates; choose by mean rank IC over the validation dates."""

    @abstractmethod
    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Learn from these dates with what :meth:`fit` chose; ``history`` is what it gave."""

    @abstractmethod
    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecasts [N] of a batch that holds one date and only its present firms."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return what was learned, as arrays."""

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """Take back what :meth:`tensors` gave; ValueError when it is damaged."""


def no_score(model: str) -> str:
    """Say that nothing on the validation dates tells a good model from a bad one."""
    return (
        f"{model} has no validation score to choose by: the targets of the validation dates are constant; "
        "look at them, or move the fold."
    )


def known_cells(data: PanelTensors, date: int) -> tuple[FloatArray, FloatArray]:
    """Characteristics [M, F] and targets [M] of the firms with a known target at a date, in float64."""
    y_N = data.target_TN[date]
    known_N = data.mask_TN[date] & y_N.isfinite()
    z_MF = data.characteristics_TNF[date][known_N]
    return z_MF.double().cpu().numpy(), y_N[known_N].double().cpu().numpy()


def by_date(rows: Sequence[AnyFloatArray]) -> FloatArray:
    """Rows of different lengths, one a date, as an array [D, M] with NaN behind the shorter ones."""
    out_DM = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for out_M, row in zip(out_DM, rows, strict=True):
        out_M[: len(row)] = row
    return out_DM
