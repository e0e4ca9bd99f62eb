"""Attention of every firm of a date to all others, without a tensor over pairs of firms.

Legend: B dates, N firms, M source firms, P common keys, of which the first is the null key, K = N + P keys, H
heads, d width of queries and keys, e of values, S group codes, n targets of a block.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from models.attention.core import attention

LOGIT_GAIN = 5.0
"""Biases of logits are stored divided by this, so that one learning rate suits all parameters."""

ABSENT = -1e4
"""Logit bias of a key that no query may attend to: its weight is exactly 0 in float32 and in bf16."""

VANISHED = 1e-30
"""Weights of the null key below this have too few digits to weigh the halves by: a logit gap of 69."""

FEW_FIRMS = 256
"""Up to so many firms, a CPU is faster with a matrix over pairs, which then fits its cache."""

MANY_GROUPS = 48
"""On a CPU, a column per group pays up to so many groups at 2,500 firms, and less at fewer firms."""

CACHED_PAIRS = 2**18
"""Pairs of some dates that a CPU computes at once: 1 MiB of float32, the size of its second cache."""

_COLUMNS = 16
"""Fewest columns of the values on a CPU: products with 8 columns take twice as long as those with 16."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupBiases:
    """Biases of the logits by the groups of target and source, in units of `LOGIT_GAIN`."""

    bias_HSS: Tensor
    target_BN: Tensor  # group codes, as those of the sources
    source_BM: Tensor

    def rows(self, gain: float) -> Tensor:
        """``gain`` times the biases of each target with every group, [B, H, N, S]."""
        return (gain * self.bias_HSS)[:, self.target_BN].transpose(0, 1)

    def of_pairs(self) -> Tensor:
        """Biases of the logits, [B, H, N, M]."""
        return (LOGIT_GAIN * self.bias_HSS)[
            :, self.target_BN[:, :, None], self.source_BM[:, None, :]
        ].transpose(0, 1)

    def as_columns(self, q_BHNd: Tensor, k_BHKd: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Append them to queries and keys, with bias 0 of the null key: memory does not grow with the pairs.

        The bias is the dot product of the target's row with the one-hot code of the source's group.
        """
        # F.one_hot reads the largest code back
        codes_S = torch.arange(self.bias_HSS.shape[-1], device=k_BHKd.device)
        code_BMS = (self.source_BM[..., None] == codes_S).to(k_BHKd.dtype)
        code_BHKS = F.pad(code_BMS, (0, 0, 0, 1))[:, None].expand(-1, k_BHKd.shape[1], -1, -1)
        row_BHNS = self.rows(LOGIT_GAIN / scale).to(q_BHNd.dtype)
        return torch.cat((q_BHNd, row_BHNS), dim=-1), torch.cat((k_BHKd, code_BHKS), dim=-1)


def attention_to_others(q_BHNd: Tensor, k_BHKd: Tensor, v_BHKe: Tensor, *, scale: float) -> Tensor:
    """``sum_{j != i} w_ij v_j`` over the firms j other than i and the common keys, as [B, H, N, e].

    ``w_ij`` is the softmax of ``scale * q_i . k_j`` over these keys. Firm i is position i of the queries and
    of the keys. The P >= 1 common keys come after the firms; the first of them is the null key, whose value
    must be 0.

    A mask that excludes the firm itself has N x N numbers, and a kernel that takes a mask keeps it for the
    backward pass. Here, the firms before the own one and the firms after it are two causal attentions over
    the shifted and the reversed keys, which every fused kernel computes without a mask. Each half does half
    of the work, so together they cost as much as one attention with a mask.

    Notes
    -----
    With ``Z`` the sum of ``exp(logit)`` of a half and ``n`` the exponential of the null key's logit, an extra
    column of values returns the null key's weight ``w = n / Z``. The first half has all common keys, the
    second has the null key P times, so the sum over both is ``n (1 / w_1 + 1 / w_2 - P)``, and the message is

        (o_1 w_2 + o_2 w_1) / (w_1 + w_2 - P w_1 w_2).

    If the null key's logit is so far below the largest ones of both halves that its weights vanish, they say
    nothing about the halves. Such dates are computed with a matrix over pairs. Where tensors cannot be looked
    at (on a GPU, which would have to be waited for, and in a compiled graph), both halves count the same
    there.
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
    if total_BHN1.device.type != "cpu" or torch.compiler.is_compiling():
        mean_BHNe = 0.5 * (before_BHNf[..., :e] + after_BHNf[..., :e])
        return torch.where(vanished_BHN1, mean_BHNe, sum_BHNe / total_BHN1.masked_fill(vanished_BHN1, 1.0))
    if not vanished_BHN1.any():
        return sum_BHNe / total_BHN1
    out_BHNe = sum_BHNe / total_BHN1.masked_fill(vanished_BHN1, 1.0)
    dates = vanished_BHN1.flatten(1).any(dim=1).nonzero()[:, 0]
    return out_BHNe.index_copy(
        0, dates, _with_pairs(q_BHNd[dates] * scale, k_BHKd[dates], v_BHKe[dates]).to(out_BHNe.dtype)
    )


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


def adds_to_pairs(q_BHNd: Tensor, bias_HSS: Tensor) -> bool:
    """Whether biases of groups are added to the logits of all pairs (:func:`attention_with_groups`).

    On a CPU that is faster than one more column of queries and keys for every group, if there are many.
    """
    many = q_BHNd.shape[2] > FEW_FIRMS and bias_HSS.shape[-1] > MANY_GROUPS
    return many and q_BHNd.device.type == "cpu" and q_BHNd.dtype != torch.bfloat16


def attention_with_groups(
    q_BHNd: Tensor, k_BHKd: Tensor, v_BHKe: Tensor, groups: GroupBiases, *, scale: float
) -> Tensor:
    """:func:`attention_to_others` with group-pair biases, for CPUs; the common keys have bias 0.

    The weights of some pairs are computed at a time, and again in the backward pass, so that memory does
    not grow with the pairs.
    """
    code_BK = F.pad(groups.source_BM, (0, k_BHKd.shape[2] - groups.source_BM.shape[1]))  # unknown: bias 0
    out_BHNe: Tensor = _WithGroups.apply(scale * q_BHNd, k_BHKd, v_BHKe, groups.rows(LOGIT_GAIN), code_BK)  # type: ignore[no-untyped-call]
    return out_BHNe


class _WithGroups(torch.autograd.Function):
    """Attention to others, ``w_ij ~ exp(q_i . k_j + row_i[code_j])``, in blocks of a date's targets."""

    @staticmethod
    def forward(  # noqa: PLR0917  (autograd passes no names)
        ctx: Any,  # noqa: ANN401  (torch's)
        q_BHNd: Tensor,
        k_BHKd: Tensor,
        v_BHKe: Tensor,
        row_BHNS: Tensor,
        code_BK: Tensor,
    ) -> Tensor:
        out_BHNe = q_BHNd.new_empty((*q_BHNd.shape[:3], v_BHKe.shape[-1]))
        for b, h, rows in _blocks(q_BHNd, k_BHKd):
            w_Kn = _weights(q_BHNd[b, h], k_BHKd[b, h], row_BHNS[b, h], code_BK[b], rows)
            torch.mm(w_Kn.T, v_BHKe[b, h], out=out_BHNe[b, h, rows])
        ctx.save_for_backward(q_BHNd, k_BHKd, v_BHKe, row_BHNS, code_BK, out_BHNe)
        return out_BHNe

    @staticmethod
    def backward(ctx: Any, grad_BHNe: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        q_BHNd, k_BHKd, v_BHKe, row_BHNS, code_BK, out_BHNe = ctx.saved_tensors
        dq_BHNd, dk_BHKd = torch.empty_like(q_BHNd), torch.zeros_like(k_BHKd)
        dv_BHKe, drow_BHNS = torch.zeros_like(v_BHKe), torch.empty_like(row_BHNS)
        mean_BHN = (grad_BHNe * out_BHNe).sum(dim=-1)
        one_K, firm_K = torch.ones_like(k_BHKd[0, 0, :, 0]), torch.arange(k_BHKd.shape[2])
        for b, h, rows in _blocks(q_BHNd, k_BHKd):
            w_Kn = _weights(q_BHNd[b, h], k_BHKd[b, h], row_BHNS[b, h], code_BK[b], rows)
            grad_ne = grad_BHNe[b, h, rows]
            dv_BHKe[b, h].addmm_(w_Kn, grad_ne)
            dlogit_Kn = (v_BHKe[b, h] @ grad_ne.T).sub_(mean_BHN[b, h, rows]).mul_(w_Kn)
            dq_BHNd[b, h, rows] = dlogit_Kn.T @ k_BHKd[b, h]
            dk_BHKd[b, h].addmm_(dlogit_Kn, q_BHNd[b, h, rows])
            in_group_SK = torch.sparse_coo_tensor(
                torch.stack((code_BK[b], firm_K)),
                one_K,
                (row_BHNS.shape[-1], len(firm_K)),
                check_invariants=True,
            )
            drow_BHNS[b, h, rows] = torch.sparse.mm(in_group_SK, dlogit_Kn).T
        return dq_BHNd, dk_BHKd, dv_BHKe, drow_BHNS, None


def _blocks(q_BHNd: Tensor, k_BHKd: Tensor) -> Iterator[tuple[int, int, slice]]:
    """Date, head and targets of blocks with about `CACHED_PAIRS` pairs."""
    dates, heads, firms = q_BHNd.shape[:3]
    step = max(1, CACHED_PAIRS // k_BHKd.shape[2])
    for b, h, first in itertools.product(range(dates), range(heads), range(0, firms, step)):
        yield b, h, slice(first, min(first + step, firms))


def _weights(q_Nd: Tensor, k_Kd: Tensor, row_NS: Tensor, code_K: Tensor, rows: slice) -> Tensor:
    """Weights of all keys for some targets, [K, n]: a column for each target."""
    logit_Kn = (k_Kd @ q_Nd[rows].T).add_(row_NS[rows].T.contiguous().index_select(0, code_K))
    logit_Kn[rows].diagonal().fill_(-math.inf)
    return logit_Kn.softmax(dim=0)


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

    Queries, keys and values are of one date. ``keep``, bool, masks a key for a query, and not the null key.
    ``order`` are the M source firms as they join. Returns [P, H, N, d] in the type of ``v``; the sums are
    float64.
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
