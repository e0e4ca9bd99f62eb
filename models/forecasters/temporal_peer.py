"""temporal_peer: attention over days, then over firms, trained end to end.

Legend: B dates, N firms, W window length, C channels, F characteristics, G group embedding, D model
width, L peer layers, R = recent_days * C.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from features.options import Options
from models.attention.encoder import DayEncoder, EncoderConfig, encode_present
from models.attention.layers import Linear
from models.batch import Ablation, Batch, EqualDates, select_dates
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import Firms, GroupEmbedding, PeerLayer, PeerSizes, peer_keys, peer_layers
from models.peers.reference import firm_slot, has_size_rank, inverse_ranks, inverse_size_rank, size_column
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Heads, Range, Shape, Share, Space, Whole


class TokenEncoderConfig(EncoderConfig):
    """Options of the day encoder of temporal_peer: `EncoderConfig` with its own default sizes."""

    width: Count = 32


class TemporalPeerConfig(Options):
    """Options of temporal_peer."""

    encoder: TokenEncoderConfig = TokenEncoderConfig()
    """Options of the day encoder; its width is that of the firms' tokens."""
    peer_layers: Count = 1
    """L, number of stacked peer layers."""
    peer_width: Count = 32
    """Width of queries, keys and messages, over all heads."""
    peer_heads: Heads = 4
    """Number of attention heads of a peer layer."""
    leader_slope: float = 4.0
    """Initial slope of the key bias on a firm's inverse size rank in its group. At 4, the largest firm of a
    group has ``e^2`` times the weight of the second and nearly ``e^4`` times that of small firms. Without
    groups, half of it is the initial slope on size, ranked to a normal. Size is the first of
    `models.peers.reference.SIZES` among the characteristics. Without a size, or with ``keys_from="token"``,
    there is no such bias."""
    recent_days: Count = 3
    """Number of recent sessions of the window as linear inputs of the peers' values."""
    keys_from: Literal["identity", "token"] = "identity"
    """Inputs of queries and keys. ``identity``: characteristics and group. ``token``: the full token of the
    layer, which also depends on the recent days of the firm."""
    group_width: Count = 4
    """Width of the group embedding."""
    group_bias: bool = True
    """Whether to learn a bias per head and ordered pair of groups."""
    peer_dropout: Share = 0.2
    """Dropout probability of the peer layers, in training."""
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


