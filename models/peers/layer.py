"""Peer attention: every firm of a date attends to the other firms, or to a reference universe.

Legend: B dates, N target firms (queries), M source firms (keys), K = M + 1 keys with the null key, D model
width, H heads, d = D / H, E width of the identity, R numbers of the recent days, S group codes, G market
tokens, X slots of firms, Y = 2F inverse ranks.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.attention.core import attention, attention_weights, join_heads, split_heads
from models.attention.layers import Dropout, Linear, drop
from models.attention.probe import Probed
from models.batch import Ablation, Batch
from models.forecaster import zero_linear
from models.peers.others import (
    ABSENT,
    LOGIT_GAIN,
    GroupBiases,
    adds_to_pairs,
    attention_to_others,
    attention_with_groups,
    nested_attention,
)

OWN_GROUP_BIAS = 4.0
"""Initial logit bias of firms of the target's own group, in the heads that start with that group."""

NULL_BIAS = 7.0
"""Initial logit bias of the null key in the other heads: about the total weight of ten groups of firms."""

GROUP_PAIR_BIAS_STD = 0.3
"""Standard deviation of the random initial biases of ordered pairs of groups in the other heads."""

MARKET_BIAS = 6.0
"""Initial logit bias of market tokens, large enough to matter among a hundred firms."""


@dataclass(frozen=True, slots=True)
class PeerSizes:
    """Sizes and initialisation of one peer layer."""

    # D and H
    width: int
    heads: int
    identity: int  # E, width of the inputs of queries and keys
    recent: int  # R, recent days as inputs of the values; 0 for none
    n_groups: int  # S, group codes of the group-pair bias; 0 for no bias
    dropout: float  # probability of the updates of tokens, in training
    tokens: int  # width of the firms' tokens
    updates: bool = True  # whether messages change the tokens of the firms, for the next layer
    size: int | None = None  # column of the identity with a firm's size; None if there is none
    # initial slope of each head's key bias: on the inverse size rank if ``has_size_rank``, else half of it on
    # size
    leader_slope: float = 0.0
    has_size_rank: bool = False  # whether firms have an inverse size rank
    market_tokens: int = 0  # G
    firm_slots: int = 0  # X, slots of the learned bias per firm; 0 for no such bias
    ranks: int = 0  # Y, inverse ranks with a learned slope; 0 for none


