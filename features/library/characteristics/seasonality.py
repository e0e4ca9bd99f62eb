"""Seasonality: what a firm did at this time of other years, and on this day of other weeks.

Shape suffixes: T sessions, N firms, K weeks. ``C`` is the close carried through halts, ``r`` the day's
return. A year is 252 sessions and a month 21, both counted; weekdays are those of the calendar's dates.
"""

from __future__ import annotations

import numpy as np

from features.arrays import DateArray, FloatArray, IntArray
from features.library.characteristics.registry import characteristic
from features.library.characteristics.reversal import trailing_return
from features.panel.derived import MAX_HALT, daily_return
from features.panel.panel import Panel

WEEKS = 20


@characteristic(
    "same_month_return_1y",
    "seasonality",
    warmup=252,
    formula="C[t-231] / C[t-252] - 1",
    unit="fraction",
    source="Heston and Sadka 2008",
)
def same_month_return(panel: Panel) -> FloatArray:
    """Compute the return of the 21 sessions that began 252 sessions ago.

    This approximates the month that follows t, one year earlier. It counts sessions and reads no calendar
    dates, so it moves within the year where a calendar has more or fewer than 252 sessions.
    """
    return trailing_return(panel, 252, 231)


@characteristic(
    "same_month_return_3y",
    "seasonality",
    warmup=504,
    window=756 + 1 + MAX_HALT,
    formula="mean(C[t-252k+21] / C[t-252k] - 1 over k = 1..3)",
    unit="fraction",
    nan_rule="fewer than 2 of the 3 known",
    source="Heston and Sadka 2008",
)
def same_month_returns(panel: Panel) -> FloatArray:
    """Compute the mean return of the 21 sessions that began 252, 504 and 756 sessions ago.

    It counts sessions and reads no calendar dates, as `same_month_return`.
    """
    return _mean_of([trailing_return(panel, 252 * k, 252 * k - 21) for k in (1, 2, 3)], least=2)


@characteristic(
    "same_weekday_return_100",
    "seasonality",
    warmup=100,
    window=7 * WEEKS + 1 + MAX_HALT,  # as many sessions as there are days, on a market that never closes
    formula="mean of r on the days D - 7k, k = 1..20, D the first day after t with 10 sessions among them",
    unit="fraction a day",
    nan_rule="no such D; fewer than 10 of the 20 known (a day without a session is not)",
    source="Keloharju, Linnainmaa and Nyberg 2016",
)
def same_weekday_return(panel: Panel) -> FloatArray:
    """Compute the mean return of the last 20 weeks on the weekday of the session that comes next.

    The next session is foreseen from the weekdays on which the market was open. A holiday is not foreseen.
    """
    at_TK = _same_weekday_sessions(panel.dates_T)
    r_TN = np.vstack([daily_return(panel), np.full((1, panel.n_firms), np.nan)])  # at -1: no session
    return _mean_of([r_TN[at_T] for at_T in at_TK.T], least=WEEKS // 2)


def _same_weekday_sessions(dates_T: DateArray) -> IntArray:
    """Find the sessions on the next one's weekday in the last `WEEKS` weeks, [T, K]; -1 is none."""
    day_T = dates_T.astype("datetime64[D]").astype(np.int64)
    back_K = 7 * np.arange(1, WEEKS + 1)
    at_TK: IntArray = np.full((len(day_T), WEEKS), -1, dtype=np.int64)
    found_T = np.zeros(len(day_T), dtype=np.bool_)  # whether the next session's weekday was found
    for ahead in range(1, 8):
        wanted_TK = day_T[:, None] + ahead - back_K
        place_TK = np.minimum(np.searchsorted(day_T, wanted_TK), len(day_T) - 1)
        there_TK = day_T[place_TK] == wanted_TK
        new_T = ~found_T & (there_TK.sum(axis=1) >= WEEKS // 2)
        at_TK[new_T] = np.where(there_TK, place_TK, -1)[new_T]
        found_T |= new_T
    return at_TK


def _mean_of(parts: list[FloatArray], least: int) -> FloatArray:
    total_TN, count_TN = np.zeros_like(parts[0]), np.zeros_like(parts[0])
    for part_TN in parts:
        known_TN = ~np.isnan(part_TN)
        total_TN[known_TN] += part_TN[known_TN]
        count_TN += known_TN
    return np.where(count_TN >= least, total_TN / count_TN, np.nan)
