"""Losses over a batch of dates: the mean over dates of a loss within the date.

Cells outside the universe and unknown (NaN) targets do not count, nor do dates in which nothing is known. A
step that goes through the model in parts weighs each by its dates that count (`dates_that_count`).

`sharpe` and `net_utility` read the network's outputs as the weights of a portfolio. Their target is the
return that the portfolio earns, not the label after its transform.

Legend: B dates, N firms, Q quantiles, K horizons, P pairs of consecutive dates.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from models.batch import Batch
from models.fitting.config import NET_UTILITY, PORTFOLIO, FitConfig
from models.forecaster import Forecaster
from models.quantiles import pinball

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _mean_over_cells_then_dates(cell_BN: Tensor, known_BN: Tensor) -> Tensor:
    count_B = known_BN.sum(dim=1)
    date_B = torch.where(known_BN, cell_BN, 0.0).sum(dim=1) / count_B.clamp(min=1)
    return date_B.sum() / (count_B > 0).sum().clamp(min=1)


def _mean_over_dates(date_B: Tensor, known_BN: Tensor) -> Tensor:
    counted_B = known_BN.any(dim=1)
    return torch.where(counted_B, date_B, 0.0).sum() / counted_B.sum().clamp(min=1)


def _centred(value_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Deviations from the date's mean over the known cells; 0 elsewhere."""
    count_B1 = known_BN.sum(dim=1, keepdim=True).clamp(min=1)
    value_BN = torch.where(known_BN, value_BN, 0.0)
    return torch.where(known_BN, value_BN - value_BN.sum(dim=1, keepdim=True) / count_B1, 0.0)


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
    y_BN, target_BN = _centred(forecast_BN, known_BN), _centred(target_BN, known_BN)
    covariance_B = (y_BN * target_BN).sum(dim=1)
    # the small constant keeps the gradient finite where a model still forecasts a constant
    norm_B = (y_BN.square().sum(dim=1) + 1e-8).sqrt() * (target_BN.square().sum(dim=1) + 1e-8).sqrt()
    return _mean_over_dates(1.0 - covariance_B / norm_B, known_BN)


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


