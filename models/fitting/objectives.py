"""Objectives of pretraining a day encoder: predict masked days, or predict the next day.

Both use windows only, no label. A scaled value of exactly 0 means that the value is unknown (0 is the centre
of its channel), so a day is known if at least one of its channels is not 0.

Legend: M windows, W window length, C channels, D model width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from models.attention.encoder import DayEncoder
from models.spec import IncompatibleConfig, require_choice

MASKED_SHARE = 0.15
"""Share of the known days of a window that are predicted."""
TOKEN_SHARE, OTHER_SHARE = 0.8, 0.1
"""Shares of the predicted days that show the mask token, or another day's values; the rest are unchanged."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Windows with masked days, and which days are predicted.

    Attributes
    ----------
    x_MWC
        The windows, some of the chosen days replaced by another day's values.
    token_MW
        bool, days that show the mask token.
    chosen_MW
        bool, days that are predicted, including those shown unchanged.
    """

    x_MWC: Tensor
    token_MW: Tensor
    chosen_MW: Tensor


def known_days(x_MWC: Tensor) -> Tensor:
    """Days [M, W] with at least one known channel."""
    return (x_MWC != 0).any(dim=-1)


def mask_days(x_MWC: Tensor, generator: torch.Generator) -> Masked:
    """Choose 15% of the known days of each window; mask 80% of them, replace 10%, leave 10% unchanged.

    ``floor(0.15 K + u)`` of the K known days of a window are chosen, u uniform in [0, 1), which makes the
    share 15% on average for every K. A replaced day takes the values of another known day of the batch.

    Parameters
    ----------
    x_MWC
        Scaled channels; 0 means unknown.
    generator
        Generator of the draws, on the CPU.
    """
    device, (M, W) = x_MWC.device, x_MWC.shape[:2]
    known_MW = known_days(x_MWC)
    order_MW = torch.rand((M, W), generator=generator).to(device).masked_fill(~known_MW, 2.0)
    rank_MW = order_MW.argsort(dim=1).argsort(dim=1)
    count_M = (MASKED_SHARE * known_MW.sum(dim=1) + torch.rand(M, generator=generator).to(device)).floor()
    chosen_MW = known_MW & (rank_MW < count_M[:, None])
    fate_MW = torch.rand((M, W), generator=generator).to(device)
    token_MW = chosen_MW & (fate_MW < TOKEN_SHARE)
    other_MW = chosen_MW & ~token_MW & (fate_MW < TOKEN_SHARE + OTHER_SHARE)
    pool_KC = x_MWC[known_MW]
    if len(pool_KC) > 1:
        place_MW = known_MW.flatten().cumsum(0).view(M, W) - 1
        step_MW = torch.randint(1, len(pool_KC), (M, W), generator=generator).to(device)  # never itself
        x_MWC = torch.where(other_MW[:, :, None], pool_KC[(place_MW + step_MW) % len(pool_KC)], x_MWC)
    return Masked(x_MWC, token_MW, chosen_MW)


def squared_errors(predicted_MWC: Tensor, x_MWC: Tensor, chosen_MW: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of squared errors over the known channels of the chosen days, and the number of these values."""
    counted_MWC = chosen_MW[:, :, None] & (x_MWC != 0)
    error_MWC = (predicted_MWC.float() - x_MWC).masked_fill(~counted_MWC, 0.0)
    return error_MWC.square().sum(), counted_MWC.sum()


class DayPredictor(nn.Module):
    """A day encoder with a linear map from the state of a day to its channels, and the mask token.

    ``masked_days``: ``x_k ~ W h_k`` for the chosen days k, where the input of a masked day is a learned
    token in place of ``x_k W_in``. ``next_day``: ``x_(k+1) ~ W h_k`` with causal attention, for the days k
    with a known day at or before k. Only the encoder is kept after pretraining.

    Raises
    ------
    IncompatibleConfig
        For ``next_day`` on windows of a single day.
    """

    def __init__(self, encoder: DayEncoder, config: PretrainConfig, n_channels: int, window: int) -> None:
        super().__init__()
        if config.objective == "next_day" and window < 2:
            raise IncompatibleConfig(
                "fit.pretrain.objective is next_day but the window has one session: lengthen the window."
            )
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.width, n_channels)
        self.token_D = (
            nn.Parameter(0.02 * torch.randn(encoder.config.width))
            if config.objective == "masked_days"
            else None
        )

    def errors(self, x_MWC: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sum of squared errors over the predicted values of the windows, and the number of these values."""
        if self.token_D is None:
            h_MWD = self.encoder.days(self.encoder.input(x_MWC), causal=True)
            seen_MW = known_days(x_MWC).cummax(dim=1).values
            return squared_errors(self.head(h_MWD[:, :-1]), x_MWC[:, 1:], seen_MW[:, :-1])
        masked = mask_days(x_MWC, generator)
        h_MWD = torch.where(masked.token_MW[:, :, None], self.token_D, self.encoder.input(masked.x_MWC))
        h_MWD = self.encoder.days(h_MWD, causal=self.encoder.config.causal)
        return squared_errors(self.head(h_MWD), x_MWC, masked.chosen_MW)
