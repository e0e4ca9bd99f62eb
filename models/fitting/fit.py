"""Fitting: one loop for every neural model, and the way back from a stored state.

Legend: B dates in a batch, N firms, T sessions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.attention.encoder import day_encoder
from models.baselines.baseline import Baseline
from models.batch import Batch, PanelTensors
from models.fitted import (
    Diverged,
    EpochRecord,
    Fitted,
    FittedState,
    FloatArray32,
    IntArray,
    NoTrainingSignal,
    Tensors,
    best_record,
    require_no_others,
    require_same_shape,
    require_tensor,
)
from models.fitting.loop import FitConfig, OnEpoch, Trainer
from models.fitting.losses import QUANTILE
from models.fitting.pretraining import pretrain
from models.fitting.snapshot import SnapshotStore
from models.fitting.warm_start import start_from
from models.forecaster import Forecaster
from models.quantiles import QuantileHead
from models.registry import ModelEntry, model_entry
from models.spec import Shape, parse_config

__all__ = [
    "Diverged",
    "EpochRecord",
    "FitConfig",
    "Fitted",
    "FittedState",
    "NeuralFitted",
    "fit",
    "refit",
    "restore",
    "untrained",
]


class NeuralFitted(Fitted):
    """A trained :class:`Forecaster`, in eval mode as ``module``."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        shape: Shape,
        history: tuple[EpochRecord, ...],
        module: Forecaster,
    ) -> None:
        super().__init__(name, config, shape, history)
        self.module = module.eval()
        self.pretraining: tuple[EpochRecord, ...] = ()

    def forecast_date(self, batch: Batch) -> FloatArray32:
        """One forward pass."""
        with torch.inference_mode():
            return self.module(batch)[0].cpu().numpy()  # type: ignore[no-any-return]

    def tensors(self) -> Tensors:
        """Return the module's parameters and buffers."""
        return {key: value.detach().cpu().numpy().copy() for key, value in self.module.state_dict().items()}

    def state(self) -> FittedState:
        """Everything :func:`restore` needs, the levels of the quantiles and the pretraining included."""
        state, head = super().state(), self.module.quantile_head
        if head is not None:
            state.config["quantiles"] = list(head.levels)
        if self.pretraining:
            state.config["pretraining"] = [dataclasses.asdict(record) for record in self.pretraining]
        return state

    def quantiles(self, data: PanelTensors, dates: IntArray) -> FloatArray32:
        """Quantiles [D, N, Q] in the target's unit, NaN outside the universe.

        Raises
        ------
        ValueError
            When ``data`` has another shape than the model's, or the model was not fitted to quantiles.
        """
        head = self.module.quantile_head
        if head is None:
            raise ValueError(f"{self.name} was not fitted to quantiles: set fit.loss to quantile.")
        return self._by_date(
            data,
            dates,
            len(head.levels),
            lambda batch: self.module.quantiles_around(self.module(batch), batch),
        )

    def horizons(self, data: PanelTensors, dates: IntArray) -> FloatArray32:
        """Forecasts [D, N, K] of the model's horizons, the label's last; NaN outside the universe.

        Raises
        ------
        ValueError
            When ``data`` has another shape than the model's.
        """
        return self._by_date(data, dates, self.module.n_horizons, self.module.horizons)

    def _by_date(
        self, data: PanelTensors, dates: IntArray, width: int, answer: Callable[[Batch], Tensor]
    ) -> FloatArray32:
        """Lay out what each date alone is answered with, [1, N, width], as [D, N, width]; NaN outside."""
        require_same_shape(self.shape, data.shape, self.name)
        out_DNQ = np.full((len(dates), data.mask_TN.shape[1], width), np.nan, dtype=np.float32)
        for row, date in enumerate(dates):
            if bool(data.mask_TN[int(date)].any()):
                batch = data.batch(torch.tensor([int(date)]))
                with torch.inference_mode():
                    out_DNQ[row, batch.firms_N.cpu().numpy()] = answer(batch)[0].cpu().numpy()
        return out_DNQ


class BaselineFitted(Fitted):
    """A fitted :class:`Baseline`."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        shape: Shape,
        history: tuple[EpochRecord, ...],
        baseline: Baseline,
    ) -> None:
        super().__init__(name, config, shape, history)
        self.baseline = baseline

    def forecast_date(self, batch: Batch) -> FloatArray32:
        """Ask the baseline."""
        return self.baseline.forecast_date(batch)

    def tensors(self) -> Tensors:
        """Return the baseline's arrays."""
        return self.baseline.tensors()


