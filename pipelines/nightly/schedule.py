"""The clock, the sessions of the exchange, those on which a book decides, and the nights to be played."""

import datetime as dt
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
import polars as pl

from backtest.books.book import Book
from features.arrays import DateArray, IntArray
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.ingest import calendars
from pipelines.lake.lake import Lake
from pipelines.nightly.result import FINISHED, NightFinding, read_nights, sessions_of
from pipelines.nightly.versions import alias_history

_FINAL_AFTER: Final = dt.timedelta(minutes=30)  # from the close until a live source's late prices are final
_WARN_BEFORE: Final = dt.timedelta(weeks=6)  # time before the end of a calendar from which every night warns
_LEARNT_WEEKS: Final = 12  # weeks of sessions from which the week of a market without a calendar is learned


def exchange_calendar(config: Config, lake: Lake) -> str | None:
    """Return the calendar of the config; by default that of most firms, None if they have none."""
    if config.quality.calendar is not None:
        return config.quality.calendar
    if config.source.kind == "simulated" or not lake.exists("securities"):
        return None
    columns = ["exchange", "currency", "ticker"]
    current = lake.read("securities", columns=columns, filters=pl.col("valid_to").is_null())
    counts = current.group_by("exchange", "currency").len().sort("len", "exchange", descending=True)
    return calendars.calendar_name(*counts.row(0)[:2]) if counts.height else None


def expected_session(config: Config, lake: Lake, now: dt.datetime) -> dt.date | None:
    """Return the newest session that a live source must have by now; None for other sources."""
    source = config.source
    return _finished_session(config, lake, now, source.end) if source.kind == "yfinance" else None


def due_session(config: Config, lake: Lake, now: dt.datetime) -> dt.date | None:
    """Return the newest finished session of the exchange, which files should have; None for other sources."""
    source = config.source
    return _finished_session(config, lake, now, source.end) if source.kind == "files" else None


def _finished_session(config: Config, lake: Lake, now: dt.datetime, end: dt.date | None) -> dt.date | None:
    calendar, overrides = calendar_of(config, lake), config.quality.calendar_overrides
    if calendar is None:
        return None
    finished = calendars.newest_finished_session(calendar, now - _FINAL_AFTER, overrides)
    return finished if finished is None or end is None else min(finished, end)


def following_session(config: Config, lake: Lake, sessions: Sequence[dt.date]) -> dt.date:
    """Return the expected next session, of the exchange calendar or of the market's own week."""
    tonight, overrides = sessions[-1], config.quality.calendar_overrides
    calendar = calendar_of(config, lake, sessions)
    known = None if calendar is None else calendars.next_session(calendar, tonight, overrides)
    if known is not None:
        return known
    usual = _usual_next(sessions)
    while usual in overrides.closures:
        usual = _usual_next([*sessions, usual])
    return min([usual, *(day for day in overrides.sessions if day > tonight)])


