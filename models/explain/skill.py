"""Shapley values of a model's skill: which group of inputs carries the rank IC.

The game of a date pays the skill of its forecasts when only a coalition of players takes part: the rank
correlation of forecasts and targets over firms, 0 if all forecasts are equal. The mean of the values over
test dates divides the model's skill among its inputs. This is SAGE (Covert, Lundberg and Lee 2020,
"Understanding global feature contributions with additive importance measures"), with dates in place of single
predictions. A forecast without some inputs is the mean over several replacements of these inputs, before its
skill is measured: the skill of a mean of forecasts is not the mean of their skills.

The values evaluate a model. They need the targets of the dates, so they must not choose inputs or models on
dates that are then used as a test.

Legend: N firms of a date, P players, D dates, M coalitions, K replacements, E firms with a known target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.batch import Batch, PanelTensors
from models.explain.date_game import group_game
from models.explain.groups import GroupGameConfig
from models.explain.players import Explainable, Player, Unwrapped, check_families, find_players, unwrap
from models.explain.removal import Replacement, replacement, training_cells
from models.explain.shapley import Game, fixed, sample

MIN_FIRMS = 3
"""Fewest firms with a known target on a date: two have a rank correlation of 1 or -1 whatever happens."""


REPLACEMENTS = 4
"""Replacements that a forecast without some inputs is averaged over."""


@dataclass(frozen=True, slots=True, eq=False)
class SkillAttribution:
    """Shapley values of the skill on D dates."""

    players: tuple[Player, ...]  # P players
    # session index of each date; dates with fewer than `MIN_FIRMS` known targets are left out
    sessions_D: IntArray
    # value of each player on each date. Values and base add up to the skill of the date
    values_DP: FloatArray
    base_D: FloatArray  # skill without any player
    skill_D: FloatArray  # skill of the complete model


def explain_skill(
    model: Explainable,
    data: PanelTensors,
    sessions: IntArray,
    families: Mapping[str, Sequence[int]],
    config: GroupGameConfig | None = None,
    *,
    train: IntArray | None = None,
    replacements: int = REPLACEMENTS,
) -> SkillAttribution:
    """Compute Shapley values of a model's skill on some sessions; all firms of a date are scored.

    Parameters
    ----------
    model, data, families, train
        As for :func:`models.explain.groups.explain_groups`; the panel has targets.
    sessions
        Session indices that the model was not trained on; each must have a firm in the universe.
    config
        Permutations (1 by default: their noise averages out over dates, and the standard error over dates
        contains it), players, removal and seed.
    replacements
        K, the number of replacements that a forecast without some inputs is averaged over.

    Raises
    ------
    ValueError
        If ``sessions`` is empty, families overlap or omit columns, or the removal needs training sessions.
    """
    config = GroupGameConfig(permutations=1) if config is None else config
    if len(sessions) == 0:
        raise ValueError("sessions is empty; give at least one session with a firm in the universe.")
    check_families(families, data.shape.n_characteristics)
    first = data.batch(torch.tensor([int(sessions[0])]))
    players = find_players(unwrap(model), first, families, config.players)
    cells = None if train is None else training_cells(data, train, seed=config.seed)
    kept, values, bases, skills = [], [], [], []
    for session in sessions.tolist():
        date_seed = int(np.random.default_rng((config.seed, session)).integers(2**32))
        batch = data.batch(torch.tensor([session]))
        background = replacement(config.removal, batch, cells, date_seed)
        game = _skill_game(unwrap(model), batch, players, background, np.arange(replacements))
        if game is None:
            continue
        found = sample(fixed(game), len(players), config.sampling, seed=date_seed).values()
        kept.append(session)
        values.append(found.values_PO[:, 0])
        bases.append(float(found.base_O[0]))
        skills.append(float(game(np.ones((1, len(players)), dtype=np.bool_))[0, 0]))
    return SkillAttribution(
        players=players,
        sessions_D=np.asarray(kept, dtype=np.int64),
        values_DP=np.asarray(values, dtype=np.float64).reshape(-1, len(players)),
        base_D=np.asarray(bases, dtype=np.float64),
        skill_D=np.asarray(skills, dtype=np.float64),
    )


def _skill_game(
    model: Unwrapped, batch: Batch, players: tuple[Player, ...], background: Replacement, draw_K: IntArray
) -> Game | None:
    """Game that pays the skill of a date, [M, 1]; None if too few targets are known."""
    y_N = batch.y_BN[0].double().cpu().numpy()
    known_E = np.flatnonzero(np.isfinite(y_N))
    if len(known_E) < MIN_FIRMS:
        return None
    forecasts = group_game(model, batch, players, known_E, background)

    def payoff(keep_MP: BoolArray) -> FloatArray:
        every_ME = forecasts(np.repeat(keep_MP, len(draw_K), axis=0), np.tile(draw_K, len(keep_MP)))
        mean_ME = every_ME.reshape(len(keep_MP), len(draw_K), -1).mean(axis=1)
        ic_M = rank_ic_by_date(mean_ME, np.repeat(y_N[None, known_E], len(mean_ME), axis=0))
        return np.nan_to_num(ic_M)[:, None]  # equal forecasts rank nothing

    return payoff
