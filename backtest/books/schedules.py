"""When a book decides: every m-th date with signals, or every m-th of the sessions that a calendar names.

Shape suffix: T sessions.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from features.arrays import BoolArray, DateArray, IntArray

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
Turn = Literal[
    Weekday, "week_end", "month_start", "month_end", "quarter_start", "quarter_end", "year_start", "year_end"
]
"""A session that a calendar names: the first one from a weekday on, or the first or last of a period."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Every m-th of the dates on which a book may decide and has signals.

    Raises
    ------
    ValueError
        If ``every`` is less than 1.

    Examples
    --------
    >>> Schedule(np.ones(4, dtype=bool), every=2).decisions(np.full(4, 10), needed=5)
    array([ True, False,  True, False])
    """

    turn_T: BoolArray
    """Sessions on which the book may decide, known at the close of t. A turn without enough signals waits for
    the next session that has them, so weekly signals and a book that turns at the end of a month meet once a
    month."""
    every: int = 1
    """The book decides on every ``every``-th of these dates with signals. Sessions without signals do not
    count: weekly signals and 2 give a decision every two weeks, whatever holidays lie between."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"rebalance_every is {self.every}; it must be at least 1.")

    def decisions(self, count_T: IntArray, needed: int) -> BoolArray:
        """Flag the sessions on which a book decides.

        ``count_T`` are the signals of each session, and ``needed`` those that a decision needs. Element t
        depends only on sessions up to t. ValueError if no session on which the book may decide has enough
        signals.
        """
        enough_T = count_T >= needed
        turn_T = np.cumsum(self.turn_T)
        served_T = np.concatenate([[0], np.maximum.accumulate(np.where(enough_T, turn_T, 0))[:-1]])
        possible_T: BoolArray = enough_T & (turn_T > served_T)
        if not possible_T.any():
            most = int(count_T[np.maximum.accumulate(self.turn_T)].max(initial=0))
            raise ValueError(
                f"The book needs {needed} signals per date, but no date on which it may decide has more than "
                f"{most}: lower its size, or let it decide on dates with signals."
            )
        chosen_T: BoolArray = possible_T & ((np.cumsum(possible_T) - 1) % self.every == 0)
        return chosen_T


def every_session(sessions: int, every: int = 1) -> Schedule:
    """Return the schedule of a book that may decide on every session and does so every ``every`` signals.

    Examples
    --------
    >>> every_session(3).turn_T
    array([ True,  True,  True])
    """
    return Schedule(np.ones(sessions, dtype=np.bool_), every)


def calendar(
    dates_T: DateArray, turn: Turn, every: int = 1, following: np.datetime64 | None = None
) -> Schedule:
    """Return the schedule of a book that decides on every ``every``-th session of a calendar.

    Parameters
    ----------
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, ascending.
    turn : str
        A weekday: the first session from that weekday on, so a holiday moves the decision to the next
        session. ``week_end``: the last session from Monday to Sunday; a Sunday after a closed Saturday
        begins a week, as in markets that trade from Sunday to Thursday. ``month_start``, ``quarter_start``
        and ``year_start``: the first session of the period; ``month_end`` and so on: its last session.
    every : int
        2 with ``friday`` is every second Friday.
    following : datetime64[D], optional
        Session after the last date. By default it is the next weekday.

    Returns
    -------
    Schedule
        Whether a session is the last one of a period is known at its close from the exchange's calendar,
        which is published in advance. Here the calendar is the dates of the data and ``following``. Whether
        the first date is the first session of its period is not known, so it is none.

    Raises
    ------
    ValueError
        If ``every`` is less than 1.

    Examples
    --------
    >>> days = np.array(["2024-01-30", "2024-01-31", "2024-02-01"], "datetime64[D]")
    >>> calendar(days, "month_end").turn_T
    array([False,  True, False])
    """
    day_T = dates_T.astype("datetime64[D]")
    if following is None:
        following = np.busday_offset(day_T[-1], 1, roll="backward")
    changes_T = np.diff(periods(np.append(day_T, following), turn)) > 0
    if turn.endswith("_end"):
        return Schedule(changes_T, every)
    return Schedule(np.concatenate([[False], changes_T[:-1]]), every)


def periods(dates_T: DateArray, turn: Turn) -> IntArray:
    """Number the periods that a calendar's turns separate: sessions of one period have one number.

    >>> periods(np.array(["2024-01-31", "2024-02-01", "2024-02-29"], "datetime64[D]"), "month_end")
    array([648, 649, 649])
    """
    day_T = dates_T.astype("datetime64[D]")
    number_T = day_T.astype(np.int64)
    if turn == "week_end":
        follows_T = np.concatenate([[False], np.diff(number_T) == 1])
        number_T = number_T + ((number_T % 7 == 3) & ~follows_T)  # 3: a Sunday
    weekdays = get_args(Weekday)
    if turn in weekdays or turn == "week_end":
        first = weekdays.index(turn) if turn in weekdays else 0
        return (number_T + 3 - first) // 7  # day 0, 1970-01-01, was a Thursday
    month_T = day_T.astype("datetime64[M]").astype(np.int64)
    months = {"month": 1, "quarter": 3, "year": 12}[turn.partition("_")[0]]
    return month_T // months
