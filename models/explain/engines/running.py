"""Running mean and variance of the values of independent draws (Welford 1962).

Legend: P players, O outputs, K draws of a round.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray
from models.explain.engines.engine import Arrays
from models.explain.game import ShapleyValues


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
