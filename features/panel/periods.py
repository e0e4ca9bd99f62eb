"""How many sessions a year has: what annual figures multiply means and variances of a session by."""

import numpy as np

from features.arrays import DateArray

SESSIONS_PER_YEAR = 252.0
"""Sessions in a year of a daily market that closes at weekends."""


def periods_per_year(dates_T: DateArray) -> float:
    """Return how many sessions a year has, as the dates say.

    The usual step is the median number of days between two sessions, the lower of two.

    - A step of one day is a daily market. A weekday counts if it has half as many sessions as the most
      frequent one. With all seven it is a market that never closes, 365 sessions; with six it is 313, and
      with five or fewer 252, whatever its holidays: the number that published figures use.
    - A step of five days or more is ``365.25 / step``: 52 for weeks, 26, 12 for months, 4 and 1, which are
      taken where they are within 8%.
    - Anything between is ``365.25`` over the mean step. Gaps above 14 usual steps do not count.

    Sessions are ascending; fewer than two give 252.

    Examples
    --------
    >>> periods_per_year(np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]"))
    365.0
    >>> periods_per_year(np.arange("2020-01", "2024-01", dtype="datetime64[M]"))
    12.0
    """
    day_T = dates_T.astype("datetime64[D]").astype(np.int64)
    step_T = np.diff(day_T)
    if not len(step_T):
        return SESSIONS_PER_YEAR
    usual = float(np.sort(step_T)[(len(step_T) - 1) // 2])
    if usual <= 1:
        count_7 = np.bincount(day_T % 7, minlength=7)
        return {7: 365.0, 6: 313.0}.get(int((2 * count_7 >= count_7.max()).sum()), SESSIONS_PER_YEAR)
    step = usual if usual >= 5 else float(step_T[step_T <= 14 * usual].mean())
    rate = 365.25 / step
    return next((named for named in (52.0, 26.0, 12.0, 4.0, 1.0) if abs(rate / named - 1) <= 0.08), rate)