@dataclass(frozen=True, slots=True, eq=False)
class Firms:
    """Inputs of a peer layer for its target or source firms."""

    token_BND: Tensor  # tokens of the firms
    identity_BNE: Tensor  # inputs of queries and keys
    recent_BNR: Tensor | None  # recent days as inputs of the values; None if values do not use them
    group_BN: Tensor  # int64 group codes
    # inverse size rank within the group (:func:`models.peers.reference.inverse_size_rank`); None if it is not
    # used
    inverse_size_rank_BN: Tensor | None = None
    # int64, slot of each firm's own bias (:func:`.reference.firm_slot`); None without such a bias
    slot_BN: Tensor | None = None
    # inverse ranks by every characteristic (:func:`.reference.inverse_ranks`); None if they are not used
    rank_BNY: Tensor | None = None

    def with_tokens(self, token_BND: Tensor) -> Firms:
        """Replace the tokens."""
        return dataclasses.replace(self, token_BND=token_BND)

    def select(self, position_BM: Tensor) -> Firms:
        """Select the firms at positions [B, M] of each date."""

        def take(value_BNX: Tensor | None) -> Any:  # noqa: ANN401 (None stays None)
            if value_BNX is None:
                return None
            columns = value_BNX.shape[2:]
            at_BM = position_BM.reshape(*position_BM.shape, *(1 for _ in columns)).expand(-1, -1, *columns)
            return value_BNX.gather(1, at_BM)

        return Firms(*(take(getattr(self, field.name)) for field in dataclasses.fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class PeerKeys:
    """Which source firms a target firm may attend to: those that are kept, without itself."""

    keep_BM: Tensor  # bool; False for sources outside the universe and for ablated ones
    # bool, whether source j is target i; None if targets and sources are the same firms in the same order
    own_BNM: Tensor | None = None

    def of_targets(self, targets_E: Tensor) -> PeerKeys:
        """The keys of the targets at some positions, where targets and sources were the same firms."""
        assert self.own_BNM is None, "only positions of all firms are selected"
        return PeerKeys(self.keep_BM, self._same()[:, targets_E])

    def dropped(self, probability: float) -> PeerKeys:
        """Leave each source out of a date with a probability, as in `models.attention.layers.drop`."""
        kept_BM = drop(torch.ones(self.keep_BM.shape, device=self.keep_BM.device), probability) > 0
        return dataclasses.replace(self, keep_BM=self.keep_BM & kept_BM)

    def mask(self) -> Tensor:
        """Mask, bool [B, 1, N, K]: the sources that a target may attend to, and the null key."""
        own_BNM = self._same() if self.own_BNM is None else self.own_BNM
        return F.pad((self.keep_BM[:, None] & ~own_BNM)[:, None], (0, 1), value=True)

    def _same(self) -> Tensor:
        return torch.eye(self.keep_BM.shape[1], dtype=torch.bool, device=self.keep_BM.device)[None]


class PeerLayer(Probed):
    """One layer of peer attention, with a residual connection.

    ``logit_ij = q_i . k_j / sqrt(d) + b[group_i, group_j] + p . identity_j + s r_j`` for the firms j != i of
    the date. A null key with value 0 and a bias of its own lets a firm attend to no peer. ``W_Q != W_K``, so
    the weight i->j differs from j->i. The group-pair bias ``b`` is 0 if either group is unknown (code 0),
    because firms of unknown group do not form a group. ``p . identity_j + s r_j`` is the key bias of firm j,
    the same for all targets, where ``r_j`` is its inverse size rank: 1 for the largest firm of a group, 1/2
    for the second, 1/3 for the third. Two more terms, which all heads share and which start at 0, find
    leaders that size does not give away: slopes on the inverse ranks of firm j by every characteristic
    (``ranks``), and a bias of firm j itself (``firm_slots``).

    ``h_i += W_O sum_j softmax_j(logit_ij) (W_V LN(h_j) + W_R recent_j)``, then ``h_i += W_2 GELU(W_1
    LN(h_i))``. The messages of peers also reach the forecast directly, as ``u . sum_j softmax_j(logit_ij)
    v_j``; without ``updates`` that is all they do. Without this path, three matrices (W_V, W_O and the head)
    would have to grow together before the logits receive a useful gradient; with a daily IC of a few per
    cent, this does not happen. W_O, W_2 and u are initialised to 0, so peers have no effect at first.

    Training converges only from an informative initialisation. With equal weights, all firms receive the same
    mean, which contains no information on single firms and gives no gradient to the logits. Therefore:

    - A quarter of the heads start with a bias towards the own group (Hou 2007).
    - The other heads look for groups that lead other groups (Cohen and Frazzini 2008: customers and
      suppliers). They start with most of their weight on the null key, plus small random group-pair biases. A
      pair that improves the forecast takes weight from the null key and is then learned faster; the others
      stay small. Without the weight on the null key, these heads would add the shocks of all the wrong groups
      to the forecast.
    - All heads start with a key bias towards the large firms of a group, which lead its small firms (Lo and
      MacKinlay 1990; Hou 2007): by the inverse size rank, or by size if there are no groups. Without a size,
      queries and keys start with a random direction of identities per head.
    - Values start with the recent days only, if there are any.

    Training may leave this initialisation. Weight decay does not apply to the logit biases (``undecayed``),
    because it would pull them back to equal weights.

    G optional market tokens act like the inducing points of Lee et al. (2019), "Set transformer". Token g
    attends to all firms except the target i: ``state_gi = sum_(j != i) w_gj v_j`` with a softmax of ``t_g .
    k_j / sqrt(d)`` plus the key bias of firm j. Firm i attends to the tokens in addition to its peers. The
    first token starts as the market (firms weighted by their key bias), the others as factors with a random
    direction of identities.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("group_bias_HSS", "key_bias_HE", "market_bias_GH", "firm_bias_X1")
    over = "peers"
    null_key = True

    def __init__(self, sizes: PeerSizes) -> None:
        super().__init__()
        width, heads, tokens = sizes.width, sizes.heads, sizes.tokens
        self.heads = heads
        self.dropout = Dropout(sizes.dropout)
        self.norm = nn.LayerNorm(tokens)
        self.query = Linear(sizes.identity, width)
        self.key = Linear(sizes.identity, width)
        self.value = Linear(tokens, width)
        self.recent = Linear(sizes.recent, width, bias=False) if sizes.recent else None
        self.output = zero_linear(width, tokens) if sizes.updates else None
        self.readout = zero_linear(width, 1)
        self.null_key_HD = nn.Parameter(torch.zeros(heads, width // heads))
        self.group_bias_HSS = (
            nn.Parameter(torch.zeros(heads, sizes.n_groups, sizes.n_groups)) if sizes.n_groups else None
        )
        self.key_bias_HE = nn.Parameter(torch.zeros(heads, sizes.identity))
        self.null_bias_H = nn.Parameter(torch.zeros(heads))
        self.size_rank_slope_H = (
            nn.Parameter(torch.full((heads,), sizes.leader_slope / LOGIT_GAIN))
            if sizes.has_size_rank
            else None
        )
        self.rank_slope_Y = nn.Parameter(torch.zeros(sizes.ranks)) if sizes.ranks else None
        self.firm_bias_X1 = nn.Parameter(torch.zeros(sizes.firm_slots, 1)) if sizes.firm_slots else None
        with torch.no_grad():
            if sizes.size is None:
                self.query.bias.normal_()
                self.key.weight.normal_(std=sizes.identity**-0.5)
            elif not sizes.has_size_rank:
                self.key_bias_HE[:, sizes.size] = 0.5 * sizes.leader_slope / LOGIT_GAIN
            if self.recent is not None:
                self.value.weight.zero_()
                self.value.bias.zero_()
            if self.group_bias_HSS is not None:
                own_group_heads = (heads + 3) // 4
                self.group_bias_HSS[:own_group_heads] = (
                    OWN_GROUP_BIAS / LOGIT_GAIN * torch.eye(sizes.n_groups)
                )
                self.group_bias_HSS[own_group_heads:].normal_(std=GROUP_PAIR_BIAS_STD / LOGIT_GAIN)
                self.null_bias_H[own_group_heads:] = NULL_BIAS / LOGIT_GAIN
        if sizes.updates:
            self.forward_norm = nn.LayerNorm(tokens)
            self.forward_in = Linear(tokens, 4 * tokens)
            self.forward_out = zero_linear(4 * tokens, tokens)
        self.market_tokens = sizes.market_tokens
        if sizes.market_tokens:  # drawn last: other parameters do not depend on them
            self.market_query_GHd = nn.Parameter(torch.randn(sizes.market_tokens, heads, width // heads))
            self.market_key_GHd = nn.Parameter(torch.zeros(sizes.market_tokens, heads, width // heads))
            self.market_bias_GH = nn.Parameter(
                torch.full((sizes.market_tokens, heads), MARKET_BIAS / LOGIT_GAIN)
            )
            with torch.no_grad():
                self.market_query_GHd[0] = 0.0

    def forward(
        self, targets: Firms, sources: Firms, keys: PeerKeys, tokens_keep_BG: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Update the target firms with messages from the source firms.

        ``tokens_keep_BG`` is bool: False masks a market token as a key; by default all are kept. Returns the
        new tokens of the targets [B, N, D], and what the messages add to their forecasts, [B, N, 1]. Memory
        grows linearly with the firms if targets and sources are the same.
        """
        if self.probe is not None:
            return self.explicit(targets, sources, keys, tokens_keep_BG)[:2]
        q, k, v, scale = self._project_without_groups(targets, sources, keys.keep_BM)
        groups = self._group_biases(targets, sources)
        if groups is not None and not (keys.own_BNM is None and adds_to_pairs(q, groups.bias_HSS)):
            (q, k), groups = groups.as_columns(q, k, scale), None

        def attend(
            q_BHNe: Tensor, k_BHKe: Tensor, v_BHKf: Tensor, groups: GroupBiases | None = None
        ) -> Tensor:
            if groups is not None:
                return attention_with_groups(q_BHNe, k_BHKe, v_BHKf, groups, scale=scale)
            if keys.own_BNM is None:
                return attention_to_others(q_BHNe, k_BHKe, v_BHKf, scale=scale)
            keep = F.pad(keys.mask(), (0, k_BHKe.shape[2] - k.shape[2]), value=True)
            return attention(q_BHNe, k_BHKe, v_BHKf, keep=keep, scale=scale)

        if not self.market_tokens:
            return self._update(targets.token_BND, attend(q, k, v, groups))
        # The message of a token differs between targets, because it excludes the target itself. So an extra
        # value column per token returns the weight of the token, which then multiplies its message.
        tokens = self.market_tokens
        state_GBHNd = torch.stack(
            [attend(t.expand(*q.shape[:3], -1), k, v) for t in self._market_queries(q, scale)]
        )
        own_column = torch.eye(tokens, dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        v = torch.cat((F.pad(v, (0, tokens)), F.pad(own_column, (v.shape[-1], 0))), dim=2)
        out_BHNe = attend(q, torch.cat((k, self._market_keys(k, tokens_keep_BG)), dim=2), v, groups)
        message_BHNd, weight_BHNG = out_BHNe[..., :-tokens], out_BHNe[..., -tokens:]
        message_BHNd = message_BHNd + torch.einsum("bhng,gbhnd->bhnd", weight_BHNG, state_GBHNd)
        return self._update(targets.token_BND, message_BHNd)

    def explicit(
        self, targets: Firms, sources: Firms, keys: PeerKeys, tokens_keep_BG: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute :meth:`forward` by the explicit path; also returns the weights [B, H, N, K], null key last.

        The weights of market tokens are distributed over the firms that the tokens attend to.
        """
        q, k, v, scale = self._project(targets, sources)
        keep = keys.mask()
        if not self.market_tokens:
            weights_BHNK = self.weigh(attention_weights(q, k, keep=keep, scale=scale), keep)
            return *self._update(targets.token_BND, weights_BHNK @ v), weights_BHNK
        sources_and_null, tokens = k.shape[2], self.market_tokens
        every = torch.cat((k, self._market_keys(k, tokens_keep_BG)), dim=2)
        all_BHNk = attention_weights(q, every, keep=F.pad(keep, (0, tokens), value=True), scale=scale)
        weights_BHNK = all_BHNk[..., :sources_and_null]
        for g, t in enumerate(self._market_queries(q, scale)):
            token_weights_BHNK = attention_weights(t.expand(*q.shape[:3], -1), k, keep=keep, scale=scale)
            weights_BHNK = weights_BHNK + all_BHNk[..., sources_and_null + g, None] * token_weights_BHNK
        weights_BHNK = self.weigh(weights_BHNK, keep)
        return *self._update(targets.token_BND, weights_BHNK @ v), weights_BHNK

    def nested(
        self, targets: Firms, sources: Firms, keys: PeerKeys, order_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute :meth:`forward` of one date for the first 0 to M sources of an order, [P, N, ...]."""
        assert not self.market_tokens, "messages of market tokens are not nested"
        q, k, v, scale = self._project(targets, sources)
        return self._update(targets.token_BND, nested_attention(q, k, v, keys.mask(), order_M, scale=scale))

    def shared(
        self, targets: Firms, sources: Firms, keys: PeerKeys, index_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute :meth:`forward` for B masks of the keys over U dates, B many to one; for few targets.

        Keys and values are computed once per date, and ``index_B`` is the date of each mask. Group-pair
        biases are added to the logits, which for few targets are fewer numbers than the columns that
        :meth:`forward` appends.
        """
        assert not self.market_tokens, "messages of market tokens depend on the mask of the keys"
        q, k, v, scale = self._project_without_groups(targets, sources)
        logits_UHNK = (scale * q) @ k.transpose(-2, -1)
        groups = self._group_biases(targets, sources)
        if groups is not None:
            logits_UHNK = logits_UHNK + F.pad(groups.of_pairs(), (0, 1))
        weights_BHNK = logits_UHNK[index_B].masked_fill(~keys.mask(), -math.inf).softmax(dim=-1)
        return self._update(targets.token_BND[index_B], weights_BHNK @ v[index_B])

    def _project(self, targets: Firms, sources: Firms) -> tuple[Tensor, Tensor, Tensor, float]:
        """Queries, keys, values and scale; biases are columns."""
        q_BHNd, k_BHKd, v_BHKd, scale = self._project_without_groups(targets, sources)
        groups = self._group_biases(targets, sources)
        if groups is not None:
            q_BHNd, k_BHKd = groups.as_columns(q_BHNd, k_BHKd, scale)
        return q_BHNd, k_BHKd, v_BHKd, scale

    def _group_biases(self, targets: Firms, sources: Firms) -> GroupBiases | None:
        """Group-pair biases of targets and sources, 0 in the row and the column of the unknown group."""
        if self.group_bias_HSS is None:
            return None
        bias_HSS = F.pad(self.group_bias_HSS[:, 1:, 1:], (1, 0, 1, 0))
        return GroupBiases(bias_HSS, targets.group_BN, sources.group_BN)

    def _project_without_groups(
        self, targets: Firms, sources: Firms, keep_BM: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """As :meth:`_project`, without group-pair biases; sources that are not kept get no weight."""
        q_BHNd = split_heads(self.query(targets.identity_BNE), self.heads)
        k_BHMd = split_heads(self.key(sources.identity_BNE), self.heads)
        value_BMD = self.value(self.norm(sources.token_BND))
        if self.recent is not None and sources.recent_BNR is not None:
            value_BMD = value_BMD + self.recent(sources.recent_BNR)
        v_BHMd = split_heads(value_BMD, self.heads)
        batch, heads, _, d = q_BHNd.shape
        null_BH1d = self.null_key_HD[None, :, None, :].expand(batch, heads, 1, d)
        k_BHKd = torch.cat((k_BHMd, null_BH1d.to(k_BHMd.dtype)), dim=2)
        v_BHKd = F.pad(v_BHMd, (0, 0, 0, 1))
        scale = 1.0 / math.sqrt(d)
        # The key bias is a dot product as well: of 1 with the bias of firm j, or of the null key. Appended to
        # the queries and keys, it needs no [N, M] bias in memory.
        key_bias_BHM = (sources.identity_BNE @ (LOGIT_GAIN * self.key_bias_HE).T).transpose(1, 2)
        if self.size_rank_slope_H is not None and sources.inverse_size_rank_BN is not None:
            key_bias_BHM = key_bias_BHM + (
                LOGIT_GAIN * self.size_rank_slope_H[:, None] * sources.inverse_size_rank_BN[:, None]
            )
        if self.rank_slope_Y is not None and sources.rank_BNY is not None:
            key_bias_BHM = key_bias_BHM + (sources.rank_BNY @ (LOGIT_GAIN * self.rank_slope_Y))[:, None]
        if self.firm_bias_X1 is not None and sources.slot_BN is not None:
            own_BNH = F.embedding(sources.slot_BN, LOGIT_GAIN * self.firm_bias_X1)
            key_bias_BHM = key_bias_BHM + own_BNH.transpose(1, 2)
        if keep_BM is not None:
            key_bias_BHM = key_bias_BHM.masked_fill(~keep_BM[:, None], ABSENT)
        null_BH1 = (LOGIT_GAIN * self.null_bias_H)[None, :, None].expand(batch, heads, 1)
        key_bias_BHK1 = torch.cat((key_bias_BHM, null_BH1), dim=2)[..., None].to(k_BHKd.dtype)
        q_BHNd = torch.cat((q_BHNd, torch.full_like(q_BHNd[..., :1], 1.0 / scale)), dim=-1)
        k_BHKd = torch.cat((k_BHKd, key_bias_BHK1), dim=-1)
        return q_BHNd, k_BHKd, v_BHKd, scale

    def _market_queries(self, q_BHNd: Tensor, scale: float) -> Tensor:
        """Queries [G, H, 1, d] of the tokens, in the columns of q: key biases, but no group-pair biases."""
        one = torch.full_like(self.market_query_GHd[..., :1], 1.0 / scale)
        t_GHd = torch.cat((self.market_query_GHd, one), dim=-1)
        return F.pad(t_GHd, (0, q_BHNd.shape[-1] - t_GHd.shape[-1]))[:, :, None].to(q_BHNd.dtype)

    def _market_keys(self, k_BHKd: Tensor, tokens_keep_BG: Tensor | None) -> Tensor:
        """Keys [B, H, G, d] of the tokens, in the columns of k, with the market bias as key bias."""
        bias_BGH = (LOGIT_GAIN * self.market_bias_GH).expand(len(k_BHKd), -1, -1)
        if tokens_keep_BG is not None:
            bias_BGH = bias_BGH.masked_fill(~tokens_keep_BG[..., None], ABSENT)
        key_BGHd = self.market_key_GHd.expand(len(k_BHKd), -1, -1, -1)
        key_BGHd = torch.cat((key_BGHd, bias_BGH[..., None]), dim=-1)
        return F.pad(key_BGHd, (0, k_BHKd.shape[-1] - key_BGHd.shape[-1])).transpose(1, 2).to(k_BHKd.dtype)

    def _update(self, token_BND: Tensor, message_BHNd: Tensor) -> tuple[Tensor, Tensor]:
        message_BND = join_heads(message_BHNd)
        if self.output is None:
            return token_BND, self.readout(message_BND)
        h_BND = token_BND + self.dropout(self.output(message_BND))
        hidden = self.dropout(F.gelu(self.forward_in(self.forward_norm(h_BND))))
        return h_BND + self.dropout(self.forward_out(hidden)), self.readout(message_BND)


def peer_layers(layers: nn.ModuleList) -> list[PeerLayer]:
    """Return the layers of a model that stacks peer layers."""
    return cast("list[PeerLayer]", list(layers))


class GroupEmbedding(nn.Embedding):
    """Embedding of group codes [B, N]; zero for code 0, because unknown groups are not a group."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in the base class
        """Look up the embeddings of the codes."""
        return super().forward(input) * (input > 0)[..., None]


def peer_keys(batch: Batch, ablation: Ablation | None) -> PeerKeys:
    """The keys of peer attention over all firms: those of the universe that are not ablated."""
    if ablation is None or ablation.peers_keep_BN is None:
        return PeerKeys(batch.m_BN)
    return PeerKeys(batch.m_BN & ablation.peers_keep_BN)
