"""Integrated gradients of one forecast with respect to its own days, or to its peers.

Legend: N firms of a date, W window length, K background draws, S steps of the path.

``IG_u = mean_k sum_(v in u) (v - v'_k) integral_0^1 df/dv(v'_k + a (v - v'_k)) da``, over the inputs v of a
unit u, from the background v'_k to the data; the integral is the mean at the middles of S steps.
Sundararajan, Taly and Yan (2017), "Axiomatic attribution for deep networks"; with several backgrounds, Erion
et al. (2021), "Improving performance of deep learning models with axiomatic attribution priors and expected
gradients".
"""

from __future__ import annotations

from dataclasses import replace

import torch

from features.arrays import FloatArray
from models.batch import Batch
from models.explain.faithful.removal import Background, Over
from models.explain.players import repeat_batch
from models.forecaster import Forecaster

STEPS = 8


def integrated_gradients(
    module: Forecaster, batch: Batch, target: int, over: Over, background: Background
) -> FloatArray:
    """Integrate the gradient of a forecast from a background to the data.

    Parameters
    ----------
    module
        The model, in eval mode.
    batch
        One date.
    target
        Position of the firm in the batch.
    over
        ``days``: the paths of the firm's own window; every other input stays. ``peers``: the paths of the
        windows and characteristics of all other firms.
    background
        Where the paths begin.

    Returns
    -------
    ndarray
        [W], one value per day of the window, oldest first, or [N], one per firm, 0 for the target; in the
        unit of the forecast.
    """
    x_1NWC, z_1NF = batch.x_BNWC, batch.z_BNF
    draws = len(background.x_KNWC)
    middle_S = (torch.arange(STEPS, device=x_1NWC.device) + 0.5) / STEPS
    path_B = middle_S.repeat(draws)
    moves_N = torch.zeros(x_1NWC.shape[1], dtype=torch.bool, device=x_1NWC.device)
    moves_N[target] = True
    if over == "peers":
        moves_N = ~moves_N
    gap_x_KNWC = (x_1NWC - background.x_KNWC) * moves_N[:, None, None]
    gap_z_KNF = (z_1NF - background.z_KNF) * (moves_N[:, None] if over == "peers" else 0.0)
    gap_x = gap_x_KNWC.repeat_interleave(STEPS, dim=0)
    gap_z = gap_z_KNF.repeat_interleave(STEPS, dim=0)
    with torch.enable_grad():
        x_BNWC = (x_1NWC - (1.0 - path_B[:, None, None, None]) * gap_x).requires_grad_()
        z_BNF = (z_1NF - (1.0 - path_B[:, None, None]) * gap_z).requires_grad_()
        moved = replace(repeat_batch(batch, len(path_B)), x_BNWC=x_BNWC, z_BNF=z_BNF)
        if over == "days" and module.uses_peers:
            # the own token alone: recent days that are sent to other firms are not the encoder's
            own_BN1 = torch.zeros_like(moved.m_BN[..., None])
            own_BN1[:, target] = True
            h_BND = torch.where(own_BN1, module.embed(moved), module.embed(batch))
            y_BN = module.mix(h_BND, repeat_batch(batch, len(path_B)))
        else:
            y_BN = module(moved)
        slope_x, slope_z = torch.autograd.grad(y_BN[:, target].sum(), (x_BNWC, z_BNF), allow_unused=True)
    zero_x, zero_z = torch.zeros_like(gap_x), torch.zeros_like(gap_z)
    part_x = gap_x * (zero_x if slope_x is None else slope_x)
    part_z = gap_z * (zero_z if slope_z is None else slope_z)
    if over == "days":
        value = part_x.sum(dim=-1)[:, target].mean(dim=0)
    else:
        value = (part_x.sum(dim=(-2, -1)) + part_z.sum(dim=-1)).mean(dim=0)
    return value.detach().double().cpu().numpy()
