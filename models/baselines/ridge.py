"""ridge: a linear model of the characteristics, its penalty chosen on validation.

Legend: N firms, F characteristics, M known cells of the training dates.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from pydantic import Field

from features.arithmetic.parallel import one_blas_thread
from features.arrays import Float32Array, FloatArray, IntArray
from features.information_coefficient import mean_known, rank_ic_by_date
from models.batch import Batch, PanelTensors
from models.fitted import (
    EpochRecord,
    NoTrainingSignal,
    OnEpoch,
    Tensors,
    best_record,
    require_no_others,
    require_tensor,
)
from models.forecaster import (
    Baseline,
    LagOptions,
    date_inputs,
    flat_days,
    known_cells,
    pad_by_date,
    require_score,
)
from models.spec import Positive, Shape

Cells = Callable[[], Iterator[tuple[FloatArray, FloatArray]]]
"""Inputs [M, F] and targets [M] of the known cells of some dates, date by date, each time it is called."""


class RidgeConfig(LagOptions):
    """Options of ridge."""

    alphas: tuple[Positive, ...] = Field(default=(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0), min_length=1)
    """Penalties per training cell, one of which is chosen by validation rank IC. ``alpha = 1`` halves the
    coefficient of a single characteristic of unit variance, whatever the number of cells."""


class Ridge(Baseline):
    """Linear in the inputs: ``min |y - a - Z w|^2 + alpha M |w|^2`` over the M training cells.

    Solved in float64 from the centred normal equations, with one eigendecomposition for all penalties. The
    equations are summed date by date, so that no copy of the characteristics is needed. Several threads of
    BLAS would round them in another way, so it uses one. The solution equals scikit-learn's
    ``Ridge(alpha * M)`` to rounding. Hoerl and Kennard (1970), "Ridge regression: biased
    estimation for nonorthogonal problems".
    """

    reads_windows = False

    def __init__(self, config: RidgeConfig, shape: Shape) -> None:
        self.config = config
        inputs = shape.n_characteristics + flat_days("lags", config.lags, shape)
        self.coefficient_F: FloatArray = np.zeros(inputs)
        self.intercept: float = 0.0

    @one_blas_thread()
    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch
    ) -> tuple[EpochRecord, ...]:
        """Solve for every penalty; keep the one with the best validation rank IC."""
        started = time.perf_counter()
        cells, mean_F, mean_y, gram_FF, moment_F, variance_y = _moments(_cells(data, train, self.config.lags))
        value_F, vector_FF = np.linalg.eigh(gram_FF)
        rotated_F = vector_FF.T @ moment_F
        w_AF = [vector_FF @ (rotated_F / (value_F + alpha * cells)) for alpha in self.config.alphas]
        history: list[EpochRecord] = []
        best = -math.inf
        for index, (w_F, ic) in enumerate(
            zip(w_AF, _rank_ics(_cells(data, valid, self.config.lags), w_AF), strict=True)
        ):
            loss = (variance_y - 2.0 * w_F @ moment_F + w_F @ gram_FF @ w_F) / variance_y
            record = EpochRecord(index, float(loss), ic, 0.0, time.perf_counter() - started)
            history.append(record)
            on_epoch(record)
            if ic > best:
                best = ic
                self.coefficient_F, self.intercept = w_F, float(mean_y - mean_F @ w_F)
            started = time.perf_counter()
        require_score(best, "ridge")
        return tuple(history)

    @one_blas_thread()
    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Solve for the penalty that was best."""
        alpha = self.config.alphas[best_record(history)]
        cells, mean_F, mean_y, gram_FF, moment_F, _ = _moments(_cells(data, dates, self.config.lags))
        penalty_FF = alpha * cells * np.eye(len(gram_FF))
        w_F: FloatArray = np.linalg.solve(gram_FF + penalty_FF, moment_F).astype(np.float64, copy=False)
        self.coefficient_F, self.intercept = w_F, float(mean_y - mean_F @ w_F)

    def forecast_date(self, batch: Batch) -> Float32Array:
        """``a + Z w``."""
        z_NF = date_inputs(batch, self.config.lags)
        return (z_NF @ self.coefficient_F + self.intercept).astype(np.float32)

    def tensors(self) -> Tensors:
        """Coefficients and intercept."""
        return {"coefficient_F": self.coefficient_F.copy(), "intercept": np.array([self.intercept])}

    def load(self, tensors: Tensors) -> None:
        """Coefficients and intercept."""
        require_no_others(tensors, ("coefficient_F", "intercept"), "ridge")
        self.coefficient_F = require_tensor(tensors, "coefficient_F", np.float64, self.coefficient_F.shape)
        self.intercept = float(require_tensor(tensors, "intercept", np.float64, (1,))[0])


def _rank_ics(cells: Cells, w_AF: Sequence[FloatArray]) -> list[float]:
    """Mean rank IC of each vector of coefficients; the characteristics of one date are held at a time."""
    y_D: list[FloatArray] = []
    forecast_AD: list[list[FloatArray]] = [[] for _ in w_AF]
    for z_MF, y_M in cells():
        y_D.append(y_M)
        for w_F, forecast_D in zip(w_AF, forecast_AD, strict=True):
            forecast_D.append(z_MF @ w_F)
    y_DM = pad_by_date(y_D)
    return [mean_known(rank_ic_by_date(pad_by_date(forecast_D), y_DM)) for forecast_D in forecast_AD]


def _moments(of_dates: Cells) -> tuple[int, FloatArray, float, FloatArray, FloatArray, float]:
    """Count, means, and centred second moments (sums over cells) of the training cells.

    The dates are read twice, first for the means and then for the moments, and one date is held at a time.
    """
    sums = [(len(y_M), z_MF.sum(axis=0), float(y_M.sum())) for z_MF, y_M in of_dates()]
    cells = sum(count for count, _, _ in sums)
    mean_F: FloatArray = np.sum([z_F for _, z_F, _ in sums], axis=0) / cells
    mean_y = sum(y for _, _, y in sums) / cells
    gram_FF, moment_F, variance = np.zeros((len(mean_F), len(mean_F))), np.zeros(len(mean_F)), 0.0
    for z_MF, y_M in of_dates():
        centred_MF, centred_M = z_MF - mean_F, y_M - mean_y
        gram_FF += centred_MF.T @ centred_MF
        moment_F += centred_MF.T @ centred_M
        variance += float(centred_M @ centred_M)
    if not variance > 0:
        raise NoTrainingSignal("The training targets are all the same; there is nothing to learn from them.")
    return cells, mean_F, mean_y, gram_FF, moment_F, variance


def _cells(data: PanelTensors, dates: IntArray, lags: int) -> Cells:
    return lambda: (known_cells(data, int(date), lags) for date in dates)
