"""lightgbm: gradient-boosted trees on the characteristics.

Legend: N firms, F characteristics, M known (date, firm) cells.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.information_coefficient import ic_by_date, mean_known, rank_ic_by_date
from models.batch import Batch, PanelTensors
from models.fitted import (
    EpochRecord,
    NoTrainingSignal,
    OnEpoch,
    Tensors,
    best_record,
    damaged,
    require_no_others,
    require_tensor,
)
from models.forecaster import (
    Baseline,
    LagOptions,
    date_inputs,
    flat_days,
    known_inputs,
    pad_by_date,
    require_score,
)
from models.spec import Count, Positive, Range, Shape, Space, Value

_BINNED = 1  # byte per cell and characteristic of the bins
_GRADIENTS = 32  # bytes per cell of labels, scores, gradients and row numbers
_SAMPLE = 2.6 * 8 * 200_000  # bytes per characteristic of the rows from which the bins are chosen


class LightGBMConfig(LagOptions):
    """Options of lightgbm; those without a meaning of their own are parameters of LightGBM."""

    COMPUTED: ClassVar[Mapping[str, Any]] = {"num_threads": 1}

    rounds: Count = 400
    """Maximum number of trees."""
    evaluate_every: Count = 50
    """Number of trees between two evaluations on the validation dates. With few, the best of many noisy
    scores decides, which is often one of the first."""
    patience: Count = 3
    """Number of evaluations without improvement before early stopping."""
    stop_on: Literal["rank_ic", "ic"] = "ic"
    """Validation score: ``rank_ic``, or ``ic`` if the tails of the target matter more."""
    learning_rate: Positive = 0.03
    """Factor of each tree."""
    num_leaves: int = Field(default=31, ge=2)
    """Maximum number of leaves of a tree."""
    min_data_in_leaf: Count = 1000
    """Minimum number of cells in a leaf."""
    feature_fraction: float = Field(default=0.5, gt=0, le=1)
    """Share of the characteristics that a tree may use, drawn at random."""
    bagging_fraction: float = Field(default=0.5, gt=0, le=1)
    """Share of the cells that a tree is fitted to, drawn at random."""
    lambda_l2: float = Field(default=10.0, ge=0)
    """L2 penalty on the values of the leaves."""
    lambda_l1: float = Field(default=0.0, ge=0)
    """L1 penalty on the values of the leaves: in effect, a leaf needs a sum of errors above it."""
    max_depth: Count | None = None
    """Maximum depth of a tree. Null: no limit beside ``num_leaves``."""
    max_bin: int = Field(default=255, ge=2)
    """Maximum number of bins of a characteristic."""
    num_threads: Count | None = None
    """Number of threads of a fit; it does not change the trees. Null: 1, or where networks are trained on a
    GPU, the cores that are free."""

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values; ``lambda_l1`` and ``max_depth`` only where they are set."""
        settings = super().deciding()
        return {k: value for k, value in settings.items() if k not in ("lambda_l1", "max_depth") or value}


