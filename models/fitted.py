"""Fitted models: their forecasts, and a state that can be stored and restored.

Legend: N firms of the panel, D dates to forecast.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch

from features.arrays import Float32Array, IntArray
from features.options import Options
from models.batch import Batch, PanelTensors
from models.panel_memory import in_parts
from models.spec import Shape

Tensors = Mapping[str, npt.NDArray[Any]]
"""Stored arrays by name."""


class Diverged(ValueError):  # noqa: N818  (names the condition, as StopIteration does)
    """Training diverged: the loss became infinite or NaN."""


class NoTrainingSignal(ValueError):  # noqa: N818  (names the condition, as StopIteration does)
    """Constant labels: there is nothing to learn in training, or no score to choose by in validation."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Scores of one epoch of a neural model, one ridge penalty, or one evaluation of LightGBM."""

    epoch: int  # index, from 0
    # mean loss of the epoch, in standard deviations of the training target; NaN if there is none
    train_loss: float
    valid_rank_ic: float  # mean rank IC over the validation dates
    lr: float  # learning rate at the end of the epoch; 0 for ridge
    seconds: float  # wall-clock time of the epoch
    valid_ic: float = math.nan  # mean IC over the validation dates; NaN if it was not computed
    # pinball score over the validation dates, in standard deviations of the training target; NaN without the
    # quantile loss
    valid_pinball: float = math.nan


OnEpoch = Callable[[EpochRecord], None]
"""Called with the record of each epoch while a model is fitted."""


def no_report(record: EpochRecord) -> None:
    """Stand in for a missing `OnEpoch`."""


def best_record(history: Sequence[EpochRecord], by: Literal["rank_ic", "ic"] = "rank_ic") -> int:
    """Index of the record with the best validation score; the first one if tied; NaN is never the best."""
    scores = [record.valid_rank_ic if by == "rank_ic" else record.valid_ic for record in history]
    return int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))


@dataclass(frozen=True, slots=True, eq=False)
class FittedState:
    """A fitted model as JSON values and arrays, without pickle."""

    config: dict[str, Any]
    tensors: dict[str, npt.NDArray[Any]]


class Fitted(ABC):
    """A fitted forecaster, neural or baseline: its registered model, its options and the panel's shape.

    ``history`` is that of its training, used for early stopping.
    """

    def __init__(self, name: str, options: Options, shape: Shape, history: tuple[EpochRecord, ...]) -> None:
        self.name = name
        self.options = options
        self.shape = shape
        self.history = history

    def forecast(self, data: PanelTensors, dates: IntArray) -> Float32Array:
        """Forecasts [D, N] in the target's unit; NaN outside the universe.

        Each date is a separate forward pass over its own firms. A forecast therefore does not depend, to the
        bit, on the other dates in ``dates`` or on data after its date. ValueError if the shape of ``data``
        differs from the one that the model was fitted to.
        """
        return self._by_date(data, dates, 1, lambda batch: self.forecast_date(batch)[None, :, None])[..., 0]

    def _by_date(
        self,
        data: PanelTensors,
        dates: IntArray,
        width: int,
        compute: Callable[[Batch], Float32Array],
        at_once: int = 1,
    ) -> Float32Array:
        """Compute [B, N, width] for B dates at once; return [D, N, width], NaN outside the universe."""
        require_same_shape(self.shape, data.shape, self.name)
        date_D = torch.tensor(np.ascontiguousarray(dates, dtype=np.int64))
        listed_DN = data.listed_TN[date_D]
        out_DNQ = np.full((*listed_DN.shape, width), np.nan, dtype=np.float32)
        row_D = listed_DN.any(dim=1).nonzero()[:, 0]

        def fill(part: slice) -> None:
            row_B = row_D[part]
            batch = data.batch(date_D[row_B])
            y_BNQ = compute(batch)
            there_BN, firms_BN = batch.m_BN.cpu().numpy(), np.atleast_2d(batch.firms_N.cpu().numpy())
            rows_M = row_B.numpy()[there_BN.nonzero()[0]]
            out_DNQ[rows_M, firms_BN[there_BN]] = y_BNQ[there_BN]

        in_parts(len(row_D), at_once, fill)
        return out_DNQ

    def state(self) -> FittedState:
        """State from which :func:`models.fitting.fit.restore` gives the same forecasts, to the bit."""
        config = {
            "name": self.name,
            "config": self.options.model_dump(mode="json"),
            "shape": {**asdict(self.shape), "characteristic_names": list(self.shape.characteristic_names)},
            "history": [asdict(record) for record in self.history],
        }
        return FittedState(config=config, tensors=dict(self.tensors()))

    def to(self, device: torch.device | str) -> Self:
        """Move the weights to a device, that of the panels it is to read; return itself.

        A baseline computes on the host and reads panels on any device.
        """
        return self

    @abstractmethod
    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecasts [N] for a batch of one date that contains only firms in the universe."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return the learned parameters as arrays."""


def require_same_shape(fitted: Shape, given: Shape, name: str) -> None:
    """Raise ValueError if the shape of the data differs from that of the fitted model."""
    for field in ("n_channels", "n_characteristics", "window", "n_groups", "characteristic_names"):
        if getattr(fitted, field) != getattr(given, field):
            raise ValueError(
                f"Model {name} needs {field} {getattr(fitted, field)} but the data has "
                f"{getattr(given, field)}; build the data with the same features, window and groups."
            )


def damaged(what: str) -> ValueError:
    """Error for a stored model that cannot be restored: what is wrong with it, and the cure."""
    return ValueError(f"The stored {what}; fit the model again, or restore its files from a backup.")


def require_no_others(tensors: Tensors, known: Iterable[str], name: str) -> None:
    """Raise ValueError if a stored model has tensors that are not in ``known``."""
    if others := sorted(set(tensors) - set(known)):
        raise damaged(f"model has a tensor {others[0]!r} that {name} does not have")


def require_tensor(
    tensors: Tensors, name: str, dtype: type[np.generic], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return one stored array after checking it; ``-1`` in ``shape`` allows any length."""
    if name not in tensors:
        raise damaged(f"model has no tensor {name!r}")
    array = np.asarray(tensors[name])
    matches = array.ndim == len(shape) and all(
        expected in (-1, actual) for expected, actual in zip(shape, array.shape, strict=True)
    )
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    if array.dtype != dtype or not matches or not finite:
        raise damaged(
            f"tensor {name!r} is {array.dtype} of shape {array.shape}"
            f"{'' if finite else ' with values that are not finite'}, "
            f"but must be finite {np.dtype(dtype).name} of shape {shape}"
        )
    return array
