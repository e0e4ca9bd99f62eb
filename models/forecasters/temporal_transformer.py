"""temporal_transformer: attention over the days of a firm's own window.

Legend: B dates, N firms, W window length, C channels, F characteristics, D model width.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from models.attention.encoder import (
    DayEncoder,
    EncoderConfig,
    Kernel,
    Pooling,
    Positions,
    day_weights,
    encode_present,
)
from models.batch import Ablation, AttentionMaps, Batch
from models.forecaster import Forecaster, zero_linear
from models.spec import Shape


@dataclass(frozen=True, slots=True)
class TemporalTransformerConfig:
    """Options of temporal_transformer; all but the last are the day encoder's.

    Attributes
    ----------
    use_characteristics
        Join the date's characteristics to the window's embedding at the head.
    """

    width: int = 32
    heads: int = 4
    layers: int = 2
    positions: Positions = "learned"
    causal: bool = False
    pooling: Pooling = "last"
    dropout: float = 0.1
    kernel: Kernel = "softmax"
    radius: int = 8
    temperature: float = 1.0
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["gelu", "relu"] = "gelu"
    use_characteristics: bool = True

    def __post_init__(self) -> None:
        self.encoder()

    def encoder(self) -> EncoderConfig:
        """Return the day encoder's part, checked."""
        own = asdict(self)
        del own["use_characteristics"]
        return EncoderConfig(**own)


class TemporalTransformer(Forecaster):
    """``y = w . z + MLP([encode(window), z])`` with ``MLP(u) = W_2 GELU(W_1 u)``; W_2 and w start at 0."""

    uses_peers: ClassVar[bool] = False
    stackable: ClassVar[bool] = True

    def __init__(self, config: TemporalTransformerConfig, shape: Shape) -> None:
        super().__init__()
        self.config = config
        extra = shape.n_characteristics if config.use_characteristics else 0
        self.encoder = DayEncoder(config.encoder(), shape.n_channels, shape.window)
        self.head = nn.Sequential(
            nn.Linear(config.width + extra, config.width),
            nn.GELU(),
            nn.Dropout(config.dropout),
            zero_linear(config.width, 1),
        )
        self.skip = zero_linear(extra, 1) if extra else None

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Embeddings of the windows."""
        return encode_present(self.encoder, batch, ablation)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Join the characteristics; firms do not see each other."""
        if self.skip is None:
            return self.scaled(self.head(h_BND)[..., 0], batch)
        y_BN1 = self.head(torch.cat((h_BND, batch.z_BNF), dim=-1)) + self.skip(batch.z_BNF)
        return self.scaled(y_BN1[..., 0], batch)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        """Weights of the days."""
        return AttentionMaps(days_BNW=day_weights(self.encoder, batch, ablation))
