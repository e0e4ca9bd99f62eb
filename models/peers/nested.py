"""Attention with the first 0, 1, ..., M keys of an order, for the price of one pass over the keys.

A Shapley value averages over orders of the players, and along one order the peers of a forecast are nested.
Numerator and denominator of the softmax are then cumulative sums over the keys.

Legend: N target firms, M source firms, K = M + 1 keys with the null key last, P = M + 1 prefixes of the
order, H heads, d width of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor


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
