"""Attention of every firm to all other firms, without a matrix over pairs of firms.

A mask that excludes the firm itself has N x N numbers, and a kernel that takes a mask keeps it for the
backward pass. Here, the firms before the own one and the firms after it are two causal attentions over the
shifted and the reversed keys, which every fused kernel computes without a mask. Each half does half of the
work, so together they cost as much as one attention with a mask.

Legend: B dates, H heads, N firms, P common keys, K = N + P keys, d width of queries and keys, e of values.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from models.attention.core import attention

ABSENT = -1e4
"""Logit bias of a key that no query may attend to: its weight is exactly 0 in float32 and in bf16."""

VANISHED = 1e-30
"""Weights of the null key below this have too few digits to weigh the halves by: a logit gap of 69."""

FEW_FIRMS = 256
"""Up to so many firms, a CPU is faster with a matrix over pairs, which then fits its cache."""

CACHED_PAIRS = 2**18
"""Pairs of some dates that a CPU computes at once: 1 MiB of float32, the size of its second cache."""

_COLUMNS = 16
"""Fewest columns of the values on a CPU: products with 8 columns take twice as long as those with 16."""


def attention_to_others(q_BHNd: Tensor, k_BHKd: Tensor, v_BHKe: Tensor, *, scale: float) -> Tensor:
    """``sum_{j != i} w_ij v_j`` over the firms j other than i and the common keys, as [B, H, N, e].

    ``w_ij`` is the softmax of ``scale * q_i . k_j`` over these keys. Firm i is position i of the queries and
    of the keys. The P >= 1 common keys come after the firms; the first of them is the null key, whose value
    must be 0.

    Notes
    -----
    With ``Z`` the sum of ``exp(logit)`` of a half and ``n`` the exponential of the null key's logit, an extra
    column of values returns the null key's weight ``w = n / Z``. The first half has all common keys, the
    second has the null key P times, so the sum over both is ``n (1 / w_1 + 1 / w_2 - P)``, and the message is

        (o_1 w_2 + o_2 w_1) / (w_1 + w_2 - P w_1 w_2).

    If the null key's logit is so far below the largest ones of both halves that its weights vanish, they say
    nothing about the halves. Such dates are computed with a matrix over pairs. Where tensors cannot be looked
    at (on a GPU, which would have to be waited for, in a compiled graph, and under ``vmap``), both halves
    count the same there.
    """
    N, e = q_BHNd.shape[2], v_BHKe.shape[-1]
    if N <= FEW_FIRMS and q_BHNd.device.type == "cpu":
        return _with_pairs(q_BHNd * scale, k_BHKd, v_BHKe)
    P = k_BHKd.shape[2] - N
    is_null_K1 = (torch.arange(N + P, device=v_BHKe.device) == N)[:, None].to(v_BHKe.dtype)
    v_BHKf = torch.cat((v_BHKe, is_null_K1.expand(*v_BHKe.shape[:3], 1)), dim=-1)
    # row P - 1 + i of a causal attention sees the P common keys and the i firms that come first in its half
    both_BHNf = attention(
        F.pad(torch.cat((q_BHNd, q_BHNd.flip(2))), (0, 0, P - 1, 0)),
        torch.cat(
            (_before(k_BHKd, N), _after(k_BHKd, N, nulls=k_BHKd[:, :, N : N + 1].expand(-1, -1, P, -1)))
        ),
        torch.cat(
            (_before(v_BHKf, N), _after(v_BHKf, N, nulls=F.pad(v_BHKf[:, :, N : N + 1], (0, 0, 0, P - 1))))
        ),
        causal=True,
        scale=scale,
    )[:, :, P - 1 :]
    before_BHNf, after_BHNf = both_BHNf.chunk(2)
    after_BHNf = after_BHNf.flip(2)
    w1_BHN1, w2_BHN1 = before_BHNf[..., e:], after_BHNf[..., e:]
    sum_BHNe = before_BHNf[..., :e] * w2_BHN1 + after_BHNf[..., :e] * w1_BHN1
    total_BHN1 = w1_BHN1 + w2_BHN1 - P * w1_BHN1 * w2_BHN1
    vanished_BHN1 = total_BHN1 < VANISHED
    if not _can_look(total_BHN1):
        mean_BHNe = 0.5 * (before_BHNf[..., :e] + after_BHNf[..., :e])
        return torch.where(vanished_BHN1, mean_BHNe, sum_BHNe / total_BHN1.masked_fill(vanished_BHN1, 1.0))
    if not vanished_BHN1.any():
        return sum_BHNe / total_BHN1
    out_BHNe = sum_BHNe / total_BHN1.masked_fill(vanished_BHN1, 1.0)
    dates = vanished_BHN1.flatten(1).any(dim=1).nonzero()[:, 0]
    return out_BHNe.index_copy(
        0, dates, _with_pairs(q_BHNd[dates] * scale, k_BHKd[dates], v_BHKe[dates]).to(out_BHNe.dtype)
    )


def _can_look(x: Tensor) -> bool:
    """Whether the values of a tensor can decide what is computed next, without a wait for a device."""
    batched = torch._C._functorch.is_batchedtensor(x)
    return x.device.type == "cpu" and not batched and not torch.compiler.is_compiling()


def _with_pairs(q_BHNd: Tensor, k_BHKd: Tensor, v_BHKe: Tensor) -> Tensor:
    """Attention to others with a matrix over pairs, for few dates at a time; ``q`` is scaled."""
    heads, firms, e = q_BHNd.shape[1], q_BHNd.shape[2], v_BHKe.shape[-1]
    v_BHKf = F.pad(v_BHKe, (0, max(0, _COLUMNS - e)))
    dates = max(1, CACHED_PAIRS // (heads * firms * k_BHKd.shape[2]))
    messages = []
    for q_bHNd, k_bHKd, v_bHKf in zip(*(x.split(dates) for x in (q_BHNd, k_BHKd, v_BHKf)), strict=True):
        logits_bHNK = q_bHNd @ k_bHKd.transpose(-2, -1)
        # A mask would take two more passes over pairs, and a recorded change a copy in the backward pass. The
        # gradient needs neither: the own weight is 0, and so is what the softmax passes on to the own logit.
        with torch.no_grad():
            logits_bHNK.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
        messages.append(logits_bHNK.softmax(dim=-1) @ v_bHKf)
    return torch.cat(messages)[..., :e]


def _before(x_BHKd: Tensor, firms: int) -> Tensor:
    """The common keys, then all firms but the last."""
    return torch.cat((x_BHKd[:, :, firms:], x_BHKd[:, :, : firms - 1]), dim=2)


def _after(x_BHKd: Tensor, firms: int, nulls: Tensor) -> Tensor:
    """The null keys, then all firms but the first, from the last to the second."""
    return torch.cat((nulls, x_BHKd[:, :, 1:firms].flip(2)), dim=2)


def nested_attention(
    q_1HNd: Tensor, k_1HKd: Tensor, v_1HKd: Tensor, keep_11NK: Tensor, order_M: Tensor, *, scale: float
) -> Tensor:
    """Messages ``softmax(scale * q . k_j) v_j`` over the first p keys of an order and the null key.

    Parameters
    ----------
    q_1HNd, k_1HKd, v_1HKd
        Queries, keys and values of one date.
    keep_11NK
        bool; False masks a key for a query. The null key is not masked.
    order_M
        The M source firms in the order in which they join.
    scale
        Factor of the products.

    Returns
    -------
    Tensor
        [P, H, N, d], in the type of ``v``; the sums are float64.
    """
    logits_HNK = (scale * q_1HNd[0].double()) @ k_1HKd[0].double().transpose(-2, -1)
    logits_HNK = logits_HNK.masked_fill(~keep_11NK[0], -math.inf)
    weight_HNK = torch.exp(logits_HNK - logits_HNK.amax(dim=-1, keepdim=True))
    ordered_HNM = weight_HNK[..., order_M]
    total_HNP = F.pad(ordered_HNM.cumsum(dim=-1), (1, 0)) + weight_HNK[..., -1:]
    value_HMd = v_1HKd[0].double()[:, order_M]
    moved_HNMd = ordered_HNM[..., None] * value_HMd[:, None]
    total_HNP = total_HNP.clamp(min=torch.finfo(total_HNP.dtype).tiny)  # only the null key, far below others
    message_HNPd = F.pad(moved_HNMd.cumsum_(dim=2), (0, 0, 1, 0)) / total_HNP[..., None]
    return message_HNPd.permute(2, 0, 1, 3).to(v_1HKd.dtype)
