"""Integrated gradients: attributions along the straight path from other inputs (Sundararajan et al. 2017).

A path leads from the inputs of donors to the inputs of a date, for all firms at the same time. The
contribution of an input cell is its change times the mean gradient of the forecast along the path. Cells are
summed over players. If peers are players, windows and characteristics are the firm's own cells, and a peer
has all cells of its firm. Otherwise they are the cells of all firms. In the game of coalitions a block of
days is removed for all firms and peers are masked, so the values of the two are comparable, but they are not
equal.

Legend: N firms, W window length, C channels, F characteristics, P players, E explained forecasts, R draws,
K points of a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from models.batch import Batch
from models.explain.players import PEER_KINDS, Player, peer_members, repeat_batch
from models.explain.removal import Donors
from models.explain.shapley import ShapleyValues

Differentiable = Callable[[Batch], Tensor]
"""Maps a batch [B] to forecasts [B, N] through which gradients flow."""

POINTS = 16  # points of a path


def gradient_values(
    forecast: Differentiable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    background: Donors,
    *,
    draws: int = 8,
    points: int = POINTS,
) -> ShapleyValues:
    """Attribute forecasts of one date to players by integrated gradients.

    R paths (``draws``) begin at other donors of the background each, with K points of a Gauss-Legendre
    quadrature. The values are means over the draws with their standard errors, which are infinite for a
    single draw. The base is the mean forecast from the donors' inputs; ``base + sum of values - forecast`` is
    the error of the quadrature.

    Raises ValueError if a player is a market token, which has no inputs.
    """
    if any(player.kind == "market" for player in players):
        raise ValueError("A market token has no inputs to differentiate; use the permutation engine.")
    none_F, device = np.zeros(batch.z_BNF.shape[2], dtype=np.bool_), batch.m_BN.device
    values, bases = [], []
    for draw in range(draws):
        z_NF = torch.as_tensor(background.characteristics(none_F, draw), device=device)
        start = replace(batch, x_BNWC=background.windows(draw)[None], z_BNF=z_NF[None])
        with torch.no_grad():
            base_BN = forecast(start)
        bases.append(base_BN[0].double().cpu().numpy()[sample_E])
        cells = path_contributions(forecast, start, batch, sample_E, points)
        values.append(np.stack([_player(player, players, batch, sample_E, cells) for player in players]))
    value_RPE = np.stack(values)
    spread_PE = value_RPE.std(axis=0, ddof=1) if draws > 1 else np.full_like(values[0], np.inf)
    return ShapleyValues(value_RPE.mean(axis=0), np.mean(bases, axis=0), spread_PE / np.sqrt(draws))


def path_contributions(
    forecast: Differentiable, start: Batch, end: Batch, sample_E: IntArray, points: int
) -> tuple[FloatArray, FloatArray]:
    """Integrated gradients of all cells of windows, [E, N, W, C], and of characteristics, [E, N, F].

    ``start`` and ``end`` are one date each: the ends of the path, whose windows and characteristics differ.
    """
    node_K, weight_K = np.polynomial.legendre.leggauss(points)
    place_B = torch.as_tensor((node_K + 1.0) / 2.0, dtype=end.z_BNF.dtype, device=end.z_BNF.device)
    change_x, change_z = end.x_BNWC - start.x_BNWC, end.z_BNF - start.z_BNF
    x_BNWC = (start.x_BNWC + place_B[:, None, None, None] * change_x).requires_grad_()
    z_BNF = (start.z_BNF + place_B[:, None, None] * change_z).requires_grad_()
    y_BN = forecast(replace(repeat_batch(end, points), x_BNWC=x_BNWC, z_BNF=z_BNF))
    weight_B = torch.as_tensor(weight_K / 2.0, dtype=y_BN.dtype, device=y_BN.device)
    found: list[list[Tensor]] = []
    for firm in sample_E.tolist():
        slopes = torch.autograd.grad(
            y_BN[:, firm] @ weight_B, (x_BNWC, z_BNF), retain_graph=True, allow_unused=True
        )
        found.append(
            [
                torch.zeros_like(change[0]) if slope is None else slope.sum(dim=0) * change[0]
                for slope, change in zip(slopes, (change_x, change_z), strict=True)
            ]
        )
    of_windows, of_characteristics = (torch.stack(cells) for cells in zip(*found, strict=True))
    return of_windows.double().cpu().numpy(), of_characteristics.double().cpu().numpy()


def _player(
    player: Player,
    players: tuple[Player, ...],
    batch: Batch,
    sample_E: IntArray,
    cells: tuple[FloatArray, FloatArray],
) -> FloatArray:
    """Sum the contributions of a player's cells, [E]."""
    x_ENWC, z_ENF = cells
    at = np.arange(len(sample_E))
    if player.kind in PEER_KINDS:
        member_EN = np.tile(peer_members(player, batch).cpu().numpy(), (len(sample_E), 1))
        member_EN[at, sample_E] = False
        return np.asarray(((x_ENWC.sum(axis=(2, 3)) + z_ENF.sum(axis=2)) * member_EN).sum(axis=1))
    of_firm_EN: FloatArray
    if player.kind == "family":
        of_firm_EN = z_ENF[:, :, list(player.members)].sum(axis=2)
    else:
        of_firm_EN = x_ENWC[:, :, [x_ENWC.shape[2] - day for day in player.members]].sum(axis=(2, 3))
    own = any(other.kind in PEER_KINDS for other in players)
    return of_firm_EN[at, sample_E] if own else of_firm_EN.sum(axis=1)
