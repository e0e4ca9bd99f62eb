"""Shapley values of a game, by shap's permutation explainer.

A game says what every forecast becomes when only some players take part.  All outputs are explained
by the same coalitions, so a date's N forecasts cost what one would.

Legend: P players, O outputs, M coalitions, R permutations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]

Game = Callable[[BoolArray], FloatArray]
"""Coalitions [M, P], True where a player takes part -> outputs [M, O]."""


@dataclass(frozen=True, slots=True, eq=False)
class ShapleyValues:
    """Shapley values of O outputs and how far they can be believed.

    Attributes
    ----------
    values_PO
        Value of each player for each output, in the output's unit.
    base_O
        Output when nobody takes part.
    error_PO
        Monte Carlo standard error: ``std(over permutations) / sqrt(R)``.  With a single permutation
        half the distance between its forward and its backward pass, which errs on the high side
        because the two were drawn to offset each other.
    """

    values_PO: FloatArray
    base_O: FloatArray
    error_PO: FloatArray


@dataclass(frozen=True, slots=True)
class Quality:
    """How far an explained set of forecasts can be believed.

    Attributes
    ----------
    additivity_max
        Largest ``|base + sum of values - forecast|``, the forecast coming from the untouched model.
    additivity_relative
        The same over the standard deviation of the explained forecasts.
    monte_carlo_mean
        Mean Monte Carlo standard error of a value.
    monte_carlo_relative
        The same over the mean ``|value|``: at 1 the values are noise.
    """

    additivity_max: float
    additivity_relative: float
    monte_carlo_mean: float
    monte_carlo_relative: float


def shapley_values(games: Sequence[Game], n_players: int, seed: int) -> ShapleyValues:
    """Shapley values of the mean of some games, one antithetic permutation for each game.

    ``phi_p = mean_r [v_r(S_r + p) - v_r(S_r)]`` over the players ``S_r`` that come before ``p`` in a
    random order and, walking back, over those that come after it.  One permutation is exact for
    games whose players interact in pairs at most; and whatever the permutations, the values of an
    output add up to ``v(all) - v(nobody)``.

    Parameters
    ----------
    games
        R games.  The same one R times averages R permutations of it; games that differ in their
        background data average over the background as well.
    n_players
        P.
    seed
        Decides the permutations; numpy's global random state, which shap draws from, is left as
        it was found.

    Raises
    ------
    ValueError
        With no player or no game.

    Notes
    -----
    Strumbelj and Kononenko (2014), "Explaining prediction models and individual predictions with
    feature contributions"; Mitchell et al. (2022), "Sampling permutations for Shapley value
    estimation", for the antithetic pairs.
    """
    if n_players < 1 or not games:
        raise ValueError(
            f"A game of {n_players} players and {len(games)} permutations has no Shapley values: "
            "give it at least one of each."
        )
    import shap

    rounds, halves, bases = [], [], []
    seeds_R = np.random.SeedSequence(seed).generate_state(len(games))
    with _global_random_state_kept():
        for game, game_seed in zip(games, seeds_R, strict=True):
            explainer = shap.PermutationExplainer(game, _Coalitions(n_players), seed=int(game_seed))
            explained = explainer(
                np.ones((1, n_players)),
                max_evals=2 * n_players + 1,
                batch_size=2 * n_players + 1,
                error_bounds=True,
                silent=True,
            )
            rounds.append(np.asarray(explained.values, dtype=np.float64).reshape(n_players, -1))
            halves.append(np.asarray(explained.error_std, dtype=np.float64).reshape(n_players, -1))
            bases.append(np.asarray(explained.base_values, dtype=np.float64).reshape(-1))
    values_RPO = np.stack(rounds)
    spread_PO = halves[0] if len(games) == 1 else values_RPO.std(axis=0, ddof=1) / np.sqrt(len(games))
    return ShapleyValues(values_RPO.mean(axis=0), np.mean(bases, axis=0), spread_PO)


def quality(
    values_EP: FloatArray, base_E: FloatArray, forecast_E: FloatArray, error_EP: FloatArray
) -> Quality:
    """Measure an explained set of E forecasts; see :class:`Quality`."""
    gap = float(np.abs(base_E + values_EP.sum(axis=1) - forecast_E).max())
    error = float(error_EP.mean())
    return Quality(
        gap, _over(gap, float(forecast_E.std())), error, _over(error, float(np.abs(values_EP).mean()))
    )


def _over(part: float, whole: float) -> float:
    # a constant forecast or values that are all 0: no error is no error, any other has no scale
    if whole > 0.0:
        return part / whole
    return 0.0 if part == 0.0 else float("inf")


class _Coalitions:
    """shap's masker protocol for players that are either there or not: the mask is the input."""

    immutable_outputs = True

    def __init__(self, n_players: int) -> None:
        self.shape = (1, n_players)

    def __call__(self, mask_P: BoolArray, _: FloatArray) -> tuple[BoolArray]:
        return (mask_P[None, :],)


@contextmanager
def _global_random_state_kept() -> Iterator[None]:
    state = np.random.get_state()  # noqa: NPY002  (shap seeds and draws from the global generator)
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