def fit(  # noqa: PLR0917  (what is fitted, on what, when: the rest is by keyword)
    name: str,
    config: Mapping[str, Any],
    data: PanelTensors,
    shape: Shape,
    train: IntArray,
    valid: IntArray,
    *,
    fit_config: FitConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
    snapshots: SnapshotStore | None = None,
    start: FittedState | None = None,
) -> Fitted:
    """Fit a forecaster on training sessions, stopped early on validation sessions.

    Parameters
    ----------
    name
        A key of :data:`models.registry.MODELS`.
    config
        The model's options; those left out take their defaults.
    data
        The panel.  Nothing but the sessions in ``train`` and ``valid`` is read, with their windows.
    shape
        The panel's, ``data.shape``.
    train, valid
        Session indices, purged and embargoed by the caller.
    fit_config
        The training loop's options.
    seed
        Decides the initial weights, the order of dates and the dropout.  The same seed on the same
        data gives the same bits on a CPU with the same number of threads.
    on_epoch
        Called after each evaluation, and at the start for those that a snapshot remembers.
    snapshots
        Keeps the newest snapshot of a neural model's training, which then goes on from it to the bit.
    start
        An earlier fit whose day encoder the model begins with (`models.fitting.warm_start`), None for none.

    Returns
    -------
    Fitted
        With the weights of the best validation rank IC.

    Raises
    ------
    ValueError
        For an unknown model or option.
    NoTrainingSignal
        When no training or validation date has a known target, or all targets are the same.
    Diverged
        When the training loss is not finite.
    """
    entry = model_entry(name)
    parsed = parse_config(entry.config, config, name)
    require_same_shape(shape, data.shape, name)
    span = np.asarray(train, dtype=np.int64)
    train = _share(with_targets(data, train, "training", fewest=1), fit_config.label_share, seed)
    valid = evenly(with_targets(data, valid, "validation", fewest=3), fit_config.valid_dates)
    with _seeded(data, seed):
        model = entry.build(parsed, shape)
        if isinstance(model, Baseline):
            history = model.fit(data, train, valid, seed=seed, on_epoch=on_epoch)
            return BaselineFitted(name, dataclasses.asdict(parsed), shape, history, model)
        fitted, trainer = _ready(name, parsed, model, data, span, fit_config, seed, snapshots, start)
        fitted.history = trainer.run(
            train, valid, lambda dates: fitted.forecast(data, dates), on_epoch, snapshots
        )
        return fitted


def refit(
    chosen: Fitted,
    data: PanelTensors,
    train: IntArray,
    valid: IntArray,
    *,
    fit_config: FitConfig,
    seed: int,
    snapshots: SnapshotStore | None = None,
    start: FittedState | None = None,
) -> Fitted:
    """Fit a chosen model anew on training and validation sessions, as long as validation found best.

    Nothing is chosen any more: as many epochs of the same schedule from the same start (ridge: the same
    penalty, LightGBM: as many rounds).  A fold's test follows its validation, so that what forecasts it has
    seen the labels of the months before, and is no longer measured on validation.

    Parameters
    ----------
    chosen
        What :func:`fit` gave for these sessions, options and seed.
    data, train, valid, fit_config, seed, start
        As given to :func:`fit`.  All validation sessions are trained on, whatever ``valid_dates`` and
        ``label_share`` are.
    snapshots
        Another one than the first fit's: snapshots of this one.

    Returns
    -------
    Fitted
        Its history is that of the first fit, on which the choice was made.

    Raises
    ------
    Diverged
        When the training loss is not finite.
    """
    name, shape = chosen.name, chosen.shape
    entry = model_entry(name)
    parsed = parse_config(entry.config, chosen.config, name)
    span = np.union1d(train, valid).astype(np.int64)
    dates = np.union1d(
        _share(with_targets(data, train, "training", fewest=1), fit_config.label_share, seed),
        with_targets(data, valid, "validation", fewest=1),
    )
    with _seeded(data, seed):
        model = entry.build(parsed, shape)
        if isinstance(model, Baseline):
            model.refit(data, dates, chosen.history, seed=seed)
            return BaselineFitted(name, chosen.config, shape, chosen.history, model)
        fitted, trainer = _ready(name, parsed, model, data, span, fit_config, seed, snapshots, start)
        trainer.run_for(dates, 1 + best_record(chosen.history, fit_config.stop_on), snapshots)
        fitted.history = chosen.history
        return fitted


