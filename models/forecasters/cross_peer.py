"""cross_peer: target firms look up a reference universe, in one direction.

Legend: B dates, N firms, M most reference firms on a date, F characteristics, G group embedding, D model
width, L layers, R = recent_days * C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.batch import Ablation, AttentionMaps, Batch, PanelTensors, recent_days
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import Firms, GroupEmbedding, PeerLayer, PeerSizes
from models.peers.reference import Reference, ReferenceConfig, has_size_rank, standing
from models.spec import Shape, require_at_least, require_dropout, require_heads, require_recent


@dataclass(frozen=True, slots=True)
class CrossPeerConfig:
    """Options of cross_peer.

    Attributes
    ----------
    reference
        Which firms are looked up.
    width, heads, layers
        D, H and the number of times that a firm looks up the reference firms.
    recent_days
        Last sessions of the window that messages and the skip see linearly; 0 for characteristics alone.
    leader_slope
        Slope on a firm's standing in its group with which attention starts, as in temporal_peer; size is what
        the reference firms are chosen by.
    group_width
        Width of the group's embedding.
    group_bias
        Learn a bias per head and ordered pair of groups.
    dropout
        Probability, while training.
    """

    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    width: int = 32
    heads: int = 4
    layers: int = 1
    recent_days: int = 3
    leader_slope: float = 4.0
    group_width: int = 4
    group_bias: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        require_heads(self.width, self.heads)
        require_dropout(self.dropout)
        require_at_least(1, layers=self.layers, group_width=self.group_width)
        require_at_least(0, recent_days=self.recent_days)


class CrossPeer(Forecaster):
    """``h^0 = W id``, ``id = [z, e_group]``; L look-ups; ``y = w . [z, r] + v . LN(h^L) + u . messages``.

    Firm i asks with its identity, and the reference firms j != i answer with
    ``W_V LN(h^0_j) + W_R r_j``: their own tokens, whatever the layer, so that nothing that a target is
    or does reaches a reference firm.  A reference firm is forecast as well, and looks up the others.
    Attention is that of :class:`models.peers.layer.PeerLayer`, over M keys instead of N: time and memory grow
    with N M.
    """

    uses_peers: ClassVar[bool] = True

    def __init__(self, config: CrossPeerConfig, shape: Shape) -> None:
        super().__init__()
        require_recent(config.recent_days, shape.window)
        self.config = config
        self.uses_days = config.recent_days > 0
        self.reference = Reference(config.reference, shape, "cross_peer")
        identity = shape.n_characteristics + config.group_width
        recent = config.recent_days * shape.n_channels
        sizes = PeerSizes(
            width=config.width,
            heads=config.heads,
            identity=identity,
            recent=recent,
            n_groups=shape.n_groups if config.group_bias else 0,
            dropout=config.dropout,
            tokens=config.width,
            leader=self.reference.size,
            leader_slope=config.leader_slope,
            standing=has_size_rank(self.reference.size, shape),
        )
        self.group = GroupEmbedding(shape.n_groups, config.group_width)
        self.token = nn.Linear(identity, config.width)
        self.layers = nn.ModuleList(PeerLayer(sizes) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics + recent, 1)

    def require(self, data: PanelTensors) -> None:
        """Refuse a panel without the firms that the reference names."""
        self.reference.require(data)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Tokens of the characteristics and the group."""
        return self.token(self._identity(batch))  # type: ignore[no-any-return]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Let every firm look up the reference firms, L times."""
        targets, searched, keep_B1NK, _ = self._sides(h_BND, batch, ablation)
        r_BNR = targets.recent_BNR
        y_BN1 = self.skip(batch.z_BNF if r_BNR is None else torch.cat((batch.z_BNF, r_BNR), dim=-1))
        for module in self.layers:
            layer = cast("PeerLayer", module)
            h_BND, heard_BN1 = layer(targets.with_tokens(h_BND), searched, keep_B1NK)
            y_BN1 = y_BN1 + heard_BN1
        return self.scaled((y_BN1 + self.head(self.norm(h_BND)))[..., 0], batch)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        """Weights of the reference firms; 0 for all others."""
        h_BND = self.embed(batch, ablation)
        targets, searched, keep_B1NK, place_BM = self._sides(h_BND, batch, ablation)
        maps: list[Tensor] = []
        for module in self.layers:
            layer = cast("PeerLayer", module)
            h_BND, _, weights_BHNK = layer.explicit(targets.with_tokens(h_BND), searched, keep_B1NK)
            every_BHNN = weights_BHNK.new_zeros(*weights_BHNK.shape[:3], h_BND.shape[1])
            at_BHNM = place_BM[:, None, None, :].expand_as(weights_BHNK[..., :-1])
            maps.append(every_BHNN.scatter(-1, at_BHNM, weights_BHNK[..., :-1]))
        return AttentionMaps(peers_BLHNN=torch.stack(maps, dim=1))

    def _sides(
        self, h_BND: Tensor, batch: Batch, ablation: Ablation | None
    ) -> tuple[Firms, Firms, Tensor, Tensor]:
        """Who asks, who is asked, who may hear whom [B, 1, N, M + 1], and the places [B, M] of the asked."""
        days = self.config.recent_days
        r_BNR = recent_days(batch, days, ablation) if days else None
        inverse_size_rank_BN = standing(batch, self.reference.size)
        targets = Firms(h_BND, self._identity(batch), r_BNR, batch.s_BN, inverse_size_rank_BN)
        chosen_BN = self.reference.choose(batch)
        most = max(1, int(chosen_BN.sum(dim=1).max()))  # a place that nobody may hear, where there is none
        place_BM = (~chosen_BN).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
        if ablation is not None and ablation.peers_keep_BN is not None:
            chosen_BN = chosen_BN & ablation.peers_keep_BN
        other_BNM = place_BM[:, None, :] != torch.arange(h_BND.shape[1], device=h_BND.device)[:, None]
        keep_BNM = chosen_BN.gather(1, place_BM)[:, None, :] & other_BNM
        return targets, targets.at(place_BM), F.pad(keep_BNM[:, None], (0, 1), value=True), place_BM

    def _identity(self, batch: Batch) -> Tensor:
        return torch.cat((batch.z_BNF, self.group(batch.s_BN)), dim=-1)
