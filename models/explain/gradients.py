"""Integrated and expected gradients: attributions along the straight path from other inputs.

A path leads from the inputs of donors to the inputs of a date, for all firms at the same time. The
contribution of an input cell is its change times the mean gradient of the forecast along the path. Cells
are summed over players. If peers are players, windows and characteristics are the firm's own cells, and a
peer has all cells of its firm. Otherwise they are the cells of all firms. In the games of the other engines a
block of days is removed for all firms and peers are masked, so the values of the two kinds of engines are
comparable, but they are not equal.

Legend: N firms, W window length, C channels, F characteristics, P players, E explained forecasts, R draws,
K points of a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from models.batch import Batch
from models.explain.players import Player, peer_members, repeat_batch
from models.explain.removal import Replacement
from models.explain.shapley import ShapleyValues

Differentiable = Callable[[Batch], Tensor]
"""Maps a batch [B] to forecasts [B, N] through which gradients flow."""


@dataclass(frozen=True, slots=True)
class GradientConfig:
    """Options of :func:`gradient_values`.

    Attributes
    ----------
    method
        ``integrated`` (Sundararajan et al. 2017): every path is integrated by Gauss-Legendre quadrature.
        ``expected`` (Erion et al. 2021): one random point of every path.
    draws
        Number of paths, each from other donors.
    points
        Points of a path of integrated gradients.
    """

    method: Literal["integrated", "expected"] = "integrated"
    draws: int = 8
    points: int = 16

    def __post_init__(self) -> None:
        if self.draws < 1 or self.points < 1:
            raise ValueError(f"draws is {self.draws} and points {self.points}; both must be at least 1.")


@dataclass(frozen=True, slots=True, eq=False)
class GradientValues:
    """Attributions by gradients.

    Attributes
    ----------
    values
        Values and standard errors over the draws. The base is the mean forecast from the donors' inputs.
    delta_E
        Convergence delta, ``base + sum of values - forecast``. For integrated gradients it is the error of
        the quadrature; for expected gradients it is noise with standard error ``values.gap_error_O``.
    """

    values: ShapleyValues
    delta_E: FloatArray


def gradient_values(
    forecast: Differentiable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    background: Replacement,
    *,
    seed: int,
    config: GradientConfig | None = None,
) -> GradientValues:
    """Attribute forecasts of one date to players by gradients.

    Parameters
    ----------
    forecast
        The model.
    batch
        One date.
    players
        P players; market tokens have no inputs and are refused.
    sample_E
        Positions of the explained firms.
    background
        Where the paths begin: donors of the same date, or of the training fold.
    seed
        Seed of the random points.
    config
        Options.

    Raises
    ------
    ValueError
        If a player is a market token.
    """
    config = GradientConfig() if config is None else config
    if any(player.kind == "market" for player in players):
        raise ValueError("A market token has no inputs to differentiate; use the permutation engine.")
    none_F, device = np.zeros(batch.z_BNF.shape[2], dtype=np.bool_), batch.m_BN.device
    values, gaps, bases = [], [], []
    with torch.no_grad():
        forecast_E = _of(forecast(batch), sample_E)[0]
    for draw in range(config.draws):
        x_NWC = background.windows(draw)
        z_NF = torch.as_tensor(background.characteristics(none_F, draw), device=device)
        start = replace(batch, x_BNWC=x_NWC[None], z_BNF=z_NF[None])
        with torch.no_grad():
            base_E = _of(forecast(start), sample_E)[0]
        points = _points(config, np.random.default_rng((seed, 2, draw)))
        cells = _along(forecast, start, batch, sample_E, points)
        value_PE = np.stack([_player(player, players, batch, sample_E, cells) for player in players])
        values.append(value_PE)
        bases.append(base_E)
        gaps.append(base_E + value_PE.sum(axis=0) - forecast_E)
    values_RPE, gap_RE, base_E = np.stack(values), np.stack(gaps), np.mean(bases, axis=0)
    root = np.sqrt(config.draws)
    many = config.draws > 1
    error_PE = values_RPE.std(axis=0, ddof=1) / root if many else np.full_like(values[0], np.inf)
    gap_error_E = gap_RE.std(axis=0, ddof=1) / root if many else np.full_like(base_E, np.inf)
    shapley = ShapleyValues(values_RPE.mean(axis=0), base_E, error_PE, max(1, config.draws - 1), gap_error_E)
    return GradientValues(shapley, gap_RE.mean(axis=0))


def path_contributions(
    forecast: Differentiable, start: Batch, end: Batch, sample_E: IntArray, points: int
) -> tuple[FloatArray, FloatArray]:
    """Integrated gradients of all cells of windows, [E, N, W, C], and of characteristics, [E, N, F].

    Parameters
    ----------
    forecast
        The model.
    start, end
        One date each: the ends of the path, of which windows and characteristics differ.
    sample_E
        Positions of the explained firms.
    points
        Points of the quadrature.
    """
    return _along(forecast, start, end, sample_E, _quadrature(points))


def _points(config: GradientConfig, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Places on the path between 0 and 1, and their weights."""
    return (rng.random(1), np.ones(1)) if config.method == "expected" else _quadrature(config.points)


