"""Attention: scaled dot products by a fused and by an explicit path, and two kernels in O(W).

The kernels are local attention within a band, and linear attention without a softmax. Both support a mask of
keys and causal attention, and both equal their quadratic form up to rounding.

Legend: B sequences, Q queries, K keys, W sequence length, D model width, H heads, d = D / H, R distances,
C chunks, S chunk size.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from models.attention.layers import drop

EXPLICIT_KEYS = 48
"""Up to so many keys, a GPU computes attention by explicit products instead of a fused kernel.

Fused kernels compute tiles of 64 positions, so shorter windows cost them the same. Explicit products keep the
weights of all pairs. Measured on an H200, 24,000 windows, 4 heads of 8, dropout 0.3, forward and backward:

==== =============== ============= ================== ==================
days explicit, bf16  fused, bf16   explicit, float32  fused, float32
==== =============== ============= ================== ==================
20   1.9 ms, 0.5 GiB 6.1 ms, 0.5   2.5 ms, 0.9 GiB    8.7 ms, 2.2 GiB
32   3.2 ms, 1.0 GiB 6.2 ms, 0.7   3.7 ms, 2.0 GiB    9.2 ms, 2.6 GiB
48   4.5 ms, 2.1 GiB 6.6 ms, 1.0   7.6 ms, 4.1 GiB    11.7 ms, 3.1 GiB
64   5.9 ms, 3.5 GiB 6.7 ms, 1.3   10.7 ms, 6.8 GiB   12.5 ms, 3.6 GiB
96   11.5 ms, 7.3    8.5 ms, 1.9   24.5 ms, 14.6      38.0 ms, 6.1 GiB
==== =============== ============= ================== ==================

Explicit products are faster up to 64 days. There they gain little and take twice the memory.
"""

MOST_SEQUENCES = 65_535
"""Sequences of one call of a fused kernel on a GPU; with more, every one of them fails (size of a grid)."""

_VECTOR = 16  # float32 numbers of the widest registers of a CPU


def is_explicit(keys: int, device: torch.device) -> bool:
    """Whether attention to so many keys is computed by explicit products on a device."""
    return device.type != "cpu" and keys <= EXPLICIT_KEYS


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
    """Attention by the fastest path, ``softmax(scale * Q K^T + M) V``.

    On a GPU, up to `EXPLICIT_KEYS` keys are explicit products. Everything else is a fused kernel, on a GPU in
    calls of at most `MOST_SEQUENCES` sequences. Values may be narrower or wider than queries and keys. Fused
    kernels need equal widths, in multiples of 8 on GPUs, so the narrower ones are padded with zeros and the
    output is cut; otherwise PyTorch would fall back to the path that keeps [B, H, Q, K] weights.

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
    d, e, keys = q_BHQd.shape[-1], v_BHKd.shape[-1], k_BHKd.shape[-2]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    if is_explicit(keys, q_BHQd.device):
        keep = causal_keep(q_BHQd.shape[-2], keys, q_BHQd.device) if causal else keep
        return _explicit(q_BHQd, k_BHKd, v_BHKd, keep, bias, scale, dropout)
    keep, empty = _keep_nonempty(keep)
    mask = keep if bias is None else bias if keep is None else torch.where(keep, bias, -math.inf)
    width = d if d == e and not q_BHQd.is_cuda else -(-max(d, e) // 8) * 8
    q_BHQd, k_BHKd = F.pad(q_BHQd, (0, width - d)), F.pad(k_BHKd, (0, width - d))
    v_BHKd = F.pad(v_BHKd, (0, width - e))
    out_BHQd = _fused(q_BHQd, k_BHKd, v_BHKd, mask, dropout, causal, scale)[..., :e]
    return out_BHQd if empty is None else out_BHQd.masked_fill(empty, 0.0)


def _explicit(  # noqa: PLR0917  (what attention is made of)
    q_BHQd: Tensor,
    k_BHKd: Tensor,
    v_BHKd: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Attention by explicit products, in one type throughout: that of autocast, or else of the queries.

    Autocast would compute and keep the weights in float32, which is twice the memory of bf16.
    """
    dtype, one_type = _type_of_products(q_BHQd)
    with one_type:
        q_BHQd, k_BHKd, v_BHKd = (x.to(dtype) for x in (q_BHQd, k_BHKd, v_BHKd))
        logits_BHQK = (q_BHQd * scale) @ k_BHKd.transpose(-2, -1)
        weights_BHQK = masked_softmax(logits_BHQK, keep, None if bias is None else bias.to(dtype))
        return drop(weights_BHQK, dropout) @ v_BHKd


def _type_of_products(x: Tensor) -> tuple[torch.dtype, AbstractContextManager[object]]:
    kind = x.device.type
    # the compiler cannot trace the first question, and compiles for devices that have autocast
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)
    if not available or not torch.is_autocast_enabled(kind):
        return x.dtype, nullcontext()
    return torch.get_autocast_dtype(kind), torch.autocast(kind, enabled=False)


def _fused(  # noqa: PLR0917  (what attention is made of)
    q_BHQd: Tensor,
    k_BHKd: Tensor,
    v_BHKd: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float,
) -> Tensor:
    def call(q_BHQd: Tensor, k_BHKd: Tensor, v_BHKd: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(
            q_BHQd, k_BHKd, v_BHKd, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
        )

    sequences = len(q_BHQd)
    if q_BHQd.device.type == "cpu" or sequences <= MOST_SEQUENCES:
        return call(q_BHQd, k_BHKd, v_BHKd, mask)
    size = -(-sequences // -(-sequences // MOST_SEQUENCES))
    given = [x.split(size) for x in (q_BHQd, k_BHKd, v_BHKd)]
    own_mask = mask is not None and mask.ndim == q_BHQd.ndim and len(mask) == sequences
    masks = mask.split(size) if mask is not None and own_mask else [mask] * len(given[0])
    return torch.cat([call(*parts) for parts in zip(*given, masks, strict=True)])


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
    keys = logits_BHQK.shape[-1]
    if keys >= _VECTOR or logits_BHQK.device.type != "cpu":
        weights_BHQK = logits_BHQK.softmax(dim=-1)
    else:
        # PyTorch computes rows of fewer than 16 numbers one number at a time, which takes ten times as long
        # as rows of 16: short rows are padded with keys of weight 0
        padded_BHQV = F.pad(logits_BHQK, (0, _VECTOR - keys), value=-math.inf)
        weights_BHQK = padded_BHQV.softmax(dim=-1)[..., :keys]
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


def split_heads(x_BWD: Tensor, heads: int) -> Tensor:
    """[B, W, D] -> [B, H, W, d]."""
    return x_BWD.reshape(*x_BWD.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x_BHWd: Tensor) -> Tensor:
    """[B, H, W, d] -> [B, W, D]."""
    return x_BHWd.transpose(1, 2).flatten(2)


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
    padded_B1K = F.pad(keys_present_BK.float()[:, None], (radius, 0 if causal else radius))
    band_B1K = F.max_pool1d(padded_B1K, radius + 1 if causal else 2 * radius + 1, stride=1)
    return out_BHKd.masked_fill((band_B1K == 0.0)[..., None], 0.0)
