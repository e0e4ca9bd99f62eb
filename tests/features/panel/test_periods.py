"""Periods per year against the number of sessions of real and made calendars."""

from __future__ import annotations

import datetime as dt

import exchange_calendars
import numpy as np
import pytest

from features.panel.periods import periods_per_year


def days(first: str, last: str, step: int = 1) -> np.ndarray:
    return np.arange(first, last, step, dtype="datetime64[D]")


@pytest.mark.parametrize("exchange", ["XNYS", "XSHG", "XTKS", "XBOM", "XSAU"])
@pytest.mark.parametrize("length", [12, 60, 252, 1000])
def test_daily_markets_have_252_sessions_whatever_their_holidays(exchange: str, length: int) -> None:
    found = exchange_calendars.get_calendar(exchange, start="2021-01-04", end="2026-06-30").sessions
    dates_T = found.to_numpy().astype("datetime64[D]")
    for start in range(0, len(dates_T) - length, 97):
        assert periods_per_year(dates_T[start : start + length]) == 252


def test_markets_that_never_close_have_365_sessions() -> None:
    assert periods_per_year(days("2021-01-01", "2021-03-01")) == 365
    with_holes_T = np.delete(days("2020-01-01", "2022-01-01"), np.s_[100:200])
    assert periods_per_year(with_holes_T) == 365
    saturdays_T = days("2020-01-01", "2022-01-01")
    assert periods_per_year(saturdays_T[saturdays_T.astype(int) % 7 != 3]) == 313  # 1970-01-04 was a Sunday


def test_a_stray_row_on_a_weekend_and_a_hole_of_half_a_year_change_nothing() -> None:
    weekday_T = np.array([d for d in days("2018-01-01", "2022-01-01") if np.is_busday(d)])
    stray_T = np.sort(np.append(weekday_T, np.datetime64("2019-06-08")))
    assert periods_per_year(stray_T) == 252
    assert periods_per_year(np.delete(weekday_T, np.s_[200:330])) == 252


def test_weeks_months_quarters_and_years() -> None:
    friday_T = days("2015-01-02", "2022-01-01", 7)
    assert periods_per_year(friday_T) == 52
    moved_T = friday_T - (np.arange(len(friday_T)) % 13 == 0)  # Thursdays before a holiday
    assert periods_per_year(moved_T) == 52
    assert periods_per_year(np.delete(friday_T, [7, 30, 31, 32, 90])) == 52
    assert periods_per_year(days("2015-01-02", "2022-01-01", 14)) == 26
    for months, expected in ((1, 12), (3, 4), (12, 1)):
        ends = [
            dt.date(2000 + m // 12, m % 12 + 1, 1) - dt.timedelta(days=1) for m in range(months, 240, months)
        ]
        assert periods_per_year(np.array(ends, dtype="datetime64[D]")) == expected
    assert periods_per_year(days("2020-01-01", "2020-12-31", 10)) == pytest.approx(36.525)
    three_T = np.array(
        [d for d in days("2018-01-01", "2020-12-28") if np.datetime64(d).astype(int) % 7 in (0, 4, 6)]
    )
    assert periods_per_year(three_T) == pytest.approx(3 * 52.18, rel=0.01)
    assert periods_per_year(friday_T[:1]) == 252
