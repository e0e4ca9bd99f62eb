"""Games of a single forecast over its own days or its peers, three ways to remove them, and their gradients.

Legend: N firms of a date, W window length, P units, M coalitions, K background draws, D model width.

Days. The units are blocks of equal length, because the attention and the effect of a block both grow with
its length. Only the days of the forecast's own firm are removed, since its attention over days speaks of
these alone. (The players of `models.explain.groups` are removed for every firm at once.)

Peers. The units are the other firms of the date. The forecast's own firm is never removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, FloatArray, IntArray
from models.batch import Ablation, Batch
from models.explain.gradients import path_contributions
from models.explain.players import repeat_batch
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


@dataclass(frozen=True, slots=True, eq=False)
class Background:
    """What replaces removed information: K draws for every firm of a date.

    Attributes
    ----------
    x_KNWC, z_KNF
        Windows and characteristics.
    """

    x_KNWC: Tensor
    z_KNF: Tensor


def equal_blocks(window: int, most: int) -> tuple[IntArray, ...]:
    """Split the last days of a window into at most ``most`` blocks of equal length, newest first.

    A block holds positions in the window. The oldest days are in no block, and never removed, if the length
    does not divide the window.
    """
    length = -(-window // most)
    ends = range(window, window % length, -length)
    return tuple(np.arange(end - length, end) for end in ends)


def drawn(donors: Donors, batch: Batch, draws: int) -> Background:
    """Take the first draws of some donors."""
    none_F = np.zeros(batch.z_BNF.shape[2], dtype=np.bool_)
    z_KNF = np.stack([donors.characteristics(none_F, k) for k in range(draws)])
    return Background(
        torch.stack([donors.windows(k) for k in range(draws)]),
        torch.as_tensor(z_KNF, device=batch.m_BN.device),
    )


def day_game(
    module: Forecaster,
    batch: Batch,
    target: int,
    blocks: tuple[IntArray, ...],
    background: Background | None = None,
) -> UnitGame:
    """Build the game of a firm's own days.

    Parameters
    ----------
    module
        The model, in eval mode.
    batch
        One date.
    target
        Position of the firm in the batch.
    blocks
        Positions of the days of each unit, as :func:`equal_blocks` gives them.
    background
        Days that replace the removed ones, averaged over the draws. None masks the removed days as keys.
    """
    own = _one_firm(batch, target)
    unit_W = np.full(batch.x_BNWC.shape[2], -1)
    for p, days in enumerate(blocks):
        unit_W[days] = p
    with torch.inference_mode():
        others_1ND = module.embed(batch) if module.uses_peers else None
    draws = 1 if background is None else len(background.x_KNWC)
    cells = batch.m_BN.shape[1] ** 2 if others_1ND is not None else own.x_BNWC[0].numel()
    step = max(1, _CELLS // (cells * draws))

    def embedded(keep_MW: Tensor) -> Tensor:
        """Tokens [M * K, 1, D] of the firm."""
        if background is None:
            repeated = repeat_batch(own, len(keep_MW))
            return module.embed(repeated, Ablation(days_keep_BW=keep_MW))
        x_MKWC = torch.where(
            keep_MW[:, None, :, None], own.x_BNWC[0], background.x_KNWC[:, target].to(own.x_BNWC.dtype)
        )
        repeated = repeat_batch(own, len(keep_MW) * draws)
        return module.embed(replace(repeated, x_BNWC=x_MKWC.flatten(0, 1)[:, None]))

    def play(keep_MP: BoolArray) -> FloatArray:
        keep_MW = np.where(unit_W >= 0, keep_MP[:, unit_W], True)
        outputs = []
        with torch.inference_mode():
            for part_MW in torch.split(torch.as_tensor(keep_MW, device=batch.m_BN.device), step):
                h_B1D = embedded(part_MW)
                if others_1ND is None:
                    y_B = module.mix(h_B1D, repeat_batch(own, len(h_B1D)))[:, 0]
                else:
                    h_BND = others_1ND.repeat(len(h_B1D), 1, 1)
                    h_BND[:, target] = h_B1D[:, 0]
                    y_B = module.mix(h_BND, repeat_batch(batch, len(h_B1D)))[:, target]
                outputs.append(y_B.double().reshape(len(part_MW), draws).mean(dim=1).cpu().numpy())
        return np.concatenate(outputs)

    return play


def peer_game(
    module: Forecaster, batch: Batch, target: int, background: Background | None = None
) -> UnitGame:
    """Build the game of a firm's peers; unit p is firm p of the date, and the target is always kept.

    Without a background, the keys of removed peers are masked. With one, the windows and characteristics of
    removed peers are replaced, while they stay members of their groups.
    """
    n_firms = batch.m_BN.shape[1]
    draws = 1 if background is None else len(background.x_KNWC)
    step = max(1, _CELLS // (n_firms * max(n_firms, batch.x_BNWC[0, 0].numel()) * draws))
    with torch.inference_mode():
        h_1ND = module.embed(batch)
        replaced = None if background is None else _replaced(batch, background)
        other_KND = None if replaced is None else module.embed(replaced)

    def play(keep_MP: BoolArray) -> FloatArray:
        keep_MN = torch.as_tensor(keep_MP, device=batch.m_BN.device).clone()
        keep_MN[:, target] = True
        outputs = []
        with torch.inference_mode():
            for part_MN in torch.split(keep_MN, step):
                repeated = repeat_batch(batch, len(part_MN) * draws)
                if replaced is None or other_KND is None:
                    h_BND = h_1ND.expand(len(part_MN), -1, -1)
                    y_BN = module.mix(h_BND, repeated, Ablation(peers_keep_BN=part_MN))
                else:
                    keep_MKN1 = part_MN[:, None, :, None].expand(-1, draws, -1, 1)
                    mixed = replace(
                        repeated,
                        x_BNWC=_choose(keep_MKN1[..., None], batch.x_BNWC, replaced.x_BNWC),
                        z_BNF=_choose(keep_MKN1, batch.z_BNF, replaced.z_BNF),
                    )
                    y_BN = module.mix(_choose(keep_MKN1, h_1ND, other_KND), mixed)
                y_M = y_BN[:, target].double().reshape(len(part_MN), draws).mean(dim=1)
                outputs.append(y_M.cpu().numpy())
        return np.concatenate(outputs)

    return play


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
        Where the paths begin; the mean over its draws is returned.

    Returns
    -------
    ndarray
        [W], one value per day of the window, oldest first, or [N], one per firm, 0 for the target; in the
        unit of the forecast.
    """
    moves_N1 = torch.zeros_like(batch.m_BN[0][:, None])
    moves_N1[target] = True
    own_tokens = over == "days" and module.uses_peers

    def forecast(moved: Batch) -> Tensor:
        if not own_tokens:
            return module(moved)  # type: ignore[no-any-return]
        # the own token alone: recent days that are sent to other firms are not the encoder's
        h_BND = torch.where(moves_N1, module.embed(moved), module.embed(batch))
        return module.mix(h_BND, repeat_batch(batch, len(moved.x_BNWC)))

    values = []
    for x_NWC, z_NF in zip(background.x_KNWC, background.z_KNF, strict=True):
        moving_N1 = moves_N1 if over == "days" else ~moves_N1
        start = replace(
            batch,
            x_BNWC=torch.where(moving_N1[..., None], x_NWC, batch.x_BNWC),
            z_BNF=batch.z_BNF if over == "days" else torch.where(moving_N1, z_NF, batch.z_BNF),
        )
        x_NWC_value, z_NF_value = (
            cells[0] for cells in path_contributions(forecast, start, batch, np.array([target]), STEPS)
        )
        values.append(
            x_NWC_value[target].sum(axis=-1)
            if over == "days"
            else x_NWC_value.sum(axis=(1, 2)) + z_NF_value.sum(axis=1)
        )
    return np.asarray(np.mean(values, axis=0))


def _choose(keep: Tensor, own: Tensor, other_K: Tensor) -> Tensor:
    """Own values where kept, those of each draw elsewhere: [M * K, N, ...]."""
    return torch.where(keep, own, other_K).flatten(0, 1)


def _replaced(batch: Batch, background: Background) -> Batch:
    repeated = repeat_batch(batch, len(background.x_KNWC))
    return replace(repeated, x_BNWC=background.x_KNWC, z_BNF=background.z_KNF)


def _one_firm(batch: Batch, target: int) -> Batch:
    one = slice(target, target + 1)
    return Batch(
        x_BNWC=batch.x_BNWC[:, one],
        z_BNF=batch.z_BNF[:, one],
        m_BN=batch.m_BN[:, one],
        s_BN=batch.s_BN[:, one],
        y_BN=batch.y_BN[:, one],
        firms_N=batch.firms_N[one],
        key_BN=None if batch.key_BN is None else batch.key_BN[:, one],
    )
