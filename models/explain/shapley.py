"""Games of coalitions, and their Shapley values by antithetic permutations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray

Game = Callable[[BoolArray], FloatArray]
"""Maps coalitions [M, P], True where a player takes part, to outputs [M, O]."""

RandomGame = Callable[[BoolArray, IntArray], FloatArray]
"""A game with random replacements of absent players: maps coalitions [M, P] and the draw of each, [M], to
outputs [M, O]. Coalitions of the same draw share their replacements; different draws are independent."""


class FixedGame:
    """A game without random replacements, as a `RandomGame`; evaluates equal coalitions of a call once."""

    def __init__(self, game: Game) -> None:
        self.game = game

    def __call__(self, keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
        """Outputs of the coalitions, whatever the draw."""
        _, first, inverse = np.unique(
            np.packbits(keep_MP, axis=1), axis=0, return_index=True, return_inverse=True
        )
        return self.game(keep_MP[first])[inverse.reshape(-1)]


@dataclass(frozen=True, slots=True, eq=False)
class ShapleyValues:
    """Shapley values of O outputs, with their Monte Carlo error.

    Attributes
    ----------
    values_PO
        Value of each player for each output, in the output's unit.
    base_O
        Output of the empty coalition, averaged over the draws of a random game.
    error_PO
        Monte Carlo standard error; 0 if the values are exact.
    degrees
        Degrees of freedom of the error; 0 if the values are exact.
    gap_error_O
        Standard error of ``base + sum of values - forecast``. None if the values of every draw add up, as
        they do with permutations, regression and enumeration; the difference is then only rounding.
    """

    values_PO: FloatArray
    base_O: FloatArray
    error_PO: FloatArray
    degrees: int = 0
    gap_error_O: FloatArray | None = None

    def half_width(self, level: float = 0.95) -> FloatArray:
        """Half the width of a confidence interval of each value, [P, O], by Student's t distribution."""
        return student_factor(self.degrees, level) * self.error_PO


def student_factor(degrees: int, level: float = 0.95) -> float:
    """Number of standard errors in half a confidence interval; 0 for exact values (``degrees=0``)."""
    from scipy import stats

    return float(stats.t.ppf(0.5 + level / 2.0, degrees)) if degrees else 0.0


@dataclass(frozen=True, slots=True)
class Quality:
    """Accuracy of the Shapley values of a set of forecasts.

    Attributes
    ----------
    additivity_max
        Largest ``|base + sum of values - forecast|``, with the forecast of the complete model.
    additivity_relative
        ``additivity_max`` divided by the standard deviation of the explained forecasts.
    monte_carlo_mean
        Mean Monte Carlo standard error of a value.
    monte_carlo_relative
        ``monte_carlo_mean`` divided by the mean ``|value|``. At 1, the values are noise.
    """

    additivity_max: float
    additivity_relative: float
    monte_carlo_mean: float
    monte_carlo_relative: float


def quality(
    values_EP: FloatArray, base_E: FloatArray, forecast_E: FloatArray, error_EP: FloatArray
) -> Quality:
    """Compute the accuracy of the Shapley values of E forecasts; see :class:`Quality`."""
    gap = float(np.abs(base_E + values_EP.sum(axis=1) - forecast_E).max())
    error = float(error_EP.mean())
    return Quality(
        gap, _relative(gap, float(forecast_E.std())), error, _relative(error, float(np.abs(values_EP).mean()))
    )


def _relative(error: float, scale: float) -> float:
    # if the scale is 0 (constant forecasts, or all values 0), the ratio is 0 or infinite
    if scale > 0.0:
        return error / scale
    return 0.0 if error == 0.0 else float("inf")


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


def add_draws(arrays: Arrays, values_KPO: FloatArray, base_KO: FloatArray, draws: range) -> Arrays:
    """Add the values and bases of some draws one by one, so that rounds do not change the result."""
    mean_PO = arrays["mean"] if draws.start else np.zeros_like(values_KPO[0])
    squares_PO = arrays["squares"] if draws.start else np.zeros_like(values_KPO[0])
    base_O = arrays["base"] if draws.start else np.zeros_like(base_KO[0])
    for r, values_PO, of_draw_O in zip(draws, values_KPO, base_KO, strict=True):
        change_PO = values_PO - mean_PO
        mean_PO = mean_PO + change_PO / (r + 1)
        squares_PO = squares_PO + change_PO * (values_PO - mean_PO)
        base_O = base_O + (of_draw_O - base_O) / (r + 1)
    return {**arrays, "mean": mean_PO, "squares": squares_PO, "base": base_O}


