"""The session after a night: by the exchange's calendar, its overrides, or the market's own week."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.ingest.calendars import is_session, newest_finished_session, with_sessions
from pipelines.lake.lake import Lake
from pipelines.nightly.schedule import calendar_end, due_session, following_session


def config(tiny: Mapping[str, Any], calendar: str | None, **overrides: Sequence[str]) -> Config:
    files = {"kind": "files", "prices": "prices.csv"}
    quality = {"calendar": calendar, "calendar_overrides": overrides}
    return check_config({**tiny, "source": files, "quality": quality}, origin="test")


def day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def days(first: str, last: str, weekdays: str) -> list[dt.date]:
    """Days between two dates whose weekday (Monday is 0) is named."""
    span = pl.date_range(day(first), day(last), eager=True).to_list()
    return [one for one in span if str(one.weekday()) in weekdays]


@pytest.mark.parametrize(
    ("calendar", "overrides", "tonight_and_next"),
    [
        ("XNYS", {}, ("2024-03-28", "2024-04-01")),  # Good Friday
        ("XNYS", {}, ("2024-12-24", "2024-12-26")),
        ("XHKG", {}, ("2023-08-31", "2023-09-01")),  # a typhoon closed Hong Kong on September 1
        ("XHKG", {"closures": ["2023-09-01"]}, ("2023-08-31", "2023-09-04")),
        ("XNYS", {"sessions": ["2024-03-30"]}, ("2024-03-28", "2024-03-30")),
        ("XSHG", {}, ("2026-12-31", "2027-01-01")),  # the calendar ends: the week of the data
        ("XSHG", {"closures": ["2027-01-01"]}, ("2026-12-31", "2027-01-04")),
        ("XSHG", {"sessions": ["2027-01-04", "2027-01-06"]}, ("2026-12-31", "2027-01-04")),
        ("XSHG", {"sessions": ["2027-01-04", "2027-01-06"]}, ("2027-01-04", "2027-01-06")),
        (None, {}, ("2024-03-28", "2024-03-29")),
        (None, {"closures": ["2024-03-29", "2024-04-01"]}, ("2024-03-28", "2024-04-02")),
        (None, {"sessions": ["2024-03-30"]}, ("2024-03-29", "2024-03-30")),
    ],
)
def test_the_following_session_is_that_of_the_calendar_with_its_overrides(
    tiny: dict[str, Any],
    tmp_path: Path,
    calendar: str | None,
    overrides: dict[str, list[str]],
    tonight_and_next: tuple[str, str],
) -> None:
    tonight, following = tonight_and_next
    sessions = days("2022-01-03", tonight, "01234")
    own = config(tiny, calendar, **overrides)
    assert following_session(own, Lake(tmp_path), sessions) == day(following)


@pytest.mark.parametrize(
    ("sessions", "following"),
    [
        (days("2021-03-01", "2021-07-30", "0123456"), "2021-07-31"),  # crypto, on a Friday
        (days("2021-03-01", "2021-07-29", "01236"), "2021-08-01"),  # Sunday to Thursday
        (days("2021-03-01", "2021-07-30", "4"), "2021-08-06"),  # weekly closes
        ([*days("2021-03-01", "2021-07-30", "01234"), day("2021-07-31")], "2021-08-02"),  # one Saturday
        ([day("2021-07-29"), day("2021-07-30")], "2021-08-02"),  # too few to learn from
        ([day(f"2021-{month:02}-28") for month in range(1, 8)], "2021-08-27"),  # monthly data
    ],
)
def test_a_market_without_a_calendar_has_its_own_week(
    tiny: dict[str, Any], tmp_path: Path, sessions: list[dt.date], following: str
) -> None:
    assert following_session(config(tiny, None), Lake(tmp_path), sessions) == day(following)


def test_a_guessed_calendar_that_the_data_contradict_is_not_used(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    every_day = days("2021-03-01", "2021-07-30", "0123456")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.nightly.schedule.exchange_calendar", lambda *_: "XNYS")
        assert following_session(config(tiny, None), lake, every_day) == day("2021-07-31")
        assert following_session(config(tiny, None), lake, every_day[:-1]) == day("2021-07-30")
        weekdays = days("2021-03-01", "2021-07-30", "01234")
        assert following_session(config(tiny, None), lake, weekdays) == day("2021-08-02")
        patch.setattr("pipelines.nightly.schedule.exchange_calendar", lambda *_: "XSHG")
        tonight = day("2027-01-04")  # after the end of that calendar
        every_day = days("2026-10-01", "2027-01-04", "0123456")
        assert calendar_end(config(tiny, None), lake, tonight, every_day) is None
        ended = calendar_end(config(tiny, None), lake, tonight, days("2026-10-01", "2027-01-04", "01234"))
        assert ended is not None
        assert ended.level == "fail"


def test_no_session_is_due_by_a_calendar_that_the_data_contradict(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Sunday evening New York's last session was on Friday, which says nothing about crypto."""
    now = dt.datetime(2021, 8, 1, 22, tzinfo=dt.UTC)
    monkeypatch.setattr("pipelines.nightly.schedule.exchange_calendar", lambda *_: "XNYS")
    for weekdays, due in (("01234", day("2021-07-30")), ("0123456", None)):
        held = days("2021-03-01", "2021-08-01", weekdays)
        monkeypatch.setattr("pipelines.nightly.schedule.sessions_of", lambda _, held=held: held)
        assert due_session(config(tiny, None), Lake(tmp_path), now) == due
        closed = config(tiny, None, closures=["2021-07-30"])
        assert due_session(closed, Lake(tmp_path), now) == (due and day("2021-07-29"))


