"""Attention core: scaled dot products, several heads, and the pre-norm block built on them.

Legend: B sequences, Q queries, K keys, W sequence length, D model width, H heads, d = D / H.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.positions import rotate


def attention(
    q_BHQd: Tensor,
    k_BHKd: Tensor,
    v_BHKd: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Fused attention, ``softmax(scale * Q K^T + M) V``.

    Parameters
    ----------
    q_BHQd, k_BHKd, v_BHKd
        Queries, keys, values.
    keep
        bool, broadcastable to [B, H, Q, K]; False removes the key for that query (M = -inf).  A
        query with no key left answers 0.
    bias
        float, broadcastable to [B, H, Q, K], added to the logits.
    scale
        Multiplies the products; ``1 / sqrt(d)`` by default.
    dropout
        Probability that a weight is dropped; 0 outside training.

    Returns
    -------
    Tensor
        [B, H, Q, d].

    Notes
    -----
    Vaswani et al. (2017), "Attention is all you need", equation 1.
    """
    keep, empty = _never_empty(keep)
    mask = keep if bias is None else _additive(keep, bias)
    out_BHQd = F.scaled_dot_product_attention(
        q_BHQd, k_BHKd, v_BHKd, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return out_BHQd if empty is None else out_BHQd.masked_fill(empty, 0.0)


def attention_weights(
    q_BHQd: Tensor,
    k_BHKd: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Weights of the explicit path, ``softmax(scale * Q K^T + M)``, as [B, H, Q, K].

    ``weights @ V`` equals :func:`attention` to rounding.  Arguments are those of :func:`attention`;
    the weights of a query with no key left are 0.
    """
    scale = 1.0 / math.sqrt(q_BHQd.shape[-1]) if scale is None else scale
    logits_BHQK = (q_BHQd * scale) @ k_BHKd.transpose(-2, -1)
    keep, empty = _never_empty(keep)
    if bias is not None:
        logits_BHQK = logits_BHQK + bias
    if keep is not None:
        logits_BHQK = logits_BHQK.masked_fill(~keep, -math.inf)
    weights_BHQK = torch.softmax(logits_BHQK, dim=-1)
    return weights_BHQK if empty is None else weights_BHQK.masked_fill(empty, 0.0)


def causal_keep(length: int, device: torch.device) -> Tensor:
    """Bool [W, W] that lets query t see the keys up to and including t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _never_empty(keep: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    # A softmax over nothing is NaN, forward and backward: such a query attends to everything here,
    # and its answer is then replaced by 0.
    if keep is None:
        return None, None
    empty = ~keep.any(dim=-1, keepdim=True)
    return keep | empty, empty


def _additive(keep: Tensor | None, bias: Tensor) -> Tensor:
    return bias if keep is None else torch.where(keep, bias, -math.inf)


def split_heads(x_BWD: Tensor, heads: int) -> Tensor:
    """[B, W, D] -> [B, H, W, d]."""
    return x_BWD.reshape(*x_BWD.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x_BHWd: Tensor) -> Tensor:
    """[B, H, W, d] -> [B, W, D]."""
    return x_BHWd.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Attention by H heads: ``concat_h(attention(x W_Q, y W_K, y W_V)) W_O``.

    Parameters
    ----------
    width
        D; a multiple of ``heads``.
    heads
        H.
    dropout
        Probability that a weight is dropped while training.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(
        self,
        x_BQD: Tensor,
        y_BKD: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        rotary_W2d: Tensor | None = None,
    ) -> Tensor:
        """Queries from ``x``, keys and values from ``y``; masks as in :func:`attention`."""
        q_BHQd, k_BHKd, v_BHKd = self._project(x_BQD, y_BKD, rotary_W2d)
        dropout = self.dropout if self.training else 0.0
        out_BHQd = attention(q_BHQd, k_BHKd, v_BHKd, keep=keep, bias=bias, dropout=dropout)
        return self.output(join_heads(out_BHQd))  # type: ignore[no-any-return]

    def explicit(
        self,
        x_BQD: Tensor,
        y_BKD: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        rotary_W2d: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The same, without dropout, with the weights [B, H, Q, K]."""
        q_BHQd, k_BHKd, v_BHKd = self._project(x_BQD, y_BKD, rotary_W2d)
        weights_BHQK = attention_weights(q_BHQd, k_BHKd, keep=keep, bias=bias)
        return self.output(join_heads(weights_BHQK @ v_BHKd)), weights_BHQK

    def _project(
        self, x_BQD: Tensor, y_BKD: Tensor, rotary_W2d: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q_BHQd = split_heads(self.query(x_BQD), self.heads)
        k_BHKd = split_heads(self.key(y_BKD), self.heads)
        v_BHKd = split_heads(self.value(y_BKD), self.heads)
        if rotary_W2d is not None:
            # queries are the last Q of the K positions
            q_BHQd = rotate(q_BHQd, rotary_W2d[-q_BHQd.shape[2] :])
            k_BHKd = rotate(k_BHKd, rotary_W2d)
        return q_BHQd, k_BHKd, v_BHKd


class Block(nn.Module):
    """Pre-norm transformer block: ``x + MHA(LN(x))``, then ``x + W_2 GELU(W_1 LN(x))``.

    The feed-forward is 4D wide.  Equal to ``nn.TransformerEncoderLayer(norm_first=True,
    activation="gelu")``.  Xiong et al. (2020), "On layer normalization in the transformer
    architecture", for the place of the norms.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads, dropout)
        self.forward_norm = nn.LayerNorm(width)
        self.forward_in = nn.Linear(width, 4 * width)
        self.forward_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x_BWD: Tensor,
        *,
        keep: Tensor | None = None,
        rotary_W2d: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """Transform the last ``queries`` positions (all of them by default) as [B, Q, D].

        Where only the last position is pooled, asking for that query alone gives the same answer
        for about half of the work.
        """
        y_BWD = self.attention_norm(x_BWD)
        first = 0 if queries is None else x_BWD.shape[1] - queries
        out_BQD = self.attention(y_BWD[:, first:], y_BWD, keep=keep, rotary_W2d=rotary_W2d)
        return self._feed_forward(x_BWD[:, first:] + self.dropout(out_BQD))

    def explicit(
        self, x_BWD: Tensor, *, keep: Tensor | None = None, rotary_W2d: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same for every position, with the weights [B, H, W, W]."""
        y_BWD = self.attention_norm(x_BWD)
        out_BWD, weights_BHWW = self.attention.explicit(y_BWD, y_BWD, keep=keep, rotary_W2d=rotary_W2d)
        return self._feed_forward(x_BWD + self.dropout(out_BWD)), weights_BHWW

    def _feed_forward(self, x_BWD: Tensor) -> Tensor:
        hidden = self.dropout(F.gelu(self.forward_in(self.forward_norm(x_BWD))))
        return x_BWD + self.dropout(self.forward_out(hidden))  # type: ignore[no-any-return]