@contextmanager
def _seeded(data: PanelTensors, seed: int) -> Iterator[None]:
    """Draw with the seed, and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[data.device] if data.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _ready(  # noqa: PLR0917  (a model and all that its training needs)
    name: str,
    parsed: Any,  # noqa: ANN401 (each model's own config class)
    model: Forecaster,
    data: PanelTensors,
    span: IntArray,
    fit_config: FitConfig,
    seed: int,
    snapshots: SnapshotStore | None,
    start: FittedState | None,
) -> tuple[NeuralFitted, Trainer]:
    """Put a new model on the device, with what is known before training, and its trainer."""
    if fit_config.loss == QUANTILE:
        model.quantile_head = QuantileHead(fit_config.quantiles, data.shape.n_characteristics)
    model.require(data)
    fitted = NeuralFitted(name, dataclasses.asdict(parsed), data.shape, (), model.to(data.device))
    _prepare(fitted, data, span, fit_config, seed, snapshots, start)
    trainer = Trainer(fitted.module, data, fit_config, seed)
    trainer.pretraining = fitted.pretraining
    return fitted, trainer


def _prepare(  # noqa: PLR0917  (what is prepared, on what, how)
    fitted: NeuralFitted,
    data: PanelTensors,
    train: IntArray,
    fit_config: FitConfig,
    seed: int,
    snapshots: SnapshotStore | None,
    start: FittedState | None,
) -> None:
    """Put what is known already into the day encoder: an earlier fit's, or what a pretraining learns."""
    if start is not None:
        start_from(fitted.module, data.window, start)
    encoder, how = day_encoder(fitted.module), fit_config.pretrain
    if encoder is None or how is None:
        return
    if start is None and how.seed is not None:
        other = day_encoder(untrained(fitted, how.seed))
        assert other is not None, "the same model"
        encoder.load_state_dict(other.state_dict())
    fitted.pretraining = pretrain(encoder, data, train, fit_config, seed, snapshots)
    torch.manual_seed(seed)


def untrained(fitted: NeuralFitted, seed: int) -> Forecaster:
    """Build the model that a fit with this seed began with, on the same device.

    What an explanation finds in it was put there by the model's start, not by the data.
    """
    entry = model_entry(fitted.name)
    device = next(fitted.module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = entry.build(parse_config(entry.config, fitted.config, fitted.name), fitted.shape)
    assert isinstance(model, Forecaster), "a neural model was fitted"
    return model.to(device).eval()


def restore(state: FittedState, device: torch.device | str = "cpu") -> Fitted:
    """Rebuild a fitted forecaster; its forecasts are those of the one stored, to the bit.

    Raises
    ------
    ValueError
        When the configuration or a tensor is missing, superfluous or damaged.
    """
    try:
        name, options = str(state.config["name"]), dict(state.config["config"])
        sizes = dict(state.config["shape"])
        shape = Shape(**{**sizes, "characteristic_names": tuple(sizes["characteristic_names"])})
        history = tuple(EpochRecord(**record) for record in state.config["history"])
        levels = tuple(float(level) for level in state.config.get("quantiles", ()))
        pretraining = tuple(EpochRecord(**record) for record in state.config.get("pretraining", ()))
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"The stored model's configuration is damaged ({error}): "
            "fit it again, or restore its files from a backup."
        ) from error
    entry: ModelEntry = model_entry(name)
    parsed = parse_config(entry.config, options, name)
    with torch.random.fork_rng(devices=[]):
        model = entry.build(parsed, shape)
    options = dataclasses.asdict(parsed)
    if isinstance(model, Baseline):
        model.load(state.tensors)
        return BaselineFitted(name, options, shape, history, model)
    if levels:
        model.quantile_head = QuantileHead(levels, shape.n_characteristics)
    wanted = model.state_dict()
    require_no_others(state.tensors, wanted, name)
    model.load_state_dict(
        {
            key: torch.from_numpy(require_tensor(state.tensors, key, np.float32, tuple(value.shape)).copy())
            for key, value in wanted.items()
        }
    )
    fitted = NeuralFitted(name, options, shape, history, model.to(device))
    fitted.pretraining = pretraining
    return fitted


def with_targets(data: PanelTensors, dates: IntArray, part: str, fewest: int) -> IntArray:
    """Keep the dates with at least so many firms whose target is known; NoTrainingSignal if there is none."""
    dates = np.asarray(dates, dtype=np.int64)
    sessions = data.mask_TN.shape[0]
    if dates.size and (int(dates.min()) < 0 or int(dates.max()) >= sessions):
        raise ValueError(
            f"The {part} dates run from {dates.min()} to {dates.max()} but the panel has {sessions} sessions."
        )
    at = torch.tensor(dates, device=data.device)
    known_D = (data.mask_TN[at] & data.target_TN[at].isfinite()).sum(dim=1) >= fewest
    kept: IntArray = dates[known_D.cpu().numpy()]
    if not kept.size:
        firms = "a firm" if fewest == 1 else f"{fewest} firms"
        raise NoTrainingSignal(
            f"None of the {dates.size} {part} dates has {firms} in the universe with a known target: "
            "move the fold, or loosen the universe rule."
        )
    return kept


def _share(dates: IntArray, share: float, seed: int) -> IntArray:
    """Keep a share of the dates, at least one; the seed's smaller shares are parts of its larger ones."""
    if share == 1.0:
        return dates
    order = np.random.default_rng(seed).permutation(len(dates))
    return np.sort(dates[order[: max(1, round(share * len(dates)))]])


def evenly(dates: IntArray, most: int | None) -> IntArray:
    """Keep at most so many dates, evenly spaced; None keeps all."""
    if most is None or most >= len(dates):
        return dates
    return dates[np.linspace(0, len(dates) - 1, most).round().astype(np.int64)]