class TemporalPeer(Forecaster):
    """``y = w . z + u . messages + v . LN(h^L)``, from ``h^0 = encode(window) + W_I [z, e_group]``.

    A firm's own days affect its forecast only through the day encoder. The values of peers are ``W_V LN(h) +
    W_R r``, where ``r`` are the last days of the window, flattened. The linear map lets recent shocks of a
    leader reach its followers, and can be fitted with a few years of noisy data; the day encoder adds
    nonlinear effects.
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = {
        **FIT_SPACE,
        "encoder.dropout": DROPOUT_SPACE,
        "encoder.width": Choice((16, 32)),
        "encoder.layers": Range(1, 2, integer=True),
        "peer_dropout": DROPOUT_SPACE,
        "peer_width": Choice((16, 32, 64)),
        "recent_days": Range(1, 5, integer=True),
        "leader_slope": Choice((1.0, 4.0)),
        "leader_ranks": Choice(("size", "all")),
        "firm_slots": Choice((0, 4096)),
    }

    def __init__(self, config: TemporalPeerConfig, shape: Shape) -> None:
        super().__init__()
        self.config = config
        identity = shape.n_characteristics + config.group_width
        self.size = size_column(shape) if config.keys_from == "identity" else None
        recent = self.read_recent(config.recent_days, shape)
        sizes = PeerSizes(
            width=config.peer_width,
            heads=config.peer_heads,
            identity=identity if config.keys_from == "identity" else config.encoder.width,
            recent=recent,
            n_groups=shape.n_groups if config.group_bias else 0,
            dropout=config.peer_dropout,
            tokens=config.encoder.width,
            size=self.size,
            leader_slope=config.leader_slope,
            has_size_rank=has_size_rank(self.size, shape),
            market_tokens=config.market_tokens,
            firm_slots=config.firm_slots,
            ranks=2 * shape.n_characteristics if config.leader_ranks == "all" else 0,
        )
        self.encoder = DayEncoder(config.encoder, shape.n_channels, shape.window)
        self.group = GroupEmbedding(shape.n_groups, config.group_width)
        self.token = Linear(identity, config.encoder.width)
        self.layers = nn.ModuleList(PeerLayer(sizes) for _ in range(config.peer_layers))
        self.norm = nn.LayerNorm(config.encoder.width)
        self.head = zero_linear(config.encoder.width, 1)
        self.skip = zero_linear(shape.n_characteristics, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Tokens from window, characteristics and group."""
        return encode_present(self.encoder, batch, ablation) + self.token(self._identity(batch))  # type: ignore[no-any-return]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Apply L peer layers."""
        return self.scaled(self._mix(h_BND, batch, ablation, None), batch)

    def forecast_targets(self, batch: Batch, ablation: Ablation | None, targets_E: Tensor) -> Tensor:
        """Forecasts of some firms; only they attend in the last peer layer."""
        layer = peer_layers(self.layers)[-1]
        alone = len(self.layers) == 1 and not layer.market_tokens and layer.probe is None
        if ablation is not None and ablation.inputs is not None and alone:
            y_BE = self._mix_shared(batch, ablation, ablation.inputs, targets_E)
        else:
            y_BE = self._mix(self.embed(batch, ablation), batch, ablation, targets_E)
        return self.in_target_unit(y_BE).masked_fill(~batch.m_BN[:, targets_E], 0.0)

    def _mix(
        self, h_BND: Tensor, batch: Batch, ablation: Ablation | None, targets_E: Tensor | None
    ) -> Tensor:
        """Forecasts of some firms, or of all, in units of ``target_scale``."""
        r_BNR, keys = self.recent(batch, ablation), peer_keys(batch, ablation)
        y_BN1, leaders = self.skip(batch.z_BNF), self._leaders(batch)
        tokens_keep_BG = None if ablation is None else ablation.tokens_keep_BG
        for layer in peer_layers(self.layers):
            identity_BNE = self._query_inputs(layer, h_BND, batch)
            firms = targets = Firms(h_BND, identity_BNE, r_BNR, batch.s_BN, *leaders)
            if targets_E is not None and layer is self.layers[-1]:
                targets = firms.select(targets_E.expand(len(h_BND), -1))
                y_BN1, keys = y_BN1[:, targets_E], keys.of_targets(targets_E)
            h_BND, message_BN1 = layer(targets, firms, keys, tokens_keep_BG)
            y_BN1 = y_BN1 + message_BN1
        return (y_BN1 + self.head(self.norm(h_BND)))[..., 0]  # type: ignore[no-any-return]

    def _mix_shared(self, batch: Batch, ablation: Ablation, inputs: EqualDates, targets_E: Tensor) -> Tensor:
        """As :meth:`_mix` with one layer; tokens, keys and values of dates with equal inputs exist once."""
        windows, days = ablation.windows, ablation.days_keep_BW
        of_inputs = Ablation(
            days_keep_BW=None if days is None else days[inputs.first_U],
            windows=None if windows is None else EqualDates.of(windows.index_B[inputs.first_U]),
        )
        different, layer = select_dates(batch, inputs.first_U), peer_layers(self.layers)[0]
        h_UND, r_UNR = self.embed(different, of_inputs), self.recent(different, of_inputs)
        identity_UNE = self._query_inputs(layer, h_UND, different)
        firms = Firms(h_UND, identity_UNE, r_UNR, different.s_BN, *self._leaders(different))
        targets = firms.select(targets_E.expand(len(h_UND), -1))
        keys = peer_keys(batch, ablation).of_targets(targets_E)
        h_BED, message_BE1 = layer.shared(targets, firms, keys, inputs.index_B)
        skip_BE1 = self.skip(different.z_BNF[:, targets_E])[inputs.index_B]
        return (skip_BE1 + message_BE1 + self.head(self.norm(h_BED)))[..., 0]  # type: ignore[no-any-return]

    def mix_nested(self, h_1ND: Tensor, batch: Batch, order_N: Tensor, targets_n: Tensor) -> Tensor | None:
        """Cumulative sums over the order, if there is one peer layer without market tokens."""
        if self.config.peer_layers > 1 or self.config.market_tokens:
            return None
        layer = peer_layers(self.layers)[0]
        r_1NR, leaders = self.recent(batch, None), self._leaders(batch)
        identity_1NE = self._query_inputs(layer, h_1ND, batch)
        firms = Firms(h_1ND, identity_1NE, r_1NR, batch.s_BN, *leaders)
        keys = peer_keys(batch, None).of_targets(targets_n)
        h_PnD, message_Pn1 = layer.nested(firms.select(targets_n[None]), firms, keys, order_N)
        y_Pn1 = self.skip(batch.z_BNF[:, targets_n]) + message_Pn1 + self.head(self.norm(h_PnD))
        return self.in_target_unit(y_Pn1[..., 0])

    def _identity(self, batch: Batch) -> Tensor:
        return torch.cat((batch.z_BNF, self.group(batch.s_BN)), dim=-1)

    def _leaders(self, batch: Batch) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What can make a firm a leader: its inverse size rank, its slot, and its other inverse ranks."""
        return (
            inverse_size_rank(batch, self.size),
            firm_slot(batch, self.config.firm_slots),
            inverse_ranks(batch) if self.config.leader_ranks == "all" else None,
        )

    def _query_inputs(self, layer: PeerLayer, h_BND: Tensor, batch: Batch) -> Tensor:
        if self.config.keys_from == "identity":
            return self._identity(batch)
        return layer.norm(h_BND)  # type: ignore[no-any-return]
