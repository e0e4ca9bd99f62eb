"""What every neural forecaster has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from models.batch import AttentionMaps, Batch, Cut


class Forecaster(nn.Module, ABC):
    """Batch of dates -> one forecast per firm, in the target's unit.

    A subclass implements :meth:`embed` (what each firm knows on its own) and :meth:`mix` (what it
    makes of its own and its peers' embeddings); the network works in units of ``target_scale``, the
    standard deviation of the training targets, so that the learning rate means the same for every
    label.

    Attributes
    ----------
    uses_peers
        Whether a firm's forecast depends on the other firms of the date.
    """

    uses_peers: ClassVar[bool]
    target_scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("target_scale", torch.ones(()))

    def forward(self, batch: Batch, cut: Cut | None = None) -> Tensor:
        """Forecasts [B, N]; 0 for firms outside the universe."""
        return self.mix(self.embed(batch, cut), batch, cut)

    @abstractmethod
    def embed(self, batch: Batch, cut: Cut | None = None) -> Tensor:
        """Each firm's own token [B, N, D]."""

    @abstractmethod
    def mix(self, h_BND: Tensor, batch: Batch, cut: Cut | None = None) -> Tensor:
        """Forecasts [B, N] from the tokens of :meth:`embed`; 0 outside the universe.

        An explainer that removes peers many times embeds once and mixes often.
        """

    def attention(self, batch: Batch, cut: Cut | None = None) -> AttentionMaps:
        """Attention weights by the explicit path, without dropout; nothing for models without any."""
        return AttentionMaps()

    def scaled(self, y_BN: Tensor, batch: Batch) -> Tensor:
        """Forecasts in the target's unit, 0 outside the universe."""
        return (y_BN.float() * self.target_scale).masked_fill(~batch.m_BN, 0.0)


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """Give a linear layer that answers 0 until it is trained."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
