"""Faithfulness of the importances of single forecasts: every method's ranking, put to the same test.

Units (days or peers) are removed, or added, in the order of an importance, the most important first. With
``f`` the forecast, ``A`` all units and ``top_k`` the k most important ones:

* deletion ``|f(A) - f(A without top_k)|`` and insertion ``|f(top_k) - f(none)|``;
* comprehensiveness, the mean of the deletion curve, and sufficiency, the mean of ``|f(A) - f(top_k)|``, both
  over k = 10%, 20% and 50% of the units (DeYoung et al. 2020, "ERASER", section 4; their 1% and 5% are less
  than one of ten days). High comprehensiveness and low sufficiency mean that the importance is faithful;
* the cumulative change ``sum_(j <= k) |f(A without top_j) - f(A without top_(j-1))|``, as a share of its
  total over all units. In the other curves a unit that raises the forecast and one that lowers it cancel,
  although both were important. Here they do not. The total differs between orders, because removed keys pass
  their weight on to those that remain; as a share, it says how early the changes come, which is what an order
  is for.

Legend: N firms of a date, W window length, P units, S steps of a curve, E forecasts, M coalitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from features.arrays import FloatArray, IntArray
from models.batch import Batch, PanelTensors
from models.explain.attention import day_importance, peer_importance
from models.explain.faithful.statistics import settled
from models.explain.faithful.unit_games import (
    REMOVALS,
    Over,
    UnitGame,
    UnitRemoval,
    drawn,
    equal_blocks,
    integrated_gradients,
    shuffled,
    unit_game,
)
from models.explain.removal import TrainingCells, donors, training_cells
from models.explain.shapley import Precision, fixed, sample
from models.forecaster import Forecaster

RANDOM = "random"
SHAP = "shap"
MIN_UNITS = 3
"""Fewest units that a ranking says anything about."""

SHARES = (0.1, 0.2, 0.5)
"""Shares of the units at which comprehensiveness and sufficiency are measured."""

SHUFFLES = 4
"""Copies of the model with shuffled parameters per date."""


@dataclass(frozen=True, slots=True)
class FaithfulConfig:
    """Options of the measures."""

    removals: tuple[UnitRemoval, ...] = tuple(REMOVALS)  # ways in which units are removed for the curves
    # antithetic permutations of each of the two independent estimates of the Shapley values of days
    permutations: int = 4
    day_units: int = 12  # largest number of blocks of days
    background: int = 4  # draws of the removals that replace information, and of integrated gradients
    random_orders: int = 3  # random orders per forecast, whose curves are averaged
    steps: int = 12  # number of steps of the curves, about
    # whether Shapley values are computed for the first copy with shuffled parameters too
    shuffled_shap: bool = True
    # how days are removed in their Shapley values. Masked days pass their weight on to the others, so a model
    # that was never trained with masks sees weights that it does not know; data of other firms keep the
    # weights
    shap_removal: UnitRemoval = "mask"
    seed: int = 0  # seed of all draws, independently for each session and firm


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Curves of one order of removal, in the unit of the forecast; the cumulative one is a share."""

    share_S: FloatArray  # share of the units that are removed or added, from 0 to 1
    deletion_S: FloatArray  # the curves of the module's description
    insertion_S: FloatArray
    cumulative_S: FloatArray
    comprehensiveness: float  # its two means
    sufficiency: float

    def area(self, curve: str) -> float:
        """Area under ``deletion``, ``insertion`` or ``cumulative``, over the share of the units."""
        return float(np.trapezoid(getattr(self, f"{curve}_S"), self.share_S))


