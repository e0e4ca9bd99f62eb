"""Games of a single forecast over its own days or its peers, its gradients, and other weights at inference.

Legend: N firms of a date, W window length, P units, M coalitions, K background draws, D model width.

Days. The units are blocks of equal length, because the attention and the effect of a block both grow with
its length. Only the days of the forecast's own firm are removed, since its attention over days speaks of
these alone. (The players of `models.explain.groups` are removed for every firm at once.)

Peers. The units are the other firms of the date. The forecast's own firm is never removed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
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


def unit_game(  # noqa: PLR0917  (a forecast, its units, and what replaces them)
    over: Over,
    module: Forecaster,
    batch: Batch,
    target: int,
    units: tuple[IntArray, ...],
    background: Batch | None = None,
) -> UnitGame:
    """Build the game of one firm's forecast over its own days, or over its peers.

    Removed units get the data of the background, averaged over its draws; without one they are masked as
    keys. What is in no unit is always kept. Peers whose data are replaced stay members of their groups.

    Parameters
    ----------
    batch, target
        One date, and the position of the firm in it.
    units
        Positions in the window, or of firms, of each unit.
    """
    draws = 1 if background is None else len(background.x_BNWC)
    make = _without_days if over == "days" else _without_peers
    forecast, cells = make(module, batch, target, background, draws)
    unit_X = np.full(batch.x_BNWC.shape[2 if over == "days" else 1], -1)
    for p, members in enumerate(units):
        unit_X[members] = p

    def play(keep_MP: BoolArray) -> FloatArray:
        keep_MX = torch.as_tensor(np.where(unit_X >= 0, keep_MP[:, unit_X], True), device=batch.m_BN.device)
        outputs = []
        with torch.inference_mode():
            for part_MX in torch.split(keep_MX, max(1, _CELLS // (cells * draws))):
                y_MK = forecast(part_MX).double().reshape(len(part_MX), draws)
                outputs.append(y_MK.mean(dim=1).cpu().numpy())
        return np.concatenate(outputs)

    return play


Masked = tuple[Callable[[Tensor], Tensor], int]
"""Forecasts [M K] of coalitions of days or firms [M, X], and the size of one forward pass."""


def _without_days(
    module: Forecaster, batch: Batch, target: int, background: Batch | None, draws: int
) -> Masked:
    own = replace(
        each_tensor(batch, lambda tensor: tensor[:, target : target + 1]),
        firms_N=batch.firms_N[target : target + 1],
    )
    with torch.inference_mode():
        others_1ND = module.embed(batch) if module.uses_peers else None

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

    return forecast, batch.m_BN.shape[1] ** 2 if others_1ND is not None else own.x_BNWC[0].numel()


def _without_peers(
    module: Forecaster, batch: Batch, target: int, background: Batch | None, draws: int
) -> Masked:
    n_firms = batch.m_BN.shape[1]
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

    return forecast, n_firms * max(n_firms, batch.x_BNWC[0, 0].numel())


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


CHANGED = ("uniform", "permuted")
"""Weights at inference in place of those as trained."""
_SITES = {"days": ("days", "memory", "pooling"), "peers": ("peers",)}


@dataclass(frozen=True, slots=True, eq=False)
class Intervened:
    """Forecasts of D dates with and without their attention weights."""

    session_D: IntArray
    # rank IC with the target ``as trained`` and under ``uniform`` and ``permuted`` attention; NaN where the
    # targets are unknown
    ic: Mapping[str, FloatArray]
    # mean ``|forecast - other forecast|`` [D] in the unit of the forecast: under ``uniform`` and ``permuted``
    # attention, and with everything ``removed`` (no day in the day encoder, or no peer)
    moved: Mapping[str, FloatArray]


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
    ics, moves = [], []
    for session in sessions:
        batch = data.batch(torch.tensor([int(session)]))
        plain_N = _forecast(module, batch)
        even_N = under(module, batch, only(over, uniform))
        mixed_N = under(module, batch, only(over, permuted(generator)))
        y_N = batch.y_BN[0].double().cpu().numpy()
        ics.append(rank_ic_by_date(np.stack([plain_N, even_N, mixed_N]), np.tile(y_N, (3, 1))))
        others = (even_N, mixed_N, _without(module, batch, over))
        moves.append([float(np.abs(plain_N - other_N).mean()) for other_N in others])
    ic, moved = (
        dict(zip(names, np.array(rows, dtype=np.float64).reshape(-1, 3).T, strict=True))
        for names, rows in ((("as trained", *CHANGED), ics), ((*CHANGED, "removed"), moves))
    )
    return Intervened(np.asarray(sessions, dtype=np.int64), ic, moved)


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
