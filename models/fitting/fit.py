"""Fitting a forecaster, one seed or several at once, and fitted models that are stored and restored.

Legend: B dates in a batch, N firms, D dates, Q quantiles, K horizons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np
import torch
from torch import Tensor

from features.arrays import Float32Array, IntArray
from features.options import Options
from models.attention.encoder import day_encoder
from models.batch import Batch, PanelTensors
from models.calibration import Line, calibrate, carry_over
from models.ensemble import restored_ensemble
from models.fitted import (
    EpochRecord,
    Fitted,
    FittedState,
    NoTrainingSignal,
    OnEpoch,
    Tensors,
    best_record,
    damaged,
    no_report,
    require_no_others,
    require_tensor,
)
from models.fitting.config import FitConfig
from models.fitting.loop import Engine, SingleSeed, most_firms, train_seeds
from models.fitting.losses import QUANTILE, SCALE_FREE
from models.fitting.memory import FORECAST_CELLS, Note, in_parts, no_note
from models.fitting.plan import plan_of
from models.fitting.pretraining import pretrain, start_from
from models.fitting.snapshot import SnapshotStore
from models.fitting.stacked import StackedSeeds, can_stack
from models.forecaster import Baseline, Forecaster
from models.quantiles import QuantileHead
from models.registry import model_entry
from models.spec import Shape


def fit(
    name: str,
    options: Options,
    data: PanelTensors,
    train: IntArray,
    valid: IntArray,
    *,
    fit_config: FitConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
    snapshots: SnapshotStore | None = None,
    start: FittedState | None = None,
    note: Note = no_note,
    threads: int = 1,
) -> Fitted:
    """Fit a forecaster on training sessions, stopped early on validation sessions.

    ``name`` and ``options`` are those of :data:`models.registry.MODELS`. Of ``data``, only the sessions in
    ``train`` and ``valid`` are read, with their windows; the caller has purged and embargoed them. Returned
    is the fit with the weights of the best validation score. Raises ValueError for an unknown model,
    `NoTrainingSignal` when no training or validation date has a known target or all targets are the same, and
    `Diverged` when the training loss is not finite.

    Parameters
    ----------
    seed
        Decides the initial weights, the order of dates and the dropout. The same seed on the same data gives
        the same bits on a CPU with the same number of threads.
    on_epoch
        Called with the record of each epoch, first with the records that a snapshot holds.
    snapshots
        Store of the newest snapshot of a neural model's training, from which training resumes with the same
        bits on a CPU.
    start
        An earlier fit whose day encoder the model starts with (`models.fitting.pretraining`); None starts
        from random weights.
    note
        Called with a sentence if a step does not fit a GPU's memory as it is.
    threads
        Number of threads that a baseline may use. No result depends on it.
    """
    entry = model_entry(name)
    span = np.asarray(train, dtype=np.int64)
    train = share_of(with_targets(data, train, "training", fewest=1), fit_config.label_share, seed)
    every_valid = with_targets(data, valid, "validation", fewest=3)
    valid = evenly_spaced(every_valid, fit_config.valid_dates)
    with _seeded(data, seed):
        model = entry.build(options, data.shape)
        if isinstance(model, Baseline):
            model.threads = threads
            history = model.fit(data, train, valid, seed=seed, on_epoch=on_epoch or no_report)
            return BaselineFitted(name, options, data.shape, history, model)
        fitted = _ready(name, options, model, data, fit_config)
        _warm_up(fitted, data, span, fit_config, seed, snapshots, start)
        (fitted.history,) = train_seeds(
            _engine([fitted], data, fit_config, [seed], train, note),
            train,
            valid,
            fit_config,
            on_epoch=[on_epoch or no_report],
            snapshots=snapshots,
            pretraining=fitted.pretraining,
            note=note,
        )
    _calibrate(fitted, data, every_valid, fit_config)
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
    note: Note = no_note,
    threads: int = 1,
) -> Fitted:
    """Fit a chosen model again on training and validation sessions, for as long as validation found best.

    Nothing is chosen here: the model trains for the best number of epochs of the same schedule, from the same
    initial weights (ridge: the same penalty, LightGBM: the same number of rounds). A fold's test sessions
    follow its validation sessions, so the refitted model has seen the labels of the months just before the
    test. It cannot be evaluated on validation, or calibrated with its labels (`models.calibration`).

    ``chosen`` is the result of :func:`fit` for these sessions, options and seed, and the other arguments are
    as given to it. All validation sessions are trained on, whatever ``valid_dates`` and ``label_share`` are.
    ``snapshots`` is a different store from that of the first fit. Returns a fit with the history of the first
    one, on which the choice was made. Raises `Diverged` when the training loss is not finite.
    """
    name, shape = chosen.name, chosen.shape
    entry = model_entry(name)
    options = chosen.options
    span = np.union1d(train, valid).astype(np.int64)
    dates = np.union1d(
        share_of(with_targets(data, train, "training", fewest=1), fit_config.label_share, seed),
        with_targets(data, valid, "validation", fewest=1),
    )
    with _seeded(data, seed):
        model = entry.build(options, shape)
        if isinstance(model, Baseline):
            model.threads = threads
            model.refit(data, dates, chosen.history, seed=seed)
            return BaselineFitted(name, options, shape, chosen.history, model)
        fitted = _ready(name, options, model, data, fit_config)
        _warm_up(fitted, data, span, fit_config, seed, snapshots, start)
        train_seeds(
            _engine([fitted], data, fit_config, [seed], dates, note),
            dates,
            None,
            fit_config,
            epochs=1 + best_record(chosen.history, fit_config.stop_on),
            snapshots=snapshots,
            pretraining=fitted.pretraining,
            note=note,
        )
    fitted.history = chosen.history
    if isinstance(chosen, NeuralFitted) and chosen.module.calibration is not None:
        fitted.module.calibration = carry_over(
            chosen.module.calibration, chosen.horizons(data, valid), fitted.horizons(data, valid)
        )
    return fitted


def fit_stacked(
    name: str,
    options: Options,
    data: PanelTensors,
    train: IntArray,
    valid: IntArray,
    *,
    fit_config: FitConfig,
    seeds: Sequence[int],
    on_epoch: Sequence[OnEpoch] | None = None,
    note: Note = no_note,
) -> list[NeuralFitted]:
    """Fit several seeds of a neural model at once (`models.fitting.stacked`).

    Arguments are those of :func:`fit`. Each seed decides its own initial weights, order of dates and draw of
    firms. Returns the fits in the order of the seeds; the seconds of an epoch are those of all seeds. Raises
    ValueError when the model or an option cannot be stacked (:func:`models.fitting.stacked.can_stack`), or as
    for :func:`fit`; and `Diverged` with the name of a seed that has not stopped, when its loss is not finite.
    """
    entry = model_entry(name)
    if not can_stack(name, fit_config):
        raise ValueError(f"{name} cannot be trained as a stack of seeds with these options: fit each seed.")
    train = with_targets(data, train, "training", fewest=1)
    every_valid = with_targets(data, valid, "validation", fewest=3)
    valid = evenly_spaced(every_valid, fit_config.valid_dates)
    fitted: list[NeuralFitted] = []
    for seed in seeds:
        with _seeded(data, seed):
            module = entry.build(options, data.shape)
            assert isinstance(module, Forecaster), "baselines do not stack"
            fitted.append(_ready(name, options, module, data, fit_config))
    with _seeded(data, seeds[0]):  # the dropout of all seeds
        engine = _engine(fitted, data, fit_config, seeds, train, note)
        histories = train_seeds(engine, train, valid, fit_config, on_epoch=on_epoch, note=note)
    for one, history in zip(fitted, histories, strict=True):
        one.module.eval()
        one.history = history
        _calibrate(one, data, every_valid, fit_config)
    return fitted


def _calibrate(fitted: NeuralFitted, data: PanelTensors, valid: IntArray, fit_config: FitConfig) -> None:
    """Give the outputs of a model the target's unit, if its loss has no scale (`models.calibration`)."""
    if fit_config.loss not in SCALE_FREE:
        return
    at = torch.as_tensor(valid, device=data.device)
    target_DNK = data.target_TN[at][..., None]
    if fitted.module.n_horizons > 1:
        assert data.path_TNK is not None, "a model has no more horizons than its panel"
        target_DNK = torch.cat((data.path_TNK[at], target_DNK), dim=-1)
    fitted.module.calibration = calibrate(fitted.horizons(data, valid), target_DNK.cpu().numpy())


