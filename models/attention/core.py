"""Attention core: scaled dot products with masks and biases, by a fused and by an explicit path.

Legend: B sequences, Q queries, K keys, W sequence length, D model width, H heads, d = D / H.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

_VECTOR = 16  # float32 numbers of the widest registers of a CPU


def attention(
    q_BHQd: Tensor,
    k_BHKd: Tensor,
    v_BHKd: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Fused attention, ``softmax(scale * Q K^T + M) V``.

    Values may be narrower or wider than queries and keys. Fused kernels need equal widths, in multiples of 8
    on GPUs, so the narrower ones are padded with zeros and the output is cut; otherwise PyTorch would fall
    back to the path that keeps [B, H, Q, K] weights.

    Parameters
    ----------
    q_BHQd, k_BHKd, v_BHKd
        Queries, keys, values.
    keep
        bool, broadcastable to [B, H, Q, K]; False masks the key for that query (M = -inf). The output of a
        query without any key is 0.
    bias
        float, broadcastable to [B, H, Q, K], added to the logits.
    causal
        Whether query i attends to the keys 0 to i only; without ``keep`` and ``bias``.
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
    d, e = q_BHQd.shape[-1], v_BHKd.shape[-1]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    width = d if d == e and not q_BHQd.is_cuda else -(-max(d, e) // 8) * 8
    q_BHQd, k_BHKd = F.pad(q_BHQd, (0, width - d)), F.pad(k_BHKd, (0, width - d))
    v_BHKd = F.pad(v_BHKd, (0, width - e))
    under_vmap = not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(q_BHQd)
    fused = _FoldedSeeds.apply if under_vmap else _fused
    out_BHQd = fused(q_BHQd, k_BHKd, v_BHKd, mask, dropout, causal, scale)[..., :e]
    return out_BHQd if empty is None else out_BHQd.masked_fill(empty, 0.0)


def _fused(  # noqa: PLR0917  (an autograd.Function has no keyword arguments)
    q_BHQd: Tensor,
    k_BHKd: Tensor,
    v_BHKd: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float,
) -> Tensor:
    return F.scaled_dot_product_attention(
        q_BHQd, k_BHKd, v_BHKd, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


class _FoldedSeeds(torch.autograd.Function):
    """Fused attention under ``vmap``: the seeds become part of the batch.

    Not all fused kernels have a batching rule of their own (that of CPUs has none in PyTorch 2.13).
    """

    @staticmethod
    def forward(*arguments: Any) -> Tensor:  # noqa: ANN401 (torch's signature)
        """Compute attention without ``vmap``."""
        return _fused(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401 (torch's signature)
        """Save nothing: under ``vmap``, the operations of :meth:`vmap` are differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:  # noqa: ANN401 (torch's)
        """Fold the seeds into the first dimension, and unfold the result."""
        seeds, dates = info.batch_size, arguments[0].movedim(in_dims[0], 0).shape[1]

        def fold(value: Any, dim: int | None) -> Any:  # noqa: ANN401 (a tensor or an option)
            if not isinstance(value, Tensor):
                return value
            value = value.expand(seeds, *value.shape) if dim is None else value.movedim(dim, 0)
            while value.ndim < 5:  # a mask or a bias without some of the dimensions [B, H, Q, K]
                value = value[:, None]
            return value.expand(-1, dates, -1, -1, -1).flatten(0, 1)

        out = _fused(*(fold(value, dim) for value, dim in zip(arguments, in_dims, strict=True)))
        return out.unflatten(0, (seeds, -1)), 0


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
    return masked_softmax(logits_BHQK, keep, bias)


def masked_softmax(logits_BHQK: Tensor, keep: Tensor | None, bias: Tensor | None) -> Tensor:
    """Softmax over the keys that ``keep`` leaves, after adding ``bias``; 0 for a query without any key."""
    keep, empty = _keep_nonempty(keep)
    if bias is not None:
        logits_BHQK = logits_BHQK + bias
    if keep is not None:
        logits_BHQK = logits_BHQK.masked_fill(~keep, -math.inf)
    weights_BHQK = _softmax_of_rows(logits_BHQK)
    return weights_BHQK if empty is None else weights_BHQK.masked_fill(empty, 0.0)


def _softmax_of_rows(logits_BHQK: Tensor) -> Tensor:
    """Softmax over the keys.

    On a CPU, PyTorch computes rows of fewer than 16 numbers one number at a time, which takes ten times as
    long as rows of 16. So short rows are padded with keys of weight 0.
    """
    keys = logits_BHQK.shape[-1]
    if keys >= _VECTOR or logits_BHQK.device.type != "cpu":
        return torch.softmax(logits_BHQK, dim=-1)
    return F.pad(logits_BHQK, (0, _VECTOR - keys), value=-math.inf).softmax(dim=-1)[..., :keys]


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
