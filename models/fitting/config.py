"""Options of training: :class:`FitConfig`."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from models.fitting.losses import LOSSES, QUANTILE
from models.quantiles import require_levels
from models.spec import require_choice

BASELINES_READ = ("valid_dates", "label_share", "refit")
"""Fields of `FitConfig` that baselines read as well."""


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """How a day encoder is pretrained; gradient clipping, weight decay and warm-up are those of `FitConfig`.

    Attributes
    ----------
    objective
        ``masked_days``: predict masked days from the other days (Devlin et al. 2019, "BERT");
        ``next_day``: predict each day from the days before it, with causal attention.
    epochs
        Number of epochs. There is no early stopping, because no validation session is read.
    batch
        Windows per step.
    windows_per_epoch
        Windows drawn for each epoch; None uses all of them.
    lr
        Learning rate of AdamW.
    seed
        Decides the initial weights of the encoder, the order of windows, the masks and the dropout. None uses
        the seed of the fit, so every seed has its own pretraining; with a number, all seeds share one.
    """

    objective: Literal["masked_days", "next_day"] = "masked_days"
    epochs: int = 5
    batch: int = 256
    windows_per_epoch: int | None = None
    lr: float = 1e-3
    seed: int | None = None

    def __post_init__(self) -> None:
        require_choice("pretrain.objective", self.objective, ("masked_days", "next_day"))
        for name in ("epochs", "batch", "windows_per_epoch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"pretrain.{name} is {value}; it must be at least 1.")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"pretrain.lr is {self.lr}; it must be positive.")


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How neural models are trained; baselines read only the fields in `BASELINES_READ`.

    Attributes
    ----------
    epochs
        Maximum number of epochs.
    dates_per_epoch
        Training dates drawn for each epoch; None uses all of them.
    batch_dates
        Dates in a batch; the loss of a step is the mean over these dates.
    firms_per_date
        Firms drawn per training date, for models without peers; None uses all of them.
    lr, weight_decay
        Learning rate and weight decay of AdamW. Decay applies to matrices only: not to norms, biases, or the
        biases of attention logits.
    warmup
        Share of the steps over which the learning rate rises linearly; then it falls to 0 along a cosine.
    clip
        Maximum norm of the gradient.
    patience
        Number of epochs without a better validation score after which training stops.
    stop_on
        The validation score: ``rank_ic``, or ``ic`` where the tails of the target matter.
    loss
        ``mse``, ``huber``, ``ic``, ``pairwise`` or ``quantile``. A model with several horizons is trained on
        the mean over horizons; with ``quantile``, the shorter horizons use ``mse``. ``ic`` and ``pairwise``
        have no scale, so forecasts are calibrated on validation (`models.calibration`).
    quantiles
        Levels of the quantile loss; the forecast is the median.
    valid_dates
        Number of validation dates used for early stopping, evenly spaced; None uses all of them.
    average
        Decay per step of the running mean of the weights, in [0, 1). The mean is what is validated and kept;
        0 keeps the last weights themselves. Averaging helps where gradients are mostly noise (Polyak and
        Juditsky 1992).
    precision
        Precision of matrix products in training: ``float32``; ``bf16``; or ``auto``, bf16 on CUDA and float32
        on CPUs, where bf16 is slower. Weights, losses, the optimizer and all forecasts, also those of
        validation, are float32 in any case.
    compile
        Compile the training step (``torch.compile``) on CUDA devices. The first step then takes much longer,
        so this is for long trainings. Only for models whose seeds can be stacked; with it, seeds are trained
        one by one. CPUs ignore it.
    label_share
        Share of the training dates whose labels are used. Whole dates are drawn with the seed, and the dates
        of a smaller share are among those of a larger one. Baselines use it as well.
    layer_decay
        Factor between the learning rates of neighbouring layers of a day encoder: the last block has
        ``lr * layer_decay``, the block below it ``lr * layer_decay**2``, and the input layer and positions
        the smallest rate. 1 gives every layer the same rate.
    pretrain
        Pretrain the day encoder on the training span of the fold first; None skips pretraining. Applies to
        models with a day encoder.
    refit
        After validation has chosen the number of epochs (ridge: the penalty, LightGBM: the rounds), train
        again from the start on training and validation dates with that choice, so that the model that
        forecasts has seen all sessions before the test (:func:`models.fitting.fit.refit`). This doubles the
        training time. Baselines do it as well.
    """

    epochs: int = 20
    dates_per_epoch: int | None = None
    batch_dates: int = 8
    firms_per_date: int | None = None
    lr: float = 1e-3
    weight_decay: float = 1e-4
    warmup: float = 0.1
    clip: float = 1.0
    patience: int = 4
    stop_on: Literal["rank_ic", "ic"] = "rank_ic"
    loss: str = "mse"
    quantiles: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    valid_dates: int | None = None
    average: float = 0.0
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: bool = False
    label_share: float = 1.0
    layer_decay: float = 1.0
    pretrain: PretrainConfig | None = None
    refit: bool = False

    def __post_init__(self) -> None:
        require_choice("loss", self.loss, (*LOSSES, QUANTILE))
        require_levels(self.quantiles)
        require_choice("precision", self.precision, ("auto", "float32", "bf16"))
        require_choice("stop_on", self.stop_on, ("rank_ic", "ic"))
        for name in ("epochs", "dates_per_epoch", "batch_dates", "firms_per_date", "patience", "valid_dates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        for name in ("lr", "clip"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay is {self.weight_decay}; it must not be negative.")
        if not 0.0 <= self.average < 1.0:
            raise ValueError(f"average is {self.average}; it must be at least 0 and below 1.")
        if not 0.0 <= self.warmup < 1.0:
            raise ValueError(f"warmup is {self.warmup}; it is a share of the steps, at least 0 and below 1.")
        for name in ("label_share", "layer_decay"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and at most 1.")


def matrix_precision(config: FitConfig, device: torch.device) -> AbstractContextManager[object]:
    """Context in which a model is computed with the precision of the config."""
    if not uses_bf16(config, device):
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def uses_bf16(config: FitConfig, device: torch.device) -> bool:
    """Whether matrix products are computed in bf16: by default on CUDA devices only."""
    return config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
