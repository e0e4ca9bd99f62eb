"""Losses over a batch of dates: the mean over dates of a loss within the date.

Legend: B dates, N firms.  Cells outside the universe, and unknown (NaN) targets, do not count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _mean_over_cells_then_dates(cell_BN: Tensor, known_BN: Tensor) -> Tensor:
    count_B = known_BN.sum(dim=1)
    date_B = torch.where(known_BN, cell_BN, 0.0).sum(dim=1) / count_B.clamp(min=1)
    return date_B.sum() / (count_B > 0).sum().clamp(min=1)


def mse(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Squared error, ``(y - target)^2``; ``known_BN`` (bool) says which cells count."""
    error_BN = forecast_BN - torch.where(known_BN, target_BN, 0.0)
    return _mean_over_cells_then_dates(error_BN.square(), known_BN)


def huber(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Huber's loss: ``e^2 / 2`` where ``|e| <= 1``, ``|e| - 1/2`` beyond (in target standard deviations).

    Huber (1964), "Robust estimation of a location parameter".
    """
    size_BN = (forecast_BN - torch.where(known_BN, target_BN, 0.0)).abs()
    cell_BN = torch.where(size_BN <= 1.0, 0.5 * size_BN.square(), size_BN - 0.5)
    return _mean_over_cells_then_dates(cell_BN, known_BN)


def ic(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """One minus the information coefficient, Pearson's correlation within the date.

    A date with constant forecasts or targets, or fewer than two known cells, has IC 0.
    """
    count_B1 = known_BN.sum(dim=1, keepdim=True).clamp(min=1)

    def centred(value_BN: Tensor) -> Tensor:
        value_BN = torch.where(known_BN, value_BN, 0.0)
        return torch.where(known_BN, value_BN - value_BN.sum(dim=1, keepdim=True) / count_B1, 0.0)

    y_BN, target_BN = centred(forecast_BN), centred(target_BN)
    covariance_B = (y_BN * target_BN).sum(dim=1)
    # the small constant keeps the gradient finite where a model still forecasts a constant
    norm_B = (y_BN.square().sum(dim=1) + 1e-8).sqrt() * (target_BN.square().sum(dim=1) + 1e-8).sqrt()
    counted_B = known_BN.any(dim=1)
    return torch.where(counted_B, 1.0 - covariance_B / norm_B, 0.0).sum() / counted_B.sum().clamp(min=1)


def rank_mse(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Squared error against the target's rank within the date, mapped to a standard normal.

    ``target <- Phi^-1((rank - 1/2) / n)``; ties are ranked by column.  Every date and every firm counts
    alike, however wild the date: what a rank target does, whatever the label is for the other models.
    """
    order_BN = torch.where(known_BN, target_BN, torch.inf).argsort(dim=1, stable=True)
    rank_BN = torch.empty_like(order_BN).scatter(
        1, order_BN, torch.arange(order_BN.shape[1], device=order_BN.device).expand_as(order_BN)
    )
    share_BN = (rank_BN + 0.5) / known_BN.sum(dim=1, keepdim=True).clamp(min=1)
    normal_BN = torch.special.ndtri(torch.where(known_BN, share_BN, 0.5).to(forecast_BN.dtype))
    return mse(forecast_BN, normal_BN, known_BN)


def z_mse(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Squared error against the target's z-score within the date, cut off at 5.

    ``target <- clamp((target - mean) / std, -5, 5)`` over the date's known cells: every date counts alike,
    but a firm's tail counts as a tail.
    """
    count_B1 = known_BN.sum(dim=1, keepdim=True).clamp(min=1)
    target_BN = torch.where(known_BN, target_BN, 0.0)
    centred_BN = torch.where(known_BN, target_BN - target_BN.sum(dim=1, keepdim=True) / count_B1, 0.0)
    std_B1 = (centred_BN.square().sum(dim=1, keepdim=True) / count_B1).sqrt()
    z_BN = torch.where(std_B1 > 0, centred_BN / std_B1.clamp(min=1e-12), 0.0)
    return mse(forecast_BN, z_BN.clamp(-5.0, 5.0), known_BN)


LOSSES: dict[str, Loss] = {"mse": mse, "huber": huber, "ic": ic, "rank_mse": rank_mse, "z_mse": z_mse}
