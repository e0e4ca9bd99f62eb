"""The transformer block: multi-head attention with a choice of kernels, and a feed-forward network.

Legend: B sequences, Q queries, K keys, W sequence length, D model width, H heads, d = D / H, e = d + 1,
R = 2W - 1 distances, U masks.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from pydantic import model_validator
from torch import Tensor, nn

from features.options import Options
from models.attention.core import (
    attention,
    attention_weights,
    band_keep,
    causal_keep,
    join_heads,
    linear_attention,
    linear_weights,
    local_attention,
    masked_softmax,
    split_heads,
)
from models.attention.layers import Dropout, Linear, drop
from models.attention.positions import bias_of_distance, rotate
from models.attention.probe import Probed
from models.spec import Count, Heads, Positive, Share


class BlockConfig(Options):
    """Options of an attention block."""

    width: Count = 32
    """D, width of the model; a multiple of ``heads``."""
    heads: Heads = 4
    """H, number of attention heads."""
    dropout: Share = 0.0
    """Probability with which a weight or an activation is dropped in training."""
    kernel: Literal["softmax", "local", "linear"] = "softmax"
    """``local`` is a softmax over the positions at most ``radius`` away; ``linear`` takes time proportional
    to the length, without logits."""
    radius: Count = 8
    """Radius of the local kernel, in positions."""
    temperature: Positive = 1.0
    """Divides the logits: below 1 sharpens attention, above 1 flattens it."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer, or after each sum (Vaswani et al. 2017)."""
    activation: Literal["gelu", "relu"] = "gelu"
    """Activation of the feed-forward network."""

    @model_validator(mode="after")
    def _check_block(self) -> Self:
        if self.kernel == "linear" and self.temperature != 1.0:
            raise ValueError(
                f"temperature is {self.temperature}; it must be 1 for the linear kernel, which has no logits."
            )
        return self


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMask:
    """Which keys queries may attend to, and the position terms; queries are the last Q of the K positions."""

    # bool; False masks the key (padding, or an ablated day). The output of a query without any key is 0.
    keys_BK: Tensor | None = None
    causal: bool = False  # whether a query attends only to keys up to its own position
    # rotary angles of the positions, see `models.attention.positions.rotary`
    rotary_W2d: Tensor | None = None
    # biases of the logits by distance, see `models.attention.positions.bias_of_distance`
    bias_HR: Tensor | None = None
    # whether a position is a key of its own query in any case; not for the linear and the local kernel
    own: bool = False


NO_MASK = AttentionMask()


