"""The decoder's block: steps look at the steps before them, then at an encoder's states.

Legend: B sequences, K steps, W sequence length of the encoder, D model width, H heads.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.block import EVERYTHING, BlockConfig, MultiHeadAttention, Sight


class DecoderBlock(nn.Module):
    """Causal self-attention over steps, cross-attention to the memory, a feed-forward of width 4D.

    Each with a residual; ``norm="pre"`` normalises what goes into each of the three, ``norm="post"`` each
    sum. Equal to ``nn.TransformerDecoderLayer`` (Vaswani et al. 2017, section 3.1). The memory is normalised
    by the encoder that gives it.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width = config.width
        self.pre = config.norm == "pre"
        self.activation = F.gelu if config.activation == "gelu" else F.relu
        self.steps_norm = nn.LayerNorm(width)
        self.steps = MultiHeadAttention(config)
        self.memory_norm = nn.LayerNorm(width)
        self.memory = MultiHeadAttention(config)
        self.forward_norm = nn.LayerNorm(width)
        self.forward_in = nn.Linear(width, 4 * width)
        self.forward_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BKD: Tensor, memory_BWD: Tensor, sight: Sight = EVERYTHING) -> Tensor:
        """Transform K steps; ``sight`` says which days of the memory are seen."""
        x_BKD = self._look_back(x_BKD)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        return self._after(x_BKD, self.memory(y_BKD, memory_BWD, sight))

    def explicit(self, x_BKD: Tensor, memory_BWD: Tensor, sight: Sight = EVERYTHING) -> tuple[Tensor, Tensor]:
        """The same with the weights [B, H, K, W] of the days."""
        x_BKD = self._look_back(x_BKD)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        out_BKD, weights_BHKW = self.memory.explicit(y_BKD, memory_BWD, sight)
        return self._after(x_BKD, out_BKD), weights_BHKW

    def _look_back(self, x_BKD: Tensor) -> Tensor:
        y_BKD = self.steps_norm(x_BKD) if self.pre else x_BKD
        x_BKD = x_BKD + self.dropout(self.steps(y_BKD, y_BKD, Sight(causal=True)))
        return x_BKD if self.pre else self.steps_norm(x_BKD)

    def _after(self, x_BKD: Tensor, out_BKD: Tensor) -> Tensor:
        x_BKD = x_BKD + self.dropout(out_BKD)
        if self.pre:
            return x_BKD + self._feed_forward(self.forward_norm(x_BKD))
        x_BKD = self.memory_norm(x_BKD)
        return self.forward_norm(x_BKD + self._feed_forward(x_BKD))  # type: ignore[no-any-return]

    def _feed_forward(self, x_BKD: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.forward_in(x_BKD)))
        return self.dropout(self.forward_out(hidden))  # type: ignore[no-any-return]
