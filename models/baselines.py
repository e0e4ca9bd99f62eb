"""Baselines to beat: zero, reversal, momentum, ridge.

Legend: N firms, F characteristics, A penalties, M known cells of the training dates.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from features.information_coefficient import mean_known, rank_ic_by_date
from models.batch import Batch, PanelTensors
from models.fitted import (
    EpochRecord,
    FloatArray32,
    IntArray,
    Tensors,
    Unlearnable,
    best_record,
    require_no_others,
    require_tensor,
)
from models.spec import Shape, column_of

OnEpoch = Callable[[EpochRecord], None]
Array64 = npt.NDArray[np.float64]


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
    def forecast_date(self, batch: Batch) -> FloatArray32:
        """Forecasts [N] of a batch that holds one date and only its present firms."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return what was learned, as arrays."""

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """Take back what :meth:`tensors` gave; ValueError when it is damaged."""


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

    def forecast_date(self, batch: Batch) -> FloatArray32:
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

    def forecast_date(self, batch: Batch) -> FloatArray32:
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

    def forecast_date(self, batch: Batch) -> FloatArray32:
        """Return the column."""
        return batch.z_BNF[0, :, self.column].cpu().numpy()


@dataclass(frozen=True, slots=True)
class RidgeConfig:
    """Options of ridge.

    Attributes
    ----------
    alphas
        Penalties to choose from by validation rank IC, per training cell: ``alpha = 1`` shrinks a
        characteristic of unit variance by half, whatever the number of cells.
    """

    alphas: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)

    def __post_init__(self) -> None:
        if not self.alphas or not all(alpha > 0 and math.isfinite(alpha) for alpha in self.alphas):
            raise ValueError(f"alphas is {self.alphas}: give at least one positive penalty.")


class Ridge(Baseline):
    """Linear in the characteristics: ``min |y - a - Z w|^2 + alpha M |w|^2`` over the M training cells.

    Solved in float64 from the normal equations, centred, one eigendecomposition for every penalty;
    scikit-learn's ``Ridge(alpha * M)`` to rounding.  Hoerl and Kennard (1970).
    """

    def __init__(self, config: RidgeConfig, shape: Shape) -> None:
        self.config = config
        self.coefficient_F: Array64 = np.zeros(shape.n_characteristics)
        self.intercept: float = 0.0

    def fit(
        self,
        data: PanelTensors,
        train: IntArray,
        valid: IntArray,
        *,
        seed: int,
        on_epoch: OnEpoch | None,
    ) -> tuple[EpochRecord, ...]:
        """Solve for every penalty; keep the one with the best validation rank IC."""
        started = time.perf_counter()
        cells, mean_F, mean_y, gram_FF, moment_F, variance_y = _moments(data, train)
        value_F, vector_FF = np.linalg.eigh(gram_FF)
        rotated_F = vector_FF.T @ moment_F
        known = [known_cells(data, int(date)) for date in valid]
        y_DM = by_date([y_M for _, y_M in known])
        history: list[EpochRecord] = []
        best = -math.inf
        for index, alpha in enumerate(self.config.alphas):
            w_F = vector_FF @ (rotated_F / (value_F + alpha * cells))
            ic = mean_known(rank_ic_by_date(by_date([z_MF @ w_F for z_MF, _ in known]), y_DM))
            loss = (variance_y - 2.0 * w_F @ moment_F + w_F @ gram_FF @ w_F) / variance_y
            record = EpochRecord(index, float(loss), ic, 0.0, time.perf_counter() - started)
            history.append(record)
            if on_epoch is not None:
                on_epoch(record)
            if ic > best:
                best = ic
                self.coefficient_F, self.intercept = w_F, float(mean_y - mean_F @ w_F)
            started = time.perf_counter()
        if best == -math.inf:
            raise Unlearnable(no_score("ridge"))
        return tuple(history)

    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Solve for the penalty that was best."""
        alpha = self.config.alphas[best_record(history)]
        cells, mean_F, mean_y, gram_FF, moment_F, _ = _moments(data, dates)
        penalty_FF = alpha * cells * np.eye(len(gram_FF))
        w_F: Array64 = np.linalg.solve(gram_FF + penalty_FF, moment_F).astype(np.float64, copy=False)
        self.coefficient_F, self.intercept = w_F, float(mean_y - mean_F @ w_F)

    def forecast_date(self, batch: Batch) -> FloatArray32:
        """``a + Z w``."""
        z_NF = batch.z_BNF[0].cpu().numpy().astype(np.float64)
        return (z_NF @ self.coefficient_F + self.intercept).astype(np.float32)

    def tensors(self) -> Tensors:
        """Coefficients and intercept."""
        return {"coefficient_F": self.coefficient_F.copy(), "intercept": np.array([self.intercept])}

    def load(self, tensors: Tensors) -> None:
        """Coefficients and intercept."""
        require_no_others(tensors, ("coefficient_F", "intercept"), "ridge")
        self.coefficient_F = require_tensor(tensors, "coefficient_F", np.float64, self.coefficient_F.shape)
        self.intercept = float(require_tensor(tensors, "intercept", np.float64, (1,))[0])


def no_score(model: str) -> str:
    """Say that nothing on the validation dates tells a good model from a bad one."""
    return (
        f"{model} has no validation score to choose by: the targets of the validation dates are constant; "
        "look at them, or move the fold."
    )


def known_cells(data: PanelTensors, date: int) -> tuple[Array64, Array64]:
    """Characteristics [M, F] and targets [M] of the firms with a known target at a date, in float64."""
    y_N = data.target_TN[date]
    known_N = data.mask_TN[date] & y_N.isfinite()
    z_MF = data.characteristics_TNF[date][known_N]
    return z_MF.double().cpu().numpy(), y_N[known_N].double().cpu().numpy()


def by_date(rows: Sequence[npt.NDArray[np.floating]]) -> Array64:
    """Rows of different lengths, one a date, as an array [D, M] with NaN behind the shorter ones."""
    out_DM = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for out_M, row in zip(out_DM, rows, strict=True):
        out_M[: len(row)] = row
    return out_DM


def _moments(data: PanelTensors, train: IntArray) -> tuple[int, Array64, float, Array64, Array64, float]:
    """Count, means, and centred second moments (sums over cells) of the training cells."""
    parts = [known_cells(data, int(date)) for date in train]
    cells = sum(len(y_M) for _, y_M in parts)
    mean_F = np.sum([z_MF.sum(axis=0) for z_MF, _ in parts], axis=0) / cells
    mean_y = sum(float(y_M.sum()) for _, y_M in parts) / cells
    gram_FF, moment_F, variance = np.zeros((len(mean_F), len(mean_F))), np.zeros(len(mean_F)), 0.0
    for z_MF, y_M in parts:
        centred_MF, centred_M = z_MF - mean_F, y_M - mean_y
        gram_FF += centred_MF.T @ centred_MF
        moment_F += centred_MF.T @ centred_M
        variance += float(centred_M @ centred_M)
    if not variance > 0:
        raise Unlearnable("The training targets are all the same: there is nothing to learn from them.")
    return cells, mean_F, mean_y, gram_FF, moment_F, variance