@pytest.mark.parametrize(
    ("tonight", "sessions", "level"),
    [
        ("2026-11-18", [], None),
        ("2026-11-19", [], "warn"),
        ("2026-12-31", [], "warn"),
        ("2027-01-04", [], "fail"),
        ("2027-01-04", ["2027-01-04"], "warn"),
        ("2027-01-04", ["2027-01-04", "2027-06-01"], None),
    ],
)
def test_a_calendar_that_ends_is_a_warning_weeks_before_and_an_error_after(
    tiny: dict[str, Any], tmp_path: Path, tonight: str, sessions: list[str], level: str | None
) -> None:
    found = calendar_end(config(tiny, "XSHG", sessions=sessions), Lake(tmp_path), day(tonight), [])
    assert (None if found is None else found.level) == level
    if found is not None:
        assert max(["2026-12-31", *sessions]) in found.sentence
        assert "quality.calendar_overrides.sessions" in found.sentence
    assert calendar_end(config(tiny, "XNYS"), Lake(tmp_path), day(tonight), []) is None
    assert calendar_end(config(tiny, None), Lake(tmp_path), day(tonight), []) is None


def test_overrides_change_what_the_calendar_says_of_a_day(tiny: dict[str, Any]) -> None:
    typhoon = config(tiny, "XHKG", closures=["2023-09-01"], sessions=["2023-09-02"])
    overrides = typhoon.quality.calendar_overrides
    assert [is_session("XHKG", day(f"2023-09-0{n}")) for n in (1, 2)] == [True, False]
    assert [is_session("XHKG", day(f"2023-09-0{n}"), overrides) for n in (1, 2)] == [False, True]
    now = dt.datetime(2023, 9, 1, 23, tzinfo=dt.UTC)
    assert newest_finished_session("XHKG", now) == day("2023-09-01")
    assert newest_finished_session("XHKG", now, overrides) == day("2023-08-31")
    assert newest_finished_session("XHKG", now + dt.timedelta(days=2), overrides) == day("2023-09-02")
    rows = pl.DataFrame({"date": [day("2023-09-01"), day("2023-09-02")]})
    rows = rows.with_columns(source=pl.lit("files"), exchange=pl.lit("HKG"), currency=pl.lit("HKD"))
    assert with_sessions(rows, None, overrides)["session"].to_list() == [False, True]
    with pytest.raises(ConfigError, match="closures and sessions both name 2023-09-01"):
        config(tiny, "XHKG", closures=["2023-09-01"], sessions=["2023-09-01"])
