"""cross_peer: target firms attend to a reference universe, in one direction.

Legend: B dates, N firms, M largest number of reference firms on a date, F characteristics, G group embedding,
D model width, L layers, R = recent_days * C.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Linear
from models.batch import Ablation, Batch, PanelTensors
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import Firms, GroupEmbedding, PeerKeys, PeerLayer, PeerSizes, peer_layers
from models.peers.reference import Reference, ReferenceConfig, has_size_rank, inverse_size_rank
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Heads, Shape, Share, Space, Whole


class CrossPeerConfig(Options):
    """Options of cross_peer."""

    reference: ReferenceConfig = ReferenceConfig()
    """How the reference firms are chosen."""
    width: Count = 32
    """D, width of the tokens; a multiple of ``heads``."""
    heads: Heads = 4
    """H, number of attention heads."""
    layers: Count = 1
    """Number of peer layers."""
    recent_days: Whole = 3
    """Number of recent sessions of the window as linear inputs of values and skip connection; 0 for
    characteristics only."""
    leader_slope: float = 4.0
    """Initial slope of the key bias on the inverse size rank, as in temporal_peer. Size is the characteristic
    by which the reference firms are chosen."""
    group_width: Count = 4
    """Width of the group embedding."""
    group_bias: bool = True
    """Whether to learn a bias per head and ordered pair of groups."""
    dropout: Share = 0.1
    """Probability, in training."""


class CrossPeer(Forecaster):
    """``h^0 = W id``, ``id = [z, e_group]``; L peer layers; ``y = w . [z, r] + v . LN(h^L) + u . messages``.

    Queries come from the identity of firm i. Keys and values come from the reference firms j != i, with
    values ``W_V LN(h^0_j) + W_R r_j``. All layers use the initial tokens of the reference firms, so no
    information flows from targets to reference firms. Reference firms are targets as well, and attend to the
    other reference firms. Attention is that of :class:`models.peers.layer.PeerLayer` with M keys instead of
    N; time and memory are O(N M).
    """

    uses_peers: ClassVar[bool] = True
    stackable: ClassVar[bool] = False
    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((16, 32, 64)),
        "leader_slope": Choice((1.0, 4.0)),
    }

    def __init__(self, config: CrossPeerConfig, shape: Shape) -> None:
        super().__init__()
        self.reference = Reference(config.reference, shape, "cross_peer")
        identity = shape.n_characteristics + config.group_width
        recent = self.read_recent(config.recent_days, shape)
        sizes = PeerSizes(
            width=config.width,
            heads=config.heads,
            identity=identity,
            recent=recent,
            n_groups=shape.n_groups if config.group_bias else 0,
            dropout=config.dropout,
            tokens=config.width,
            size=self.reference.size,
            leader_slope=config.leader_slope,
            has_size_rank=has_size_rank(self.reference.size, shape),
        )
        self.group = GroupEmbedding(shape.n_groups, config.group_width)
        self.token = Linear(identity, config.width)
        self.layers = nn.ModuleList(PeerLayer(sizes) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics + recent, 1)

    def require(self, data: PanelTensors) -> None:
        """Raise IncompatibleConfig if the panel lacks a firm of ``reference.tickers``."""
        self.reference.require(data)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Tokens from characteristics and group."""
        return self.token(self._identity(batch))  # type: ignore[no-any-return]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Apply L layers of attention to the reference firms."""
        targets, references, keys, _ = self._targets_and_references(h_BND, batch, ablation)
        y_BN1 = self.skip(super().embed(batch, ablation))
        for layer in peer_layers(self.layers):
            h_BND, message_BN1 = layer(targets.with_tokens(h_BND), references, keys)
            y_BN1 = y_BN1 + message_BN1
        return self.scaled((y_BN1 + self.head(self.norm(h_BND)))[..., 0], batch)

    def peer_positions(self, batch: Batch) -> Tensor | None:
        """Positions [B, M] of the reference firms."""
        return self._targets_and_references(self.embed(batch), batch, None)[3]

    def _targets_and_references(
        self, h_BND: Tensor, batch: Batch, ablation: Ablation | None
    ) -> tuple[Firms, Firms, PeerKeys, Tensor]:
        """Targets, references, their keys, and positions [B, M] of the references."""
        identity_BNE, r_BNR = self._identity(batch), self.recent(batch, ablation)
        targets = Firms(h_BND, identity_BNE, r_BNR, batch.s_BN, inverse_size_rank(batch, self.reference.size))
        chosen_BN = self.reference.choose(batch)
        max_references = max(1, int(chosen_BN.sum(dim=1).max()))  # without references, one masked position
        position_BM = (~chosen_BN).to(torch.uint8).argsort(dim=1, stable=True)[:, :max_references]
        if ablation is not None and ablation.peers_keep_BN is not None:
            chosen_BN = chosen_BN & ablation.peers_keep_BN
        own_BNM = position_BM[:, None, :] == torch.arange(h_BND.shape[1], device=h_BND.device)[:, None]
        keys = PeerKeys(chosen_BN.gather(1, position_BM), own_BNM)
        return targets, targets.select(position_BM), keys, position_BM

    def _identity(self, batch: Batch) -> Tensor:
        return torch.cat((batch.z_BNF, self.group(batch.s_BN)), dim=-1)
