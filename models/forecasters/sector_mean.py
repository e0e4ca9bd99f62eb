"""sector_mean: peers are the firms of the same sector or industry, with equal weights.

Legend: B dates, N firms, F characteristics, S group codes, D = F + recent_days * C.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from features.options import Options
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import peer_keys
from models.spec import FIT_SPACE, Shape, Space, Whole


class SectorMeanConfig(Options):
    """Options of sector_mean."""

    recent_days: Whole = 3
    """Number of recent sessions of the window as inputs, of the firm and its group; 0 for characteristics
    only."""


class SectorMean(Forecaster):
    """``y_i = a + w . h_i + u . mean(h_j: j of i's group, j != i)``, with ``h = [z, r]``.

    ``z`` are the characteristics and ``r`` the recent days, flattened. All peers of a group have equal
    weights, so only a, w and u are learned. A firm of unknown group (code 0) has no peers, nor has the only
    firm of a group; the mean is then 0. Moskowitz and Grinblatt (1999), "Do industries explain momentum?";
    the mean excludes the firm itself, as in Hou (2007).
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = FIT_SPACE

    def __init__(self, config: SectorMeanConfig, shape: Shape) -> None:
        super().__init__()
        self.n_groups = shape.n_groups
        width = shape.n_characteristics + self.read_recent(config.recent_days, shape)
        self.own = zero_linear(width, 1)
        self.peers = nn.Parameter(torch.zeros(1, width))

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the mean over the other firms of the group, computed from group sums in O(N S) per date."""
        codes_S = torch.arange(self.n_groups, device=h_BND.device)  # F.one_hot reads the largest code back
        member_BNS = (batch.s_BN[..., None] == codes_S).to(h_BND.dtype)
        member_BNS = member_BNS * (batch.s_BN > 0)[..., None]
        source_BNS = member_BNS * peer_keys(batch, ablation).keep_BM[..., None]
        value_BN1 = F.linear(h_BND, self.peers)  # without a bias, so that the message without peers is 0
        total_BS1 = source_BNS.transpose(1, 2) @ value_BN1
        others_BN1 = member_BNS @ total_BS1 - value_BN1 * source_BNS.sum(-1, keepdim=True)
        count_BN1 = member_BNS @ source_BNS.sum(1)[..., None] - source_BNS.sum(-1, keepdim=True)
        message_BN1 = torch.where(count_BN1 > 0, others_BN1 / count_BN1.clamp(min=1.0), 0.0)
        return self.scaled((self.own(h_BND) + message_BN1)[..., 0], batch)

    def peer_weights(self, batch: Batch, ablation: Ablation | None) -> Tensor:
        """Equal weights of the other firms of the group; they are not learned."""
        key_BN = peer_keys(batch, ablation).keep_BM & (batch.s_BN > 0)
        same_BNN = (batch.s_BN[:, :, None] == batch.s_BN[:, None, :]) & key_BN[:, None, :]
        same_BNN = same_BNN & ~torch.eye(key_BN.shape[1], dtype=torch.bool, device=key_BN.device)
        return (same_BNN / same_BNN.sum(-1, keepdim=True).clamp(min=1))[:, None]
