"""Options of training: :class:`FitConfig`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from features.options import Options
from models.quantiles import require_levels
from models.spec import Count, Positive, Share

LossName = Literal["mse", "huber", "ic", "pairwise", "quantile", "sharpe", "net_utility"]

NET_UTILITY = "net_utility"
"""The loss whose dates depend on each other: a step is a block of consecutive sessions."""

PORTFOLIO = frozenset({"sharpe", NET_UTILITY})
"""Losses of a portfolio whose weights are the network's outputs; they read returns."""

BASELINES_READ = frozenset({"valid_dates", "label_share", "refit"})
"""Fields of `FitConfig` that baselines read as well."""


class PretrainConfig(Options):
    """How a day encoder is pretrained; clipping, weight decay and warm-up are those of `FitConfig`."""

    objective: Literal["masked_days", "next_day"] = "masked_days"
    """``masked_days``: predict masked days from the other days (Devlin et al. 2019, "BERT"); ``next_day``:
    predict each day from the days before it, with causal attention."""
    epochs: Count = 5
    """Number of epochs. There is no early stopping, because no validation session is read."""
    batch: Count = 256
    """Windows per step."""
    windows_per_epoch: Count | None = None
    """Windows drawn for each epoch. Null: all of them."""
    lr: Positive = 1e-3
    """Learning rate of AdamW."""
    seed: int | None = None
    """Decides the initial weights of the encoder, the order of windows, the masks and the dropout. Null: the
    seed of the fit, so every seed has its own pretraining; with a number, all seeds share one."""


class FitConfig(Options):
    """How neural models are trained; baselines read only the fields in `BASELINES_READ`."""

    COMPUTED: ClassVar[Mapping[str, Any]] = {"compile": False}

    epochs: Count = 12
    """Maximum number of epochs."""
    dates_per_epoch: Count | None = None
    """Training dates drawn for each epoch. Null: all of them."""
    batch_dates: Count = 8
    """Dates in a batch; the loss of a step is the mean over these dates."""
    firms_per_date: Count | None = None
    """Firms drawn per training date, for models without peers. Null: all of them."""
    lr: Positive = 5e-4
    """Learning rate of AdamW."""
    weight_decay: float = Field(default=0.3, ge=0)
    """Weight decay of AdamW. It applies to matrices only: not to norms, biases, or the biases of attention
    logits."""
    warmup: Share = 0.1
    """Share of the steps over which the learning rate rises linearly; then it falls to 0 along a cosine."""
    clip: Positive = 1.0
    """Maximum norm of the gradient."""
    patience: Count = 12
    """Number of epochs without a better validation score after which training stops. With the default of
    ``epochs`` it never stops early, because the first scores are mostly noise; the best epoch is kept."""
    stop_on: Literal["rank_ic", "ic"] = "ic"
    """The validation score: ``ic``, or ``rank_ic`` where the tails of the target do not matter."""
    loss: LossName = "mse"
    """A model with several horizons is trained on the mean over horizons; with ``quantile``, the shorter
    horizons use ``mse``. ``ic`` and ``pairwise`` have no scale, so forecasts are calibrated on validation
    (`models.calibration`). ``sharpe`` and ``net_utility`` train the weights of a portfolio of the raw return
    of the label; they are calibrated in the same way, and shorter horizons use ``mse``. ``net_utility`` draws
    blocks of ``batch_dates`` consecutive sessions. Both portfolio transformers use ``sharpe`` unless a
    ``fit`` names a loss."""
    risk_aversion: Positive = 5.0
    """Risk aversion of ``net_utility``."""
    turnover_cost_bps: float = Field(default=10.0, ge=0)
    """What ``net_utility`` pays for turnover, in basis points of what is bought plus what is sold."""
    quantiles: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    """Levels of the quantile loss; the forecast is the median."""
    valid_dates: Count | None = None
    """Number of validation dates used for early stopping, evenly spaced. Null: all of them."""
    average: Share = 0.98
    """Decay per step of the running mean of the weights. The mean is what is validated and kept; 0 keeps the
    last weights themselves. Averaging helps where gradients are mostly noise (Polyak and Juditsky 1992)."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Precision of matrix products in training. ``auto``: bf16 on CUDA and float32 on CPUs, where bf16 is
    slower. Weights, losses, the optimizer and all forecasts, also those of validation, are float32 in any
    case."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the training step (``torch.compile``) on CUDA devices. ``auto``: where the steps to come save
    more time than the compilation takes, by what was measured per model (`models.fitting.plan`), if the
    machine has a C compiler and Python's headers. ``true``: always; only for models whose seeds can be
    trained together. CPUs ignore it."""
    label_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the training dates whose labels are used. Whole dates are drawn with the seed, and the dates
    of a smaller share are among those of a larger one. Baselines use it as well."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor between the learning rates of neighbouring layers of a day encoder: the last block has
    ``lr * layer_decay``, the block below it ``lr * layer_decay**2``, and the input layer and positions the
    smallest rate. 1 gives every layer the same rate."""
    pretrain: PretrainConfig | None = None
    """Pretrain the day encoder on the training span of the fold first. Null: no pretraining. Applies to
    models with a day encoder."""
    refit: bool = False
    """After validation has chosen the number of epochs (ridge: the penalty, LightGBM: the rounds), train
    again from the start on training and validation dates with that choice, so that the model that forecasts
    has seen all sessions before the test (`models.fitting.fit.refit`). This doubles the training time.
    Baselines do it as well."""

    @field_validator("quantiles")
    @classmethod
    def _check_levels(cls, levels: Sequence[float]) -> Sequence[float]:
        require_levels(levels)
        return levels

    @model_validator(mode="after")
    def _check_blocks(self) -> Self:
        if self.loss == NET_UTILITY and (self.firms_per_date is not None or self.label_share != 1.0):
            raise ValueError(
                "loss net_utility follows firms over consecutive sessions, so firms_per_date must be null "
                f"(it is {self.firms_per_date}) and label_share 1 (it is {self.label_share:g})."
            )
        if self.loss == NET_UTILITY and 1 in (self.batch_dates, self.dates_per_epoch):
            raise ValueError(
                "loss net_utility pays for what is traded between two sessions of a batch; set batch_dates "
                f"(it is {self.batch_dates}) and dates_per_epoch (it is {self.dates_per_epoch}) to 2 or more."
            )
        return self

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values; those of ``net_utility`` only with that loss."""
        settings = super().deciding()
        if self.loss != NET_UTILITY:
            del settings["risk_aversion"], settings["turnover_cost_bps"]
        return settings


def matrix_precision(config: FitConfig, device: torch.device) -> AbstractContextManager[object]:
    """Context in which a model is computed with the precision of the config."""
    bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else nullcontext()
