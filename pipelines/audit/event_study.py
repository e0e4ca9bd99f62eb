"""Returns after events: what firms earn beyond the others once a list drops them or an input ends.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from features.arrays import BoolArray, FloatArray

SPANS: Final = (21, 63)
"""Sessions after an event."""
LIMIT: Final = 0.07
"""Minimum |mean| of the return after an event beyond that of the other firms. Firms that an honest index
deletes lose about 5% around the announcement, and regain it afterwards (Chen, Noronha and Singal 2004)."""
DEVIATIONS: Final = 5.0
FEWEST: Final = 8
_LARGEST: Final = 2.0


@dataclass(frozen=True, slots=True)
class AfterEvents:
    """What firms earned after events.

    Attributes
    ----------
    events
        Number of events with a later return.
    span
        Sessions after the event.
    mean
        Mean of the return beyond the mean of all firms that traded at the event.
    t
        Its t statistic over the sessions with an event.
    """

    events: int
    span: int
    mean: float
    t: float

    @property
    def impossible(self) -> bool:
        """Whether nobody could have chosen these events without knowing what came after them."""
        return self.events >= FEWEST and abs(self.mean) >= LIMIT and abs(self.t) >= DEVIATIONS


def after_events(event_TN: BoolArray, index_TN: FloatArray, traded_TN: BoolArray) -> AfterEvents:
    """Return the span with the largest |t|.

    Parameters
    ----------
    event_TN
        Events that are known at the close of t, of firms that trade then.
    index_TN
        Total return index of the firms.
    traded_TN
        Whether a firm has a price.
    """
    best = AfterEvents(0, SPANS[0], 0.0, 0.0)
    for span in SPANS:
        at = np.flatnonzero((event_TN & traded_TN)[: max(len(index_TN) - span, 0)].any(axis=1))
        means, events = [], 0
        for t in at:
            with np.errstate(divide="ignore", invalid="ignore"):
                return_N = np.clip(index_TN[t + span] / index_TN[t] - 1.0, -1.0, _LARGEST)
            usual_N = traded_TN[t] & np.isfinite(return_N)
            own_N = event_TN[t] & usual_N
            if own_N.any() and usual_N.sum() > own_N.sum():
                means.append(float(return_N[own_N].mean() - return_N[usual_N & ~own_N].mean()))
                events += int(own_N.sum())
        if len(means) < FEWEST:
            continue
        mean, deviation = float(np.mean(means)), float(np.std(means, ddof=1))
        t_statistic = mean / max(deviation, 1e-9) * np.sqrt(len(means))
        if abs(t_statistic) > abs(best.t):
            best = AfterEvents(events, span, mean, float(t_statistic))
    return best