class MultiHeadAttention(Probed):
    """Multi-head attention, ``concat_h(attention(x W_Q, y W_K, y W_V)) W_O``, with a choice of kernels."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.output = Linear(width, width)

    def forward(self, x_BQD: Tensor, y_BKD: Tensor, mask: AttentionMask = NO_MASK) -> Tensor:
        """Attend from ``x`` (queries) to ``y`` (keys and values), by the fast path."""
        if self.probe is not None:
            return self.explicit(x_BQD, y_BKD, mask)[0]
        config = self.config
        dropout = config.dropout if self.training else 0.0
        if x_BQD.shape[1] == 1 and config.kernel != "linear" and mask.rotary_W2d is None:
            return self._single_query(x_BQD, y_BKD, mask, dropout)
        q_BHQd, k_BHKd, v_BHKd = self._project(x_BQD, y_BKD, mask.rotary_W2d)
        if config.kernel == "linear":
            out_BHQd = linear_attention(q_BHQd, k_BHKd, v_BHKd, keys_BK=mask.keys_BK, causal=mask.causal)
        elif config.kernel == "local" and q_BHQd.shape[2] == k_BHKd.shape[2]:
            out_BHQd = local_attention(
                q_BHQd,
                k_BHKd,
                v_BHKd,
                radius=config.radius,
                keys_BK=mask.keys_BK,
                causal=mask.causal,
                bias_HR=mask.bias_HR,
                scale=self._scale(q_BHQd),
                dropout=dropout,
            )
        else:
            keep, bias = self._masks(q_BHQd.shape[2], k_BHKd.shape[2], mask, q_BHQd.device)
            out_BHQd = attention(
                q_BHQd, k_BHKd, v_BHKd, keep=keep, bias=bias, scale=self._scale(q_BHQd), dropout=dropout
            )
        return self.output(join_heads(out_BHQd))  # type: ignore[no-any-return]

    def explicit(self, x_BQD: Tensor, y_BKD: Tensor, mask: AttentionMask = NO_MASK) -> tuple[Tensor, Tensor]:
        """The same in quadratic form, without dropout, with the weights [B, H, Q, K]."""
        q_BHQd, k_BHKd, v_BHKd = self._project(x_BQD, y_BKD, mask.rotary_W2d)
        keep, bias = self._masks(q_BHQd.shape[2], k_BHKd.shape[2], mask, q_BHQd.device)
        if self.config.kernel == "linear":
            weights_BHQK = linear_weights(q_BHQd, k_BHKd, keys_BK=mask.keys_BK, causal=mask.causal)
        else:
            weights_BHQK = attention_weights(q_BHQd, k_BHKd, keep=keep, bias=bias, scale=self._scale(q_BHQd))
        weights_BHQK = self.weigh(weights_BHQK, keep)
        return self.output(join_heads(weights_BHQK @ v_BHKd)), weights_BHQK

    def masked(self, x_B1D: Tensor, y_BKD: Tensor, keep_UK: Tensor, mask: AttentionMask) -> Tensor:
        """Compute :meth:`forward` of the last position for U masks of the keys at once, [U, B, D].

        Numerator and denominator of the softmax are sums over the kept keys, so all masks together are one
        product of matrices. Not for the linear kernel. The sums are float64.
        """
        q_BH1d, k_BHKd, v_BHKd = self._project(x_B1D, y_BKD, mask.rotary_W2d)
        keep, bias = self._masks(1, k_BHKd.shape[2], mask, q_BH1d.device)
        logits_BHK = (self._scale(q_BH1d) * (q_BH1d.double() @ k_BHKd.double().transpose(-2, -1)))[:, :, 0]
        if bias is not None:
            logits_BHK = logits_BHK + bias[..., 0, :]
        if keep is not None:
            logits_BHK = logits_BHK.masked_fill(~keep[..., 0, :], -math.inf)
        weight_BHK = torch.exp(logits_BHK - logits_BHK.amax(dim=-1, keepdim=True))
        counted_BHKe = weight_BHK[..., None] * F.pad(v_BHKd.double(), (0, 1), value=1.0)
        sums_UBHe = torch.tensordot(keep_UK.double(), counted_BHKe, dims=([1], [2]))
        total_UBH1 = sums_UBHe[..., -1:]
        message_UBHd = sums_UBHe[..., :-1] / torch.where(total_UBH1 > 0.0, total_UBH1, 1.0)
        return self.output(message_UBHd.to(v_BHKd.dtype).flatten(2))  # type: ignore[no-any-return]

    def _single_query(self, x_B1D: Tensor, y_BKD: Tensor, mask: AttentionMask, dropout: float) -> Tensor:
        """Attend with one query per sequence, without projecting the K positions to keys and values.

        ``q . (W_K y_j + b_K) = (W_K^T q) . y_j + const`` and ``sum_j w_j (W_V y_j + b_V) = W_V sum_j w_j y_j
        + b_V sum_j w_j``, head by head. The constant is the same for all keys, so the softmax does not depend
        on it. The projections take 2 D^2 instead of 2 K D^2 multiplications per sequence.
        """
        B, K, D = y_BKD.shape
        H = self.config.heads
        q_HBd = self.query(x_B1D).view(B, H, -1).transpose(0, 1)
        key_HBD = q_HBd @ self.key.weight.view(H, -1, D)
        scale = self._scale(q_HBd)
        logits_BHK = (key_HBD.transpose(0, 1) * scale) @ y_BKD.transpose(1, 2)
        keep, bias = self._masks(1, K, mask, x_B1D.device)
        weights_BHK = masked_softmax(logits_BHK[:, :, None], keep, bias)[:, :, 0]
        weights_BHK = drop(weights_BHK, dropout)
        mean_HBD = (weights_BHK.to(y_BKD.dtype) @ y_BKD).transpose(0, 1)
        out_HBd = mean_HBD @ self.value.weight.view(H, -1, D).transpose(1, 2)
        bias_Hd = self.value.bias.view(H, -1)
        out_BHd = out_HBd.transpose(0, 1) + weights_BHK.sum(dim=-1, keepdim=True) * bias_Hd
        return self.output(out_BHd.reshape(B, 1, D))  # type: ignore[no-any-return]

    def _project(
        self, x_BQD: Tensor, y_BKD: Tensor, rotary_W2d: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.config.heads
        q_BHQd = split_heads(self.query(x_BQD), heads)
        k_BHKd = split_heads(self.key(y_BKD), heads)
        v_BHKd = split_heads(self.value(y_BKD), heads)
        if rotary_W2d is not None:
            # queries are the last Q of the K positions
            q_BHQd = rotate(q_BHQd, rotary_W2d[-q_BHQd.shape[2] :])
            k_BHKd = rotate(k_BHKd, rotary_W2d)
        return q_BHQd, k_BHKd, v_BHKd

    def _scale(self, q_BHQd: Tensor) -> float:
        return 1.0 / (self.config.temperature * math.sqrt(q_BHQd.shape[-1]))

    def _masks(
        self, queries: int, keys: int, mask: AttentionMask, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        """Build the mask, bool [.., Q, K], and the biases of the logits."""
        keep: Tensor | None = None
        if self.config.kernel == "local":
            keep = band_keep(queries, keys, self.config.radius, causal=mask.causal, device=device)
        elif mask.causal:
            keep = causal_keep(queries, keys, device)
        if mask.keys_BK is not None:
            present = mask.keys_BK[:, None, None, :]
            if mask.own:
                present = present | torch.eye(queries, keys, dtype=torch.bool, device=device)
            keep = present.expand(-1, -1, queries, -1) if keep is None else keep & present
        bias = None if mask.bias_HR is None else bias_of_distance(mask.bias_HR, queries, keys)
        return keep, bias


class Block(nn.Module):
    """Transformer block: attention, then a feed-forward network of width 4D, each with a residual connection.

    ``norm="pre"``: ``x + MHA(LN(x))``, then ``x + W_2 act(W_1 LN(x))`` (Xiong et al. 2020, "On layer
    normalization in the transformer architecture"). ``norm="post"``: ``LN(x + MHA(x))``, then
    ``LN(x + W_2 act(W_1 x))`` (Vaswani et al. 2017). Equal to ``nn.TransformerEncoderLayer``.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width = config.width
        self.pre = config.norm == "pre"
        self.activation = F.gelu if config.activation == "gelu" else F.relu
        self.attention_norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(config)
        self.forward_norm = nn.LayerNorm(width)
        self.forward_in = Linear(width, 4 * width)
        self.forward_out = Linear(4 * width, width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BWD: Tensor, mask: AttentionMask = NO_MASK, *, queries: int | None = None) -> Tensor:
        """Transform the last ``queries`` positions (by default all) to [B, Q, D].

        If only the last position is pooled, ``queries=1`` gives the same result for about half the work.
        """
        y_BWD = self._normed(x_BWD)
        if queries is None:
            return self._finish(x_BWD, self.attention(y_BWD, y_BWD, mask))
        # The norm of the last positions is computed again, because the gradient of a slice is an array of
        # the size of the whole.
        last_BQD = x_BWD[:, -queries:]
        return self._finish(last_BQD, self.attention(self._normed(last_BQD), y_BWD, mask))

    def masked(self, x_BWD: Tensor, keep_UW: Tensor, mask: AttentionMask) -> Tensor:
        """Transform the last position for U masks of the keys at once, [U, B, D]."""
        y_BWD = self._normed(x_BWD)
        out_UBD = self.attention.masked(y_BWD[:, -1:], y_BWD, keep_UW, mask)
        return self._finish(x_BWD[:, -1].expand_as(out_UBD), out_UBD)

    def _normed(self, x_BWD: Tensor) -> Tensor:
        """Input of the attention."""
        return self.attention_norm(x_BWD) if self.pre else x_BWD

    def _finish(self, x_BQD: Tensor, out_BQD: Tensor) -> Tensor:
        return self._transform(self._add(x_BQD, out_BQD, self.attention_norm))

    def _add(self, x_BQD: Tensor, out_BQD: Tensor, norm: nn.Module) -> Tensor:
        """Add the output of a sublayer; post-norm blocks then apply ``norm``."""
        x_BQD = x_BQD + self.dropout(out_BQD)
        return x_BQD if self.pre else norm(x_BQD)

    def _transform(self, x_BQD: Tensor) -> Tensor:
        """Apply the feed-forward network with its residual connection and norm."""
        hidden = self.activation(self.forward_in(self.forward_norm(x_BQD) if self.pre else x_BQD))
        return self._add(x_BQD, self.forward_out(self.dropout(hidden)), self.forward_norm)


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
        y_BKD = self._normed(x_BKD)
        out_BKD = self.attention(y_BKD, y_BKD, AttentionMask(causal=True))
        x_BKD = self._add(x_BKD, out_BKD, self.attention_norm)
        y_BKD = self.memory_norm(x_BKD) if self.pre else x_BKD
        return self._transform(self._add(x_BKD, self.memory(y_BKD, memory_BWD, mask), self.memory_norm))