def learned_week(sessions: Sequence[dt.date]) -> frozenset[int]:
    """Return the weekdays (Monday is 0) on which a market has sessions, learned from its last twelve weeks.

    A weekday counts if at least a quarter of these weeks have a session on it, so that neither a holiday nor
    a single make-up session changes the week. Monday to Friday if the data hold less than two weeks; empty
    for data with one session a month.

    >>> friday = dt.date(2024, 3, 1)
    >>> sorted(learned_week([friday + dt.timedelta(days=n) for n in range(30)]))  # crypto
    [0, 1, 2, 3, 4, 5, 6]
    """
    last = sessions[-1]
    weeks = min(_LEARNT_WEEKS, ((last - sessions[0]).days + 1) // 7)
    if weeks < 2:
        return frozenset(range(5))
    recent = [day for day in sessions if (last - day).days < 7 * weeks]
    counts = [sum(day.weekday() == weekday for day in recent) for weekday in range(7)]
    return frozenset(weekday for weekday, count in enumerate(counts) if 4 * count >= weeks and count > 1)


def calendar_of(config: Config, lake: Lake, sessions: Sequence[dt.date] | None = None) -> str | None:
    """Return `exchange_calendar`, unless it was not named and the sessions contradict it (crypto)."""
    calendar = exchange_calendar(config, lake)
    if calendar is None or config.quality.calendar is not None:
        return calendar
    held = sessions_of(lake) if sessions is None else sessions
    week = learned_week(held) if held else frozenset()
    weekends = (day for day in held[-7 * _LEARNT_WEEKS :] if day.weekday() > 4 and day.weekday() in week)
    return None if any(calendars.is_session(calendar, day) is False for day in weekends) else calendar


def _usual_next(sessions: Sequence[dt.date]) -> dt.date:
    """Return the next day of the learned week; where there is none, one usual distance after the last."""
    last, week = sessions[-1], learned_week(sessions)
    gaps = [(after - before).days for before, after in pairwise(sessions[-_LEARNT_WEEKS:])]
    distance = median(gaps) if gaps else 1
    if not week or distance > 7:
        return last + dt.timedelta(days=max(1, round(distance)))
    after = (last + dt.timedelta(days=ahead) for ahead in range(1, 8))
    return next(day for day in after if day.weekday() in week)


def calendar_end(
    config: Config, lake: Lake, day: dt.date, sessions: Sequence[dt.date]
) -> NightFinding | None:
    """Warn that the exchange calendar ends soon, and fail after its end; None if it reaches far enough."""
    calendar, overrides = calendar_of(config, lake, sessions), config.quality.calendar_overrides
    last = None if calendar is None else calendars.last_session(calendar, day, overrides)
    if last is None or day < last - _WARN_BEFORE:
        return None
    said = f"The calendar {calendar} {'ended' if day > last else 'ends'} on {last}"
    return NightFinding(
        "calendar_end",
        "fail" if day > last else "warn",
        f"{said}, so it is not known which sessions follow: upgrade exchange_calendars, or list the sessions "
        "to come under quality.calendar_overrides.sessions.",
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions that tell the time (UTC, may jump; seconds, never go back) and wait."""

    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM: Final = Clock()  # the clock of the machine


def schedule_text(book: Book) -> str:
    """Name the schedule of a book.

    >>> from backtest.books.rules.top_k_long_only import TopKLongOnly
    >>> schedule_text(TopKLongOnly(rebalance_on="month_end", rebalance_every=2))
    'month end, one in 2'
    """
    if book.rebalance_on is None:
        return "every session" if book.rebalance_every == 1 else f"every {book.rebalance_every} sessions"
    every = "" if book.rebalance_every == 1 else f", one in {book.rebalance_every}"
    return f"{book.rebalance_on.replace('_', ' ')}{every}"


def decision_due(
    book: Book, dates_T: DateArray, following: dt.date, accounts: pl.DataFrame
) -> dt.date | None:
    """Return the session that tonight has to decide for, an earlier one if it was missed; None without one.

    Every ``rebalance_every``-th session from the first decision, as in a backtest. A session is served by the
    night that decided for it or kept the book, not by one that refused; a period by one that decided in it.
    """
    from backtest.books.decisions import book_schedule
    from backtest.books.schedules import periods  # here, because a night that is done needs neither

    others = (accounts["schedule"] != schedule_text(book)).arg_true()
    accounts = accounts if others.is_empty() else accounts[int(others[-1]) + 1 :]
    first = dates_T[-1] if accounts.is_empty() else np.datetime64(accounts["session"][0])
    start = int(np.searchsorted(dates_T, first))
    turn_T = book_schedule(book, dates_T, slice(0, len(dates_T)), following).turn_T
    turns = start + np.flatnonzero(turn_T[start:])
    if not len(turns):
        return None
    on = book.rebalance_on
    period_T: IntArray = np.arange(len(dates_T)) if on is None else periods(dates_T, on)

    def served(due: dt.date) -> int:
        """Number of turns up to that of a session for which a night decided."""
        if on is None:
            return int(np.searchsorted(dates_T[turns], np.datetime64(due), side="right"))
        at = max(int(np.searchsorted(dates_T, np.datetime64(due), side="right")) - 1, 0)
        return int(np.searchsorted(period_T[turns], period_T[at], side="right"))

    decided = accounts.filter(pl.col("due").is_not_null() & (pl.col("decision") != "refused"))
    done = served(decided["due"][-1]) if decided.height else 0
    anchor = served(decided["due"][0]) if decided.height else len(turns)
    wanted = anchor + book.rebalance_every * ((len(turns) - anchor) // book.rebalance_every)
    if wanted <= done or wanted < 1:
        return None
    session: dt.date = dates_T[turns[wanted - 1]].item()
    return session


@dataclass(frozen=True, slots=True)
class NightPlan:
    """Sessions to be played in order, and the night that they end with, which may be finished already."""

    sessions: tuple[dt.date, ...]
    newest: dt.date


def finished_nights(nights: pl.DataFrame) -> list[dt.date]:
    """Return the sessions whose nights are finished, ascending."""
    return list(nights.filter(pl.col("state").is_in(FINISHED))["session"].sort())


def next_night(config: Config, lake: Lake, day: dt.date | None) -> dt.date | None:
    """Return the session to decide at: ``day``, or the next one of a market that grows; else None."""
    source = config.source
    if day is not None or source.kind != "simulated" or source.grows_from is None:
        return day
    last = max(finished_nights(read_nights(lake, config.name)), default=None)
    if last is None:
        return source.grows_from
    return dt.date.fromisoformat(str(np.busday_offset(np.datetime64(last), 1, roll="backward")))


def plan_nights(lake: Lake, config_name: str, day: dt.date | None) -> NightPlan:
    """Return the nights to be played: all sessions after the last finished night."""
    finished = finished_nights(read_nights(lake, config_name))
    return choose_nights(sessions_of(lake), finished, day, first_begun(lake, config_name))


def first_begun(lake: Lake, config_name: str) -> dt.date | None:
    """First session with a book, or with a version of a night without a row; None without one."""
    booked = lake.rows("books", ["session"], pl.col("config") == config_name)["session"]
    entered = set(alias_history(lake, config_name)["session"].drop_nulls())
    return min(entered - set(read_nights(lake, config_name)["session"]) | set(booked), default=None)


def choose_nights(
    sessions: Sequence[dt.date],
    finished: Sequence[dt.date],
    day: dt.date | None,
    begun: dt.date | None = None,
) -> NightPlan:
    """Return the nights to be played."""
    if not sessions:
        raise DataError("The lake holds no prices, so there is no session to decide at; check the source.")
    newest = sessions[-1] if day is None else day
    last = max(finished, default=None)
    if day is None and last is not None and newest < last:
        raise DataError(older_than_the_nights(newest, last))
    if newest in finished:
        return NightPlan((), newest)
    if newest > sessions[-1]:
        raise DataError(
            f"The prices end on {sessions[-1]}, so session {newest} cannot be played yet; run the night "
            "again later."
        )
    if newest not in sessions:
        at = bisect_left(sessions, newest)
        around = f"{sessions[at - 1]} and {sessions[at]}" if at else f"{sessions[at]}, the first one,"
        raise ConfigError(f"--date {newest} is not a session of the data; the nearest are {around}.")
    if last is not None and newest < last:
        raise ConfigError(
            f"--date {newest} is before the last night, {last}, and was not played; nights are played in "
            f"order. 'peerglass signals CONFIG --date {newest}' shows the signals of that session."
        )
    first = min(begun or newest, newest) if last is None else last + dt.timedelta(days=1)
    return NightPlan(tuple(session for session in sessions if first <= session <= newest), newest)


def older_than_the_nights(newest: dt.date, last: dt.date) -> str:
    """Say that prices end before the last night."""
    return (
        f"The prices end on {newest}, before the last night, {last}: the delivery is truncated, or an old "
        "one. Deliver the newer sessions again."
    )
