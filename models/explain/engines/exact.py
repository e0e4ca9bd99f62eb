"""Shapley values by enumeration of all coalitions.

Legend: P players, O outputs, M = 2^P coalitions, K draws of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from features.arrays import BoolArray, FloatArray
from models.explain.shapley import Arrays, RandomGame, ShapleyValues, add_draws, mean_values

MAX_PLAYERS = 12
"""Largest number of players; 4,096 coalitions."""


class ExactEngine:
    """``phi_p = sum_S |S|! (P - |S| - 1)! / P! [v(S + p) - v(S)]`` over all coalitions S without p.

    A draw enumerates all 2^P coalitions, so one draw of a fixed game is exact. The error of a random game is
    that of its replacements. Shapley (1953), "A value for n-person games".
    """

    name: str = "exact"
    enumerates: bool = True

    def rows(self, n_players: int) -> int:
        """All coalitions.

        Raises
        ------
        ValueError
            If there are more than `MAX_PLAYERS` players.
        """
        if n_players > MAX_PLAYERS:
            raise ValueError(
                f"The exact engine enumerates all coalitions of at most {MAX_PLAYERS} players, "
                f"not {n_players}; use the permutation engine, or fewer players."
            )
        return int(2**n_players)

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
        """Enumerate the coalitions once per draw."""
        keep_MP = all_coalitions(n_players)
        count, rows = len(draws), len(keep_MP)
        draw_M = np.repeat(np.arange(draws.start, draws.stop), rows)
        out_KMO = game(np.tile(keep_MP, (count, 1)), draw_M).reshape(count, rows, -1)
        values_KPO = np.einsum("pm,kmo->kpo", shapley_weights(keep_MP), out_KMO)
        return add_draws(arrays, values_KPO, out_KMO[:, 0], draws)

    def values(self, arrays: Arrays, draws: int, *, fixed: bool) -> ShapleyValues:
        """The values of a fixed game are exact."""
        if fixed:
            return ShapleyValues(arrays["mean"], arrays["base"], np.zeros_like(arrays["mean"]))
        return mean_values(arrays, draws)


def all_coalitions(n_players: int) -> BoolArray:
    """All coalitions [2^P, P]; the first has no player."""
    keep_MP: BoolArray = (np.arange(2**n_players)[:, None] >> np.arange(n_players)) & 1 == 1
    return keep_MP


def shapley_weights(keep_MP: BoolArray) -> FloatArray:
    """Weights [P, M] of the outputs of all coalitions in the Shapley value of each player."""
    n_players = keep_MP.shape[1]
    size_M = keep_MP.sum(axis=1)
    with_p = np.array(
        [0.0, *(1.0 / (n_players * comb(n_players - 1, s - 1)) for s in range(1, n_players + 1))]
    )
    without_p = np.array([*(1.0 / (n_players * comb(n_players - 1, s)) for s in range(n_players)), 0.0])
    weight_MP: FloatArray = np.where(keep_MP, with_p[size_M][:, None], -without_p[size_M][:, None])
    return weight_MP.T