def _quadrature(points: int) -> tuple[FloatArray, FloatArray]:
    node_K, weight_K = np.polynomial.legendre.leggauss(points)
    return (node_K + 1.0) / 2.0, weight_K / 2.0


def _along(
    forecast: Differentiable,
    start: Batch,
    end: Batch,
    sample_E: IntArray,
    points: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    place_K, weight_K = points
    place_B = torch.as_tensor(place_K, dtype=end.z_BNF.dtype, device=end.z_BNF.device)
    x_BNWC = (start.x_BNWC + place_B[:, None, None, None] * (end.x_BNWC - start.x_BNWC)).requires_grad_()
    z_BNF = (start.z_BNF + place_B[:, None, None] * (end.z_BNF - start.z_BNF)).requires_grad_()
    along = replace(repeat_batch(end, len(place_K)), x_BNWC=x_BNWC, z_BNF=z_BNF)
    y_BN = forecast(along)
    weight_B = torch.as_tensor(weight_K, dtype=y_BN.dtype, device=y_BN.device)
    of_windows, of_characteristics = [], []
    for firm in sample_E.tolist():
        slope_x, slope_z = torch.autograd.grad(
            y_BN[:, firm] @ weight_B, (x_BNWC, z_BNF), retain_graph=True, allow_unused=True
        )
        change_x = (end.x_BNWC - start.x_BNWC)[0]
        change_z = (end.z_BNF - start.z_BNF)[0]
        of_windows.append(torch.zeros_like(change_x) if slope_x is None else slope_x.sum(dim=0) * change_x)
        of_characteristics.append(
            torch.zeros_like(change_z) if slope_z is None else slope_z.sum(dim=0) * change_z
        )
    return (
        torch.stack(of_windows).double().cpu().numpy(),
        torch.stack(of_characteristics).double().cpu().numpy(),
    )


def _player(
    player: Player,
    players: tuple[Player, ...],
    batch: Batch,
    sample_E: IntArray,
    cells: tuple[FloatArray, FloatArray],
) -> FloatArray:
    """Sum the contributions of a player's cells, [E]."""
    x_ENWC, z_ENF = cells
    of_firm_EN: FloatArray
    window, at = x_ENWC.shape[2], np.arange(len(sample_E))
    if player.kind in ("peers", "sector", "firm"):
        member_EN = np.tile(peer_members(player, batch).cpu().numpy(), (len(sample_E), 1))
        member_EN[at, sample_E] = False
        of_peers_EN = (x_ENWC.sum(axis=(2, 3)) + z_ENF.sum(axis=2)) * member_EN
        return np.asarray(of_peers_EN.sum(axis=1))
    if player.kind == "family":
        of_firm_EN = z_ENF[:, :, list(player.members)].sum(axis=2)
    elif player.kind == "days":
        of_firm_EN = x_ENWC[:, :, [window - day for day in player.members]].sum(axis=(2, 3))
    else:
        of_firm_EN = x_ENWC[:, :, :, list(player.members)].sum(axis=(2, 3))
    own = any(other.kind in ("peers", "sector", "firm") for other in players)
    return of_firm_EN[at, sample_E] if own else of_firm_EN.sum(axis=1)


def _of(y_BN: Tensor, sample_E: IntArray) -> FloatArray:
    y_BE: FloatArray = y_BN[:, torch.as_tensor(sample_E, device=y_BN.device)].double().cpu().numpy()
    return y_BE
