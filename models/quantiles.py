"""Quantiles of the target around a forecast, and their pinball score.

Legend: B dates, N firms, F characteristics, Q quantiles.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from models.attention.layers import linear

MEDIAN = 0.5


def require_levels(levels: Sequence[float]) -> None:
    """Raise ValueError unless the levels increase within (0, 1) and include the median."""
    increasing = all(a < b for a, b in pairwise(levels))
    if len(levels) < 2 or not increasing or not 0.0 < levels[0] < levels[-1] < 1.0 or MEDIAN not in levels:
        raise ValueError(
            f"quantiles is {tuple(levels)}; give at least two increasing levels in (0, 1), including 0.5, "
            "because the forecast is the median."
        )


class QuantileHead(nn.Module):
    """Q quantiles that cannot cross: positive steps away from the forecast, which is the median.

    ``q_m = y`` for the index m of the median, ``q_(k+1) = q_k + s_k`` above it and ``q_(k-1) = q_k -
    s_(k-1)`` below it, with ``s_k = softplus(b_k + a_k . z)``. The steps depend on the firm's F
    characteristics, such as its volatility, and are in standard deviations of the training target. They are
    initialised, without a random draw, to the quantiles of a standard normal around the forecast. ``levels``
    are Q increasing ones in (0, 1), including 0.5.

    Koenker and Bassett (1978), "Regression quantiles". Positive steps prevent crossing, as in Gasthaus et al.
    (2019), "Probabilistic forecasting with spline quantile function RNNs".
    """

    def __init__(self, levels: Sequence[float], n_characteristics: int) -> None:
        super().__init__()
        require_levels(levels)
        self.levels = tuple(levels)
        self.median = self.levels.index(MEDIAN)
        normal = [NormalDist().inv_cdf(level) for level in self.levels]
        steps = [b - a for a, b in pairwise(normal)]
        self.step_bias = nn.Parameter(torch.tensor([math.log(math.expm1(step)) for step in steps]))
        self.step_weight = nn.Parameter(torch.zeros(len(steps), n_characteristics))

    def forward(self, y_BN: Tensor, z_BNF: Tensor) -> Tensor:
        """Quantiles [B, N, Q] around forecasts, both in standard deviations of the training target."""
        step_BNS = F.softplus(linear(z_BNF, self.step_weight, self.step_bias))
        below_BNS = -step_BNS[..., : self.median].flip(-1).cumsum(-1).flip(-1)
        above_BNS = step_BNS[..., self.median :].cumsum(-1)
        around_BNQ = torch.cat((below_BNS, torch.zeros_like(y_BN)[..., None], above_BNS), dim=-1)
        return y_BN[..., None] + around_BNQ


def pinball(quantile_BNQ: Tensor, target_BN: Tensor, levels: Sequence[float]) -> Tensor:
    """Pinball score of each cell [B, N]: mean over levels of ``max(p e, (p - 1) e)``, ``e = target - q_p``.

    NaN where the target is NaN. Lower is better, and the expected score is lowest for the true quantiles (a
    proper score, Gneiting and Raftery 2007). Koenker and Bassett (1978), "Regression quantiles".
    """
    # made on the device: a copy from the host may not occur in a step that a GPU replays
    level_Q = torch.cat([quantile_BNQ.new_full((1,), level) for level in levels])
    error_BNQ = target_BN[..., None] - quantile_BNQ
    return torch.maximum(level_Q * error_BNQ, (level_Q - 1.0) * error_BNQ).mean(dim=-1)
