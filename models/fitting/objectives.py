"""What a day encoder is pretrained to do: fill in masked days, or say what the next day brings.

Both need windows alone, no label. A scaled value of exactly 0 is an unknown one (its channel's centre), so
that a day is known if any of its channels is not 0.

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
"""Share of a window's known days that are to be predicted."""
TOKEN_SHARE, OTHER_SHARE = 0.8, 0.1
"""Of these, the shares that are hidden behind the masked token, or show another day; the rest stay."""


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """How a day encoder is pretrained before its model is fitted; clip, decay and warm-up are the fit's.

    Attributes
    ----------
    objective
        ``masked_days``: predict hidden days from the others (Devlin et al. 2019, "BERT");
        ``next_day``: predict each day from those before it, by causal attention.
    epochs
        Passes over the windows; all of them are made, since no validation session is looked at.
    batch
        Windows a step.
    windows_per_epoch
        Windows drawn anew for each epoch; None takes all.
    lr
        AdamW's.
    seed
        Decides the encoder's first weights, the order of windows, the masks and the dropout. None: the
        fit's own, so that every seed has a pretraining of its own; a number: all seeds share one.
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
                raise ValueError(f"pretrain.{name} is {value}: it must be at least 1.")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"pretrain.lr is {self.lr}: it must be positive.")


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Windows with days to be predicted.

    Attributes
    ----------
    x_MWC
        The windows, some of the chosen days replaced by another day's values.
    token_MW
        bool, days that are hidden behind the masked token.
    chosen_MW
        bool, days to be predicted, among them those that are shown as they are.
    """

    x_MWC: Tensor
    token_MW: Tensor
    chosen_MW: Tensor


def known_days(x_MWC: Tensor) -> Tensor:
    """Days [M, W] of which at least one channel is known."""
    return (x_MWC != 0).any(dim=-1)


def mask_days(x_MWC: Tensor, generator: torch.Generator) -> Masked:
    """Choose 15% of each window's known days; hide 80% of them, swap 10%, leave 10% as they are.

    ``floor(0.15 K + u)`` of a window's K known days are chosen, u uniform in [0, 1), so that the share is
    15% on average whatever K is. Another day's values are those of a known day anywhere in the batch.

    Parameters
    ----------
    x_MWC
        Scaled channels, 0 for unknown.
    generator
        Of the draws, on the CPU.
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


def squared_errors(predicted_MWC: Tensor, x_MWC: Tensor, chosen_MW: Tensor) -> tuple[Tensor, int]:
    """Sum of squared errors over the known channels of the chosen days, and how many values these are."""
    counted_MWC = chosen_MW[:, :, None] & (x_MWC != 0)
    error_MWC = (predicted_MWC.float() - x_MWC).masked_fill(~counted_MWC, 0.0)
    return error_MWC.square().sum(), int(counted_MWC.sum())


class DayPredictor(nn.Module):
    """A day encoder and what pretraining adds: a linear map from a day's state to channels, and the token.

    ``masked_days``: ``x_k ~ W h_k`` for the chosen days k, where the input of a hidden day is a learned
    token in place of ``x_k W_in``. ``next_day``: ``x_(k+1) ~ W h_k`` by causal attention, for the days k
    with something known up to them. Only the encoder outlives the pretraining.

    Raises
    ------
    IncompatibleConfig
        For ``next_day`` on windows of a single day.
    """

    def __init__(self, encoder: DayEncoder, config: PretrainConfig, n_channels: int, window: int) -> None:
        super().__init__()
        if config.objective == "next_day" and window < 2:
            raise IncompatibleConfig(
                "fit.pretrain.objective is next_day and the window one session: lengthen it."
            )
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.width, n_channels)
        self.token_D = (
            nn.Parameter(0.02 * torch.randn(encoder.config.width))
            if config.objective == "masked_days"
            else None
        )

    def errors(self, x_MWC: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        """Sum of squared errors over what is to be predicted of the windows, and how many values it is."""
        if self.token_D is None:
            h_MWD = self.encoder.days(self.encoder.input(x_MWC), causal=True)
            seen_MW = known_days(x_MWC).cummax(dim=1).values
            return squared_errors(self.head(h_MWD[:, :-1]), x_MWC[:, 1:], seen_MW[:, :-1])
        masked = mask_days(x_MWC, generator)
        h_MWD = torch.where(masked.token_MW[:, :, None], self.token_D, self.encoder.input(masked.x_MWC))
        h_MWD = self.encoder.days(h_MWD, causal=self.encoder.config.causal)
        return squared_errors(self.head(h_MWD), x_MWC, masked.chosen_MW)
