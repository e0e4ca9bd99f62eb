"""Attention in O(W): local attention within a band, and linear attention with a kernel instead of a softmax.

Both support a mask of keys and causal attention, and both equal their quadratic form up to rounding.

Legend: B sequences, Q queries, K keys, H heads, d width of one head, R distances, C chunks, S chunk size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

KERNELS = ("softmax", "local", "linear")
CHUNK = 64


def feature(x_BHKd: Tensor) -> Tensor:
    """Feature map of linear attention, ``phi(x) = elu(x) + 1``, which is positive.

    Katharopoulos et al. (2020), "Transformers are RNNs", equation 7.
    """
    return F.elu(x_BHKd) + 1.0


def linear_weights(q_BHQd: Tensor, k_BHKd: Tensor, *, keys_BK: Tensor | None, causal: bool) -> Tensor:
    """Weights of the linear kernel in quadratic form, [B, H, Q, K].

    ``phi(q_i) . phi(k_j) / sum_j phi(q_i) . phi(k_j)`` over the keys that query i may attend to; 0 for a
    query without any key. The queries are the last Q of the K positions.
    """
    product_BHQK = feature(q_BHQd) @ feature(k_BHKd).transpose(-2, -1)
    if keys_BK is not None:
        product_BHQK = product_BHQK * keys_BK[:, None, None, :]
    if causal:
        product_BHQK = product_BHQK.tril(k_BHKd.shape[2] - q_BHQd.shape[2])
    return product_BHQK / _positive(product_BHQK.sum(dim=-1, keepdim=True))


def linear_attention(
    q_BHQd: Tensor, k_BHKd: Tensor, v_BHKd: Tensor, *, keys_BK: Tensor | None, causal: bool
) -> Tensor:
    """Linear attention, ``phi(q) (sum_j phi(k_j) v_j^T) / phi(q) . sum_j phi(k_j)``, in O(Q + K).

    Causal sums are computed in chunks of 64 positions: the quadratic form within a chunk, and a running sum
    over earlier chunks. The output of a query therefore does not depend, to the bit, on later positions:
    later chunks are not used, and later positions of its own chunk are multiplied by exact zeros.

    Katharopoulos et al. (2020), equations 5 and 9.
    """
    f_BHQd, g_BHKd = feature(q_BHQd), feature(k_BHKd)
    if keys_BK is not None:
        g_BHKd = g_BHKd * keys_BK[:, None, :, None]
    ones_BHKd = F.pad(v_BHKd, (0, 1), value=1.0)  # the last column gives the sum of the weights
    if not causal:
        sum_BHQd = f_BHQd @ (g_BHKd.transpose(-2, -1) @ ones_BHKd)
    else:
        sum_BHQd = _causal_sum(F.pad(f_BHQd, (0, 0, k_BHKd.shape[2] - q_BHQd.shape[2], 0)), g_BHKd, ones_BHKd)
        sum_BHQd = sum_BHQd[:, :, -q_BHQd.shape[2] :]
    return sum_BHQd[..., :-1] / _positive(sum_BHQd[..., -1:])


def _causal_sum(f_BHKd: Tensor, g_BHKd: Tensor, v_BHKe: Tensor) -> Tensor:
    """``sum_{j <= i} (f_i . g_j) v_j`` for every position i."""
    length = f_BHKd.shape[2]
    short = -length % CHUNK

    def chunks(x_BHKd: Tensor) -> Tensor:
        padded = F.pad(x_BHKd, (0, 0, 0, short))
        return padded.reshape(*padded.shape[:2], -1, CHUNK, padded.shape[-1])

    f_BHCSd, g_BHCSd, v_BHCSe = chunks(f_BHKd), chunks(g_BHKd), chunks(v_BHKe)
    within_BHCSe = (f_BHCSd @ g_BHCSd.transpose(-2, -1)).tril() @ v_BHCSe
    chunk_BHCde = g_BHCSd.transpose(-2, -1) @ v_BHCSe
    before_BHCde = F.pad(chunk_BHCde.cumsum(dim=2), (0, 0, 0, 0, 1, 0))[:, :, :-1]
    out_BHCSe: Tensor = within_BHCSe + f_BHCSd @ before_BHCde
    return out_BHCSe.flatten(2, 3)[:, :, :length]


def _positive(total: Tensor) -> Tensor:
    """Replace 0 by 1, so that the output of a query without keys is 0 instead of NaN."""
    return torch.where(total > 0, total, torch.ones_like(total))


def band_keep(queries: int, keys: int, radius: int, *, causal: bool, device: torch.device) -> Tensor:
    """Band mask, bool [Q, K]: keys within ``radius`` positions; queries are the last Q of K positions."""
    at_Q = torch.arange(keys - queries, keys, device=device)
    distance_QK = at_Q[:, None] - torch.arange(keys, device=device)
    near_QK = distance_QK.abs() <= radius
    return near_QK & (distance_QK >= 0) if causal else near_QK


def local_attention(
    q_BHKd: Tensor,
    k_BHKd: Tensor,
    v_BHKd: Tensor,
    *,
    radius: int,
    keys_BK: Tensor | None,
    causal: bool,
    bias_HR: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Softmax attention within ``radius`` positions, in O(K radius), with a query at every position.

    The sequence is divided into chunks of ``radius`` positions. The queries of a chunk attend to their own
    chunk, the previous one and, unless causal, the next one. Beltagy, Peters and Cohan (2020), "Longformer",
    section 3.1.
    """
    batch, heads, length, d = q_BHKd.shape
    size = max(radius, 1)
    count = -(-length // size)
    after = 0 if causal else 1
    tail = count * size - length

    def near(x_BHKd: Tensor) -> Tensor:
        """Collect each chunk together with its neighbouring chunks: [B, H, C, span, d]."""
        padded = F.pad(x_BHKd, (0, 0, size, tail + after * size))
        return padded.unfold(2, (2 + after) * size, size).transpose(-2, -1)

    device = q_BHKd.device
    keys_present_BK = (
        torch.ones(batch, length, dtype=torch.bool, device=device) if keys_BK is None else keys_BK
    )
    keys_present_BCs = F.pad(keys_present_BK, (size, tail + after * size)).unfold(1, (2 + after) * size, size)
    at_S = torch.arange(size, 2 * size, device=device)
    distance_Ss = at_S[:, None] - torch.arange((2 + after) * size, device=device)
    band_Ss = distance_Ss.abs() <= radius
    if causal:
        band_Ss = band_Ss & (distance_Ss >= 0)
    keep_BCSs = band_Ss & keys_present_BCs[:, :, None, :]
    # a query without keys (padding, or all neighbours masked) attends to itself, to avoid NaN
    keep_BCSs = keep_BCSs | (~keep_BCSs.any(dim=-1, keepdim=True) & (distance_Ss == 0))
    mask = keep_BCSs[:, :, None]
    if bias_HR is not None:
        middle = (bias_HR.shape[1] - 1) // 2
        reach = min(middle, 2 * size - 1)
        bias_HSs = bias_HR[:, distance_Ss.clamp(-reach, reach) + middle]
        mask = torch.where(mask, bias_HSs, -torch.inf)
    q_BHCSd = F.pad(q_BHKd, (0, 0, 0, tail)).reshape(batch, heads, count, size, d)
    out_BCHSd = F.scaled_dot_product_attention(
        q_BHCSd.transpose(1, 2),
        near(k_BHKd).transpose(1, 2),
        near(v_BHKd).transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
        scale=scale,
    )
    out_BHKd = out_BCHSd.transpose(1, 2).reshape(batch, heads, count * size, d)[:, :, :length]
    empty_BK = ~_has_key(keys_present_BK, radius, causal=causal)
    return out_BHKd.masked_fill(empty_BK[:, None, :, None], 0.0)


def _has_key(keys_present_BK: Tensor, radius: int, *, causal: bool) -> Tensor:
    """Whether each position has an unmasked key within its band."""
    padded = F.pad(keys_present_BK.float()[:, None], (radius, 0 if causal else radius))
    return F.max_pool1d(padded, radius + 1 if causal else 2 * radius + 1, stride=1)[:, 0] > 0
