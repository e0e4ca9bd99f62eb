"""Which night decides: on the schedule, late if it was missed, and never twice."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from backtest.books.rules.top_k_long_only import TopKLongOnly
from features.panel.panel import PRICE_COLUMNS, Panel, build_panel
from pipelines.lake.schemas import schema
from pipelines.nightly.schedule import decision_due, schedule_text


def book(**settings: Any) -> TopKLongOnly:  # noqa: ANN401 (settings)
    return TopKLongOnly(k=2, **settings)


def day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def days(first: str, last: str, weekdays: str = "01234", closed: Sequence[str] = ()) -> list[dt.date]:
    span = pl.date_range(day(first), day(last), eager=True).to_list()
    return [one for one in span if str(one.weekday()) in weekdays and str(one) not in closed]


def panel(sessions: list[dt.date]) -> Panel:
    prices = pl.DataFrame(
        {"date": sessions, "ticker": "A", "close": 1.0, "split_ratio": 1.0, "dividend": 0.0}
    )
    blank = [pl.lit(None, dtype=pl.Float64).alias(one) for one in PRICE_COLUMNS if one not in prices.columns]
    return build_panel(prices.with_columns(blank))


def decide(
    settings: TopKLongOnly,
    sessions: list[dt.date],
    first: str,
    expected: dict[str, str] | None = None,
    refused: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Play all sessions from the first night on; return (session, session that it decided for).

    ``expected`` names the nights that expect another session than the one that comes.
    """
    expected, made = expected or {}, []
    accounts: pl.DataFrame = schema("accounts").create_empty()
    for n, session in enumerate(sessions[:-1]):
        if session < day(first):
            continue
        following = day(expected.get(str(session), str(sessions[n + 1])))
        due = decision_due(settings, panel(sessions[: n + 1]).dates_T, following, accounts)
        if due is not None:
            assert due <= session
            if str(session) not in refused:
                made.append((str(session), str(due)))
        decision = None if due is None else "refused" if str(session) in refused else "made"
        row = {"session": session, "schedule": schedule_text(settings), "decision": decision}
        row |= {"due": due}
        new = pl.DataFrame([row], schema={name: accounts.schema[name] for name in row})
        accounts = pl.concat([accounts, new], how="diagonal")
    return made


def same(*sessions: str) -> list[tuple[str, str]]:
    return [(one, one) for one in sessions]


def test_a_holiday_at_the_end_of_a_month_makes_the_decision_late_and_once() -> None:
    sessions = days("2021-05-03", "2021-07-02", closed=["2021-05-31"])
    made = decide(book(rebalance_on="month_end"), sessions, "2021-05-27", {"2021-05-28": "2021-05-31"})
    assert made == [("2021-06-01", "2021-05-28"), *same("2021-06-30")]


def test_a_session_that_nobody_expected_makes_no_second_decision() -> None:
    crypto = days("2021-07-01", "2021-09-02", "0123456")
    on_time = decide(book(rebalance_on="month_end"), crypto, "2021-07-20")
    assert on_time == same("2021-07-31", "2021-08-31")
    guessed = {"2021-07-30": "2021-08-02", "2021-07-31": "2021-08-02"}
    assert decide(book(rebalance_on="month_end"), crypto, "2021-07-20", guessed) == same(
        "2021-07-30", "2021-08-31"
    )


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({}, ["05", "06", "07", "10", "11", "12", "13", "14"]),
        ({"rebalance_every": 3}, ["05", "10", "13"]),
        ({"rebalance_on": "week_end"}, ["07", "14"]),
        ({"rebalance_on": "week_end", "rebalance_every": 2}, ["07"]),
        ({"rebalance_on": "monday"}, ["10"]),
    ],
)
def test_a_season_without_surprises_decides_as_a_backtest(settings: dict[str, Any], made: list[str]) -> None:
    sessions = days("2021-05-03", "2021-05-17")
    assert decide(book(**settings), sessions, "2021-05-05") == same(*(f"2021-05-{one}" for one in made))


def test_a_decision_before_the_first_night_is_not_missed() -> None:
    sessions = days("2021-05-03", "2021-06-04")
    assert decide(book(rebalance_on="month_end"), sessions, "2021-06-01") == []


def test_a_refused_decision_is_made_by_the_next_night_as_in_a_backtest() -> None:
    sessions = days("2021-05-03", "2021-05-28")
    weekly = book(rebalance_on="friday", rebalance_every=2)
    assert decide(weekly, sessions, "2021-05-04") == same("2021-05-07", "2021-05-21")
    assert decide(weekly, sessions, "2021-05-04", refused=["2021-05-07"]) == [
        ("2021-05-10", "2021-05-07"),
        *same("2021-05-21"),
    ]
    assert decide(weekly, sessions, "2021-05-04", refused=["2021-05-21"]) == [
        *same("2021-05-07"),
        ("2021-05-24", "2021-05-21"),
    ]


def test_a_night_that_was_not_played_is_made_up_for_by_the_next_one() -> None:
    sessions = days("2021-05-03", "2021-06-04")
    accounts = pl.DataFrame(
        {
            "session": [day("2021-05-07"), day("2021-05-13")],
            "schedule": ["friday"] * 2,
            "due": [day("2021-05-07"), None],
            "decision": ["made", None],
        }
    )
    on_monday = [one for one in sessions if one <= day("2021-05-17")]
    due = decision_due(book(rebalance_on="friday"), panel(on_monday).dates_T, day("2021-05-18"), accounts)
    assert due is not None
    assert due == day("2021-05-14")


def test_another_schedule_counts_from_its_own_first_night() -> None:
    sessions = days("2021-05-03", "2021-05-31")
    accounts = pl.DataFrame(
        {
            "session": sessions[:18],
            "schedule": ["every session"] * 18,
            "due": sessions[:18],
            "decision": ["made"] * 18,
        }
    )
    monthly = book(rebalance_on="month_end")
    before = decision_due(monthly, panel(sessions[:19]).dates_T, sessions[19], accounts)
    assert before is None
    due = decision_due(monthly, panel(sessions).dates_T, day("2021-06-01"), accounts)
    assert due is not None
    assert due == day("2021-05-31"), "decisions of the other schedule in this month do not count"
