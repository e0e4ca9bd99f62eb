"""Forecasts under uniform and under permuted attention, and models with shuffled parameters.

Legend: D dates, N firms of a date, E forecasts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.attention.probe import Probe, Site, permuted, probing, uniform
from models.batch import Ablation, Batch, PanelTensors
from models.explain.faithful.unit_games import Over
from models.forecaster import Forecaster

_SITES = {"days": ("days", "memory", "pooling"), "peers": ("peers",)}


@dataclass(frozen=True, slots=True, eq=False)
class Intervened:
    """Forecasts of D dates with and without their attention weights."""

    session_D: IntArray  # session of each date
    # rank IC with the target: of the forecasts, under uniform and under permuted attention. NaN where the
    # targets are unknown
    ic_D: FloatArray
    ic_uniform_D: FloatArray
    ic_permuted_D: FloatArray
    # mean ``|forecast - forecast under the intervention|``, in the unit of the forecast
    moved_uniform_D: FloatArray
    moved_permuted_D: FloatArray
    # mean ``|forecast - forecast without any day in the day encoder (or any peer)|``
    moved_removed_D: FloatArray


def intervene(
    module: Forecaster, data: PanelTensors, sessions: IntArray, over: Over, seed: int
) -> Intervened:
    """Forecast some dates with uniform, with permuted and without attention over days or over peers.

    Parameters
    ----------
    sessions
        Session indices; each must have a firm in the universe.
    over
        Whose weights are replaced; all other weights stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for session in sessions:
        batch = data.batch(torch.tensor([int(session)]))
        plain = _forecast(module, batch)
        even = under(module, batch, only(over, uniform))
        mixed = under(module, batch, only(over, permuted(generator)))
        gone = _without(module, batch, over)
        y_N = batch.y_BN[0].double().cpu().numpy()
        ics = rank_ic_by_date(np.stack([plain, even, mixed]), np.broadcast_to(y_N, (3, len(y_N))))
        rows.append([*ics, *(float(np.abs(plain - other).mean()) for other in (even, mixed, gone))])
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return Intervened(np.asarray(sessions, dtype=np.int64), *table.T)


def under(module: Forecaster, batch: Batch, probe: Probe) -> FloatArray:
    """Forecasts [N] of one date with the weights that a probe returns."""
    with probing(module, probe):
        return _forecast(module, batch)


def only(over: Over, probe: Probe) -> Probe:
    """Restrict a probe to the weights over days or over peers."""

    def restricted(site: Site, weights: Tensor, keep: Tensor | None) -> Tensor:
        return probe(site, weights, keep) if site.over in _SITES[over] else weights

    return restricted


def _without(module: Forecaster, batch: Batch, over: Over) -> FloatArray:
    """Forecasts [N] without any day in the day encoder, or without any peer."""
    with torch.inference_mode():
        if over == "days":
            none_1W = torch.zeros_like(batch.x_BNWC[:, 0, :, 0], dtype=torch.bool)
            y_BN = module.mix(module.embed(batch, Ablation(days_keep_BW=none_1W)), batch)
        else:
            y_BN = module(batch, Ablation(peers_keep_BN=torch.zeros_like(batch.m_BN)))
        return y_BN[0].double().cpu().numpy()


def shuffled(module: Forecaster, seed: int) -> Forecaster:
    """Copy a model and shuffle the values within each of its parameters.

    Adebayo et al. (2018), "Sanity checks for saliency maps", randomise parameters: an explanation that stays
    the same does not depend on what was learned. Values are shuffled rather than drawn anew, because several
    layers start at 0 here, and a model that starts there forecasts a constant.
    """
    changed = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return changed.eval()


def _forecast(module: Forecaster, batch: Batch) -> FloatArray:
    with torch.inference_mode():
        return module(batch)[0].double().cpu().numpy()  # type: ignore[no-any-return]
