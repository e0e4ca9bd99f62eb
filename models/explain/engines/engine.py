"""The protocol of the sampling engines, and the loop that draws until a precision is reached.

An engine turns independent draws (a permutation, a set of coalitions) into Shapley values with a standard
error. Everything it knows is a `SamplerState` of a few arrays. Draw r depends only on the seed and on r, so a
stored state can be continued later and gives what an uninterrupted computation would have given.

Legend: P players, O outputs, M coalitions, K draws of a round, R draws so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from features.arrays import AnyFloatArray
from models.explain.game import FixedGame, RandomGame, ShapleyValues

Arrays = Mapping[str, npt.NDArray[Any]]
"""Running sums of an engine, by name."""

OnRound = Callable[[int, float], None]
"""Called after each round with the number of draws and the largest standard error so far."""

_ROUND_ROWS = 4096  # coalitions per round

MAX_DRAWS = 1000
"""Largest number of draws for a precision, unless another is given."""


class Engine(Protocol):
    """Computes Shapley values from independent draws of coalitions.

    Attributes
    ----------
    name
        Name under which results are stored.
    enumerates
        Whether one draw of a fixed game is already exact.
    """

    name: str
    enumerates: bool

    def rows(self, n_players: int) -> int:
        """Number of coalitions per draw."""
        ...

    def start(self, n_players: int) -> Arrays:
        """Arrays before the first draw."""
        ...

    def update(
        self,
        arrays: Arrays,
        game: RandomGame,
        n_players: int,
        draws: range,
        generators: Sequence[np.random.Generator],
    ) -> Arrays:
        """Add the draws of a round, each with its own generator, evaluated in one call of the game."""
        ...

    def values(self, arrays: Arrays, draws: int, *, fixed: bool) -> ShapleyValues:
        """Shapley values from R draws; ``fixed`` says that the game has no random replacements."""
        ...


@dataclass(frozen=True, slots=True)
class Precision:
    """When sampling stops.

    Attributes
    ----------
    draws
        Number of draws; with a ``standard_error``, the smallest number before the error is believed.
    standard_error
        Largest standard error of any value, in the unit of the outputs; None draws exactly ``draws`` times.
    max_draws
        Largest number of draws if a ``standard_error`` is asked for.
    """

    draws: int = 8
    standard_error: float | None = None
    max_draws: int = MAX_DRAWS

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"draws is {self.draws}; it must be at least 1.")
        if self.standard_error is None:
            return
        if not (self.standard_error > 0 and math.isfinite(self.standard_error)):
            raise ValueError(f"standard_error is {self.standard_error}; it must be a positive number.")
        if not 2 <= self.draws <= self.max_draws:
            raise ValueError(
                f"draws is {self.draws} and max_draws {self.max_draws}; a standard error needs at least "
                "2 draws, and not more than the maximum."
            )

    @property
    def limit(self) -> int:
        """Largest number of draws."""
        return self.draws if self.standard_error is None else self.max_draws


def relative_precision(
    share: float, forecast_E: AnyFloatArray, *, draws: int = 8, max_draws: int = MAX_DRAWS
) -> Precision:
    """Precision of ``share`` times the standard deviation of some forecasts.

    Raises
    ------
    ValueError
        If the forecasts are all equal, or the share is not positive.
    """
    spread = float(np.std(forecast_E))
    if not spread > 0.0:
        raise ValueError(
            "The forecasts are all equal, so no precision can be relative to their standard deviation; "
            "give a standard error in their unit."
        )
    return Precision(draws, share * spread, max_draws)


@dataclass(frozen=True, slots=True, eq=False)
class SamplerState:
    """What an engine has drawn so far; its arrays can be stored with ``numpy.savez``.

    Attributes
    ----------
    engine, n_players, seed
        What the draws belong to. A state can only be continued with the same.
    draws
        R, number of draws so far.
    arrays
        Running sums of the engine.
    """

    engine: str
    n_players: int
    seed: int
    draws: int
    arrays: Arrays


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Shapley values, the state from which they can be improved, and whether the precision was reached."""

    values: ShapleyValues
    state: SamplerState
    precision: Precision
    reached: bool


def sample(
    game: RandomGame,
    n_players: int,
    engine: Engine,
    precision: Precision | None = None,
    *,
    seed: int = 0,
    state: SamplerState | None = None,
    on_round: OnRound | None = None,
) -> Sampled:
    """Draw until the precision is reached, and compute the Shapley values of a game.

    Parameters
    ----------
    game
        The game; wrap one without random replacements in `FixedGame`.
    n_players
        P.
    engine
        The engine.
    precision
        When to stop; by default after 8 draws.
    seed
        Seed of the draws. Draw r has a random generator of its own, seeded with ``(seed, r)``.
    state
        Result of an earlier call with the same game, engine and seed, which is continued; None starts anew.
    on_round
        Called after each round.

    Raises
    ------
    ValueError
        If there is no player, or the state belongs to other players, another engine or another seed.
    """
    precision = Precision() if precision is None else precision
    if n_players < 1:
        raise ValueError(f"Shapley values need at least one player, not {n_players}.")
    fixed = isinstance(game, FixedGame)
    if state is None:
        state = SamplerState(engine.name, n_players, seed, 0, engine.start(n_players))
    elif (state.engine, state.n_players, state.seed) != (engine.name, n_players, seed):
        raise ValueError(
            f"The draws are of engine {state.engine}, {state.n_players} players and seed {state.seed}, "
            f"not of {engine.name}, {n_players} and {seed}: start again, or continue with the same."
        )
    exact = engine.enumerates and fixed
    limit, per_round = (
        1 if exact else precision.limit,
        max(1, _ROUND_ROWS // engine.rows(n_players)),
    )
    draws, arrays = state.draws, state.arrays
    values = engine.values(arrays, draws, fixed=fixed) if draws else None
    while values is None or (draws < limit and not _reached(values, draws, precision)):
        planned = limit if draws >= precision.draws or exact else min(precision.draws, limit)
        if draws >= precision.draws:  # look at the error again after a quarter more
            planned = min(planned, draws + max(1, draws // 4))
        round_ = range(draws, min(planned, draws + per_round))
        generators = [np.random.default_rng((seed, r)) for r in round_]
        arrays = engine.update(arrays, game, n_players, round_, generators)
        draws = round_.stop
        values = engine.values(arrays, draws, fixed=fixed)
        if on_round is not None:
            on_round(draws, float(values.error_PO.max()))
    reached = precision.standard_error is None or bool(values.error_PO.max() <= precision.standard_error)
    return Sampled(
        values, SamplerState(engine.name, n_players, seed, draws, arrays), precision, exact or reached
    )


def _reached(values: ShapleyValues, draws: int, precision: Precision) -> bool:
    if draws < precision.draws:
        return False
    return precision.standard_error is None or bool(values.error_PO.max() <= precision.standard_error)
