"""Attention over firms: every firm of a date searches the others, or a reference universe.

Legend: B dates, N firms that search, M firms that are searched, K = M + 1 keys with the null key, D model
width, H heads, d = D / H, E width of the identity, R numbers of the recent days, S group codes, G market
tokens.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.attention.core import attention, attention_weights, join_heads, split_heads
from models.batch import Ablation, Batch
from models.forecaster import zero_linear

OWN_GROUP_START = 4.0
"""Logit that a firm of the own group starts ahead with, in the heads that start there."""

REST_START = 7.0
"""Logit of the null key in the heads that start with other groups: about that of ten groups of firms."""

TASTE_START = 0.3
"""Standard deviation of the tastes for ordered pairs of groups with which those heads start."""

MARKET_START = 6.0
"""Logit that market tokens start with: enough to be heard among a hundred firms."""

LOGIT_GAIN = 5.0
"""Group, null and market biases and prominence are stored over this: steps sized for weights suit logits."""


@dataclass(frozen=True, slots=True)
class PeerSizes:
    """Sizes of one peer layer: D, H, E (queries and keys), R (recent days; 0 for none), S (0: no bias).

    ``tokens`` is the width of the firms' tokens, and ``market_tokens`` is G.  ``leader`` is the identity's
    number that says how large a firm is, None for none.  ``leader_slope`` is what each head's prominence
    starts with: on the firms' standing where ``standing`` says that they have one, else, halved, on size.
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
    standing: bool = False
    market_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Firms:
    """What is known of the firms that search, or are searched.

    Attributes
    ----------
    token_BND
        Their tokens.
    identity_BNE
        What they are searched by.
    recent_BNR
        Their recent days; None when messages leave them out.
    group_BN
        int64 group codes.
    inverse_size_rank_BN
        Their standing in their groups (:func:`models.peers.reference.standing`); None when nobody asks for
        it.
    """

    token_BND: Tensor
    identity_BNE: Tensor
    recent_BNR: Tensor | None
    group_BN: Tensor
    inverse_size_rank_BN: Tensor | None = None

    def with_tokens(self, token_BND: Tensor) -> Firms:
        """Take new tokens for the same firms."""
        return dataclasses.replace(self, token_BND=token_BND)

    def at(self, place_BM: Tensor) -> Firms:
        """Take the firms at some places of each date."""

        def take(value_BNX: Tensor) -> Tensor:
            return value_BNX.gather(1, place_BM[..., None].expand(-1, -1, value_BNX.shape[-1]))

        recent_BMR = None if self.recent_BNR is None else take(self.recent_BNR)
        group_BM = self.group_BN.gather(1, place_BM)
        inverse_size_rank_BM = (
            None if self.inverse_size_rank_BN is None else self.inverse_size_rank_BN.gather(1, place_BM)
        )
        return Firms(
            take(self.token_BND), take(self.identity_BNE), recent_BMR, group_BM, inverse_size_rank_BM
        )


