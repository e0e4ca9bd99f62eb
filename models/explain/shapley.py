"""Games of coalitions, and their Shapley values from antithetic permutations.

A game maps a coalition of players to outputs: the forecasts when only these players take part. All outputs
are explained with the same coalitions, so explaining the N forecasts of a date costs the same as explaining
one.

The values of P players from R draws are ``phi_p = mean_r [v(S_r + p) - v(S_r)]``, where ``S_r`` are the
players before p in an order. A draw is a random order and its reverse: in the second pass, ``S_r`` are the
players after p. The values of a draw sum to ``v(all players) - v(no player)`` and are exact if players
interact at most in pairs. They are those of ``shap.PermutationExplainer`` for the same orders. There are two
differences: the coalitions of several draws are evaluated in one call, and the error is a standard error of
the mean.

Draw r depends only on the seed and on r, so stored draws can be continued later and give what an
uninterrupted computation would have given.

Strumbelj and Kononenko (2014), "Explaining prediction models and individual predictions with feature
contributions"; Mitchell et al. (2022), "Sampling permutations for Shapley value estimation".

Legend: P players, O outputs, M coalitions, K draws of a round, R draws so far.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray

Game = Callable[[BoolArray], FloatArray]  # coalitions [M, P], True: takes part -> outputs [M, O]

RandomGame = Callable[[BoolArray, IntArray], FloatArray]
"""A game with random replacements of absent players: maps coalitions [M, P] and the draw of each, [M], to
outputs [M, O]. Coalitions of the same draw share their replacements; different draws are independent."""

OnRound = Callable[[int, float], None]  # number of draws, largest standard error so far

_ROUND_ROWS = 4096  # coalitions per round

MAX_DRAWS = 1000  # largest number of draws for a precision, unless another is given


def fixed(game: Game) -> RandomGame:
    """A game without random replacements as a `RandomGame`; evaluates equal coalitions of a call once."""

    def play(keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
        packed_MX = np.packbits(keep_MP, axis=1)
        _, first, inverse = np.unique(packed_MX, axis=0, return_index=True, return_inverse=True)
        return game(keep_MP[first])[inverse.reshape(-1)]

    return play


@dataclass(frozen=True, slots=True, eq=False)
class ShapleyValues:
    """Shapley values of O outputs, with their Monte Carlo error."""

    values_PO: FloatArray  # value of each player for each output, in the output's unit
    base_O: FloatArray  # output of the empty coalition, averaged over the draws of a random game
    error_PO: FloatArray  # monte Carlo standard error; 0 if the values are exact


@dataclass(frozen=True, slots=True)
class Precision:
    """When sampling stops."""

    # number of draws; with a ``standard_error``, the smallest number before the error is believed
    draws: int = 8
    # largest standard error of any value, in the unit of the outputs; None draws exactly ``draws`` times
    standard_error: float | None = None
    max_draws: int = MAX_DRAWS  # largest number of draws if a ``standard_error`` is asked for

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

    def reached_by(self, error_PO: FloatArray) -> bool:
        """Whether the errors are small enough."""
        return self.standard_error is None or bool(error_PO.max() <= self.standard_error)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What has been drawn so far, as running sums (Welford 1962)."""

    n_players: int  # what the draws belong to. They can only be continued with the same
    seed: int
    count: int  # R, number of draws so far
    mean_PO: FloatArray  # mean of the values of the draws, and the sum of their squared deviations from it
    squares_PO: FloatArray
    base_O: FloatArray  # mean output of the empty coalition
    halves_PO: FloatArray  # half the difference between the two passes of the first draw

    def values(self) -> ShapleyValues:
        """Mean over draws and ``std / sqrt(R)``; of one draw half the difference of its antithetic passes."""
        if self.count == 1:
            return ShapleyValues(self.mean_PO, self.base_O, self.halves_PO)
        error_PO = np.sqrt(self.squares_PO / (self.count - 1) / self.count)
        return ShapleyValues(self.mean_PO, self.base_O, error_PO)


