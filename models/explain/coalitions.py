"""Forecasts of whole tests by coalitions of players, for payoffs of all dates together, such as a book's.

A book's trades depend on the dates before, so its game is not played date by date: the forecasts of every
coalition are computed for all dates, and the caller measures what they pay. Inputs are removed as in
`models.explain.groups`, with one difference: a replacement is the same for all firms of a date. If every firm
got a donor of its own, forecasts would differ between firms by their donors, a book would trade that noise,
and its costs would be those of the noise. With one donor for all, averaged over several donors, what is left
between firms is what the kept players say. Without any input, forecasts are equal. The donors are the same
firms on every date on which they are in the universe, so that a change of donors is not traded either.

Covert, Lundberg and Lee (2020), "Understanding global feature contributions with additive importance
measures": absent inputs of all rows come from one background sample.

Legend: N firms, T sessions, P players, M coalitions, K members of an ensemble, R rows of a forward pass.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from models.batch import Batch, PanelTensors
from models.ensemble import EnsembleFitted
from models.explain.groups import REPLACEMENTS
from models.explain.players import Explainable, Player, PlayerConfig, find_players, forecast, unwrap
from models.explain.removal import Removal, group_game, replacement, training_cells

ROUNDING = 1e-6
"""Differences below this share of the standard deviation of the complete forecasts count as none."""
FLAT = 1e-4
"""And all of a date's, if the largest is below this share: those are of float32."""

OfDate = Callable[[Batch], FloatArray]  # a date's batch -> forecasts [M, N] of M coalitions


def whole_players(
    model: Explainable, data: PanelTensors, session: int, families: Mapping[str, Sequence[int]]
) -> tuple[Player, ...]:
    """List the players of a book's return: each family, all days together, all peers, market tokens."""
    batch = data.batch(torch.tensor([session]))
    return find_players(unwrap(model), batch, families, PlayerConfig(day_starts=(1,)))


def without_inputs(  # noqa: PLR0917  (a model, its players, and how they are removed)
    model: Explainable,
    players: tuple[Player, ...],
    keep_MP: BoolArray,
    block_M: IntArray,
    data: PanelTensors,
    train: IntArray,
    removal: Removal = "date",
    *,
    replacements: int = REPLACEMENTS,
    seed: int = 0,
) -> OfDate:
    """Forecasts of a date when only the players of each coalition take part.

    A forecast without some family is the mean over ``replacements`` draws; coalitions of the same block share
    them. Days and peers are masked. The training sessions ``train`` give the values of the removals ``train``
    and ``conditional``; no removal uses a session after the date.
    """
    cells = None if removal == "date" else training_cells(data, train, seed=seed)
    families = [p for p, player in enumerate(players) if player.kind == "family"]
    times_M = np.where(keep_MP[:, families].all(axis=1), 1, replacements)
    start_M = np.cumsum(times_M) - times_M
    of_R = np.repeat(np.arange(len(keep_MP)), times_M)
    draw_R = replacements * block_M[of_R] + np.arange(len(of_R)) - start_M[of_R]

    def of_date(batch: Batch) -> FloatArray:
        background = replacement(removal, batch, cells, seed, shared=True)
        game = group_game(unwrap(model), batch, players, np.arange(batch.firms_N.numel()), background)
        mean_MN: FloatArray = np.add.reduceat(game(keep_MP[of_R], draw_R), start_M) / times_M[:, None]
        return mean_MN

    return of_date


def without_members(model: EnsembleFitted, keep_MK: BoolArray) -> OfDate:
    """Forecasts of a date by some members of an ensemble: absent ones add the mean of their forecasts, 0.

    The weights stay those of the complete ensemble.
    """

    def of_date(batch: Batch) -> FloatArray:
        slopes = model.on_date(batch)[1]
        rows = [one.forecast_date(batch).astype(np.float64) for one in model.members.values()]
        part_KN = np.array(
            [slope * (row_N - row_N.mean()) for slope, row_N in zip(slopes, rows, strict=True)]
        )
        return np.asarray(keep_MK @ part_KN)

    return of_date


def over_sessions(
    of_date: OfDate, model: Explainable, data: PanelTensors, sessions: IntArray
) -> Float32Array:
    """Forecasts of M coalitions on some sessions, [M, T, N] over the panel's firms; NaN outside the universe.

    They are differences from the date's first firm over the standard deviation of the complete model's
    forecasts, in multiples of `ROUNDING`, and all 0 if the largest is below `FLAT`: forecasts that differ by
    rounding only are equal, and books share what is equal.
    """
    found: list[Float32Array] = []
    for session in sessions.tolist():
        batch = data.batch(torch.tensor([session]))
        y_MN, spread = of_date(batch), float(np.std(forecast(unwrap(model), batch, None)))
        row_MN = np.full((len(y_MN), data.mask_TN.shape[1]), np.nan, dtype=np.float32)
        steps_MN = (y_MN - y_MN[:, :1]) / spread if spread > 0 else np.zeros_like(y_MN)
        steps_MN[np.ptp(steps_MN, axis=1) < FLAT] = 0.0
        row_MN[:, batch.firms_N.cpu().numpy()] = ROUNDING * np.round(steps_MN / ROUNDING)
        found.append(row_MN)
    return np.stack(found, axis=1)
