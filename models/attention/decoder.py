"""The block of a decoder: causal self-attention, then cross-attention to the states of an encoder.

Legend: B sequences, K steps, W sequence length of the encoder, D model width, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.attention.block import NO_MASK, AttentionMask, Block, BlockConfig, MultiHeadAttention


class DecoderBlock(Block):
    """A block with causal self-attention, cross-attention to a memory, and a feed-forward network.

    Each of the three has a residual connection. ``norm="pre"`` normalises the input of each, ``norm="post"``
    each sum. Equal to ``nn.TransformerDecoderLayer`` (Vaswani et al. 2017, section 3.1). The memory must
    already be normalised by the encoder.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.memory_norm = nn.LayerNorm(config.width)
        self.memory = MultiHeadAttention(config)
        self.attention.over, self.memory.over = "steps", "memory"

    def decode(self, x_BKD: Tensor, memory_BWD: Tensor, mask: AttentionMask = NO_MASK) -> Tensor:
        """Transform K steps; ``mask`` selects the days of the memory."""
        x_BKD = self._self_attend(x_BKD)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        return self._add_memory(x_BKD, self.memory(y_BKD, memory_BWD, mask))

    def explicit_decode(
        self, x_BKD: Tensor, memory_BWD: Tensor, mask: AttentionMask = NO_MASK
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`decode`, by the explicit path; also returns the weights [B, H, K, W] of the days."""
        x_BKD = self._self_attend(x_BKD)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        out_BKD, weights_BHKW = self.memory.explicit(y_BKD, memory_BWD, mask)
        return self._add_memory(x_BKD, out_BKD), weights_BHKW

    def _self_attend(self, x_BKD: Tensor) -> Tensor:
        y_BKD = self.attention_norm(x_BKD) if self.pre else x_BKD
        return self._add(x_BKD, self.attention(y_BKD, y_BKD, AttentionMask(causal=True)), self.attention_norm)

    def _add_memory(self, x_BKD: Tensor, out_BKD: Tensor) -> Tensor:
        return self._transform(self._add(x_BKD, out_BKD, self.memory_norm))
