"""A fold between given days, as published benchmarks define it.

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

from __future__ import annotations

import datetime as dt

import numpy as np

from backtest.splits.fold import Fold, label_span, require_at_least, sessions_between
from features.arrays import DateArray

Day = dt.date | np.datetime64


def dated_fold(
    dates_T: DateArray,
    *,
    train_from: Day,
    valid_from: Day,
    test_from: Day,
    test_to: Day,
    embargo: int,
    delay: int,
    horizon: int,
) -> Fold:
    """Build one fold between given days, as published benchmarks define it.

    Training uses the sessions of ``[train_from, valid_from)`` and validation those of
    ``[valid_from, test_from)``, both without their last ``delay + horizon + embargo`` sessions. The test uses
    ``[test_from, test_to]``, both days included. Test dates are not purged: if the data end before a label
    does, the label is NaN and metrics skip it.

    Parameters
    ----------
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, ascending.
    train_from, valid_from, test_from, test_to : date or datetime64
        Days. A day that is not a session means the next session (for ``test_to``: the previous one).
    embargo, delay, horizon : int
        As in `backtest.splits.walk_forward`.

    Returns
    -------
    Fold
        With index 0.

    Raises
    ------
    ValueError
        If the days are out of order, or a segment has no session before or after purging.
    """
    require_at_least(0, {"embargo": embargo})
    gap = label_span(delay, horizon) + embargo
    days = [
        np.datetime64(day).astype("datetime64[D]") for day in (train_from, valid_from, test_from, test_to)
    ]
    if not days[0] < days[1] < days[2] <= days[3]:
        msg = (
            f"The fold's days are {days[0]}, {days[1]}, {days[2]} and {days[3]}; they must satisfy "
            "train_from < valid_from < test_from <= test_to."
        )
        raise ValueError(msg)
    days_T = dates_T.astype("datetime64[D]")
    train_start, valid_start, test_start = (int(np.searchsorted(days_T, day)) for day in days[:3])
    test_stop = int(np.searchsorted(days_T, days[3], side="right"))
    for name, start, stop, purge in (
        ("train", train_start, valid_start, gap),
        ("valid", valid_start, test_start, gap),
        ("test", test_start, test_stop, 0),
    ):
        if stop - start <= purge:
            span = f"{days_T[0]} to {days_T[-1]}" if len(days_T) else "no session"
            msg = (
                f"The {name} segment has {stop - start} sessions, but it needs more than {purge} "
                f"(delay {delay} + horizon {horizon} + embargo {embargo} are purged before "
                f"the next segment): move its dates. The data cover {span}."
            )
            raise ValueError(msg)
    return Fold(
        index=0,
        train=sessions_between(train_start, valid_start - gap),
        valid=sessions_between(valid_start, test_start - gap),
        test=sessions_between(test_start, test_stop),
    )
