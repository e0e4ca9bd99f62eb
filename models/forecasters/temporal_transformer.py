"""temporal_transformer: attention over the days of a firm's window.

Legend: B dates, N firms, W window length, C channels, F characteristics, D model width.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from features.options import Options
from models.attention.encoder import DayEncoder, EncoderConfig, encode_present
from models.attention.layers import Dropout, Linear
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Range, Shape, Space


class TemporalTransformerConfig(Options):
    """Options of temporal_transformer."""

    encoder: EncoderConfig = EncoderConfig()
    """Options of the day encoder; its width and dropout are also those of the head."""
    use_characteristics: bool = True
    """Whether the head reads the characteristics of the date as well as the embedding of the window."""


class TemporalTransformer(Forecaster):
    """``y = w . z + MLP([encode(window), z])`` with ``MLP(u) = W_2 GELU(W_1 u)``; W_2 and w start at 0."""

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "encoder.dropout": DROPOUT_SPACE,
        "encoder.width": Choice((16, 32, 64)),
        "encoder.layers": Range(1, 3, integer=True),
        "encoder.positions": Choice(("learned", "rotary", "relative")),
        "encoder.pooling": Choice(("last", "mean", "attention")),
    }

    def __init__(self, config: TemporalTransformerConfig, shape: Shape) -> None:
        super().__init__()
        width = config.encoder.width
        extra = shape.n_characteristics if config.use_characteristics else 0
        self.encoder = DayEncoder(config.encoder, shape.n_channels, shape.window)
        self.head = nn.Sequential(
            Linear(width + extra, width), nn.GELU(), Dropout(config.encoder.dropout), zero_linear(width, 1)
        )
        self.skip = zero_linear(extra, 1) if extra else None

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Embed the windows with the day encoder."""
        return encode_present(self.encoder, batch, ablation)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the characteristics; forecasts do not depend on other firms."""
        return self.scaled(self.own(h_BND, batch.z_BNF)[..., 0], batch)

    def own(self, h_BND: Tensor, z_BNF: Tensor) -> Tensor:
        """Forecasts [B, N, 1] from a firm's own window and characteristics, in units of ``target_scale``."""
        if self.skip is None:
            return self.head(h_BND)  # type: ignore[no-any-return]
        return self.head(torch.cat((h_BND, z_BNF), dim=-1)) + self.skip(z_BNF)  # type: ignore[no-any-return]
