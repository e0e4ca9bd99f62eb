"""How large the correlation of an honest signal with later returns can be.

A daily IC of 0.15 forecasts 2% of the variance of single-session returns. With 300 firms and daily trades
that is a Sharpe ratio above 20 before costs (Grinold 1989: the square root of breadth times the IC). The best
published daily signals have ICs of 0.02 to 0.06, and the true mean of the simulated market, which no model
can beat, 0.08. Longer horizons: the IC of a signal that never fades grows with the square root of the
horizon, that of a signal for one session falls with it. The ceiling grows with the fourth root, which leaves
room for slow signals.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from features.arrays import FloatArray

CEILING: Final = 0.15
"""Mean IC with the return of one session above which a signal is not believed."""

REMARKABLE: Final = 0.10
"""Mean IC with the return of one session above which a person should look."""

_ERRORS = 4.0  # standard errors that an estimate must lie above the ceiling
_HONEST_DEVIATION = 0.15  # of the daily ICs of factor-like signals; guards small samples


def ceiling(horizon: int, at_one: float = CEILING) -> float:
    """Highest believable mean IC with the return over ``horizon`` sessions: ``at_one * horizon^(1/4)``."""
    return float(at_one * horizon**0.25)


def lower_bound(ic_D: FloatArray, overlap: int = 1) -> float:
    """Size that the mean of daily ICs has at least: ``|mean|`` less four standard errors.

    Parameters
    ----------
    ic_D
        Daily ICs; NaN is left out.
    overlap
        Number of consecutive dates whose returns overlap, which have that many times fewer independent ICs.

    Returns
    -------
    float
        Negative if the mean may be zero; NaN without a date.
    """
    known = ic_D[~np.isnan(ic_D)]
    if not len(known):
        return float("nan")
    deviation = max(float(known.std(ddof=1)) if len(known) > 1 else 0.0, _HONEST_DEVIATION)
    independent = max(len(known) / overlap, 1.0)
    return abs(float(known.mean())) - _ERRORS * deviation / float(np.sqrt(independent))


def mean_of(ic_D: FloatArray) -> float:
    """Mean of the known ICs; NaN if there are none."""
    known = ic_D[~np.isnan(ic_D)]
    return float(known.mean()) if len(known) else float("nan")
