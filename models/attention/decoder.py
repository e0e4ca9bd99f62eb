"""The decoder's block: steps look at the steps before them, then at an encoder's states.

Legend: B sequences, K steps, W sequence length of the encoder, D model width, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.attention.block import EVERYTHING, AttentionMask, Block, BlockConfig, MultiHeadAttention


class DecoderBlock(Block):
    """A block with cross-attention to a memory between its causal self-attention and its feed-forward.

    Each of the three with a residual; ``norm="pre"`` normalises what goes into each, ``norm="post"`` each
    sum. Equal to ``nn.TransformerDecoderLayer`` (Vaswani et al. 2017, section 3.1). The memory is normalised
    by the encoder that gives it.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.memory_norm = nn.LayerNorm(config.width)
        self.memory = MultiHeadAttention(config)

    def decode(self, x_BKD: Tensor, memory_BWD: Tensor, sight: AttentionMask = EVERYTHING) -> Tensor:
        """Transform K steps; ``sight`` says which days of the memory are seen."""
        x_BKD = self._look_back(x_BKD)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        return self._look_out(x_BKD, self.memory(y_BKD, memory_BWD, sight))

    def explicit_decode(
        self, x_BKD: Tensor, memory_BWD: Tensor, sight: AttentionMask = EVERYTHING
    ) -> tuple[Tensor, Tensor]:
        """The same with the weights [B, H, K, W] of the days."""
        x_BKD = self._look_back(x_BKD)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        out_BKD, weights_BHKW = self.memory.explicit(y_BKD, memory_BWD, sight)
        return self._look_out(x_BKD, out_BKD), weights_BHKW

    def _look_back(self, x_BKD: Tensor) -> Tensor:
        y_BKD = self.attention_norm(x_BKD) if self.pre else x_BKD
        return self._add(x_BKD, self.attention(y_BKD, y_BKD, AttentionMask(causal=True)), self.attention_norm)

    def _look_out(self, x_BKD: Tensor, out_BKD: Tensor) -> Tensor:
        return self._transform(self._add(x_BKD, out_BKD, self.memory_norm))