class LightGBM(Baseline):
    """Trees fitted to (date, firm) cells with squared error, and early stopping on validation.

    Ke et al. (2017), "LightGBM". Runs with ``deterministic=True`` and ``force_col_wise``: one thread adds up
    a characteristic, in the order of the cells, so the trees do not depend on the number of threads. The
    model is stored in LightGBM's text format, up to the best round.
    """

    reads_windows = False
    threaded = True
    quick: ClassVar[Mapping[str, Value]] = {
        **{"rounds": 40, "evaluate_every": 10, "patience": 2},
        **{"num_leaves": 15, "min_data_in_leaf": 50},
    }
    space: ClassVar[Space] = {
        "learning_rate": Range(0.01, 0.1, log=True),
        "num_leaves": Range(7, 127, log=True, integer=True),
        "min_data_in_leaf": Range(100, 5000, log=True, integer=True),
        "feature_fraction": Range(0.3, 1.0),
        "lambda_l2": Range(0.1, 100.0, log=True),
    }

    @classmethod
    def extra_memory(cls, cells: int, characteristics: int) -> float:
        """Bins, gradients, and the rows from which the bins are chosen."""
        return cells * (_GRADIENTS + _BINNED * characteristics) + _SAMPLE * characteristics

    name: str = "lightgbm"
    """The registered model that the trees belong to, for messages."""
    weight_M: FloatArray | None = None
    """Weight of each training cell; None weighs all equally."""
    reads_F: BoolArray | None = None
    """Which characteristics the trees may read; None for all."""

    def __init__(self, config: LightGBMConfig, shape: Shape) -> None:
        self.config = config
        flat_days("lags", config.lags, shape)
        self.text = ""
        self._scale = 1.0
        self._booster: Any = None

    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch
    ) -> tuple[EpochRecord, ...]:
        """Add trees until the validation score stops improving."""
        import lightgbm as lgb  # slow import, needed only here

        started = time.perf_counter()
        booster, train_set, scale = self._first_booster(data, train, seed)
        y_valid = targets_by_date(data, valid)
        valid_set = lgb.Dataset(
            _rows_by_date(data, valid, self.config.lags),
            label=np.concatenate(y_valid) / scale,
            reference=train_set,
            params=self._binning(),
        )
        booster.add_valid(valid_set, "valid")

        y_valid_DM, ends = pad_by_date(y_valid), np.cumsum([len(y_M) for y_M in y_valid])[:-1]
        measured: dict[str, float] = {}

        def measure(raw_M: Any, _: Any) -> tuple[str, float, bool]:  # noqa: ANN401  (lightgbm's signature)
            forecast_DM = pad_by_date(np.split(np.asarray(raw_M), ends))
            measured["rank_ic"] = mean_known(rank_ic_by_date(forecast_DM, y_valid_DM))
            measured["ic"] = mean_known(ic_by_date(forecast_DM, y_valid_DM))
            return self.config.stop_on, measured[self.config.stop_on], True

        history: list[EpochRecord] = []
        best, best_index = -math.inf, 0
        for index in range(math.ceil(self.config.rounds / self.config.evaluate_every)):
            for _ in range(min(self.config.evaluate_every, self.config.rounds - booster.current_iteration())):
                booster.update()
            score = float(booster.eval_valid(measure)[0][2])
            lr, seconds = self.config.learning_rate, time.perf_counter() - started
            record = EpochRecord(index, math.nan, measured["rank_ic"], lr, seconds, measured["ic"])
            started = time.perf_counter()
            history.append(record)
            on_epoch(record)
            if score > best:
                best, best_index = score, index
                self.text = self._text_of(booster, num_iteration=booster.current_iteration())
            if index - best_index >= self.config.patience:
                break
        require_score(best, self.name)
        self._scale = scale
        self._booster = lgb.Booster(model_str=self.text)
        return tuple(history)

    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Fit the best number of trees."""
        self.grow(data, dates, 1 + best_record(history, self.config.stop_on), seed=seed)

    def grow(self, data: PanelTensors, dates: IntArray, evaluations: int, *, seed: int) -> None:
        """Fit as many trees as there are between the start and one of the evaluations, counted from 1."""
        import lightgbm as lgb  # slow import, needed only here

        booster, _, self._scale = self._first_booster(data, dates, seed)
        for _ in range(min(self.config.rounds, evaluations * self.config.evaluate_every)):
            booster.update()
        self.text = self._text_of(booster)
        self._booster = lgb.Booster(model_str=self.text)

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Sum of the trees, in the target's unit."""
        y_N: FloatArray = self._booster.predict(
            date_inputs(batch, self.config.lags), num_threads=self.config.num_threads or 1
        )
        return (y_N * self._scale).astype(np.float32)

    def tensors(self) -> Tensors:
        """LightGBM's text format as bytes, and the scale of the target."""
        return {
            "text": np.frombuffer(self.text.encode(), dtype=np.uint8).copy(),
            "scale": np.array([self._scale]),
        }

    def trees(self) -> tuple[Any, float]:
        """The booster, and the standard deviation of the target, by which its output is multiplied."""
        return self._booster, self._scale

    def load(self, tensors: Tensors) -> None:
        """Load the model from its text."""
        import lightgbm as lgb  # slow import, needed only here

        require_no_others(tensors, ("text", "scale"), self.name)
        text = require_tensor(tensors, "text", np.uint8, (-1,)).tobytes()
        self._scale = float(require_tensor(tensors, "scale", np.float64, (1,))[0])
        try:
            self.text = text.decode()
            self._booster = lgb.Booster(model_str=self.text)
        except (UnicodeDecodeError, lgb.basic.LightGBMError) as error:
            raise damaged("tensor 'text' is not a LightGBM model") from error

    def _first_booster(self, data: PanelTensors, dates: IntArray, seed: int) -> tuple[Any, Any, float]:
        """Return a booster without trees, its training set, and the standard deviation of the targets."""
        import lightgbm as lgb  # slow import, needed only here

        y_M, scale = scaled_targets(data, dates)
        rows = _rows_by_date(data, dates, self.config.lags, self.reads_F)
        train_set = lgb.Dataset(
            rows, label=y_M, weight=self.weight_M, params=self._binning(), free_raw_data=True
        )
        del y_M  # the Dataset lets go of it when it has its own copy
        return lgb.Booster(self._parameters(seed), train_set), train_set, scale

    def _text_of(self, booster: Any, **which: int) -> str:  # noqa: ANN401  (of lightgbm)
        """The model as text, which does not say how many threads fitted it."""
        text: str = booster.model_to_string(**which)
        stated = self.config.num_threads or 1
        return text.replace(f"[num_threads: {self._threads}]", f"[num_threads: {stated}]")

    @property
    def _threads(self) -> int:
        return self.config.num_threads or self.threads

    def _binning(self) -> dict[str, Any]:
        # a Booster does not pass these to its datasets
        return {"max_bin": self.config.max_bin, "num_threads": self._threads, "verbosity": -1}

    def _parameters(self, seed: int) -> dict[str, Any]:
        own = {"learning_rate", "num_leaves", "min_data_in_leaf", "feature_fraction", "bagging_fraction"}
        return {
            "objective": "regression",
            "metric": "None",
            **self.config.model_dump(
                include={*own, "lambda_l1", "lambda_l2", "max_depth"}, exclude_none=True
            ),
            "num_threads": self._threads,
            "bagging_freq": 1,
            "seed": seed,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
        }


