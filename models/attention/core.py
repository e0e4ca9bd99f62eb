"""Attention core: scaled dot products under masks and biases, by a fused and by an explicit path.

Legend: B sequences, Q queries, K keys, W sequence length, D model width, H heads, d = D / H.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor


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


def causal_keep(queries: int, keys: int, device: torch.device) -> Tensor:
    """Bool [Q, K] that lets each query, the last Q of the K positions, see the keys up to its own."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


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
