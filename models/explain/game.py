"""Shapley values of a game, computed with shap's permutation explainer.

A game maps a coalition of players to outputs: the forecasts when only these players take part. All outputs
are explained with the same coalitions, so explaining the N forecasts of a date costs the same as explaining
one.

Legend: P players, O outputs, M coalitions, R permutations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray

Game = Callable[[BoolArray], FloatArray]
"""Maps coalitions [M, P], True where a player takes part, to outputs [M, O]."""


@dataclass(frozen=True, slots=True, eq=False)
class ShapleyValues:
    """Shapley values of O outputs, with their Monte Carlo error.

    Attributes
    ----------
    values_PO
        Value of each player for each output, in the output's unit.
    base_O
        Output of the empty coalition.
    error_PO
        Monte Carlo standard error: ``std(over permutations) / sqrt(R)``. With a single permutation it is half
        the difference between the forward and the backward pass. This overestimates the error, because the
        two passes are antithetic.
    """

    values_PO: FloatArray
    base_O: FloatArray
    error_PO: FloatArray


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


def shapley_values(games: Sequence[Game], n_players: int, seed: int) -> ShapleyValues:
    """Compute Shapley values of the mean of several games, with one antithetic permutation per game.

    ``phi_p = mean_r [v_r(S_r + p) - v_r(S_r)]``, where ``S_r`` are the players before ``p`` in a random order
    and, in the antithetic pass, the players after it. One permutation is exact if players interact at most in
    pairs. For any permutations, the values of an output sum to ``v(all players) - v(no player)``.

    Parameters
    ----------
    games
        R games. Passing the same game R times averages over R permutations. Games with different background
        data also average over the background.
    n_players
        P.
    seed
        Seed of the permutations. shap draws from numpy's global random state, which is restored afterwards.

    Raises
    ------
    ValueError
        If there is no player or no game.

    Notes
    -----
    Strumbelj and Kononenko (2014), "Explaining prediction models and individual predictions with
    feature contributions"; Mitchell et al. (2022), "Sampling permutations for Shapley value
    estimation", for the antithetic pairs.
    """
    if n_players < 1 or not games:
        raise ValueError(
            f"Shapley values need at least one player and one game, not {n_players} and {len(games)}."
        )
    import shap

    values, errors, bases = [], [], []
    seeds_R = np.random.SeedSequence(seed).generate_state(len(games))
    with _preserve_global_random_state():
        for game, game_seed in zip(games, seeds_R, strict=True):
            explainer = shap.PermutationExplainer(game, _Coalitions(n_players), seed=int(game_seed))
            explained = explainer(
                np.ones((1, n_players)),
                max_evals=2 * n_players + 1,
                batch_size=2 * n_players + 1,
                error_bounds=True,
                silent=True,
            )
            values.append(np.asarray(explained.values, dtype=np.float64).reshape(n_players, -1))
            errors.append(np.asarray(explained.error_std, dtype=np.float64).reshape(n_players, -1))
            bases.append(np.asarray(explained.base_values, dtype=np.float64).reshape(-1))
    values_RPO = np.stack(values)
    error_PO = errors[0] if len(games) == 1 else values_RPO.std(axis=0, ddof=1) / np.sqrt(len(games))
    return ShapleyValues(values_RPO.mean(axis=0), np.mean(bases, axis=0), error_PO)


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


class _Coalitions:
    """Masker for shap whose masked input is the mask itself."""

    immutable_outputs = True

    def __init__(self, n_players: int) -> None:
        self.shape = (1, n_players)

    def __call__(self, mask_P: BoolArray, _: FloatArray) -> tuple[BoolArray]:
        return (mask_P[None, :],)


@contextmanager
def _preserve_global_random_state() -> Iterator[None]:
    state = np.random.get_state()  # noqa: NPY002  (shap seeds and draws from the global generator)
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
