"""temporal_peer: attention over days, then over firms, trained end to end.

Legend: B dates, N firms, W window length, C channels, F characteristics, D model width, U dates with
different inputs, E and n targets, P = N + 1 sets of peers.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from features.options import Options
from models.attention.encoder import EncoderConfig
from models.batch import Ablation, Batch, EqualDates, select_dates
from models.forecasters.temporal_transformer import TemporalTransformer, TemporalTransformerConfig
from models.peers.layer import Firms, GroupEmbedding, PeerLayer, PeerSizes, peer_keys
from models.peers.reference import firm_slot, has_size_rank, inverse_ranks, inverse_size_rank, size_column
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Heads, Range, Shape, Share, Space, Whole


class TemporalPeerConfig(Options):
    """Options of temporal_peer."""

    encoder: EncoderConfig = EncoderConfig()
    """Options of the day encoder; its width and dropout are also those of the head."""
    peer_width: Count = 32
    """Width of queries, keys and messages, over all heads."""
    peer_heads: Heads = 4
    """Number of attention heads over peers."""
    leader_slope: float = 4.0
    """Initial slope of the key bias on a firm's inverse size rank in its group. At 4, the largest firm of a
    group has ``e^2`` times the weight of the second and nearly ``e^4`` times that of small firms. Without
    groups, half of it is the initial slope on size, ranked to a normal. Size is the first of
    `models.peers.reference.SIZES` among the characteristics. Without a size, or with ``keys_from="token"``,
    there is no such bias."""
    recent_days: Count = 3
    """Number of recent sessions of the window as linear inputs of the peers' values."""
    keys_from: Literal["identity", "token"] = "identity"
    """Inputs of queries and keys. ``identity``: characteristics and group. ``token``: the embedding of the
    firm's window."""
    group_width: Count = 4
    """Width of the group embedding."""
    group_bias: bool = True
    """Whether to learn a bias per head and ordered pair of groups."""
    peer_dropout: Share = 0.75
    """Probability with which a firm is left out of the peers of a date, in training. The firms of a date
    together give it away, so with all of them attention learns single dates by heart."""
    market_tokens: Whole = 0
    """Number of learned tokens that attend to all firms and that every firm can attend to; 0 for none."""
    leader_ranks: Literal["size", "all"] = "size"
    """By which characteristics a firm's rank in its group can make it a leader. ``size``: only by size.
    ``all``: by every characteristic, from above and from below, with slopes that start at 0 and that all
    heads share. It finds leaders where the start at size is wrong."""
    firm_slots: Whole = 0
    """X, number of slots of a learned key bias per firm, which all heads share; 0 for none. The bias starts
    at 0 and finds leaders that no characteristic reveals. A firm's slot is a hash of its name, so there
    should be several times as many slots as firms. A firm that training never saw has no bias, unless it
    shares a slot."""


