"""Which past day gets weight, and in which volatility regime.

Legend: E forecasts, W window length, T sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.arrays import FloatArray, IntArray
from models.explain.faithful.statistics import Estimate, mean_over_dates

Regime = Literal["all", "calm", "normal", "turbulent"]
REGIMES: tuple[Regime, ...] = ("calm", "normal", "turbulent")


@dataclass(frozen=True, slots=True)
class DayWeight:
    """Mean weight of one past day on the dates on which it was of a regime.

    Attributes
    ----------
    day
        1 is the decision session, 2 the session before it.
    regime
        Regime of the past day itself, not of the decision date; ``all``: every date.
    estimate
        Mean weight. The null is ``1 / W``, equal weights.
    """

    day: int
    regime: Regime
    estimate: Estimate


def regimes_of(volatility_T: FloatArray) -> IntArray:
    """Divide sessions into terciles of volatility: 0 calm, 1 normal, 2 turbulent; -1 where it is unknown.

    The bounds are those of all given sessions. This describes a sample afterwards; it is not a signal.
    """
    known_T = np.isfinite(volatility_T)
    regime_T = np.full(len(volatility_T), -1, dtype=np.int64)
    if known_T.any():
        bounds = np.quantile(volatility_T[known_T], (1 / 3, 2 / 3))
        regime_T[known_T] = np.searchsorted(bounds, volatility_T[known_T], side="right")
    return regime_T


def day_profile(
    weights_EW: FloatArray, session_E: IntArray, regime_T: IntArray, seed: int = 0
) -> list[DayWeight]:
    """Average the weight of each past day, over all dates and by the regime of that day.

    Parameters
    ----------
    weights_EW
        Weights of the days, oldest first.
    session_E
        Session of each forecast.
    regime_T
        Regime of each session, from :func:`regimes_of`.
    seed
        Seed of the bootstrap.
    """
    window = weights_EW.shape[1]
    found = []
    for day in range(1, window + 1):
        weight_E = weights_EW[:, window - day]
        past_E = session_E - day + 1
        regime_E = np.where(past_E >= 0, regime_T[np.maximum(past_E, 0)], -1)
        found.append(DayWeight(day, "all", mean_over_dates(weight_E, session_E, seed)))
        for code, regime in enumerate(REGIMES):
            if (regime_E == code).any():
                own_E = np.where(regime_E == code, weight_E, np.nan)
                found.append(DayWeight(day, regime, mean_over_dates(own_E, session_E, seed)))
    return found
