"""Attention core: scaled dot products with masks and biases, by a fused and by an explicit path.

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
        bool, broadcastable to [B, H, Q, K]; False masks the key for that query (M = -inf). The output of a
        query without any key is 0.
    bias
        float, broadcastable to [B, H, Q, K], added to the logits.
    scale
        Factor of the products; ``1 / sqrt(d)`` by default.
    dropout
        Probability of dropping a weight; 0 outside training.

    Returns
    -------
    Tensor
        [B, H, Q, d].

    Notes
    -----
    Vaswani et al. (2017), "Attention is all you need", equation 1.
    """
    keep, empty = _keep_nonempty(keep)
    mask = keep if bias is None else _additive_mask(keep, bias)
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
    """Attention weights by the explicit path, ``softmax(scale * Q K^T + M)``, as [B, H, Q, K].

    ``weights @ V`` equals :func:`attention` up to rounding. Arguments are those of :func:`attention`. The
    weights of a query without any key are 0.
    """
    scale = 1.0 / math.sqrt(q_BHQd.shape[-1]) if scale is None else scale
    logits_BHQK = (q_BHQd * scale) @ k_BHKd.transpose(-2, -1)
    keep, empty = _keep_nonempty(keep)
    if bias is not None:
        logits_BHQK = logits_BHQK + bias
    if keep is not None:
        logits_BHQK = logits_BHQK.masked_fill(~keep, -math.inf)
    weights_BHQK = torch.softmax(logits_BHQK, dim=-1)
    return weights_BHQK if empty is None else weights_BHQK.masked_fill(empty, 0.0)


def causal_keep(queries: int, keys: int, device: torch.device) -> Tensor:
    """Causal mask, bool [Q, K]: keys up to the query's position; queries are the last Q of K positions."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _keep_nonempty(keep: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    # The softmax of a query without keys is NaN, forward and backward. Such a query attends to all keys here,
    # and its output is then set to 0.
    if keep is None:
        return None, None
    empty = ~keep.any(dim=-1, keepdim=True)
    return keep | empty, empty


def _additive_mask(keep: Tensor | None, bias: Tensor) -> Tensor:
    return bias if keep is None else torch.where(keep, bias, -math.inf)


def split_heads(x_BWD: Tensor, heads: int) -> Tensor:
    """[B, W, D] -> [B, H, W, d]."""
    return x_BWD.reshape(*x_BWD.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x_BHWd: Tensor) -> Tensor:
    """[B, H, W, d] -> [B, W, D]."""
    return x_BHWd.transpose(1, 2).flatten(2)
