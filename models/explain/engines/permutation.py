"""Shapley values from antithetic permutations.

Legend: P players, O outputs, K draws of a round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from features.arrays import BoolArray, IntArray
from models.explain.engines.engine import Arrays
from models.explain.engines.running import add_draws, mean_values
from models.explain.game import RandomGame, ShapleyValues


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