@dataclass(frozen=True, slots=True, eq=False)
class ForecastMeasures:
    """Rankings and curves of one forecast, over its own days or its peers."""

    session: int  # the session, and the panel column of the firm
    firm: int
    # method -> importance [P] of each unit: ``shap`` (``|value|``), ``integrated_gradients``, ``attention``,
    # ``rollout``, ``gradient``; for days also ``shap_once``, one of the two estimates whose mean is ``shap``
    importance: Mapping[str, FloatArray]
    # A second estimate, independent of ``shap_once``; None for peers, whose two estimates are in
    # `models.explain.peers`
    again_P: FloatArray | None
    # the same importances [S, P] of S copies of the model with shuffled parameters; empty where not computed
    shuffled: Mapping[str, FloatArray]
    # (method, removal) -> curves; ``random`` is the mean over random orders
    curves: Mapping[tuple[str, UnitRemoval], Curves]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredModel:
    """One fitted model with what its measures need."""

    module: Forecaster  # the model, in eval mode
    data: PanelTensors  # the panel
    train: IntArray  # sessions that the model was trained on
    config: FaithfulConfig  # options
    cells: TrainingCells = field(init=False)  # A sample of the training fold

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", training_cells(self.data, self.train, seed=self.config.seed))

    def shuffles(self, session: int) -> list[Forecaster]:
        """Copies of the model with shuffled parameters, drawn for one session.

        One shuffle says little of what others would give. With other draws on every date, their variance is
        in every interval over dates.
        """
        rng = np.random.default_rng((self.config.seed, 2, session))
        return [shuffled(self.module, int(rng.integers(2**32))) for _ in range(SHUFFLES)]

    def backgrounds(self, batch: Batch, seed: int) -> dict[UnitRemoval, Batch]:
        """What replaces removed information, except under ``mask``."""
        config = self.config
        found: dict[UnitRemoval, Batch] = {
            "date": drawn(donors("date", batch, None, seed), batch, config.background)
        }
        if "train" in {*config.removals, config.shap_removal}:
            found["train"] = drawn(donors("train", batch, self.cells, seed), batch, config.background)
        return found


Values = tuple[FloatArray, FloatArray | None]
"""Shapley values of a date's peers [target, source] by the model, and by its first shuffled copy. NaN: the
source is no player of its own, and is never removed."""


def measure(
    model: MeasuredModel, over: Over, session: int, firms: IntArray, values: Values | None = None
) -> list[ForecastMeasures]:
    """Measure the rankings of the own days, or of the peers, of some firms' forecasts on one session.

    Parameters
    ----------
    firms
        Panel columns; firms outside the universe of the session are left out, and so are those with fewer
        than three units.
    values
        Shapley values of the peers; those of days are computed here.

    Returns
    -------
    list
        Empty if the model has no such attention.
    """
    batch, found = model.data.batch(torch.tensor([session])), []
    targets_E = np.flatnonzero(np.isin(batch.firms_N.cpu().numpy(), firms))
    importance_of = day_importance if over == "days" else peer_importance
    by_attention = importance_of(model.module, batch, targets_E) if len(targets_E) else {}
    if not by_attention:
        return []
    copies = model.shuffles(session)
    by_copy = [importance_of(copy, batch, targets_E) for copy in copies]
    for row, target in enumerate(targets_E.tolist()):
        if values is None:
            units = equal_blocks(batch.x_BNWC.shape[2], model.config.day_units)
        else:
            known = np.isfinite(values[0][target])
            known[target] = False
            units = tuple(np.flatnonzero(known)[:, None])
        if len(units) < MIN_UNITS:
            continue
        attention = {method: value_EX[row] for method, value_EX in by_attention.items()}
        shuffles = {method: np.stack([copy[method][row] for copy in by_copy]) for method in by_copy[0]}
        found.append(
            _measured(model, over, session, batch, target, units, attention, shuffles, copies[0], values)
        )
    return found


def _measured(  # noqa: PLR0917  (a forecast of a model, its units, and what is known of them)
    model: MeasuredModel,
    over: Over,
    session: int,
    batch: Batch,
    target: int,
    units: tuple[IntArray, ...],
    attention: Mapping[str, FloatArray],
    shuffles: Mapping[str, FloatArray],
    copy: Forecaster,
    values: Values | None,
) -> ForecastMeasures:
    config, firm = model.config, int(batch.firms_N[target])
    rng = np.random.default_rng((config.seed, session, firm))
    backgrounds = model.backgrounds(batch, int(rng.integers(2**32)))

    def by_unit(value_SX: FloatArray) -> FloatArray:
        return np.stack([value_SX[..., members].sum(axis=-1) for members in units], axis=-1)

    def game(removal: UnitRemoval, module: Forecaster = model.module) -> UnitGame:
        return unit_game(over, module, batch, target, units, backgrounds.get(removal))

    def shapley(module: Forecaster = model.module) -> FloatArray:
        play, seed = game(config.shap_removal, module), int(rng.integers(2**32))
        random_game = fixed(lambda keep_MP: play(keep_MP)[:, None])
        return (
            sample(random_game, len(units), Precision(config.permutations), seed=seed)
            .values()
            .values_PO[:, 0]
        )

    by_shuffled = {method: by_unit(value_SX) for method, value_SX in shuffles.items()}
    once_P = again_P = random_P = None
    if values is None:
        once_P, again_P = shapley(), shapley()
        shap_P, random_P = 0.5 * (once_P + again_P), shapley(copy) if config.shuffled_shap else None
    else:
        shap_P = by_unit(values[0][target])
        random_P = None if values[1] is None else by_unit(values[1][target])
    if random_P is not None:
        by_shuffled[SHAP] = np.abs(random_P)[None]
    slope_X = integrated_gradients(model.module, batch, target, over, backgrounds["date"])
    importance = {
        SHAP: np.abs(shap_P),
        "integrated_gradients": np.abs(by_unit(slope_X)),
        **{method: by_unit(value_X) for method, value_X in attention.items()},
    }
    orders = [order_of(settled(value_P[None])[0], rng) for value_P in importance.values()]
    orders += [rng.permutation(len(units)) for _ in range(config.random_orders)]
    of_orders: dict[tuple[str, UnitRemoval], Curves] = {}
    for removal in config.removals:
        every = curves(game(removal), orders, steps_of(len(units), config.steps))
        of_orders |= {(method, removal): one for method, one in zip(importance, every, strict=False)}
        of_orders[RANDOM, removal] = mean_of(every[len(importance) :])
    if once_P is not None:
        importance["shap_once"] = np.abs(once_P)
    return ForecastMeasures(
        session, firm, importance, None if again_P is None else np.abs(again_P), by_shuffled, of_orders
    )


