"""What every neural forecaster has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from models.batch import Ablation, AttentionMaps, Batch, PanelTensors
from models.quantiles import QuantileHead


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
    stackable
        Whether, of a dense batch, no shape depends on values, so that several seeds can be trained as one
        (`models.fitting.stacked`).
    uses_days
        Whether days of the window can be cut from a forecast, where no day attention says so already.
    quantile_head
        What the quantile loss puts beside the forecast, which it leaves as it is: the median.
    """

    uses_peers: ClassVar[bool]
    stackable: ClassVar[bool] = False
    uses_days: bool
    quantile_head: QuantileHead | None
    target_scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.uses_days = False
        self.quantile_head = None
        self.register_buffer("target_scale", torch.ones(()))

    def forward(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N]; 0 for firms outside the universe."""
        return self.mix(self.embed(batch, ablation), batch, ablation)

    @abstractmethod
    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Each firm's own token [B, N, D]."""

    @property
    def n_horizons(self) -> int:
        """Number K of horizons that it forecasts."""
        return 1

    def horizons(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N, K] of its horizons, the label's last; 0 outside the universe."""
        return self(batch, ablation)[..., None]  # type: ignore[no-any-return]

    @abstractmethod
    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N] from the tokens of :meth:`embed`; 0 outside the universe.

        An explainer that removes peers many times embeds once and mixes often.
        """

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        """Attention weights by the explicit path, without dropout; nothing for models without any."""
        return AttentionMaps()

    def require(self, data: PanelTensors) -> None:
        """Refuse a panel that lacks what the model's options name; ValueError says what."""

    def quantiles_around(self, y_BN: Tensor, batch: Batch) -> Tensor:
        """Quantiles [B, N, Q] around forecasts, both in the target's unit."""
        assert self.quantile_head is not None, "asked of a model with quantiles alone"
        return self.quantile_head(y_BN / self.target_scale, batch.z_BNF) * self.target_scale  # type: ignore[no-any-return]

    def scaled(self, y_BN: Tensor, batch: Batch) -> Tensor:
        """Forecasts in the target's unit, 0 outside the universe."""
        return (y_BN.float() * self.target_scale).masked_fill(~batch.m_BN, 0.0)


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """Give a linear layer that answers 0 until it is trained."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
