"""Attention over firms: every firm of a date searches the others and is searched.

Legend: B dates, N firms, D model width, H heads, d = D / H, E width of the identity, R numbers of
the recent days, S group codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.attention import attention, attention_weights, join_heads, split_heads
from models.batch import Batch, Cut
from models.forecaster import zero_linear

OWN_GROUP_START = 4.0
"""Logit that a firm of the own group starts ahead with, in the heads that start there."""

LOGIT_GAIN = 5.0
"""Group biases and prominence are stored over this, so that steps sized for weights suit logits."""


@dataclass(frozen=True, slots=True)
class PeerSizes:
    """Sizes of one peer layer: D, H, E (queries and keys), R (recent days; 0 for none), S (0: no bias).

    ``tokens`` is the width of the firms' tokens, and ``leader_slope`` what each head's prominence starts
    with on number ``leader`` of the identity (None: on none of them).
    """

    width: int
    heads: int
    identity: int
    recent: int
    n_groups: int
    dropout: float
    tokens: int
    leader: int | None = None
    leader_slope: float = 0.0


class PeerLayer(nn.Module):
    """One layer of peer attention with a residual of the firm's own information.

    ``logit_ij = q_i . k_j / sqrt(d) + b[group_i, group_j] + p . identity_j`` over the firms j != i of the
    date, and a null key with value 0 on which a firm can rest; ``W_Q != W_K``, so i->j differs from
    j->i.  ``p . identity_j`` is how prominent firm j is to whoever asks.
    ``h_i += W_O sum_j softmax_j(logit_ij) (W_V LN(h_j) + W_R recent_j)``, then
    ``h_i += W_2 GELU(W_1 LN(h_i))``.  What peers say also reaches the forecast directly, as
    ``u . sum_j softmax_j(logit_ij) v_j``: with only W_O and a head behind it, three matrices would
    have to grow together before any gradient says whom to listen to, and a daily IC of a few
    percent never gets them there.  W_O, W_2 and u start at 0: at first, nobody has peers.

    Where the search starts decides whether it ends.  Under even weights all firms hear the same
    mean, which holds nothing about any of them and so sends no gradient to the logits.  So half of the
    heads start in the own group (Hou 2007), the others with a random taste for each ordered pair of
    groups (Cohen and Frazzini 2008: customers and suppliers), and all of them where ``leader`` is high:
    large firms lead small ones (Lo and MacKinlay 1990).  Without a leader, each head starts with a
    taste for some random direction of identities.  Training is free to leave all of these starts.
    The values start with the recent days alone, where there are any.
    """

    def __init__(self, sizes: PeerSizes) -> None:
        super().__init__()
        width, heads, tokens = sizes.width, sizes.heads, sizes.tokens
        self.heads = heads
        self.dropout = nn.Dropout(sizes.dropout)
        self.norm = nn.LayerNorm(tokens)
        self.query = nn.Linear(sizes.identity, width)
        self.key = nn.Linear(sizes.identity, width)
        self.value = nn.Linear(tokens, width)
        self.recent = nn.Linear(sizes.recent, width, bias=False) if sizes.recent else None
        self.output = zero_linear(width, tokens)
        self.readout = zero_linear(width, 1)
        self.null_key_HD = nn.Parameter(torch.zeros(heads, width // heads))
        self.group_bias_HSS = (
            nn.Parameter(torch.zeros(heads, sizes.n_groups, sizes.n_groups)) if sizes.n_groups else None
        )
        self.prominence_HE = nn.Parameter(torch.zeros(heads, sizes.identity))
        with torch.no_grad():
            if sizes.leader is None:
                self.query.bias.normal_()
                self.key.weight.normal_(std=sizes.identity**-0.5)
            else:
                self.prominence_HE[:, sizes.leader] = sizes.leader_slope / LOGIT_GAIN
            if self.recent is not None:
                self.value.weight.zero_()
                self.value.bias.zero_()
            if self.group_bias_HSS is not None:
                own = (heads + 1) // 2
                self.group_bias_HSS[:own] = OWN_GROUP_START / LOGIT_GAIN * torch.eye(sizes.n_groups)
                self.group_bias_HSS[own:].normal_(std=1.0 / LOGIT_GAIN)
        self.forward_norm = nn.LayerNorm(tokens)
        self.forward_in = nn.Linear(tokens, 4 * tokens)
        self.forward_out = zero_linear(4 * tokens, tokens)

    def forward(
        self, h_BND: Tensor, identity_BNE: Tensor, recent_BNR: Tensor | None, s_BN: Tensor, keep_B1NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One round of messages; ``keep_B1NK`` comes from :func:`peer_keep`.

        Returns the new tokens [B, N, D] and what the messages add to the forecast, [B, N, 1].
        """
        q, k, v, scale = self._project(h_BND, identity_BNE, recent_BNR, s_BN)
        return self._receive(h_BND, attention(q, k, v, keep=keep_B1NK, scale=scale))

    def explicit(
        self, h_BND: Tensor, identity_BNE: Tensor, recent_BNR: Tensor | None, s_BN: Tensor, keep_B1NK: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same, with the weights [B, H, N, K]; the last key is the null key."""
        q, k, v, scale = self._project(h_BND, identity_BNE, recent_BNR, s_BN)
        weights_BHNK = attention_weights(q, k, keep=keep_B1NK, scale=scale)
        return *self._receive(h_BND, weights_BHNK @ v), weights_BHNK

    def _project(
        self, h_BND: Tensor, identity_BNE: Tensor, recent_BNR: Tensor | None, s_BN: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        q_BHNd = split_heads(self.query(identity_BNE), self.heads)
        k_BHNd = split_heads(self.key(identity_BNE), self.heads)
        value_BND = self.value(self.norm(h_BND))
        if self.recent is not None and recent_BNR is not None:
            value_BND = value_BND + self.recent(recent_BNR)
        v_BHNd = split_heads(value_BND, self.heads)
        batch, heads, _, d = q_BHNd.shape
        null_BH1d = self.null_key_HD[None, :, None, :].expand(batch, heads, 1, d)
        k_BHKd = torch.cat((k_BHNd, null_BH1d.to(k_BHNd.dtype)), dim=2)
        v_BHKd = F.pad(v_BHNd, (0, 0, 0, 1))
        scale = 1.0 / math.sqrt(d)
        # Prominence and group bias are dot products too, of 1 with p . identity_j and of the row
        # b[s_i, :] with the one-hot code of s_j.  So they ride in the product of queries and keys, and
        # no [N, N] bias is ever kept.
        prominence_BHN = (identity_BNE @ (LOGIT_GAIN * self.prominence_HE).T).transpose(1, 2)
        prominence_BHK1 = F.pad(prominence_BHN, (0, 1))[..., None].to(k_BHKd.dtype)
        q_BHNd = torch.cat((q_BHNd, torch.full_like(q_BHNd[..., :1], 1.0 / scale)), dim=-1)
        k_BHKd = torch.cat((k_BHKd, prominence_BHK1), dim=-1)
        if self.group_bias_HSS is not None:
            row_BHNS = (LOGIT_GAIN / scale * self.group_bias_HSS)[:, s_BN].transpose(0, 1)
            code_BNS = F.one_hot(s_BN, self.group_bias_HSS.shape[-1]).to(k_BHKd.dtype)
            code_BHKS = F.pad(code_BNS, (0, 0, 0, 1))[:, None].expand(batch, heads, -1, -1)
            q_BHNd = torch.cat((q_BHNd, row_BHNS.to(q_BHNd.dtype)), dim=-1)
            k_BHKd = torch.cat((k_BHKd, code_BHKS), dim=-1)
        return q_BHNd, k_BHKd, v_BHKd, scale

    def _receive(self, h_BND: Tensor, message_BHNd: Tensor) -> tuple[Tensor, Tensor]:
        message_BND = join_heads(message_BHNd)
        h_BND = h_BND + self.dropout(self.output(message_BND))
        hidden = self.dropout(F.gelu(self.forward_in(self.forward_norm(h_BND))))
        return h_BND + self.dropout(self.forward_out(hidden)), self.readout(message_BND)


def peer_keep(batch: Batch, cut: Cut | None) -> Tensor:
    """Bool [B, 1, N, N + 1]: the other firms of the universe that are not cut, and the null key."""
    key_BN = batch.m_BN
    if cut is not None and cut.peers_keep_BN is not None:
        key_BN = key_BN & cut.peers_keep_BN
    own_NN = torch.eye(key_BN.shape[1], dtype=torch.bool, device=key_BN.device)
    return F.pad(key_BN[:, None, None, :] & ~own_NN, (0, 1), value=True)