def sample(
    game: RandomGame,
    n_players: int,
    precision: Precision | None = None,
    *,
    seed: int = 0,
    drawn: Draws | None = None,
    on_round: OnRound | None = None,
) -> Draws:
    """Draw until the precision is reached; :meth:`Draws.values` are the Shapley values of a game.

    Draw r has a random generator of its own, seeded with ``(seed, r)``, so ``drawn``, those of an earlier
    call with the same game and seed, are continued. ValueError if there is no player, or the draws belong to
    other players or another seed.
    """
    precision = Precision() if precision is None else precision
    if n_players < 1:
        raise ValueError(f"Shapley values need at least one player, not {n_players}.")
    if drawn is not None and (drawn.n_players, drawn.seed) != (n_players, seed):
        raise ValueError(
            f"The draws are of {drawn.n_players} players and seed {drawn.seed}, not of {n_players} and "
            f"{seed}: start again, or continue with the same."
        )
    limit, per_round = precision.limit, max(1, _ROUND_ROWS // (2 * n_players))
    while (
        drawn is None
        or drawn.count < min(precision.draws, limit)
        or (drawn.count < limit and not precision.reached_by(drawn.values().error_PO))
    ):
        count = 0 if drawn is None else drawn.count
        # look at the error again after a quarter more
        planned = precision.draws if count < precision.draws else count + max(1, count // 4)
        drawn = _round(drawn, game, n_players, seed, range(count, min(planned, limit, count + per_round)))
        if on_round is not None:
            on_round(drawn.count, float(drawn.values().error_PO.max()))
    return drawn


def _round(drawn: Draws | None, game: RandomGame, n_players: int, seed: int, draws: range) -> Draws:
    """Add the draws of a round one by one, so that rounds do not change the result."""
    order_KP = _orders(n_players, seed, draws)
    keep_KMP = permutation_coalitions(order_KP)
    count, rows = keep_KMP.shape[:2]
    draw_M = np.repeat(np.arange(draws.start, draws.stop), rows)
    out_KMO = game(keep_KMP.reshape(-1, n_players), draw_M).reshape(count, rows, -1)
    # from no player to all in the order, and from all to no player: the first players leave first
    up_KMO = out_KMO[:, : n_players + 1]
    down_KMO = np.concatenate((out_KMO[:, [n_players]], out_KMO[:, n_players + 1 :], out_KMO[:, [0]]), axis=1)
    place_KP1 = np.argsort(order_KP, axis=1)[:, :, None]
    forward_KPO = np.take_along_axis(np.diff(up_KMO, axis=1), place_KP1, axis=1)
    backward_KPO = np.take_along_axis(-np.diff(down_KMO, axis=1), place_KP1, axis=1)
    if drawn is None:
        none_PO, halves_PO = np.zeros_like(forward_KPO[0]), np.abs(forward_KPO[0] - backward_KPO[0]) / 2.0
        drawn = Draws(n_players, seed, 0, none_PO, none_PO, np.zeros_like(out_KMO[0, 0]), halves_PO)
    mean_PO, squares_PO, base_O = drawn.mean_PO, drawn.squares_PO, drawn.base_O
    for r, values_PO, empty_O in zip(draws, (forward_KPO + backward_KPO) / 2.0, out_KMO[:, 0], strict=True):
        change_PO = values_PO - mean_PO
        mean_PO = mean_PO + change_PO / (r + 1)
        squares_PO = squares_PO + change_PO * (values_PO - mean_PO)
        base_O = base_O + (empty_O - base_O) / (r + 1)
    return Draws(n_players, seed, draws.stop, mean_PO, squares_PO, base_O, drawn.halves_PO)


def _orders(n_players: int, seed: int, draws: range) -> IntArray:
    """Orders [K, P] of some draws."""
    return np.stack([np.random.default_rng((seed, r)).permutation(n_players) for r in draws])


def drawn_coalitions(n_players: int, draws: int, *, seed: int = 0) -> tuple[BoolArray, IntArray]:
    """Coalitions [M, P] that :func:`sample` evaluates in its first draws, and the draw of each, [M].

    >>> keep_MP, draw_M = drawn_coalitions(2, draws=1)
    >>> keep_MP.sum(axis=1), draw_M
    (array([0, 1, 2, 1]), array([0, 0, 0, 0]))
    """
    keep_KMP = permutation_coalitions(_orders(n_players, seed, range(draws)))
    return keep_KMP.reshape(-1, n_players), np.repeat(np.arange(draws), keep_KMP.shape[1])


def every_coalition(n_players: int) -> BoolArray:
    """All coalitions [2^P, P]; player p takes part in row m if bit p of m is set."""
    keep_MP: BoolArray = (np.arange(2**n_players)[:, None] >> np.arange(n_players)) % 2 == 1
    return keep_MP


def exact(game: Game, n_players: int) -> ShapleyValues:
    """Shapley values from all ``2^P`` coalitions.

    ``phi_p = sum over S without p of |S|! (P - |S| - 1)! / P! (v(S + p) - v(S))`` (Shapley 1953).

    >>> exact(lambda keep_MP: 2.0 * keep_MP[:, :1] + keep_MP.all(axis=1, keepdims=True), 2).values_PO[:, 0]
    array([2.5, 0.5])
    """
    keep_MP = every_coalition(n_players)
    out_MO, size_M, row_M = game(keep_MP), keep_MP.sum(axis=1), np.arange(len(keep_MP))
    weight_S = np.array([1.0 / (n_players * math.comb(n_players - 1, s)) for s in range(n_players)])
    value_PO = np.empty((n_players, out_MO.shape[1]))
    for p in range(n_players):
        without = row_M[~keep_MP[:, p]]
        value_PO[p] = weight_S[size_M[without]] @ (out_MO[without + 2**p] - out_MO[without])
    return ShapleyValues(value_PO, out_MO[0], np.zeros_like(value_PO))


def permutation_coalitions(order_KP: IntArray) -> BoolArray:
    """Coalitions [K, 2 P, P] of some orders: P + 1 as players join, then P - 1 as the first ones leave."""
    n_players = order_KP.shape[1]
    place_K1P = np.argsort(order_KP, axis=1)[:, None, :]
    joined_MP = np.arange(n_players + 1)[:, None]
    left_MP = np.arange(1, n_players)[:, None]
    return np.concatenate((place_K1P < joined_MP, place_K1P >= left_MP), axis=1)