def sharpe(forecast_BN: Tensor, return_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Maximum Sharpe ratio regression: ``(1 - sum_i w_i r_i)^2`` with ``w_i = (y_i - y_bar) / sqrt(n)``.

    The weights of the n known firms sum to 0. Regressing a constant 1 on returns finds the direction of
    Markowitz's portfolio, ``S^-1 mu``: the mean over dates is lowest where the portfolio has the highest
    ratio of mean to standard deviation, at a leverage that the loss fixes as well. With returns in units of
    their standard deviation s, as in :func:`label_loss`, outputs of size 1 are a portfolio whose return is
    of size 1 if firms are uncorrelated, whatever n is; in fractions of wealth the weights are ``w / s``.

    Britten-Jones (1999), "The sampling error in estimates of mean-variance efficient portfolio weights";
    Kelly, Kuznetsov, Malamud and Xu (2025), "Artificial intelligence asset pricing models".

    Examples
    --------
    >>> known = torch.ones((1, 4), dtype=torch.bool)
    >>> y = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    >>> float(sharpe(y, 0.5 * y, known)), float(sharpe(y + 3.0, -0.5 * y, known))
    (0.0, 4.0)
    """
    root_B = known_BN.sum(dim=1).clamp(min=1).to(forecast_BN.dtype).sqrt()
    earned_B = (_centred(forecast_BN, known_BN) * torch.where(known_BN, return_BN, 0.0)).sum(dim=1) / root_B
    return _mean_over_dates((1.0 - earned_B).square(), known_BN)


GROSS = 2.0
"""Gross exposure of the book of :func:`net_utility`: 1 long and 1 short, as long-short books have."""

_FLAT = 1e-6  # sum of absolute deviations below which a network has no weights yet
_RUIN = 0.1  # share of the wealth that a book keeps at least, so that its drifted weights stay finite


def net_utility(  # noqa: PLR0917  (a book, what it earns and what it pays)
    forecast_BN: Tensor,
    return_BN: Tensor,
    known_BN: Tensor,
    firms_BN: Tensor,
    risk_aversion: float,
    cost: float,
) -> Tensor:
    """Minus the mean-variance utility of a book after what its turnover costs, mean over the dates.

    ``U_t = w_t' r_t - (g / 2) (w_t' r_t)^2 - c sum_i |w_ti - d_ti|``, with the weights ``w_ti = 2 (y_ti -
    y_bar_t) / sum_j |y_tj - y_bar_t|`` over the known firms: 1 long and 1 short, whatever the scale of the
    outputs. They are those of the book ``forecast_weights``. ``d_ti = w_(t-1)i (1 + r_(t-1)i) / (1 + w_(t-1)'
    r_(t-1))`` is what the book of the date before has become; a firm without a place at t is sold. The first
    date pays nothing, because the book before it is not known, nor does a date next to one without a known
    return.

    Parameters
    ----------
    forecast_BN
        Outputs of the network on consecutive sessions.
    return_BN
        Returns of one session, as fractions, of what is bought at each date and sold at the next.
    known_BN
        bool, the cells that count.
    firms_BN
        int64, the firm in each place, no firm twice on a date.
    risk_aversion
        g.
    cost
        c, per unit of turnover, as a fraction.

    Examples
    --------
    The long position and the wealth double, so the short one has to be doubled: a turnover of one half.

    >>> y, r = torch.tensor([[1.0, -1.0]]).expand(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> known, firms = torch.ones((2, 2), dtype=torch.bool), torch.tensor([[0, 1], [0, 1]])
    >>> float(net_utility(y, r, known, firms, risk_aversion=0.0, cost=0.0))
    -0.5
    >>> float(net_utility(y, r, known, firms, risk_aversion=0.0, cost=1.0))
    -0.25
    """
    w_BN = _centred(forecast_BN, known_BN)
    w_BN = GROSS * w_BN / w_BN.abs().sum(dim=1, keepdim=True).clamp(min=_FLAT)
    r_BN = torch.where(known_BN, return_BN, 0.0)
    earned_B = (w_BN * r_BN).sum(dim=1)
    drifted_BN = w_BN * (1.0 + r_BN) / (1.0 + earned_B).clamp(min=_RUIN)[:, None]
    # the place that each firm had on the date before, found without a shape that depends on values
    before_PN, held_PN = firms_BN[:-1], drifted_BN[:-1]
    order_PN = before_PN.argsort(dim=1)
    at_PN = torch.searchsorted(before_PN.gather(1, order_PN), firms_BN[1:].contiguous())
    place_PN = order_PN.gather(1, at_PN.clamp(max=firms_BN.shape[1] - 1))
    stays_PN = before_PN.gather(1, place_PN) == firms_BN[1:]
    kept_PN = torch.where(stays_PN, held_PN.gather(1, place_PN), 0.0)
    sold_P = held_PN.abs().sum(dim=1) - kept_PN.abs().sum(dim=1)
    traded_P = (w_BN[1:] - kept_PN).abs().sum(dim=1) + sold_P
    counted_B = known_BN.any(dim=1)
    traded_B = F.pad(torch.where(counted_B[1:] & counted_B[:-1], traded_P, 0.0), (1, 0))
    utility_B = earned_B - 0.5 * risk_aversion * earned_B.square() - cost * traded_B
    return -_mean_over_dates(utility_B, known_BN)


LOSSES: dict[str, Loss] = {"mse": mse, "huber": huber, "ic": ic, "pairwise": pairwise, "sharpe": sharpe}
"""Losses of outputs and targets alone. ``quantile`` needs `models.quantiles.QuantileHead` as well, and
``net_utility`` the firms in the places and its options."""

SCALE_FREE = frozenset({"ic", "pairwise"}) | PORTFOLIO
"""Losses whose outputs are not in the target's unit. They compare the firms of a date: the sum of the
outputs with a constant is as good, and for all but ``sharpe`` a multiple of them."""

QUANTILE = "quantile"


def quantile(quantile_BNQ: Tensor, target_BN: Tensor, known_BN: Tensor, levels: Sequence[float]) -> Tensor:
    """Pinball score over the levels; see :func:`models.quantiles.pinball`."""
    cell_BN = pinball(quantile_BNQ, torch.where(known_BN, target_BN, 0.0), levels)
    return _mean_over_cells_then_dates(cell_BN, known_BN)


def label_loss(module: Forecaster, config: FitConfig, y_BN: Tensor, batch: Batch, known_BN: Tensor) -> Tensor:
    """Loss of a model's forecasts of the label, in units of the label's standard deviation.

    That of a portfolio is in units of the standard deviation of returns. ``y`` is in the target's unit; of a
    model with a quantile head, the loss is the pinball score of its quantiles, whatever the config's loss is.
    """
    scale = module.target_scale
    if module.quantile_head is not None:
        q_BNQ = module.quantiles_around(y_BN, batch) / scale
        return quantile(q_BNQ, batch.y_BN / scale, known_BN, module.quantile_head.levels)
    loss = config.loss
    if loss not in PORTFOLIO:
        return LOSSES[loss](y_BN / scale, batch.y_BN / scale, known_BN)
    r_BN, of_returns = batch.y_BN if batch.r_BN is None else batch.r_BN, module.return_scale
    if loss != NET_UTILITY:
        return LOSSES[loss](y_BN / scale, r_BN / of_returns, known_BN)
    terms = batch.firms_N.expand_as(r_BN), config.risk_aversion, 1e-4 * config.turnover_cost_bps
    return net_utility(y_BN / scale, r_BN, known_BN, *terms) / of_returns


def dates_that_count(loss: str, target_BNK: Tensor, known_BN: Tensor) -> Tensor:
    """Which dates count in the loss of each horizon, bool [..., B, K]: those with a known cell or pair.

    Targets are [..., B, N, K], the label's last; ``known`` cells have a label that counts, bool [..., B, N].
    """
    known_BNK = known_BN[..., None] & target_BNK.isfinite()
    if loss != "pairwise":
        return known_BNK.any(dim=-2)
    highest_BK = torch.where(known_BNK, target_BNK, -torch.inf).amax(dim=-2)
    return highest_BK > torch.where(known_BNK, target_BNK, torch.inf).amin(dim=-2)


def horizons_loss(  # noqa: PLR0917  # a loss, its inputs and its weight
    module: Forecaster,
    config: FitConfig,
    y_BNK: Tensor,
    batch: Batch,
    known_BN: Tensor,
    share_K: Sequence[float] | Tensor = (1.0,),
) -> Tensor:
    """Mean of :func:`label_loss` and the losses of the shorter horizons, in units of the label's deviation.

    ``y_BNK`` holds the forecasts of all horizons, the label's last. Shorter horizons use the same loss as
    the label, or ``mse`` where that is the quantile loss or a portfolio's. ``share_K`` is the share of each
    horizon's dates that are in this part of a step, as numbers or as a tensor; one number if it is the same
    for all. For forecasts [M, B, N, K] of M members, this is the mean of their losses.
    """
    if y_BNK.ndim > known_BN.ndim + 1:
        losses = [horizons_loss(module, config, one, batch, known_BN, share_K) for one in y_BNK]
        return torch.stack(losses).mean()
    same = not isinstance(share_K, Tensor) and len(set(share_K)) == 1
    total, K = label_loss(module, config, y_BNK[..., -1], batch, known_BN), y_BNK.shape[-1]
    if K == 1:
        return total * share_K[-1]
    total = total if same else total * share_K[-1]
    assert batch.path_BNK is not None, "a model has no more horizons than its panel"
    scale, loss = module.target_scale, config.loss
    measure = mse if loss in PORTFOLIO else LOSSES.get(loss, mse)
    for k, (y_BN, target_BN) in enumerate(zip(y_BNK.unbind(-1), batch.path_BNK.unbind(-1), strict=False)):
        one = measure(y_BN / scale, target_BN / scale, known_BN & target_BN.isfinite())
        total = total + (one if same else one * share_K[k])
    return total / K * share_K[-1] if same else total / K
