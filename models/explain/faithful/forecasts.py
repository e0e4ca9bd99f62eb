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

from features.arrays import BoolArray, FloatArray, IntArray
from models.batch import Batch, PanelTensors
from models.explain.attention import day_importance, peer_importance
from models.explain.faithful.statistics import settled
from models.explain.faithful.unit_games import (
    REMOVALS,
    Over,
    UnitGame,
    UnitRemoval,
    day_game,
    drawn,
    equal_blocks,
    integrated_gradients,
    peer_game,
    shuffled,
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
    shuffles: int = 4  # copies of the model with shuffled parameters per date. Every date draws its own
    # whether the Shapley values of days are computed for the first of these copies too
    shuffled_shap: bool = True
    # how days are removed in their Shapley values. Masked days pass their weight on to the others, so a model
    # that was never trained with masks sees weights that it does not know; data of other firms keep the
    # weights
    shap_removal: UnitRemoval = "mask"
    seed: int = 0  # seed of all draws, independently for each session and firm

    def __post_init__(self) -> None:
        if self.shuffles < 1:
            raise ValueError(f"shuffles is {self.shuffles}; it must be at least 1.")


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
    """Rankings and curves of one forecast."""

    over: Over  # what is ranked, the session, and the panel column of the firm
    session: int
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
    # ``|sum of Shapley values - (forecast - forecast without units)|``; NaN for peers, which
    # `models.explain.peers` reports
    additivity: float = float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
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
        return [shuffled(self.module, int(rng.integers(2**32))) for _ in range(self.config.shuffles)]


def measure_days(subject: Subject, session: int, firms: IntArray) -> list[ForecastMeasures]:
    """Measure the rankings of the own days of some firms' forecasts on one session.

    Parameters
    ----------
    firms
        Panel columns; firms outside the universe of the session are left out.

    Returns
    -------
    list
        Empty if the model has no attention over days, or the window has fewer than three blocks.
    """
    batch, targets = _targets(subject, session, firms)
    config, module = subject.config, subject.module
    blocks = equal_blocks(batch.x_BNWC.shape[2], config.day_units)
    if len(blocks) < MIN_UNITS or not len(targets):
        return []
    by_attention = day_importance(module, batch, targets)
    if not by_attention:
        return []
    copies = subject.shuffles(session)
    by_copy = [day_importance(one, batch, targets) for one in copies]
    found = []
    for row, target in enumerate(targets):
        rng, backgrounds = _draws(subject, batch, session, target)

        def game(
            removal: UnitRemoval,
            model: Forecaster = module,
            target: int = target,
            backgrounds: Mapping[UnitRemoval, Batch] = backgrounds,
        ) -> UnitGame:
            return day_game(model, batch, target, blocks, backgrounds.get(removal))

        def shapley(play: UnitGame, rng: np.random.Generator = rng) -> FloatArray:
            random_game, seed = fixed(lambda keep_MP: play(keep_MP)[:, None]), int(rng.integers(2**32))
            drawn = sample(random_game, len(blocks), Precision(config.permutations), seed=seed)
            return drawn.values.values_PO[:, 0]

        complete = game(config.shap_removal)
        phi_P, again_P = shapley(complete), shapley(complete)
        by_shuffled = {
            method: np.stack([_by_block(of_copy[method][row], blocks) for of_copy in by_copy])
            for method in by_copy[0]
        }
        if config.shuffled_shap:
            by_shuffled[SHAP] = np.abs(shapley(game(config.shap_removal, copies[0])))[None]
        slope_W = integrated_gradients(module, batch, target, "days", backgrounds["date"])
        importance = {
            SHAP: np.abs(0.5 * (phi_P + again_P)),
            "integrated_gradients": np.abs(_by_block(slope_W, blocks)),
            **{method: _by_block(days_EW[row], blocks) for method, days_EW in by_attention.items()},
        }
        ends = complete(np.array([[True] * len(blocks), [False] * len(blocks)]))
        games = {removal: game(removal) for removal in config.removals}
        found.append(
            ForecastMeasures(
                over="days",
                session=session,
                firm=int(batch.firms_N[target]),
                importance={**importance, "shap_once": np.abs(phi_P)},
                again_P=np.abs(again_P),
                shuffled=by_shuffled,
                curves=_all_curves(games, importance, np.arange(len(blocks)), config, rng, len(blocks)),
                additivity=float(abs(phi_P.sum() - (ends[0] - ends[1]))),
            )
        )
    return found


def measure_peers(
    subject: Subject,
    session: int,
    firms: IntArray,
    phi_NN: FloatArray,
    random_NN: FloatArray | None = None,
) -> list[ForecastMeasures]:
    """Measure the rankings of the peers of some firms' forecasts on one session.

    Parameters
    ----------
    phi_NN
        Shapley values of the session's firms as [target, source]; NaN for sources that are not players of
        their own, which are never removed.
    random_NN
        Those of the first copy of the model with shuffled parameters (:meth:`Subject.shuffles`).
    """
    batch, targets = _targets(subject, session, firms)
    config, module = subject.config, subject.module
    by_attention = peer_importance(module, batch, targets) if len(targets) else {}
    if not by_attention:
        return []
    by_copy = [peer_importance(one, batch, targets) for one in subject.shuffles(session)]
    found = []
    for row, target in enumerate(targets):
        rng, backgrounds = _draws(subject, batch, session, target)
        known = np.isfinite(phi_NN[target])
        known[target] = False
        units = np.flatnonzero(known)
        if len(units) < MIN_UNITS:
            continue
        slope_N = integrated_gradients(module, batch, target, "peers", backgrounds["date"])
        importance = {
            SHAP: np.abs(phi_NN[target, units]),
            "integrated_gradients": np.abs(slope_N[units]),
            **{method: peers_EN[row, units] for method, peers_EN in by_attention.items()},
        }
        games = {
            removal: peer_game(module, batch, target, backgrounds.get(removal)) for removal in config.removals
        }
        by_shuffled = {
            method: np.stack([of_copy[method][row, units] for of_copy in by_copy]) for method in by_copy[0]
        }
        if random_NN is not None:
            by_shuffled[SHAP] = np.abs(random_NN[target, units])[None]
        found.append(
            ForecastMeasures(
                over="peers",
                session=session,
                firm=int(batch.firms_N[target]),
                importance=importance,
                again_P=None,
                shuffled=by_shuffled,
                curves=_all_curves(games, importance, units, config, rng, phi_NN.shape[1]),
            )
        )
    return found


def _targets(subject: Subject, session: int, firms: IntArray) -> tuple[Batch, IntArray]:
    batch = subject.data.batch(torch.tensor([session]))
    return batch, np.flatnonzero(np.isin(batch.firms_N.cpu().numpy(), firms))


def _draws(
    subject: Subject, batch: Batch, session: int, target: int
) -> tuple[np.random.Generator, dict[UnitRemoval, Batch]]:
    """The generator of a forecast, and what replaces removed information, except under ``mask``."""
    config = subject.config
    rng = np.random.default_rng((config.seed, session, int(batch.firms_N[target])))
    seed = int(rng.integers(2**32))
    found: dict[UnitRemoval, Batch] = {
        "date": drawn(donors("date", batch, None, seed), batch, config.background)
    }
    if "train" in {*config.removals, config.shap_removal}:
        found["train"] = drawn(donors("train", batch, subject.cells, seed), batch, config.background)
    return rng, found


def _by_block(day_W: FloatArray, blocks: tuple[IntArray, ...]) -> FloatArray:
    return np.array([day_W[days].sum() for days in blocks])


def _all_curves(  # noqa: PLR0917  (the games and rankings of one forecast, and how they are drawn)
    games: Mapping[UnitRemoval, UnitGame],
    importance: Mapping[str, FloatArray],
    units: IntArray,
    config: FaithfulConfig,
    rng: np.random.Generator,
    width: int,
) -> dict[tuple[str, UnitRemoval], Curves]:
    """Evaluate the curves of every method and of random orders, under every removal."""
    orders = [units[order_of(settled(value_P[None])[0], rng)] for value_P in importance.values()]
    orders += [rng.permutation(units) for _ in range(config.random_orders)]
    found: dict[tuple[str, UnitRemoval], Curves] = {}
    for removal, game in games.items():
        drawn = curves(game, orders, width, steps_of(len(units), config.steps))
        found |= {(method, removal): one for method, one in zip(importance, drawn, strict=False)}
        found[RANDOM, removal] = mean_of(drawn[len(importance) :])
    return found


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


def curves(game: UnitGame, orders: list[IntArray], n_units: int, steps_S: IntArray) -> list[Curves]:
    """Evaluate the curves of several orders of one forecast's units, in one call of the game.

    Parameters
    ----------
    game
        The forecast as a function of the units that are kept.
    orders
        Units from the most to the least important. Units that no order names are always kept.
    n_units
        P, the width of a coalition.
    steps_S
        Numbers of removed units, from 0 to the length of an order: those of :func:`steps_of`.
    """
    length = len(orders[0])
    coalitions: list[BoolArray] = []
    for order in orders:
        for removed in steps_S:
            without_P = np.ones(n_units, dtype=np.bool_)
            without_P[order[:removed]] = False
            alone_P = np.ones(n_units, dtype=np.bool_)
            alone_P[order[removed:]] = False
            coalitions += [without_P, alone_P]
    keep_MP, place_M = np.unique(np.stack(coalitions), axis=0, return_inverse=True)
    values = game(keep_MP)[place_M.reshape(-1)].reshape(len(orders), len(steps_S), 2)
    at_S = [int(np.argmin(np.abs(steps_S - np.ceil(share * length)))) for share in SHARES]
    found = []
    for without_S, alone_S in zip(values[:, :, 0], values[:, :, 1], strict=True):
        full, empty = without_S[0], alone_S[0]
        deletion_S = np.abs(full - without_S)
        found.append(
            Curves(
                share_S=steps_S / length,
                deletion_S=deletion_S,
                insertion_S=np.abs(alone_S - empty),
                cumulative_S=_share(np.abs(np.diff(without_S)), steps_S / length),
                comprehensiveness=float(deletion_S[at_S].mean()),
                sufficiency=float(np.abs(full - alone_S)[at_S].mean()),
            )
        )
    return found


def _share(change_S: FloatArray, share_S: FloatArray) -> FloatArray:
    """Cumulative share of the changes; that of equal changes if nothing changes."""
    total = change_S.sum()
    return np.concatenate([[0.0], change_S.cumsum() / total]) if total > 0.0 else share_S


def order_of(importance_P: FloatArray, rng: np.random.Generator) -> IntArray:
    """Units from the most to the least important; ties in random order, so that no position wins them."""
    shuffled_P = rng.permutation(len(importance_P))
    order_P: IntArray = shuffled_P[np.argsort(-importance_P[shuffled_P], kind="stable")]
    return order_P


def mean_of(every: Sequence[Curves]) -> Curves:
    """Average curves at the same steps."""
    names = ("deletion_S", "insertion_S", "cumulative_S")
    return Curves(
        every[0].share_S,
        *(np.mean([getattr(one, name) for one in every], axis=0) for name in names),
        *(
            float(np.mean([getattr(one, name) for one in every]))
            for name in ("comprehensiveness", "sufficiency")
        ),
    )
