"""Shapley values by weighted regression on paired coalitions (KernelSHAP).

Legend: P players, O outputs, K draws of a round, G batches of draws, M coalitions of a draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from features.arrays import BoolArray, FloatArray
from models.explain.shapley import Arrays, RandomGame, ShapleyValues

BATCHES = 32
"""Number of batches between which the standard error is estimated."""


class KernelEngine:
    """Regression of ``v(S) - v(0)`` on membership in S, subject to ``sum_p phi_p = v(all) - v(0)``.

    Coalitions are drawn with a probability proportional to Shapley's kernel ``(P - 1) / (C(P, s) s (P - s))``
    for size s, so the regression has equal weights. Each coalition comes with its complement, and a draw is P
    such pairs. With the means ``A = E[1_S 1_S']`` and ``b = E[1_S (v(S) - v(0))]`` over all draws,
    ``phi = A^-1 (b - c 1)``, with c such that the values add up. The estimate is consistent, with a bias of
    order 1 / R.

    The standard error is that of the jackknife over batches of draws. It is infinite as long as there are
    fewer than two batches, or the coalitions without one batch do not identify all players.

    Notes
    -----
    Lundberg and Lee (2017), "A unified approach to interpreting model predictions"; Covert and Lee (2021),
    "Improving KernelSHAP: practical Shapley value estimation via linear regression".
    """

    name: str = "kernel"
    enumerates: bool = False

    def rows(self, n_players: int) -> int:
        """No player, all players, and P pairs."""
        return 2 * n_players + 2

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
        """Draw pairs, and add their moments to the batches; draw r belongs to batch r modulo G."""
        keep_KMP = np.stack([_coalitions(n_players, generator) for generator in generators])
        count, rows = keep_KMP.shape[:2]
        draw_M = np.repeat(np.arange(draws.start, draws.stop), rows)
        out_KMO = game(keep_KMP.reshape(-1, n_players), draw_M).reshape(count, rows, -1)
        n_outputs = out_KMO.shape[2]
        if draws.start == 0:
            arrays = {
                "gram": np.zeros((BATCHES, n_players, n_players)),
                "moment": np.zeros((BATCHES, n_players, n_outputs)),
                "total": np.zeros((BATCHES, n_outputs)),
                "base": np.zeros(n_outputs),
            }
        gram_GPP, moment_GPO, total_GO = (arrays[name].copy() for name in ("gram", "moment", "total"))
        base_O = arrays["base"].copy()
        for r, keep_MP, out_MO in zip(draws, keep_KMP, out_KMO, strict=True):
            member_MP, gain_MO = keep_MP[2:].astype(np.float64), out_MO[2:] - out_MO[0]
            batch = r % BATCHES
            gram_GPP[batch] += member_MP.T @ member_MP / len(member_MP)
            moment_GPO[batch] += member_MP.T @ gain_MO / len(member_MP)
            total_GO[batch] += out_MO[1] - out_MO[0]
            base_O += (out_MO[0] - base_O) / (r + 1)
        return {"gram": gram_GPP, "moment": moment_GPO, "total": total_GO, "base": base_O}

    def values(self, arrays: Arrays, draws: int, *, fixed: bool) -> ShapleyValues:
        """Solve the regression over all draws."""
        sums = (arrays["gram"].sum(axis=0), arrays["moment"].sum(axis=0))
        total_O, batches = arrays["total"].sum(axis=0), min(draws, BATCHES)
        values_PO, _ = _solve(*sums, total_O / draws)
        unknown = ShapleyValues(values_PO, arrays["base"], np.full_like(values_PO, np.inf), 1)
        if batches < 2:
            return unknown
        count_G = np.bincount(np.arange(draws) % BATCHES, minlength=BATCHES)
        without: list[FloatArray] = []
        for g in range(batches):
            others_O = (total_O - arrays["total"][g]) / float(draws - count_G[g])
            gram_PP, moment_PO = sums[0] - arrays["gram"][g], sums[1] - arrays["moment"][g]
            left_PO, identified = _solve(gram_PP, moment_PO, others_O)
            if not identified:
                return unknown
            without.append(left_PO)
        without_GPO = np.stack(without)
        error_PO = np.sqrt((batches - 1) * without_GPO.var(axis=0)).astype(np.float64)
        return ShapleyValues(values_PO, arrays["base"], error_PO, batches - 1)


def _solve(gram_PP: FloatArray, moment_PO: FloatArray, total_O: FloatArray) -> tuple[FloatArray, bool]:
    """``A^-1 (b - c 1)`` with c such that each column sums to its total, and whether A has full rank."""
    inverse_PP = np.linalg.pinv(gram_PP, hermitian=True).astype(np.float64)
    free_PO, one_P = inverse_PP @ moment_PO, inverse_PP.sum(axis=1)
    values_PO: FloatArray = free_PO - one_P[:, None] * ((free_PO.sum(axis=0) - total_O) / one_P.sum())
    return values_PO, bool(np.linalg.matrix_rank(gram_PP, hermitian=True) == len(gram_PP))


def _coalitions(n_players: int, generator: np.random.Generator) -> BoolArray:
    """No player, all players, then P coalitions drawn by the kernel and their complements, [2 P + 2, P]."""
    first_2P = np.array([[False], [True]]).repeat(n_players, axis=1)
    if n_players == 1:
        return np.concatenate((first_2P, first_2P[::-1]))
    size_S = np.arange(1, n_players)
    weight_S = 1.0 / (size_S * (n_players - size_S))
    size_M = generator.choice(size_S, n_players, p=weight_S / weight_S.sum())
    place_MP = generator.permuted(np.tile(np.arange(n_players), (n_players, 1)), axis=1)
    keep_MP = place_MP < size_M[:, None]
    return np.concatenate((first_2P, keep_MP, ~keep_MP))