def targets_by_date(data: PanelTensors, dates: IntArray) -> list[FloatArray]:
    """Targets of the known cells of each date."""
    return [data.target_TN[int(date)][data.known_TN[int(date)]].double().cpu().numpy() for date in dates]


def scaled_targets(data: PanelTensors, dates: IntArray) -> tuple[Float32Array, float]:
    """Labels of the known cells, which are targets over their standard deviation, and the deviation."""
    y_M = np.concatenate(targets_by_date(data, dates))
    scale = float(y_M.std())
    if not scale > 0:
        raise NoTrainingSignal("The training targets are all the same; there is nothing to learn from them.")
    y_M /= scale
    return y_M.astype(np.float32), scale


def _rows_by_date(
    data: PanelTensors, dates: IntArray, lags: int, reads_F: BoolArray | None = None
) -> list[Any]:
    """Return the known cells of each date as LightGBM reads them: in batches of float32, never all at once.

    The trees are the same, to the bit, as those of one float64 array of all cells. Characteristics that are
    not read are 0, so that no tree splits on them.
    """
    import lightgbm as lgb  # slow import, needed only here

    held: dict[int, Float32Array] = {}

    class Rows(lgb.Sequence):
        """The characteristics of the firms with a known target at a date."""

        batch_size = 2**16

        def __init__(self, date: int) -> None:
            self.date = date
            self._length = int(data.known_TN[date].sum())

        def __len__(self) -> int:
            return self._length

        def __getitem__(self, rows: Any) -> npt.NDArray[np.floating]:  # noqa: ANN401  (lightgbm's signature)
            if self.date not in held:  # consecutive rows are of the same date
                held.clear()
                z_MF = known_inputs(data, self.date, lags).cpu().numpy()
                held[self.date] = z_MF if reads_F is None else z_MF * reads_F.astype(np.float32)
            z_MF = held[self.date]
            # LightGBM samples single rows to choose the bins, and wants them in float64
            return z_MF[rows] if isinstance(rows, slice) else z_MF[rows].astype(np.float64)

    return [rows for date in dates if len(rows := Rows(int(date)))]
