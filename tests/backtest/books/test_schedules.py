"""Schedules against pandas' calendars."""

from __future__ import annotations

import exchange_calendars
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.books.schedules import Schedule, Turn, calendar, every_session

SESSIONS = exchange_calendars.get_calendar("XNYS", start="2010-01-01", end="2014-12-31").sessions
DATES_T = SESSIONS.to_numpy().astype("datetime64[D]")
FREQUENCY = {"week": "W-SUN", "month": "M", "quarter": "Q", "year": "Y"}


def chosen(turn: Turn, dates_T: np.ndarray = DATES_T) -> list[str]:
    return [str(day) for day in dates_T[calendar(dates_T, turn).turn_T]]


@pytest.mark.parametrize("turn", ["week_end", "month_end", "quarter_end", "year_end"])
def test_ends_of_periods_are_their_last_sessions(turn: Turn) -> None:
    days = pd.Series(SESSIONS, index=SESSIONS)
    last = days.groupby(SESSIONS.to_period(FREQUENCY[turn.partition("_")[0]])).last()
    assert len(last) >= 5
    known = last.iloc[:-1] if turn == "week_end" else last  # the data end on a Wednesday
    assert chosen(turn) == known.dt.strftime("%Y-%m-%d").tolist()


@pytest.mark.parametrize("turn", ["month_start", "quarter_start", "year_start"])
def test_starts_of_periods_are_their_first_sessions(turn: Turn) -> None:
    days = pd.Series(SESSIONS, index=SESSIONS)
    first = days.groupby(SESSIONS.to_period(FREQUENCY[turn.partition("_")[0]])).first()
    assert chosen(turn) == first.dt.strftime("%Y-%m-%d").tolist()[1:]  # the first may have begun before


def test_a_holiday_moves_a_weekday_to_the_next_session() -> None:
    dates_T = np.array(
        ["2012-10-25", "2012-10-26", "2012-10-31", "2012-11-01", "2012-11-05"], "datetime64[D]"
    )
    assert chosen("monday", dates_T) == ["2012-10-31", "2012-11-05"]  # 29 and 30 October: hurricane Sandy
    assert chosen("friday", dates_T) == ["2012-10-26", "2012-11-05"]  # 2 November is missing
    assert chosen("thursday", dates_T) == ["2012-11-01"]
    assert {pd.Timestamp(day).day_name() for day in chosen("wednesday")} == {"Wednesday", "Thursday"}


@pytest.mark.parametrize(
    ("weekdays", "ends"),
    [("01236", ["2024-02-29", "2024-03-07"]), ("0123456", ["2024-02-25", "2024-03-03", "2024-03-10"])],
)
def test_the_last_session_of_a_week_from_sunday_to_thursday_is_a_thursday(
    weekdays: str, ends: list[str]
) -> None:
    days = pd.date_range("2024-02-24", "2024-03-11")  # a Saturday, a Monday
    open_T = days[[str(day) in weekdays for day in days.dayofweek]].to_numpy().astype("datetime64[D]")
    assert chosen("week_end", open_T) == ends


@settings(max_examples=60)
@given(
    end=st.integers(2, len(DATES_T)),
    turn=st.sampled_from(["monday", "friday", "week_end", "month_start", "month_end", "quarter_end"]),
)
def test_dates_after_a_session_do_not_decide_about_it(end: int, turn: Turn) -> None:
    whole_T, part_T = calendar(DATES_T, turn).turn_T, calendar(DATES_T[:end], turn).turn_T
    np.testing.assert_array_equal(part_T[:-1], whole_T[: end - 1])
    if not turn.endswith("_end"):  # of the last date only weekdays say whether it ends a period
        assert part_T[-1] == whole_T[end - 1]
    if end < len(DATES_T):  # or the calendar, if it is given
        known_T = calendar(DATES_T[:end], turn, following=DATES_T[end]).turn_T
        np.testing.assert_array_equal(known_T, whole_T[:end])


def test_a_holiday_at_the_end_of_a_month_is_known_from_the_calendar_alone() -> None:
    dates_T = DATES_T[np.datetime64("2013-03-28") >= DATES_T]  # a Thursday; 29 March was Good Friday
    assert not calendar(dates_T, "month_end").turn_T[-1]
    assert calendar(dates_T, "month_end", following=np.datetime64("2013-04-01")).turn_T[-1]


def test_every_counts_the_dates_with_enough_signals() -> None:
    schedule = Schedule(np.array([1, 0, 1, 1, 0, 1, 0, 1], dtype=bool), every=2)
    count_T = np.array([3, 3, 5, 5, 9, 3, 5, 5])
    # turns 0 and 2 meet at 2, turn 3 at 3, turn 5 at 6, turn 7 at 7
    assert np.flatnonzero(schedule.decisions(count_T, 5)).tolist() == [2, 6]
    assert np.flatnonzero(every_session(8, 3).decisions(count_T, 5)).tolist() == [2, 6]


def test_weekly_signals_are_all_used_whatever_holidays_lie_between() -> None:
    weekly_T = calendar(DATES_T, "week_end").turn_T  # Fridays, or Thursdays before a holiday
    count_T = np.where(weekly_T, 30, 0)
    signals = np.flatnonzero(weekly_T)
    assert len(signals) > 250
    for every in (1, 2, 5):
        chosen_T = every_session(len(DATES_T), every).decisions(count_T, 20)
        assert np.flatnonzero(chosen_T).tolist() == signals[::every].tolist()
    monthly_T = calendar(DATES_T, "month_end").decisions(
        count_T, 20
    )  # the first Friday from a month's end on
    friday_S, last_S = DATES_T[signals], DATES_T[calendar(DATES_T, "month_end").turn_T]
    first_S = friday_S[np.searchsorted(friday_S, last_S[last_S <= friday_S[-1]])]
    assert len(first_S) == 59
    np.testing.assert_array_equal(DATES_T[monthly_T], first_S)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), every=st.integers(1, 4))
def test_decisions_equal_a_loop_over_sessions(seed: int, every: int) -> None:
    rng = np.random.default_rng(seed)
    turn_T, count_T = rng.random(40) < rng.uniform(0.1, 1), rng.integers(0, 6, 40)
    waits, seen, expected = False, 0, []
    for t in range(40):
        waits |= bool(turn_T[t])
        if waits and count_T[t] >= 3:
            if seen % every == 0:
                expected.append(t)
            seen, waits = seen + 1, False
    if expected:
        assert np.flatnonzero(Schedule(turn_T, every).decisions(count_T, 3)).tolist() == expected


def test_a_schedule_without_signals_raises() -> None:
    with pytest.raises(ValueError, match="no date on which it may decide has more than 3"):
        Schedule(np.array([False, True])).decisions(np.array([9, 3]), 5)
    with pytest.raises(ValueError, match="rebalance_every is 0"):
        every_session(3, 0)
