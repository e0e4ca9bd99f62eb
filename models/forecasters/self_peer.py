"""self_peer: self-attention over the firms of a date, based on their characteristics.

Legend: B dates, N firms, F characteristics, G group embedding, D model width, L peer layers.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Linear
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import Firms, GroupEmbedding, PeerLayer, PeerSizes, peer_keys, peer_layers
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Heads, Range, Shape, Share, Space, Whole


class SelfPeerConfig(Options):
    """Options of self_peer."""

    width: Count = 64
    """D, width of the tokens; a multiple of ``heads``."""
    heads: Heads = 4
    """H, number of attention heads."""
    layers: Count = 2
    """Number of stacked peer layers; the second one also carries peers of peers (i <- j <- k)."""
    group_width: Count = 8
    """Width of the group embedding in a firm's token."""
    group_bias: bool = True
    """Whether to learn a bias per head and ordered pair of groups."""
    dropout: Share = 0.1
    """Probability, in training."""
    recent_days: Whole = 0
    """Number of recent sessions of the window as linear inputs of values and skip connection; 0 for none."""
    market_tokens: Whole = 0
    """Number of learned tokens that attend to all firms and that every firm can attend to; 0 for none."""


class SelfPeer(Forecaster):
    """``h^0 = W [z, e_group]``; L peer layers; ``y = w . [z, r] + v . LN(h^L) + u . messages``.

    Without peers, the layers are a residual MLP on the firm's own characteristics, to which peers add
    messages. Queries and keys come from the tokens of each layer. ``r`` are the last ``recent_days`` of the
    window, flattened. By default there are none, and the model uses only characteristics.
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((32, 64, 128)),
        "layers": Range(1, 3, integer=True),
    }

    def __init__(self, config: SelfPeerConfig, shape: Shape) -> None:
        super().__init__()
        self.config = config
        recent = self.read_recent(config.recent_days, shape)
        sizes = PeerSizes(
            width=config.width,
            heads=config.heads,
            identity=config.width,
            recent=recent,
            n_groups=shape.n_groups if config.group_bias else 0,
            dropout=config.dropout,
            tokens=config.width,
            market_tokens=config.market_tokens,
        )
        self.group = GroupEmbedding(shape.n_groups, config.group_width)
        self.token = Linear(shape.n_characteristics + config.group_width, config.width)
        self.layers = nn.ModuleList(PeerLayer(sizes) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics + recent, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Tokens from characteristics and group."""
        return self.token(torch.cat((batch.z_BNF, self.group(batch.s_BN)), dim=-1))  # type: ignore[no-any-return]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Apply L peer layers."""
        r_BNR, keys = self.recent(batch, ablation), peer_keys(batch, ablation)
        y_BN1 = self.skip(super().embed(batch, ablation))
        tokens_keep_BG = None if ablation is None else ablation.tokens_keep_BG
        for layer in peer_layers(self.layers):
            firms = Firms(h_BND, layer.norm(h_BND), r_BNR, batch.s_BN)
            h_BND, message_BN1 = layer(firms, firms, keys, tokens_keep_BG)
            y_BN1 = y_BN1 + message_BN1
        return self.scaled((y_BN1 + self.head(self.norm(h_BND)))[..., 0], batch)

    def mix_nested(self, h_1ND: Tensor, batch: Batch, order_N: Tensor, targets_n: Tensor) -> Tensor | None:
        """Cumulative sums over the order, if there is one layer without market tokens."""
        if self.config.layers > 1 or self.config.market_tokens:
            return None
        layer, r_1NR = peer_layers(self.layers)[0], self.recent(batch, None)
        firms = Firms(h_1ND, layer.norm(h_1ND), r_1NR, batch.s_BN)
        keys = peer_keys(batch, None).of_targets(targets_n)
        h_PnD, message_Pn1 = layer.nested(firms.select(targets_n[None]), firms, keys, order_N)
        y_Pn1 = self.skip(super().embed(batch)[:, targets_n]) + message_Pn1 + self.head(self.norm(h_PnD))
        return self.in_target_unit(y_Pn1[..., 0])
