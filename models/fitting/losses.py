"""Losses over a batch of dates: the mean over dates of a loss within the date.

Cells outside the universe and unknown (NaN) targets do not count, nor do dates in which nothing is known. A
step that goes through the model in parts weighs each by its dates that count (`dates_that_count`).

Legend: B dates, N firms, Q quantiles, K horizons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from models.batch import Batch
from models.forecaster import Forecaster
from models.quantiles import pinball

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _mean_over_cells_then_dates(cell_BN: Tensor, known_BN: Tensor) -> Tensor:
    count_B = known_BN.sum(dim=1)
    date_B = torch.where(known_BN, cell_BN, 0.0).sum(dim=1) / count_B.clamp(min=1)
    return date_B.sum() / (count_B > 0).sum().clamp(min=1)


def mse(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Squared error, ``(y - target)^2``, over the cells where ``known_BN`` is True."""
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


def pairwise(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Logistic rank loss: mean of ``log(1 + exp(-(y_i - y_j)))`` over a date's pairs, target_i > target_j.

    ``y_i - y_j`` is the log odds that i will beat j, so forecasts order firms and are not in the
    target's unit.  Ties do not count, nor do dates without a pair.  Takes [B, N, N] numbers: a date of
    1,000 firms is a million pairs, 4 MB in float32.  Burges et al. (2005), "Learning to rank using
    gradient descent" (RankNet).
    """
    target_BN = torch.where(known_BN, target_BN, 0.0)
    pair_BNN = known_BN[:, :, None] & known_BN[:, None, :] & (target_BN[:, :, None] > target_BN[:, None, :])
    cell_BNN = F.softplus(forecast_BN[:, None, :] - forecast_BN[:, :, None])
    return _mean_over_cells_then_dates(cell_BNN.flatten(1), pair_BNN.flatten(1))


LOSSES: dict[str, Loss] = {"mse": mse, "huber": huber, "ic": ic, "pairwise": pairwise}
"""Losses of a forecast alone; ``quantile`` needs `models.quantiles.QuantileHead` as well."""

SCALE_FREE = frozenset({"ic", "pairwise"})
"""Losses that compare firms only: a multiple of the forecasts, or their sum with a constant, is as good."""

QUANTILE = "quantile"


def quantile(quantile_BNQ: Tensor, target_BN: Tensor, known_BN: Tensor, levels: Sequence[float]) -> Tensor:
    """Pinball score over the levels; see :func:`models.quantiles.pinball`."""
    cell_BN = pinball(quantile_BNQ, torch.where(known_BN, target_BN, 0.0), levels)
    return _mean_over_cells_then_dates(cell_BN, known_BN)


def label_loss(module: Forecaster, loss: str, y_BN: Tensor, batch: Batch, known_BN: Tensor) -> Tensor:
    """Loss of a model's forecasts of the label, in units of the label's standard deviation.

    Parameters
    ----------
    module
        The model; with a quantile head, the loss is the pinball score of its quantiles.
    loss
        A key of `LOSSES`, used without a quantile head.
    y_BN
        Forecasts in the target's unit.
    batch
        The batch that was forecast.
    known_BN
        bool, the cells that count.
    """
    scale = module.target_scale
    if module.quantile_head is not None:
        q_BNQ = module.quantiles_around(y_BN, batch) / scale
        return quantile(q_BNQ, batch.y_BN / scale, known_BN, module.quantile_head.levels)
    return LOSSES[loss](y_BN / scale, batch.y_BN / scale, known_BN)


def dates_that_count(loss: str, target_BNK: Tensor, known_BN: Tensor) -> Tensor:
    """Which dates count in the loss of each horizon, bool [..., B, K]: those with a known cell or pair.

    Parameters
    ----------
    loss
        A key of `LOSSES`, or `QUANTILE`.
    target_BNK
        Targets of the horizons, the label's last, [..., B, N, K].
    known_BN
        bool, the cells whose label counts, [..., B, N].
    """
    known_BNK = known_BN[..., None] & target_BNK.isfinite()
    if loss != "pairwise":
        return known_BNK.any(dim=-2)
    highest_BK = torch.where(known_BNK, target_BNK, -torch.inf).amax(dim=-2)
    return highest_BK > torch.where(known_BNK, target_BNK, torch.inf).amin(dim=-2)


def horizons_loss(  # noqa: PLR0917  # a loss, its inputs and its weight
    module: Forecaster,
    loss: str,
    y_BNK: Tensor,
    batch: Batch,
    known_BN: Tensor,
    share_K: Sequence[float] | Tensor = (1.0,),
) -> Tensor:
    """Mean of :func:`label_loss` and the losses of the shorter horizons, in units of the label's deviation.

    ``y_BNK`` holds the forecasts of all horizons, the label's last. Shorter horizons use the same loss as
    the label, or ``mse`` where that is the quantile loss. ``share_K`` is the share of each horizon's dates
    that are in this part of a step, as numbers or as a tensor; one number if it is the same for all.
    """
    same = not isinstance(share_K, Tensor) and len(set(share_K)) == 1
    total, K = label_loss(module, loss, y_BNK[..., -1], batch, known_BN), y_BNK.shape[-1]
    if K == 1:
        return total * share_K[-1]
    total = total if same else total * share_K[-1]
    assert batch.path_BNK is not None, "a model has no more horizons than its panel"
    scale, measure = module.target_scale, LOSSES.get(loss, LOSSES["mse"])
    for k, (y_BN, target_BN) in enumerate(zip(y_BNK.unbind(-1), batch.path_BNK.unbind(-1), strict=False)):
        one = measure(y_BN / scale, target_BN / scale, known_BN & target_BN.isfinite())
        total = total + (one if same else one * share_K[k])
    return total / K * share_K[-1] if same else total / K
