"""Fixed rules, with nothing to learn: zero, reversal, momentum.

Legend: N firms, D validation dates, M firms of a date.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from features.arrays import Float32Array, IntArray
from features.information_coefficient import mean_known, rank_ic_by_date
from models.baselines.baseline import Baseline, by_date
from models.batch import Batch, PanelTensors
from models.fitted import EpochRecord, OnEpoch, Tensors, require_no_others
from models.spec import Shape, column_of


class FixedRule(Baseline):
    """A baseline with nothing to learn."""

    def fit(
        self,
        data: PanelTensors,
        train: IntArray,
        valid: IntArray,
        *,
        seed: int,
        on_epoch: OnEpoch | None,
    ) -> tuple[EpochRecord, ...]:
        """Measure the rule on the validation dates."""
        started = time.perf_counter()
        batches = [data.batch(torch.tensor([int(date)])) for date in valid]
        forecast_DM = by_date([self.forecast_date(batch) for batch in batches])
        ic_D = rank_ic_by_date(forecast_DM, by_date([batch.y_BN[0].cpu().numpy() for batch in batches]))
        record = EpochRecord(0, math.nan, mean_known(ic_D), 0.0, time.perf_counter() - started)
        if on_epoch is not None:
            on_epoch(record)
        return (record,)

    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Nothing to learn."""

    def tensors(self) -> Tensors:
        """Nothing."""
        return {}

    def load(self, tensors: Tensors) -> None:
        """Nothing to take back."""
        require_no_others(tensors, (), type(self).__name__)


@dataclass(frozen=True, slots=True)
class ZeroConfig:
    """zero has no options."""


class Zero(FixedRule):
    """Forecast 0 for every firm: the benchmark of out-of-sample R2."""

    def __init__(self, config: ZeroConfig, shape: Shape) -> None:
        return

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Zeros."""
        return np.zeros(batch.firms_N.numel(), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class ReversalConfig:
    """Options of reversal.

    Attributes
    ----------
    characteristic
        Name or column of the last session's return among the characteristics.
    """

    characteristic: str | int = "return_1"


class Reversal(FixedRule):
    """Forecast minus the last session's return, as ranked among the characteristics.

    Jegadeesh (1990), "Evidence of predictable behavior of security returns".
    """

    def __init__(self, config: ReversalConfig, shape: Shape) -> None:
        self.column = column_of(config.characteristic, shape, "reversal")

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Minus the column."""
        return -batch.z_BNF[0, :, self.column].cpu().numpy()


@dataclass(frozen=True, slots=True)
class MomentumConfig:
    """Options of momentum.

    Attributes
    ----------
    characteristic
        Name or column of the trailing return among the characteristics; by default the last year's but
        for its last month.
    """

    characteristic: str | int = "momentum_252_21"


class Momentum(FixedRule):
    """Forecast the trailing return itself, as ranked among the characteristics; unknown is 0, the middle.

    Jegadeesh and Titman (1993), "Returns to buying winners and selling losers".
    """

    def __init__(self, config: MomentumConfig, shape: Shape) -> None:
        self.column = column_of(config.characteristic, shape, "momentum")

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Return the column."""
        return batch.z_BNF[0, :, self.column].cpu().numpy()