@contextmanager
def _seeded(data: PanelTensors, seed: int) -> Iterator[None]:
    """Draw with the seed, and restore the caller's random state afterwards."""
    with torch.random.fork_rng(devices=[data.device] if data.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _ready(
    name: str, options: Options, model: Forecaster, data: PanelTensors, fit_config: FitConfig
) -> NeuralFitted:
    """Put a new model on the device, with a quantile head if the loss needs one."""
    if fit_config.loss == QUANTILE:
        model.quantile_head = QuantileHead(fit_config.quantiles, data.shape.n_characteristics)
    model.require(data)
    return NeuralFitted(name, options, data.shape, (), model.to(data.device))


def _engine(  # noqa: PLR0917  (a fit, and whom to tell)
    fitted: Sequence[NeuralFitted],
    data: PanelTensors,
    fit_config: FitConfig,
    seeds: Sequence[int],
    train: IntArray,
    note: Note,
) -> Engine:
    scale, first = target_scale_of(data, train), fitted[0]
    of_returns = scale if data.return_TN is None else target_scale_of(data, train, data.return_TN)
    for one in fitted:
        one.module.target_scale.copy_(scale)
        one.module.return_scale.copy_(of_returns)
    per_epoch = min(fit_config.dates_per_epoch or len(train), len(train))
    steps = fit_config.epochs * -(-per_epoch // fit_config.batch_dates)
    plan = plan_of(first.name, fit_config, data.device, most_firms(data, train), steps, len(seeds))
    if not plan.fixed_shapes:
        return SingleSeed(first.module, data, fit_config, seeds[0], train)
    modules = [one.module for one in fitted]
    engine = StackedSeeds(modules, data, fit_config, seeds, train, compiled=plan.compiled)
    if engine.dates_at_once < fit_config.batch_dates:
        note(in_parts(engine.dates_at_once))
    return engine


def _warm_up(  # noqa: PLR0917  (what is prepared, on what, how)
    fitted: NeuralFitted,
    data: PanelTensors,
    train: IntArray,
    fit_config: FitConfig,
    seed: int,
    snapshots: SnapshotStore | None,
    start: FittedState | None,
) -> None:
    """Initialise the day encoder from an earlier fit, or pretrain it, or both, as the options say."""
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


def with_targets(data: PanelTensors, dates: IntArray, part: str, fewest: int) -> IntArray:
    """Keep the session indices on which at least ``fewest`` firms of the universe have a known target.

    ``part``, "training" or "validation", is for the error. Raises ValueError for a date outside the panel,
    and `NoTrainingSignal` when no date is left.
    """
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


def share_of(dates: IntArray, share: float, seed: int) -> IntArray:
    """Draw a share of the dates with a seed, at least one; a smaller share is a subset of a larger one."""
    if share == 1.0:
        return dates
    order = np.random.default_rng(seed).permutation(len(dates))
    return np.sort(dates[order[: max(1, round(share * len(dates)))]])


def evenly_spaced(dates: IntArray, most: int | None) -> IntArray:
    """Keep at most ``most`` dates, evenly spaced; None keeps all."""
    if most is None or most >= len(dates):
        return dates
    return dates[np.linspace(0, len(dates) - 1, most).round().astype(np.int64)]


def target_scale_of(data: PanelTensors, train: IntArray, given_TN: Tensor | None = None) -> Tensor:
    """Standard deviation of the known training targets, or of given values; NoTrainingSignal if all equal."""
    at = torch.as_tensor(train, device=data.device)
    target_DN, mask_DN = (data.target_TN if given_TN is None else given_TN)[at], data.mask_TN[at]
    scale = target_DN[mask_DN & target_DN.isfinite()].double().std(correction=0)
    if not float(scale) > 0:
        raise NoTrainingSignal("The training targets are all the same; there is nothing to learn from them.")
    return scale.float()


class NeuralFitted(Fitted):
    """A trained :class:`Forecaster`, in eval mode as ``module``."""

    def __init__(
        self, name: str, options: Options, shape: Shape, history: tuple[EpochRecord, ...], module: Forecaster
    ) -> None:
        super().__init__(name, options, shape, history)
        self.module = module.eval()
        self.pretraining: tuple[EpochRecord, ...] = ()

    def to(self, device: torch.device | str) -> Self:
        """Move the weights to a device, that of the panels it is to read; return itself."""
        self.module.to(device)
        return self

    def forecast(self, data: PanelTensors, dates: IntArray) -> Float32Array:
        """As :meth:`models.fitted.Fitted.forecast`; on a GPU, many dates go through the model at once.

        A forecast then depends on the other dates up to rounding, as every result of a GPU does.
        """
        return self._compute(data, dates, 1, lambda batch: self.module(batch)[..., None])[..., 0]

    def forecast_date(self, batch: Batch) -> Float32Array:
        """One forward pass."""
        with torch.inference_mode():
            return self.module(batch)[0].cpu().numpy()  # type: ignore[no-any-return]

    def tensors(self) -> Tensors:
        """Return the module's parameters and buffers."""
        return {key: value.detach().cpu().numpy().copy() for key, value in self.module.state_dict().items()}

    def state(self) -> FittedState:
        """Return everything that :func:`restore` needs, with quantile levels, calibration and pretraining."""
        state, head = super().state(), self.module.quantile_head
        if head is not None:
            state.config["quantiles"] = list(head.levels)
        if self.module.calibration is not None:
            state.config["calibration"] = [dataclasses.asdict(line) for line in self.module.calibration]
        if self.pretraining:
            state.config["pretraining"] = [dataclasses.asdict(record) for record in self.pretraining]
        return state

    def quantiles(self, data: PanelTensors, dates: IntArray) -> Float32Array:
        """Quantiles [D, N, Q] in the target's unit, NaN outside the universe.

        ValueError if ``data`` has another shape than the model's, or the model was not fitted to quantiles.
        """
        head = self.module.quantile_head
        if head is None:
            raise ValueError(f"{self.name} was not fitted to quantiles: set fit.loss to quantile.")
        levels, around = len(head.levels), self.module.quantiles_around
        return self._compute(data, dates, levels, lambda batch: around(self.module(batch), batch))

    def horizons(self, data: PanelTensors, dates: IntArray) -> Float32Array:
        """Forecasts [D, N, K] of the model's horizons, the label's last; NaN outside the universe.

        ValueError if ``data`` has another shape than the model's.
        """
        return self._compute(data, dates, self.module.n_horizons, self.module.horizons)

    def _compute(
        self, data: PanelTensors, dates: IntArray, width: int, compute: Callable[[Batch], Tensor]
    ) -> Float32Array:
        """Compute [B, N, width] for B dates at once, 1 on a CPU; return [D, N, width]."""

        def computed(batch: Batch) -> Float32Array:
            with torch.inference_mode():
                return compute(batch).cpu().numpy()

        firms = data.listed_TN.shape[1]
        at_once = 1 if data.device.type == "cpu" else max(1, FORECAST_CELLS // firms)
        return self._by_date(data, dates, width, computed, at_once)


class BaselineFitted(Fitted):
    """A fitted :class:`Baseline`."""

    def __init__(
        self, name: str, options: Options, shape: Shape, history: tuple[EpochRecord, ...], baseline: Baseline
    ) -> None:
        super().__init__(name, options, shape, history)
        self.baseline = baseline

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecast of the baseline."""
        return self.baseline.forecast_date(batch)

    def tensors(self) -> Tensors:
        """Return the baseline's arrays."""
        return self.baseline.tensors()


def untrained(fitted: NeuralFitted, seed: int) -> Forecaster:
    """Build the model that a fit with this seed starts from, on the same device.

    An explanation of it shows what comes from the initialisation and not from the data.
    """
    entry = model_entry(fitted.name)
    device = next(fitted.module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = entry.build(fitted.options, fitted.shape)
    assert isinstance(model, Forecaster), "a neural model was fitted"
    return model.to(device).eval()


def restore(state: FittedState) -> Fitted:
    """Rebuild a fitted forecaster on the CPU; its forecasts equal those of the stored one to the bit.

    ValueError if the configuration is damaged, or a tensor is missing, damaged or unknown.
    """
    try:
        name = str(state.config["name"])
        entry = model_entry(name)
        options = entry.config(**state.config["config"])
        sizes = dict(state.config["shape"])
        shape = Shape(**{**sizes, "characteristic_names": tuple(sizes["characteristic_names"])})
        history = tuple(EpochRecord(**record) for record in state.config["history"])
        if entry.kind == "ensemble":
            return restored_ensemble((name, options, shape, history), state, restore)
        levels = tuple(float(level) for level in state.config.get("quantiles", ()))
        pretraining = tuple(EpochRecord(**record) for record in state.config.get("pretraining", ()))
        stored = state.config.get("calibration")
        calibration = None if stored is None else tuple(Line(**line) for line in stored)
    except (KeyError, TypeError) as error:
        raise damaged(f"configuration is damaged ({error})") from error
    with torch.random.fork_rng(devices=[]):
        model = entry.build(options, shape)
    if isinstance(model, Baseline):
        model.load(state.tensors)
        return BaselineFitted(name, options, shape, history, model)
    if levels:
        model.quantile_head = QuantileHead(levels, shape.n_characteristics)
    expected = model.state_dict()
    require_no_others(state.tensors, expected, name)
    model.load_state_dict(
        {
            key: torch.from_numpy(require_tensor(state.tensors, key, np.float32, tuple(value.shape)).copy())
            for key, value in expected.items()
        }
    )
    fitted = NeuralFitted(name, options, shape, history, model)
    fitted.pretraining, model.calibration = pretraining, calibration
    return fitted
