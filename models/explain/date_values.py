"""Shapley values of the forecasts of one date, by any engine.

Legend: N firms of a date, F characteristics, P players, E explained forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from features.arrays import IntArray
from models.baselines.lightgbm import LightGBM
from models.baselines.ridge import Ridge
from models.batch import Batch
from models.explain.date_game import group_game
from models.explain.engines.closed_forms import Background, Trees, columns_of, linear_values, tree_values
from models.explain.engines.engine import OnRound, Precision, SamplerState, sample
from models.explain.engines.gradients import Differentiable, GradientConfig, gradient_values
from models.explain.engines.samplers import SAMPLERS
from models.explain.game import ShapleyValues
from models.explain.players import Explainable, Player, unwrap
from models.explain.removal import Removal, TrainingCells, replacement
from models.forecaster import Forecaster

ENGINES = (*SAMPLERS, "linear", "tree", "integrated_gradients", "expected_gradients")
"""Names of all engines."""


@dataclass(frozen=True, slots=True)
class Method:
    """How the values of a date are computed.

    Attributes
    ----------
    engine
        One of `ENGINES`.
    removal
        What replaces absent characteristics and channels. Closed forms and gradients do not draw given what
        is kept.
    precision
        When sampling stops. Gradients take its ``draws``; closed forms need none.
    seed
        Seed of the draws.
    """

    engine: str
    removal: Removal
    precision: Precision
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class DateValues:
    """Values of a date's forecasts.

    Attributes
    ----------
    values
        The values and their errors.
    reached
        Whether the precision was reached.
    state
        Draws of a sampling engine, from which :func:`date_values` can continue; None for other engines.
    """

    values: ShapleyValues
    reached: bool
    state: SamplerState | None = None


def date_values(
    model: Explainable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    method: Method,
    *,
    cells: TrainingCells | None,
    state: SamplerState | None = None,
    on_round: OnRound | None = None,
) -> DateValues:
    """Compute the values of some forecasts of a date.

    Parameters
    ----------
    model
        A fitted model, a neural module in eval mode, or a function of a one-date batch.
    batch
        One date.
    players
        P players.
    sample_E
        Positions of the explained firms.
    method
        How to compute the values.
    cells
        Cells of the training fold; None for removal ``date``.
    state
        Draws of an earlier call with the same arguments, which are continued.
    on_round
        Called after each round of a sampling engine.

    Raises
    ------
    ValueError
        If the engine does not suit the model, the players or the removal.
    """
    if method.engine in SAMPLERS:
        background = replacement(method.removal, batch, cells, method.seed)
        game = group_game(unwrap(model), batch, players, sample_E, background)
        sampled = sample(
            game,
            len(players),
            SAMPLERS[method.engine],
            method.precision,
            seed=method.seed,
            state=state,
            on_round=on_round,
        )
        return DateValues(sampled.values, sampled.reached, sampled.state)
    if method.removal == "conditional":
        raise ValueError(
            f"Engine {method.engine} does not draw given what is kept; use removal date or train, or the "
            "permutation engine."
        )
    if method.engine in ("linear", "tree"):
        return DateValues(_closed_form(model, batch, players, sample_E, method, cells=cells), True)
    found = gradient_values(
        differentiable(model),
        batch,
        players,
        sample_E,
        replacement(method.removal, batch, cells, method.seed),
        seed=method.seed,
        config=GradientConfig(
            "integrated" if method.engine == "integrated_gradients" else "expected", method.precision.draws
        ),
    )
    asked = method.precision.standard_error
    return DateValues(found.values, asked is None or bool(found.values.error_PO.max() <= asked))


def differentiable(model: Explainable) -> Differentiable:
    """Return the forecasts of a neural model or of ridge as a function with gradients.

    Raises
    ------
    ValueError
        If the model has no gradients.
    """
    inner, baseline = unwrap(model), getattr(model, "baseline", None)
    if isinstance(inner, Forecaster):
        return inner
    if not isinstance(baseline, Ridge):
        raise ValueError("The model has no gradients; use the permutation engine.")
    coefficient_F, intercept = torch.as_tensor(baseline.coefficient_F), baseline.intercept

    def linear(batch: Batch) -> Tensor:
        return batch.z_BNF.double() @ coefficient_F.to(batch.z_BNF.device) + intercept

    return linear


def _closed_form(
    model: Explainable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    method: Method,
    *,
    cells: TrainingCells | None,
) -> ShapleyValues:
    baseline = getattr(model, "baseline", None)
    columns_P = columns_of(tuple((player.kind, player.members) for player in players), method.engine)
    z_NF = batch.z_BNF[0].double().cpu().numpy()
    if method.removal == "date":
        background = Background(z_NF, with_firms=True)
    elif cells is not None:
        background = Background(cells.z_SF.astype(np.float64), with_firms=False)
    else:
        raise ValueError(f"Removal {method.removal} draws from the training fold; give its sessions.")
    if method.engine == "linear" and isinstance(baseline, Ridge):
        return linear_values(
            baseline.coefficient_F, baseline.intercept, z_NF[sample_E], background, columns_P
        )
    if method.engine == "tree" and isinstance(baseline, LightGBM):
        return tree_values(Trees(*baseline.trees()), z_NF[sample_E], background, columns_P)
    needed = "ridge" if method.engine == "linear" else "lightgbm"
    raise ValueError(f"Engine {method.engine} explains {needed} only; use the permutation engine.")
