"""Fitted models, neural and baseline, and rebuilding them from a stored state.

Legend: B dates in a batch, N firms, D dates, Q quantiles, K horizons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from features.arrays import Float32Array, IntArray
from features.options import Options
from models.attention.encoder import day_encoder
from models.batch import Batch, PanelTensors
from models.calibration import calibration_from
from models.fitted import (
    EpochRecord,
    Fitted,
    FittedState,
    Tensors,
    require_no_others,
    require_same_shape,
    require_tensor,
)
from models.forecaster import Baseline, Forecaster
from models.quantiles import QuantileHead
from models.registry import model_entry
from models.spec import IncompatibleConfig, Shape


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
            state.config["calibration"] = [dataclasses.asdict(line) for line in self.module.calibration.lines]
        if self.pretraining:
            state.config["pretraining"] = [dataclasses.asdict(record) for record in self.pretraining]
        return state

    def quantiles(self, data: PanelTensors, dates: IntArray) -> Float32Array:
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

    def horizons(self, data: PanelTensors, dates: IntArray) -> Float32Array:
        """Forecasts [D, N, K] of the model's horizons, the label's last; NaN outside the universe.

        Raises
        ------
        ValueError
            When ``data`` has another shape than the model's.
        """
        return self._by_date(data, dates, self.module.n_horizons, self.module.horizons)

    def _by_date(
        self, data: PanelTensors, dates: IntArray, width: int, compute: Callable[[Batch], Tensor]
    ) -> Float32Array:
        """Compute [1, N, width] date by date; return [D, N, width], NaN outside the universe."""
        require_same_shape(self.shape, data.shape, self.name)
        out_DNQ = np.full((len(dates), data.mask_TN.shape[1], width), np.nan, dtype=np.float32)
        for row, date in enumerate(dates):
            if bool(data.mask_TN[int(date)].any()):
                batch = data.batch(torch.tensor([int(date)]))
                with torch.inference_mode():
                    out_DNQ[row, batch.firms_N.cpu().numpy()] = compute(batch)[0].cpu().numpy()
        return out_DNQ


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

    Raises
    ------
    ValueError
        When the configuration is damaged, or a tensor is missing, damaged or unknown.
    """
    try:
        name = str(state.config["name"])
        entry = model_entry(name)
        options = entry.config(**state.config["config"])
        sizes = dict(state.config["shape"])
        shape = Shape(**{**sizes, "characteristic_names": tuple(sizes["characteristic_names"])})
        history = tuple(EpochRecord(**record) for record in state.config["history"])
        levels = tuple(float(level) for level in state.config.get("quantiles", ()))
        pretraining = tuple(EpochRecord(**record) for record in state.config.get("pretraining", ()))
        stored = state.config.get("calibration")
        calibration = None if stored is None else calibration_from(stored)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"The stored model's configuration is damaged ({error}): "
            "fit it again, or restore its files from a backup."
        ) from error
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
    fitted.pretraining = pretraining
    model.calibration = calibration
    return fitted


FREE_TO_DIFFER = ("dropout", "causal", "pooling")
"""Encoder options that may differ, as long as all tensors have the same shapes."""


def start_from(module: nn.Module, window: int, state: FittedState) -> None:
    """Copy the day encoder of an earlier fit into a model; all other weights keep their initial values.

    Parameters
    ----------
    module
        The model, changed in place.
    window
        W, sessions of its windows.
    state
        The earlier fit.

    Raises
    ------
    IncompatibleConfig
        When the model or the earlier fit has no day encoder, or their windows, encoder options or tensor
        shapes differ.
    """
    encoder, name = day_encoder(module), str(state.config["name"])
    entry = model_entry(name)
    if encoder is None or not entry.has_day_encoder:
        raise IncompatibleConfig(
            f"init_from copies the day encoder of {name}, but both models need one: remove init_from."
        )
    theirs = entry.config(**state.config["config"]).encoder.model_dump()
    theirs["window"] = state.config["shape"]["window"]
    for option, ours in {**encoder.config.model_dump(), "window": window}.items():
        if option not in FREE_TO_DIFFER and theirs[option] != ours:
            raise IncompatibleConfig(
                f"The day encoder of init_from has {option} {theirs[option]!r} and this model has {ours!r}: "
                "set both to the same value, or remove init_from."
            )
    prefix = next(name for name, part in module.named_modules() if part is encoder) + "."
    copied = {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in state.tensors.items()
        if name.startswith(prefix)
    }
    own = encoder.state_dict()
    for name in sorted(set(own) | set(copied)):
        left, right = (tuple(part[name].shape) if name in part else None for part in (copied, own))
        if left != right:
            raise IncompatibleConfig(
                f"The day encoder of init_from has {name} of shape {left} and this model has {right}: "
                "give both the same channels and pooling, or remove init_from."
            )
    encoder.load_state_dict(copied)