def mean_values(arrays: Arrays, draws: int) -> ShapleyValues:
    """Mean over the draws with ``std / sqrt(R)`` as standard error, which is infinite for a single draw."""
    mean_PO = arrays["mean"]
    if draws == 1:
        return ShapleyValues(mean_PO, arrays["base"], np.full_like(mean_PO, np.inf), 1)
    error_PO = np.sqrt(arrays["squares"] / (draws - 1) / draws)
    return ShapleyValues(mean_PO, arrays["base"], error_PO, draws - 1)


class PermutationEngine:
    """``phi_p = mean_r [v(S_r + p) - v(S_r)]``, where ``S_r`` are the players before p in an order.

    A draw is a random order and its reverse: in the second pass, ``S_r`` are the players after p. The values
    of a draw sum to ``v(all players) - v(no player)`` and are exact if players interact at most in pairs.
    With a single draw, the standard error is half the difference between the two passes. This overestimates
    it, because the passes are antithetic.

    The values are those of ``shap.PermutationExplainer`` for the same orders. There are two differences: the
    coalitions of several draws are evaluated in one call, and the error is a standard error of the mean.

    Notes
    -----
    Strumbelj and Kononenko (2014), "Explaining prediction models and individual predictions with feature
    contributions"; Mitchell et al. (2022), "Sampling permutations for Shapley value estimation".
    """

    name: str = "permutation"
    enumerates: bool = False

    def rows(self, n_players: int) -> int:
        """No player, all players, and P - 1 coalitions in each direction."""
        return 2 * n_players

    def start(self, n_players: int) -> Arrays:
        """No arrays before the first draw, which gives the number of outputs."""
        return {}

    def update(
        self,
        arrays: Arrays,
        game: RandomGame,
        n_players: int,
        draws: range,
        generators: Sequence[np.random.Generator],
    ) -> Arrays:
        """Draw orders, and evaluate their coalitions together."""
        order_KP = np.stack([generator.permutation(n_players) for generator in generators])
        keep_KMP = permutation_coalitions(order_KP)
        count, rows = keep_KMP.shape[:2]
        draw_M = np.repeat(np.arange(draws.start, draws.stop), rows)
        out_KMO = game(keep_KMP.reshape(-1, n_players), draw_M).reshape(count, rows, -1)
        # from no player to all in the order, and from all to no player: the first players leave first
        up_KMO = out_KMO[:, : n_players + 1]
        down_KMO = np.concatenate(
            (out_KMO[:, [n_players]], out_KMO[:, n_players + 1 :], out_KMO[:, [0]]), axis=1
        )
        place_KP1 = np.argsort(order_KP, axis=1)[:, :, None]
        forward_KPO = np.take_along_axis(np.diff(up_KMO, axis=1), place_KP1, axis=1)
        backward_KPO = np.take_along_axis(-np.diff(down_KMO, axis=1), place_KP1, axis=1)
        values_KPO = (forward_KPO + backward_KPO) / 2.0
        if draws.start == 0:
            arrays = {**arrays, "halves": np.abs(forward_KPO[0] - backward_KPO[0]) / 2.0}
        return add_draws(arrays, values_KPO, out_KMO[:, 0], draws)

    def values(self, arrays: Arrays, draws: int, *, fixed: bool) -> ShapleyValues:
        """Mean over the draws."""
        if draws == 1:
            return ShapleyValues(arrays["mean"], arrays["base"], arrays["halves"], 1)
        return mean_values(arrays, draws)


def permutation_coalitions(order_KP: IntArray) -> BoolArray:
    """Coalitions [K, 2 P, P] of some orders: P + 1 as players join, then P - 1 as the first ones leave."""
    n_players = order_KP.shape[1]
    place_K1P = np.argsort(order_KP, axis=1)[:, None, :]
    joined_MP = np.arange(n_players + 1)[:, None]
    left_MP = np.arange(1, n_players)[:, None]
    return np.concatenate((place_K1P < joined_MP, place_K1P >= left_MP), axis=1)
