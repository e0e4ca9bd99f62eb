"""Games of coalitions, their Shapley values, and how accurate the values are.

A game maps a coalition of players to outputs: the forecasts when only these players take part. All outputs
are explained with the same coalitions, so explaining the N forecasts of a date costs the same as explaining
one.

Legend: P players, O outputs, M coalitions, E explained forecasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray

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
