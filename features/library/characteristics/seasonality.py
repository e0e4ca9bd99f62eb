"""Seasonality: returns in the same month of earlier years, and on the same weekday of earlier weeks.

Shape suffixes: T sessions, N firms, K weeks. ``C`` is the close carried through halts, ``r`` the day's
return. A year is counted as 252 sessions and a month as 21; weekdays are those of the calendar dates.
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
    dates, so the month shifts within the year if a calendar has more or fewer than 252 sessions.
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

    Like `same_month_return`, it counts sessions and reads no calendar dates.
    """
    return _mean_of([trailing_return(panel, 252 * k, 252 * k - 21) for k in (1, 2, 3)], least=2)


@characteristic(
    "same_weekday_return_100",
    "seasonality",
    warmup=100,
    window=7 * WEEKS + 1 + MAX_HALT,  # one session per calendar day, for markets that never close
    formula=(
        "mean of r on the days D - 7k, k = 1..20, D the first day after t for which at least 10 of these "
        "days are sessions"
    ),
    unit="fraction per day",
    nan_rule="no such D; fewer than 10 of the 20 returns known (a day without a session is unknown)",
    source="Keloharju, Linnainmaa and Nyberg 2016",
)
def same_weekday_return(panel: Panel) -> FloatArray:
    """Compute the mean return over the last 20 weeks on the weekday of the next session.

    The next session's weekday is predicted from the weekdays on which the market was open. Holidays are not
    predicted.
    """
    at_TK = _same_weekday_sessions(panel.dates_T)
    r_TN = np.vstack([daily_return(panel), np.full((1, panel.n_firms), np.nan)])  # at -1: no session
    return _mean_of([r_TN[at_T] for at_T in at_TK.T], least=WEEKS // 2)


def _same_weekday_sessions(dates_T: DateArray) -> IntArray:
    """Find the sessions of the last `WEEKS` weeks on the next session's weekday, [T, K]; -1 if none."""
    day_T = dates_T.astype("datetime64[D]").astype(np.int64)
    back_K = 7 * np.arange(1, WEEKS + 1)
    at_TK: IntArray = np.full((len(day_T), WEEKS), -1, dtype=np.int64)
    found_T = np.zeros(len(day_T), dtype=np.bool_)  # whether the next session's weekday was found
    for ahead in range(1, 8):
        target_TK = day_T[:, None] + ahead - back_K
        place_TK = np.minimum(np.searchsorted(day_T, target_TK), len(day_T) - 1)
        present_TK = day_T[place_TK] == target_TK
        new_T = ~found_T & (present_TK.sum(axis=1) >= WEEKS // 2)
        at_TK[new_T] = np.where(present_TK, place_TK, -1)[new_T]
        found_T |= new_T
    return at_TK


def _mean_of(parts: list[FloatArray], least: int) -> FloatArray:
    total_TN, count_TN = np.zeros_like(parts[0]), np.zeros_like(parts[0])
    for part_TN in parts:
        known_TN = ~np.isnan(part_TN)
        total_TN[known_TN] += part_TN[known_TN]
        count_TN += known_TN
    return np.where(count_TN >= least, total_TN / count_TN, np.nan)