class PeerLayer(nn.Module):
    """One layer of peer attention with a residual of the firm's own information.

    ``logit_ij = q_i . k_j / sqrt(d) + b[group_i, group_j] + p . identity_j + s standing_j`` over the firms
    j != i of the date, and a null key with value 0 and a bias of its own, on which a firm can rest;
    ``W_Q != W_K``, so i->j differs from j->i.  ``p . identity_j + s standing_j`` is how prominent firm j is
    to whoever asks: its standing is 1 as the largest firm of its group, 1/2 as the second, 1/3 as the third.
    ``b`` is 0 where either group is unknown (code 0): firms of unknown group are no group.
    ``h_i += W_O sum_j softmax_j(logit_ij) (W_V LN(h_j) + W_R recent_j)``, then
    ``h_i += W_2 GELU(W_1 LN(h_i))``.  What peers say also reaches the forecast directly, as
    ``u . sum_j softmax_j(logit_ij) v_j``: with only W_O and a head behind it, three matrices would
    have to grow together before any gradient says whom to listen to, and a daily IC of a few
    percent never gets them there.  W_O, W_2 and u start at 0: at first, nobody has peers.

    Where the search starts decides whether it ends.  Under even weights all firms hear the same mean,
    which holds nothing about any of them and so sends no gradient to the logits.  So a quarter of the
    heads start in the own group (Hou 2007), the others look for groups that lead other groups (Cohen and
    Frazzini 2008: customers and suppliers), and all of them start at the large firms of a group, which
    lead its small ones (Lo and MacKinlay 1990; Hou 2007): by their standing, or without groups by
    ``leader``, their size.  Who looks for other groups starts more than half at rest, with a slight random
    taste for each ordered pair of groups.  A pair that pays takes weight from the null key and is then
    learned the faster for it, while one that does not stays small; heads that start wide awake carry the
    shocks of every wrong group into the forecast.  Without a leader, each head starts with a taste for
    some random direction of identities.  Training is free to leave all of these starts, and weight decay
    leaves them alone (``undecayed``): it would draw who leads whom back to nobody.  The values start with
    the recent days alone, where there are any.

    G optional market tokens stand between the firms, as the inducing points of Lee et al. (2019), "Set
    transformer": token g listens to all firms but i, ``state_gi = sum_(j != i) w_gj v_j`` with a softmax of
    ``t_g . k_j / sqrt(d)`` and firm j's prominence, and firm i attends to it beside its peers.  The first
    token starts as the market (firms weighted by prominence), the others as factors with a taste for some
    direction of identities.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("group_bias_HSS", "key_bias_HE", "market_bias_GH")

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
        self.key_bias_HE = nn.Parameter(torch.zeros(heads, sizes.identity))
        self.null_bias_H = nn.Parameter(torch.zeros(heads))
        self.standing_H = (
            nn.Parameter(torch.full((heads,), sizes.leader_slope / LOGIT_GAIN)) if sizes.standing else None
        )
        with torch.no_grad():
            if sizes.leader is None:
                self.query.bias.normal_()
                self.key.weight.normal_(std=sizes.identity**-0.5)
            elif not sizes.standing:
                self.key_bias_HE[:, sizes.leader] = 0.5 * sizes.leader_slope / LOGIT_GAIN
            if self.recent is not None:
                self.value.weight.zero_()
                self.value.bias.zero_()
            if self.group_bias_HSS is not None:
                own = (heads + 3) // 4
                self.group_bias_HSS[:own] = OWN_GROUP_START / LOGIT_GAIN * torch.eye(sizes.n_groups)
                self.group_bias_HSS[own:].normal_(std=TASTE_START / LOGIT_GAIN)
                self.null_bias_H[own:] = REST_START / LOGIT_GAIN
        self.forward_norm = nn.LayerNorm(tokens)
        self.forward_in = nn.Linear(tokens, 4 * tokens)
        self.forward_out = zero_linear(4 * tokens, tokens)
        self.market_tokens = sizes.market_tokens
        if sizes.market_tokens:  # drawn last, so that models without them start as they always did
            self.market_query_GHd = nn.Parameter(torch.randn(sizes.market_tokens, heads, width // heads))
            self.market_key_GHd = nn.Parameter(torch.zeros(sizes.market_tokens, heads, width // heads))
            self.market_bias_GH = nn.Parameter(
                torch.full((sizes.market_tokens, heads), MARKET_START / LOGIT_GAIN)
            )
            with torch.no_grad():
                self.market_query_GHd[0] = 0.0

    def forward(self, own: Firms, searched: Firms, keep: Tensor) -> tuple[Tensor, Tensor]:
        """One round of messages from the searched firms to their searchers.

        ``keep`` is bool, broadcastable to [B, 1, N, K]: who may hear whom, the null key last (see
        :func:`peer_keep`).  Returns the new tokens [B, N, D] of the searchers and what the messages add
        to their forecasts, [B, N, 1].
        """
        q, k, v, scale = self._project(own, searched)
        if not self.market_tokens:
            return self._receive(own, attention(q, k, v, keep=keep, scale=scale))
        # A token's message differs from firm to firm, which leaves itself out.  So its weight is read
        # from a column of its own, and multiplied with the message afterwards.
        tokens = self.market_tokens
        state_GBHNd = torch.stack(
            [
                attention(t.expand(*q.shape[:3], -1), k, v, keep=keep, scale=scale)
                for t in self._market_queries(q, scale)
            ]
        )
        own_column = torch.eye(tokens, dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        v = torch.cat((F.pad(v, (0, tokens)), F.pad(own_column, (v.shape[-1], 0))), dim=2)
        k = torch.cat((k, self._market_keys(k)), dim=2)
        heard = attention(q, k, v, keep=F.pad(keep, (0, tokens), value=True), scale=scale)
        message_BHNd, weight_BHNG = heard[..., :-tokens], heard[..., -tokens:]
        message_BHNd = message_BHNd + torch.einsum("bhng,gbhnd->bhnd", weight_BHNG, state_GBHNd)
        return self._receive(own, message_BHNd)

    def explicit(self, own: Firms, searched: Firms, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, with the weights [B, H, N, K]; the last key is the null key.

        What reaches a firm through the market tokens is counted with the firms that they listened to.
        """
        q, k, v, scale = self._project(own, searched)
        if not self.market_tokens:
            weights_BHNK = attention_weights(q, k, keep=keep, scale=scale)
            return *self._receive(own, weights_BHNK @ v), weights_BHNK
        keys, tokens = k.shape[2], self.market_tokens
        every = torch.cat((k, self._market_keys(k)), dim=2)
        all_BHNk = attention_weights(q, every, keep=F.pad(keep, (0, tokens), value=True), scale=scale)
        weights_BHNK = all_BHNk[..., :keys]
        for g, t in enumerate(self._market_queries(q, scale)):
            listens = attention_weights(t.expand(*q.shape[:3], -1), k, keep=keep, scale=scale)
            weights_BHNK = weights_BHNK + all_BHNk[..., keys + g, None] * listens
        return *self._receive(own, weights_BHNK @ v), weights_BHNK

    def _project(self, own: Firms, searched: Firms) -> tuple[Tensor, Tensor, Tensor, float]:
        q_BHNd = split_heads(self.query(own.identity_BNE), self.heads)
        k_BHMd = split_heads(self.key(searched.identity_BNE), self.heads)
        value_BMD = self.value(self.norm(searched.token_BND))
        if self.recent is not None and searched.recent_BNR is not None:
            value_BMD = value_BMD + self.recent(searched.recent_BNR)
        v_BHMd = split_heads(value_BMD, self.heads)
        batch, heads, _, d = q_BHNd.shape
        null_BH1d = self.null_key_HD[None, :, None, :].expand(batch, heads, 1, d)
        k_BHKd = torch.cat((k_BHMd, null_BH1d.to(k_BHMd.dtype)), dim=2)
        v_BHKd = F.pad(v_BHMd, (0, 0, 0, 1))
        scale = 1.0 / math.sqrt(d)
        # Prominence and group bias are dot products too, of 1 with firm j's prominence (for the null key with
        # its bias) and of the row b[s_i, :] with the one-hot code of s_j.  So they ride in the product of
        # queries and keys, and no [N, M] bias is ever kept.
        key_bias_BHM = (searched.identity_BNE @ (LOGIT_GAIN * self.key_bias_HE).T).transpose(1, 2)
        if self.standing_H is not None and searched.inverse_size_rank_BN is not None:
            key_bias_BHM = key_bias_BHM + (
                LOGIT_GAIN * self.standing_H[:, None] * searched.inverse_size_rank_BN[:, None]
            )
        null_BH1 = (LOGIT_GAIN * self.null_bias_H)[None, :, None].expand(batch, heads, 1)
        prominence_BHK1 = torch.cat((key_bias_BHM, null_BH1), dim=2)[..., None].to(k_BHKd.dtype)
        q_BHNd = torch.cat((q_BHNd, torch.full_like(q_BHNd[..., :1], 1.0 / scale)), dim=-1)
        k_BHKd = torch.cat((k_BHKd, prominence_BHK1), dim=-1)
        if self.group_bias_HSS is not None:
            row_BHNS = (LOGIT_GAIN / scale * self._bias_of_known_groups())[:, own.group_BN].transpose(0, 1)
            code_BMS = F.one_hot(searched.group_BN, self.group_bias_HSS.shape[-1]).to(k_BHKd.dtype)
            code_BHKS = F.pad(code_BMS, (0, 0, 0, 1))[:, None].expand(batch, heads, -1, -1)
            q_BHNd = torch.cat((q_BHNd, row_BHNS.to(q_BHNd.dtype)), dim=-1)
            k_BHKd = torch.cat((k_BHKd, code_BHKS), dim=-1)
        return q_BHNd, k_BHKd, v_BHKd, scale

    def _bias_of_known_groups(self) -> Tensor:
        """Bias [H, S, S] by group, 0 in the row and the column of the unknown one."""
        assert self.group_bias_HSS is not None, "asked for where there is a bias"
        return F.pad(self.group_bias_HSS[:, 1:, 1:], (1, 0, 1, 0))

    def _market_queries(self, q_BHNd: Tensor, scale: float) -> Tensor:
        """Queries [G, H, 1, d] of the tokens in the columns of q: they feel prominence and know no groups."""
        one = torch.full_like(self.market_query_GHd[..., :1], 1.0 / scale)
        t_GHd = torch.cat((self.market_query_GHd, one), dim=-1)
        return F.pad(t_GHd, (0, q_BHNd.shape[-1] - t_GHd.shape[-1]))[:, :, None].to(q_BHNd.dtype)

    def _market_keys(self, k_BHKd: Tensor) -> Tensor:
        """Keys [B, H, G, d] of the tokens in the columns of k, with a logit of their own for prominence."""
        key_GHd = torch.cat((self.market_key_GHd, LOGIT_GAIN * self.market_bias_GH[..., None]), dim=-1)
        key_GHd = F.pad(key_GHd, (0, k_BHKd.shape[-1] - key_GHd.shape[-1])).to(k_BHKd.dtype)
        return key_GHd.transpose(0, 1).expand(len(k_BHKd), -1, -1, -1)

    def _receive(self, own: Firms, message_BHNd: Tensor) -> tuple[Tensor, Tensor]:
        message_BND = join_heads(message_BHNd)
        h_BND = own.token_BND + self.dropout(self.output(message_BND))
        hidden = self.dropout(F.gelu(self.forward_in(self.forward_norm(h_BND))))
        return h_BND + self.dropout(self.forward_out(hidden)), self.readout(message_BND)


class GroupEmbedding(nn.Embedding):
    """Embedding of group codes [B, N]; zero for code 0: firms of unknown group have nothing in common."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the base class calls it so
        """Look the codes up."""
        return super().forward(input) * (input > 0)[..., None]


def peer_keep(batch: Batch, ablation: Ablation | None) -> Tensor:
    """Bool [B, 1, N, N + 1]: the other firms of the universe that are not cut, and the null key."""
    key_BN = batch.m_BN
    if ablation is not None and ablation.peers_keep_BN is not None:
        key_BN = key_BN & ablation.peers_keep_BN
    own_NN = torch.eye(key_BN.shape[1], dtype=torch.bool, device=key_BN.device)
    return F.pad(key_BN[:, None, None, :] & ~own_NN, (0, 1), value=True)
