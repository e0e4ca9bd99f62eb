"""Games of a single forecast over its own days or its peers, its gradients, and other weights at inference.

Legend: N firms of a date, W window length, P units, M coalitions, K background draws, D model width.

Days. The units are blocks of equal length, because the attention and the effect of a block both grow with
its length. Only the days of the forecast's own firm are removed, since its attention over days speaks of
these alone. (The players of `models.explain.groups` are removed for every firm at once.)

Peers. The units are the other firms of the date. The forecast's own firm is never removed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.attention.probe import Probe, Site, permuted, probing, uniform
from models.batch import Ablation, Batch, PanelTensors
from models.explain.gradients import path_contributions
from models.explain.players import each_tensor, repeat_batch
from models.explain.removal import Donors
from models.forecaster import Forecaster

Over = Literal["days", "peers"]
UnitRemoval = Literal["mask", "date", "train"]
REMOVALS: dict[UnitRemoval, str] = {
    "mask": "the keys of removed units are masked",
    "date": "removed units get the data of another firm of the same date",
    "train": "removed units get the data of a random firm and session of the training fold",
}
"""What becomes of removed units; the last two as in `models.explain.removal`."""

UnitGame = Callable[[BoolArray], FloatArray]
"""Maps coalitions [M, P], True for units that are kept, to the forecast [M]."""

STEPS = 8
"""Points of a path of integrated gradients."""

_CELLS = 400_000  # numbers of the windows, or pairs of firms, per forward pass


def equal_blocks(window: int, most: int) -> tuple[IntArray, ...]:
    """Split the last days of a window into at most ``most`` blocks of equal length, newest first.

    A block holds positions in the window. The oldest days are in no block, and never removed, if the length
    does not divide the window.
    """
    length = -(-window // most)
    ends = range(window, window % length, -length)
    return tuple(np.arange(end - length, end) for end in ends)


def drawn(donors: Donors, batch: Batch, draws: int) -> Batch:
    """What replaces removed information: the first K draws of some donors, as K dates."""
    none_F = np.zeros(batch.z_BNF.shape[2], dtype=np.bool_)
    z_KNF = np.stack([donors.characteristics(none_F, k) for k in range(draws)])
    return replace(
        repeat_batch(batch, draws),
        x_BNWC=torch.stack([donors.windows(k) for k in range(draws)]),
        z_BNF=torch.as_tensor(z_KNF, device=batch.m_BN.device),
    )


def day_game(
    module: Forecaster,
    batch: Batch,
    target: int,
    blocks: tuple[IntArray, ...],
    background: Batch | None = None,
) -> UnitGame:
    """Build the game of a firm's own days, whose units are the blocks of :func:`equal_blocks`.

    Removed days get those of the background, averaged over its draws; without one they are masked as keys.
    ``target`` is the position of the firm in the batch of one date.
    """
    own = replace(
        each_tensor(batch, lambda tensor: tensor[:, target : target + 1]),
        firms_N=batch.firms_N[target : target + 1],
    )
    unit_W = np.full(batch.x_BNWC.shape[2], -1)
    for p, days in enumerate(blocks):
        unit_W[days] = p
    with torch.inference_mode():
        others_1ND = module.embed(batch) if module.uses_peers else None
    draws = 1 if background is None else len(background.x_BNWC)
    cells = batch.m_BN.shape[1] ** 2 if others_1ND is not None else own.x_BNWC[0].numel()

    def forecast(keep_MW: Tensor) -> Tensor:
        if background is None:
            ablation = Ablation(days_keep_BW=keep_MW)
            h_B1D = module.embed(repeat_batch(own, len(keep_MW)), ablation)
        else:
            other_KWC = background.x_BNWC[:, target].to(own.x_BNWC.dtype)
            x_MKWC = torch.where(keep_MW[:, None, :, None], own.x_BNWC[0], other_KWC)
            repeated = repeat_batch(own, len(keep_MW) * draws)
            h_B1D = module.embed(replace(repeated, x_BNWC=x_MKWC.flatten(0, 1)[:, None]))
        if others_1ND is None:
            return module.mix(h_B1D, repeat_batch(own, len(h_B1D)))[:, 0]
        h_BND = others_1ND.repeat(len(h_B1D), 1, 1)
        h_BND[:, target] = h_B1D[:, 0]
        return module.mix(h_BND, repeat_batch(batch, len(h_B1D)))[:, target]

    def play(keep_MP: BoolArray) -> FloatArray:
        keep_MW = np.where(unit_W >= 0, keep_MP[:, unit_W], True)
        return _in_parts(forecast, torch.as_tensor(keep_MW, device=batch.m_BN.device), cells, draws)

    return play


def peer_game(module: Forecaster, batch: Batch, target: int, background: Batch | None = None) -> UnitGame:
    """Build the game of a firm's peers; unit p is firm p of the date, and the target is always kept.

    Without a background, the keys of removed peers are masked. With one, the windows and characteristics of
    removed peers are replaced, while they stay members of their groups.
    """
    n_firms = batch.m_BN.shape[1]
    draws = 1 if background is None else len(background.x_BNWC)
    cells = n_firms * max(n_firms, batch.x_BNWC[0, 0].numel())
    with torch.inference_mode():
        h_1ND = module.embed(batch)
        other_KND = h_1ND if background is None else module.embed(background)

    def forecast(keep_MN: Tensor) -> Tensor:
        repeated = repeat_batch(batch, len(keep_MN) * draws)
        if background is None:
            h_BND = h_1ND.expand(len(keep_MN), -1, -1)
            return module.mix(h_BND, repeated, Ablation(peers_keep_BN=keep_MN))[:, target]
        keep_MKN1 = keep_MN[:, None, :, None].expand(-1, draws, -1, 1)
        mixed = replace(
            repeated,
            x_BNWC=torch.where(keep_MKN1[..., None], batch.x_BNWC, background.x_BNWC).flatten(0, 1),
            z_BNF=torch.where(keep_MKN1, batch.z_BNF, background.z_BNF).flatten(0, 1),
        )
        return module.mix(torch.where(keep_MKN1, h_1ND, other_KND).flatten(0, 1), mixed)[:, target]

    def play(keep_MP: BoolArray) -> FloatArray:
        keep_MN = torch.as_tensor(keep_MP, device=batch.m_BN.device).clone()
        keep_MN[:, target] = True
        return _in_parts(forecast, keep_MN, cells, draws)

    return play


def _in_parts(forecast: Callable[[Tensor], Tensor], keep_MX: Tensor, cells: int, draws: int) -> FloatArray:
    """Forecasts [M] of some coalitions, as means over the draws; a few coalitions per forward pass."""
    outputs = []
    with torch.inference_mode():
        for part_MX in torch.split(keep_MX, max(1, _CELLS // (cells * draws))):
            outputs.append(forecast(part_MX).double().reshape(len(part_MX), draws).mean(dim=1).cpu().numpy())
    return np.concatenate(outputs)


def integrated_gradients(
    module: Forecaster, batch: Batch, target: int, over: Over, background: Batch
) -> FloatArray:
    """Integrate the gradient of a forecast from a background to the data; the mean over its draws.

    Over ``days``, the paths are of the own window, and every other input stays. Over ``peers``, they are
    of the windows and characteristics of all other firms.

    Returns
    -------
    ndarray
        [W], one value per day of the window, oldest first, or [N], one per firm, 0 for the target; in the
        unit of the forecast.
    """
    moves_N1 = torch.zeros_like(batch.m_BN[0][:, None])
    moves_N1[target] = True
    own_tokens = over == "days" and module.uses_peers
    moving_N1 = moves_N1 if over == "days" else ~moves_N1

    def forecast(moved: Batch) -> Tensor:
        if not own_tokens:
            return module(moved)  # type: ignore[no-any-return]
        # the own token alone: recent days that are sent to other firms are not the encoder's
        h_BND = torch.where(moves_N1, module.embed(moved), module.embed(batch))
        return module.mix(h_BND, repeat_batch(batch, len(moved.x_BNWC)))

    values = []
    for x_NWC, z_NF in zip(background.x_BNWC, background.z_BNF, strict=True):
        start = replace(
            batch,
            x_BNWC=torch.where(moving_N1[..., None], x_NWC, batch.x_BNWC),
            z_BNF=batch.z_BNF if over == "days" else torch.where(moving_N1, z_NF, batch.z_BNF),
        )
        of_x_1NWC, of_z_1NF = path_contributions(forecast, start, batch, np.array([target]), STEPS)
        values.append(
            of_x_1NWC[0, target].sum(axis=-1)
            if over == "days"
            else of_x_1NWC[0].sum(axis=(1, 2)) + of_z_1NF[0].sum(axis=1)
        )
    return np.asarray(np.mean(values, axis=0))


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