def steps_of(n_units: int, most: int = 12) -> IntArray:
    """Numbers of removed units at which curves are evaluated: all up to ``most``, else about ``most``.

    Beyond ``most`` units the steps are small at first, where orders differ, and include the shares of
    :data:`SHARES`.
    """
    if n_units <= most:
        return np.arange(n_units + 1)
    small = np.round(np.geomspace(1, n_units, most - len(SHARES)))
    named = np.ceil(np.array(SHARES) * n_units)
    return np.unique(np.concatenate([[0, n_units], small, named])).astype(np.int64)


def curves(game: UnitGame, orders: Sequence[IntArray], steps_S: IntArray) -> list[Curves]:
    """Evaluate the curves of several orders of one forecast's units, in one call of the game.

    Parameters
    ----------
    game
        The forecast as a function of the units that are kept.
    orders
        All units from the most to the least important.
    steps_S
        Numbers of removed units, from 0 to that of all: those of :func:`steps_of`.
    """
    length = len(orders[0])
    without_OSP = np.argsort(orders, axis=1)[:, None, :] >= steps_S[:, None]
    both_OS2P = np.stack([without_OSP, ~without_OSP], axis=2)
    keep_MP, place_M = np.unique(both_OS2P.reshape(-1, length), axis=0, return_inverse=True)
    values_OS2 = game(keep_MP)[place_M.reshape(-1)].reshape(len(orders), len(steps_S), 2)
    at_S = [int(np.argmin(np.abs(steps_S - np.ceil(share * length)))) for share in SHARES]
    found, share_S = [], steps_S / length
    for without_S, alone_S in values_OS2.swapaxes(1, 2):
        deletion_S, change_S = np.abs(without_S[0] - without_S), np.abs(np.diff(without_S))
        total = change_S.sum()  # equal changes if nothing changes
        cumulative_S = np.concatenate([[0.0], change_S.cumsum() / total]) if total > 0.0 else share_S
        found.append(
            Curves(
                share_S=share_S,
                deletion_S=deletion_S,
                insertion_S=np.abs(alone_S - alone_S[0]),
                cumulative_S=cumulative_S,
                comprehensiveness=float(deletion_S[at_S].mean()),
                sufficiency=float(np.abs(without_S[0] - alone_S)[at_S].mean()),
            )
        )
    return found


def order_of(importance_P: FloatArray, rng: np.random.Generator) -> IntArray:
    """Units from the most to the least important; ties in random order, so that no position wins them."""
    shuffled_P = rng.permutation(len(importance_P))
    order_P: IntArray = shuffled_P[np.argsort(-importance_P[shuffled_P], kind="stable")]
    return order_P


def mean_of(every: Sequence[Curves]) -> Curves:
    """Average curves at the same steps."""
    names = ("deletion_S", "insertion_S", "cumulative_S")
    means = (np.mean([getattr(one, name) for one in every], axis=0) for name in names)
    figures = (
        float(np.mean([getattr(one, name) for one in every])) for name in ("comprehensiveness", "sufficiency")
    )
    return Curves(every[0].share_S, *means, *figures)
