"""The information coefficients of `features.information_coefficient` on tensors, so that they stay on a GPU.

Legend: B dates, N firms; more dimensions may come before them.
"""

import math

import torch
from torch import Tensor

from features.information_coefficient import MIN_FIRMS


def coefficients(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Rank IC and IC of every date, float64 [2, B], by the definitions of `features.information_coefficient`.

    Cells outside of ``known`` do not enter. A forecast that is not finite counts as unknown.
    """
    known_BN = known_BN & forecast_BN.isfinite()
    target_BN = target_BN.expand_as(known_BN)
    forecast_rank_BN, target_rank_BN = (_average_ranks(x_BN, known_BN) for x_BN in (forecast_BN, target_BN))
    rank_ic_B = _correlation(forecast_rank_BN, target_rank_BN, known_BN)
    return torch.stack((rank_ic_B, _correlation(forecast_BN, target_BN, known_BN)))


def _average_ranks(x_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Ranks of the known values within each date, from 1; ties share their mean rank."""
    x_BN = x_BN.masked_fill(~known_BN, math.inf).contiguous()
    sorted_BN = x_BN.sort(dim=-1).values
    below_BN = torch.searchsorted(sorted_BN, x_BN)
    up_to_BN = torch.searchsorted(sorted_BN, x_BN, right=True)
    return 0.5 * (below_BN + up_to_BN + 1).double()


def _correlation(x_BN: Tensor, y_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Pearson correlation within each date; 0 where x is constant, NaN where y is or few are known."""
    count_B = known_BN.sum(dim=-1)

    def centred(x_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Deviations from the date's mean, and their sum of squares, exactly 0 where all values are equal."""
        x_BN = x_BN.double().masked_fill(~known_BN, 0.0)
        mean_B1 = (x_BN.sum(dim=-1) / count_B.clamp(min=1))[..., None]
        deviation_BN = (x_BN - mean_B1).masked_fill(~known_BN, 0.0)
        high_B = x_BN.masked_fill(~known_BN, -math.inf).amax(dim=-1)
        varies_B = high_B > x_BN.masked_fill(~known_BN, math.inf).amin(dim=-1)
        return deviation_BN, torch.where(varies_B, deviation_BN.square().sum(dim=-1), 0.0)

    (x_BN, x_B), (y_BN, y_B) = centred(x_BN), centred(y_BN)
    size_B = x_B.sqrt() * y_B.sqrt()
    out_B = torch.where(size_B > 0, (x_BN * y_BN).sum(dim=-1) / size_B, 0.0).clamp(-1.0, 1.0)
    return torch.where((count_B >= MIN_FIRMS) & (y_B > 0), out_B, math.nan)
