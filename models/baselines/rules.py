"""Fixed rules without parameters: zero, reversal, momentum.

Legend: N firms, D validation dates, M firms of a date.
"""

import math
import time
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from features.arrays import Float32Array, IntArray
from features.information_coefficient import mean_known, rank_ic_by_date
from features.options import Options
from models.batch import Batch, PanelTensors
from models.fitted import EpochRecord, OnEpoch, Tensors, require_no_others
from models.forecaster import Baseline, pad_by_date
from models.spec import Shape, column_of


class FixedRule(Baseline):
    """A baseline without parameters."""

    learns: ClassVar[bool] = False

    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch
    ) -> tuple[EpochRecord, ...]:
        """Evaluate the rule on the validation dates."""
        started = time.perf_counter()
        batches = [data.batch(torch.tensor([int(date)])) for date in valid]
        forecast_DM = pad_by_date([self.forecast_date(batch) for batch in batches])
        ic_D = rank_ic_by_date(forecast_DM, pad_by_date([batch.y_BN[0].cpu().numpy() for batch in batches]))
        record = EpochRecord(0, math.nan, mean_known(ic_D), 0.0, time.perf_counter() - started)
        on_epoch(record)
        return (record,)

    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Do nothing: there are no parameters."""

    def tensors(self) -> Tensors:
        """Return no arrays."""
        return {}

    def load(self, tensors: Tensors) -> None:
        """Load nothing; raise ValueError if there are arrays."""
        require_no_others(tensors, (), type(self).__name__)


class ZeroConfig(Options):
    """Options of zero: none."""


class Zero(FixedRule):
    """Forecast 0 for every firm, the benchmark of out-of-sample R2."""

    def __init__(self, config: ZeroConfig, shape: Shape) -> None:
        return

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecast zeros."""
        return np.zeros(batch.firms_N.numel(), dtype=np.float32)


class ReversalConfig(Options):
    """Options of reversal."""

    characteristic: str | int = "return_1"
    """Name or column of the characteristic with the last session's return."""


class Reversal(FixedRule):
    """Forecast minus the last session's return, as ranked in the characteristics.

    Jegadeesh (1990), "Evidence of predictable behavior of security returns".
    """

    has_unit: ClassVar[bool] = False
    name: ClassVar[str] = "reversal"
    sign: ClassVar[int] = -1

    def __init__(self, config: ReversalConfig, shape: Shape) -> None:
        self.column = column_of(config.characteristic, shape, self.name)

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecast the characteristic with the sign of the rule."""
        return self.sign * batch.z_BNF[0, :, self.column].cpu().numpy()


class MomentumConfig(ReversalConfig):
    """Options of momentum."""

    characteristic: str | int = "momentum_252_21"
    """Name or column of the characteristic with the trailing return; by default the return over the last year
    without the last month."""


class Momentum(Reversal):
    """Forecast the trailing return, as ranked in the characteristics; unknown values are 0, the median.

    Jegadeesh and Titman (1993), "Returns to buying winners and selling losers".
    """

    name, sign = "momentum", 1
