"""kernel_regression: peers are firms with similar characteristics, with learned bandwidths.

Legend: B dates, N firms, F characteristics, D = F + recent_days * C.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from features.options import Options
from models.attention.core import attention, attention_weights
from models.attention.probe import Probed
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import peer_keys
from models.peers.others import LOGIT_GAIN
from models.spec import FIT_SPACE, Positive, Range, Shape, Space, Whole


class KernelRegressionConfig(Options):
    """Options of kernel_regression."""

    recent_days: Whole = 3
    """Number of recent sessions of the window as inputs, of the firm and its peers; 0 for characteristics
    only."""
    bandwidth: Positive = 1.0
    """Initial value of all bandwidths, divided by ``F^(1/4)``. The standard deviation of squared distances
    between firms grows with the square root of F, so at 1 similar firms start with larger weights, but no
    single firm dominates."""


class KernelRegression(Forecaster, Probed):
    """``y_i = a + w . h_i + sum_(j != i) k_ij u . h_j / sum_(j != i) k_ij``, with ``h = [z, r]``.

    ``k_ij = exp(-1/2 sum_f ((z_if - z_jf) / b_f)^2)``, with a learned bandwidth ``b_f = exp(beta_f)`` per
    characteristic f; a characteristic with a large bandwidth hardly affects similarity. ``r`` are the recent
    days, flattened. The kernel is symmetric, and excludes the firm itself. Nadaraya (1964), "On estimating
    regression"; Watson (1964), "Smooth regression analysis".

    As attention: ``log k_ij = q_i . q_j - |q_j|^2 / 2`` with ``q = z / b``, up to the term ``|q_i|^2 / 2``,
    which is the same for all peers of i.
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = {**FIT_SPACE, "bandwidth": Range(0.3, 3.0, log=True)}
    over = "peers"

    def __init__(self, config: KernelRegressionConfig, shape: Shape) -> None:
        super().__init__()
        width = shape.n_characteristics + self.read_recent(config.recent_days, shape)
        self.start = config.bandwidth * shape.n_characteristics**0.25
        # divided by LOGIT_GAIN, so that the common learning rate suits; a vector, so weight decay does not
        # apply
        self.log_bandwidth_F = nn.Parameter(torch.zeros(shape.n_characteristics))
        self.own = zero_linear(width, 1)
        self.peers = nn.Parameter(torch.zeros(1, width))

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the weighted mean of the peers' values."""
        scaled_BNF = batch.z_BNF / self.bandwidths()
        half_BN1 = -0.5 * scaled_BNF.square().sum(-1, keepdim=True)
        q_B1ND = torch.cat((scaled_BNF, torch.ones_like(half_BN1)), dim=-1)[:, None]
        k_B1ND = torch.cat((scaled_BNF, half_BN1), dim=-1)[:, None]
        value_B1N1 = F.linear(h_BND, self.peers)[:, None]
        keep_B1NN = peer_keys(batch, ablation).mask()[..., :-1]  # no null key: kernel weights sum to 1
        if self.probe is None:
            message_B1N1 = attention(q_B1ND, k_B1ND, value_B1N1, keep=keep_B1NN, scale=1.0)
        else:
            weights_B1NN = attention_weights(q_B1ND, k_B1ND, keep=keep_B1NN, scale=1.0)
            message_B1N1 = self.weigh(weights_B1NN, keep_B1NN) @ value_B1N1
        return self.scaled((self.own(h_BND) + message_B1N1[:, 0])[..., 0], batch)

    def bandwidths(self) -> Tensor:
        """Bandwidths [F], in standard deviations of the rank-normal characteristics."""
        bandwidth_F: Tensor = self.start * torch.exp(LOGIT_GAIN * self.log_bandwidth_F)
        return bandwidth_F
