"""Compiled loops of the panel: statements in the order of their filings, and what a holder's units are worth.

`follow_filings` visits the filings in the order in which they became known. It keeps, for every period
reported so far, the latest known version. Filings that become known later therefore cannot affect a result.
Importing this module imports numba, so it is imported inside functions.

Shape suffixes: T sessions, N firms; R filings, sorted by series (a firm's item), within it by known_at and
period_end; P periods.
"""

import numpy as np

from features.arithmetic.kernels import compiled
from features.arrays import BoolArray, FloatArray, IntArray

QUARTER, YEAR = 91.3125, 365.25  # mean lengths in days
TOLERANCE = 28.0  # days: quarters have 12 to 17 weeks, fiscal years 52 or 53


@compiled
def _nearest_period(end_P: IntArray, n: int, day: float) -> int:
    """Find the period whose end is nearest to a day, within the tolerance; -1 if there is none."""
    nearest, best = -1, TOLERANCE
    for p in range(n - 1, -1, -1):
        distance = abs(end_P[p] - day)
        if distance <= best:
            nearest, best = p, distance
        elif end_P[p] < day:
            break
    return nearest


@compiled
def _quarter(p: int, n: int, end_P: IntArray, reported_P3: FloatArray) -> float:
    """Return a period's last quarter: as reported, or the year minus its first three quarters."""
    if not np.isnan(reported_P3[p, 2]):
        return float(reported_P3[p, 2])
    rest = reported_P3[p, 1]
    for k in range(1, 4):
        earlier = _nearest_period(end_P, n, end_P[p] - QUARTER * k)
        if earlier < 0:
            return np.nan
        rest -= reported_P3[earlier, 2]
    return float(rest)


@compiled
def _value(p: int, n: int, end_P: IntArray, reported_P3: FloatArray) -> float:
    """Return a period's value: as reported for a year or an instant, else the sum of four quarters."""
    for span in range(2):
        if not np.isnan(reported_P3[p, span]):
            return float(reported_P3[p, span])
    total = 0.0
    for k in range(4):
        at = _nearest_period(end_P, n, end_P[p] - QUARTER * k)
        if at < 0:
            return np.nan
        total += _quarter(at, n, end_P, reported_P3)
    return total


@compiled
def follow_filings(
    series_R: IntArray, end_R: IntArray, value_R: FloatArray, months_R: IntArray
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Compute, after each filing, the known values of the newest period and of the one a year earlier.

    Rows of one series (a firm's item) are contiguous. ``end_R`` is the end of the period in days, ``value_R``
    is finite, and ``months_R`` is the span of a flow: 3 or 12; 0 for an instant or an unknown span. The first
    two results are the values of the newest period and of the period a year earlier, each in its latest known
    version; NaN where a quarter is missing, or where no period ended about a year earlier. The third is the
    end of the newest period, in days.
    """
    rows = len(series_R)
    now_R, before_R = np.empty(rows), np.empty(rows)
    now_end_R = np.empty(rows, dtype=np.int64)
    longest = run = 0
    for r in range(rows):
        run = run + 1 if r > 0 and series_R[r] == series_R[r - 1] else 1
        longest = max(longest, run)
    end_P = np.empty(longest, dtype=np.int64)
    reported_P3 = np.empty((longest, 3))  # latest version: without a span, 12 months, 3 months
    n = 0
    for r in range(rows):
        if r > 0 and series_R[r] != series_R[r - 1]:
            n = 0
        p = n
        while p > 0 and end_P[p - 1] > end_R[r]:
            p -= 1
        if p > 0 and end_P[p - 1] == end_R[r]:
            p -= 1
        else:
            for q in range(n, p, -1):
                end_P[q] = end_P[q - 1]
                for span in range(3):
                    reported_P3[q, span] = reported_P3[q - 1, span]
            n += 1
            end_P[p], reported_P3[p] = end_R[r], np.nan
        if months_R[r] == 3:
            reported_P3[p, 2] = value_R[r]
        else:
            reported_P3[p, :2] = np.nan
            reported_P3[p, 1 if months_R[r] == 12 else 0] = value_R[r]
        newest = n - 1
        now_R[r] = _value(newest, n, end_P, reported_P3)
        now_end_R[r] = end_P[newest]
        before_R[r] = np.nan
        before = _nearest_period(end_P, n, end_P[newest] - YEAR)
        if before >= 0:
            before_R[r] = _value(before, n, end_P, reported_P3)
    return now_R, now_end_R, before_R


@compiled
def hold(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    index_TN: FloatArray,
    traded_TN: BoolArray,
    delisted_TN: BoolArray,
    value_TN: FloatArray,
    known_TN: BoolArray,
    tradable_TN: BoolArray,
    gone_TN: BoolArray,
) -> None:
    """Fill the four arrays of a `HolderMarket`; arguments in the order of its function and its fields.

    A firm is gone only once its index no longer changes while it is delisted: before that, holders wait.
    """
    T, N = index_TN.shape
    last_N = np.full(N, np.nan)
    for t in range(T):
        index, traded, delisted = index_TN[t], traded_TN[t], delisted_TN[t]
        value, known, tradable, gone = value_TN[t], known_TN[t], tradable_TN[t], gone_TN[t]
        for i in range(N):
            is_known = not np.isnan(index[i])
            last = index[i] if is_known else last_N[i]
            is_gone = delisted[i] | (last == 0.0)
            last_N[i] = value[i] = last
            known[i] = is_known
            gone[i] = is_gone
            tradable[i] = traded[i] & is_known & (not is_gone)
    waits_N = np.zeros(N, dtype=np.bool_)
    for t in range(T - 2, -1, -1):
        value, after, gone = value_TN[t], value_TN[t + 1], gone_TN[t]
        for i in range(N):
            both = delisted_TN[t, i] & delisted_TN[t + 1, i]
            waits_N[i] = both & (waits_N[i] | (value[i] != after[i]))
            gone[i] &= not waits_N[i]
