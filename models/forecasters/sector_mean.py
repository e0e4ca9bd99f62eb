"""sector_mean: a fixed kernel, peers by sector or industry code.

Legend: B dates, N firms, F characteristics, S group codes, D = F + recent_days * C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.batch import Ablation, AttentionMaps, Batch, recent_days
from models.forecaster import Forecaster, zero_linear
from models.spec import Shape, require_at_least, require_recent


@dataclass(frozen=True, slots=True)
class SectorMeanConfig:
    """Options of sector_mean.

    Attributes
    ----------
    recent_days
        Last sessions of the window that a firm and its group are seen with; 0 for characteristics alone.
    """

    recent_days: int = 3

    def __post_init__(self) -> None:
        require_at_least(0, recent_days=self.recent_days)


class SectorMean(Forecaster):
    """``y_i = a + w . h_i + u . mean(h_j: j of i's group, j != i)``, with ``h = [z, r]``.

    ``z`` are characteristics and ``r`` the recent days, flattened.  All peers of the group count the
    same, so only w and u are learned.  A firm of unknown group (code 0) has no peers, nor has one that
    is alone in its group; for them the mean is 0.  Moskowitz and Grinblatt (1999), "Do industries explain
    momentum?"; the mean leaves the firm out as in Hou (2007).
    """

    uses_peers: ClassVar[bool] = True
    stackable: ClassVar[bool] = True

    def __init__(self, config: SectorMeanConfig, shape: Shape) -> None:
        super().__init__()
        require_recent(config.recent_days, shape.window)
        self.config = config
        self.uses_days = config.recent_days > 0
        self.n_groups = shape.n_groups
        width = shape.n_characteristics + config.recent_days * shape.n_channels
        self.own = zero_linear(width, 1)
        self.peers = nn.Parameter(torch.zeros(1, width))

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Characteristics and recent days, as they are."""
        if not self.config.recent_days:
            return batch.z_BNF
        return torch.cat((batch.z_BNF, recent_days(batch, self.config.recent_days, ablation)), dim=-1)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the mean of the group's other firms: two sums over each group, N times S numbers a date."""
        member_BNS = F.one_hot(batch.s_BN, self.n_groups).to(h_BND.dtype)
        member_BNS = member_BNS * (batch.s_BN > 0)[..., None]
        heard_BNS = member_BNS * _heard(batch, ablation)[..., None]
        said_BN1 = F.linear(h_BND, self.peers)  # without a bias: no peers, nothing heard
        total_BS1 = heard_BNS.transpose(1, 2) @ said_BN1
        others_BN1 = member_BNS @ total_BS1 - said_BN1 * heard_BNS.sum(-1, keepdim=True)
        count_BN1 = member_BNS @ heard_BNS.sum(1)[..., None] - heard_BNS.sum(-1, keepdim=True)
        heard_BN1 = torch.where(count_BN1 > 0, others_BN1 / count_BN1.clamp(min=1.0), 0.0)
        return self.scaled((self.own(h_BND) + heard_BN1)[..., 0], batch)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        """Equal weights of the group's other firms; nothing was learned about them."""
        key_BN = _heard(batch, ablation) & (batch.s_BN > 0)
        same_BNN = (batch.s_BN[:, :, None] == batch.s_BN[:, None, :]) & key_BN[:, None, :]
        same_BNN = same_BNN & batch.m_BN[:, :, None]
        same_BNN = same_BNN & ~torch.eye(key_BN.shape[1], dtype=torch.bool, device=key_BN.device)
        weights_BNN = same_BNN / same_BNN.sum(-1, keepdim=True).clamp(min=1)
        return AttentionMaps(peers_BLHNN=weights_BNN[:, None, None])


def _heard(batch: Batch, ablation: Ablation | None) -> Tensor:
    if ablation is None or ablation.peers_keep_BN is None:
        return batch.m_BN
    return batch.m_BN & ablation.peers_keep_BN