class TemporalPeer(TemporalTransformer):
    """``y = own + u . messages``, where ``own`` is what `TemporalTransformer` forecasts from the same inputs.

    Messages are those of a `models.peers.layer.PeerLayer`, with the values ``W_V LN(h) + W_R r``: ``h`` is
    the embedding of a peer's window and ``r`` its last days, flattened. The linear map lets recent shocks of
    a leader reach its followers, and can be fitted with a few years of noisy data; the embedding adds
    nonlinear effects. A firm's own days affect its forecast only through ``own``.
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = {
        **FIT_SPACE,
        "encoder.dropout": DROPOUT_SPACE,
        "encoder.width": Choice((16, 32, 64)),
        "encoder.layers": Range(1, 2, integer=True),
        "peer_dropout": Range(0.0, 0.9),
        "peer_width": Choice((16, 32, 64)),
        "recent_days": Range(1, 5, integer=True),
        "leader_slope": Choice((1.0, 4.0)),
        "leader_ranks": Choice(("size", "all")),
        "firm_slots": Choice((0, 4096)),
    }

    def __init__(self, config: TemporalPeerConfig, shape: Shape) -> None:
        super().__init__(TemporalTransformerConfig(encoder=config.encoder), shape)
        self.config = config
        identity = shape.n_characteristics + config.group_width
        self.size = size_column(shape) if config.keys_from == "identity" else None
        self.group = GroupEmbedding(shape.n_groups, config.group_width)
        self.peers = PeerLayer(
            PeerSizes(
                width=config.peer_width,
                heads=config.peer_heads,
                identity=identity if config.keys_from == "identity" else config.encoder.width,
                recent=self.read_recent(config.recent_days, shape),
                n_groups=shape.n_groups if config.group_bias else 0,
                dropout=0.0,
                tokens=config.encoder.width,
                updates=False,
                size=self.size,
                leader_slope=config.leader_slope,
                has_size_rank=has_size_rank(self.size, shape),
                market_tokens=config.market_tokens,
                firm_slots=config.firm_slots,
                ranks=2 * shape.n_characteristics if config.leader_ranks == "all" else 0,
            )
        )

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the messages of peers."""
        return self.scaled(self._mix(h_BND, batch, ablation, None), batch)

    def forecast_targets(self, batch: Batch, ablation: Ablation | None, targets_E: Tensor) -> Tensor:
        """Forecasts of some firms; only they attend to peers."""
        alone = not self.peers.market_tokens and self.peers.probe is None
        if ablation is not None and ablation.inputs is not None and alone:
            y_BE = self._mix_shared(batch, ablation, ablation.inputs, targets_E)
        else:
            y_BE = self._mix(self.embed(batch, ablation), batch, ablation, targets_E)
        return self.in_target_unit(y_BE).masked_fill(~batch.m_BN[:, targets_E], 0.0)

    def _mix(
        self, h_BND: Tensor, batch: Batch, ablation: Ablation | None, targets_E: Tensor | None
    ) -> Tensor:
        """Forecasts of some firms, or of all, in units of ``target_scale``."""
        firms, keys, z_BNF = self._firms(h_BND, batch, ablation), peer_keys(batch, ablation), batch.z_BNF
        targets = firms
        if targets_E is not None:
            targets, keys = firms.select(targets_E.expand(len(h_BND), -1)), keys.of_targets(targets_E)
            z_BNF = z_BNF[:, targets_E]
        if self.training:
            keys = keys.dropped(self.config.peer_dropout)
        tokens_keep_BG = None if ablation is None else ablation.tokens_keep_BG
        _, message_BN1 = self.peers(targets, firms, keys, tokens_keep_BG)
        return (self.own(targets.token_BND, z_BNF) + message_BN1)[..., 0]  # type: ignore[no-any-return]

    def _mix_shared(self, batch: Batch, ablation: Ablation, inputs: EqualDates, targets_E: Tensor) -> Tensor:
        """As :meth:`_mix`; embeddings, keys and values of dates with equal inputs exist once."""
        windows, days = ablation.windows, ablation.days_keep_BW
        of_inputs = Ablation(
            days_keep_BW=None if days is None else days[inputs.first_U],
            windows=None if windows is None else EqualDates.of(windows.index_B[inputs.first_U]),
        )
        different = select_dates(batch, inputs.first_U)
        firms = self._firms(self.embed(different, of_inputs), different, of_inputs)
        targets = firms.select(targets_E.expand(len(inputs.first_U), -1))
        keys = peer_keys(batch, ablation).of_targets(targets_E)
        _, message_BE1 = self.peers.shared(targets, firms, keys, inputs.index_B)
        own_UE1 = self.own(targets.token_BND, different.z_BNF[:, targets_E])
        return (own_UE1[inputs.index_B] + message_BE1)[..., 0]

    def mix_nested(self, h_1ND: Tensor, batch: Batch, order_N: Tensor, targets_n: Tensor) -> Tensor | None:
        """Cumulative sums over the order, if there are no market tokens."""
        if self.config.market_tokens:
            return None
        firms, keys = self._firms(h_1ND, batch, None), peer_keys(batch, None).of_targets(targets_n)
        _, message_Pn1 = self.peers.nested(firms.select(targets_n[None]), firms, keys, order_N)
        y_Pn1 = self.own(h_1ND[:, targets_n], batch.z_BNF[:, targets_n]) + message_Pn1
        return self.in_target_unit(y_Pn1[..., 0])

    def _firms(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None) -> Firms:
        """Inputs of attention, with what can make a firm a leader."""
        token = self.config.keys_from == "token"
        return Firms(
            h_BND,
            self.peers.norm(h_BND) if token else torch.cat((batch.z_BNF, self.group(batch.s_BN)), dim=-1),
            self.recent(batch, ablation),
            batch.s_BN,
            inverse_size_rank(batch, self.size),
            firm_slot(batch, self.config.firm_slots),
            inverse_ranks(batch) if self.config.leader_ranks == "all" else None,
        )
