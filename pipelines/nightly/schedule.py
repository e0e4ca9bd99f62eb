"""Time: the clock, the sessions of the exchange around a night, and those on which a book decides."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
import polars as pl

from backtest.books.book import Book
from backtest.books.decisions import book_schedule
from backtest.books.schedules import periods
from features.arrays import DateArray, IntArray
from pipelines.config.schema import Config
from pipelines.ingest.calendars import (
    calendar_name,
    is_session,
    last_session,
    newest_finished_session,
    next_session,
)
from pipelines.lake.lake import Lake
from pipelines.nightly.result import Finding

_FINAL_AFTER: Final = dt.timedelta(minutes=30)
"""Time from the close of a session until a live source's prices of it are final: quotes are delayed."""
_WARN_BEFORE: Final = dt.timedelta(weeks=6)
"""Time before the end of a calendar from which every night warns."""
_LEARNT_WEEKS: Final = 12
"""Weeks of sessions from which the week of a market without a calendar is learned."""


def exchange_calendar(config: Config, lake: Lake) -> str | None:
    """Return the calendar of the config; by default that of most firms, None if they have none."""
    if config.quality.calendar is not None:
        return config.quality.calendar
    if config.source.kind == "simulated" or not lake.exists("securities"):
        return None
    columns = ["exchange", "currency", "ticker"]
    current = lake.read("securities", columns=columns, filters=pl.col("valid_to").is_null())
    counts = current.group_by("exchange", "currency").len().sort("len", "exchange", descending=True)
    for exchange, currency, _ in counts.iter_rows():
        return calendar_name(exchange, currency)
    return None


def expected_session(config: Config, lake: Lake, now: dt.datetime) -> dt.date | None:
    """Return the newest session that a live source must have by now; None if nothing tells.

    Other sources hold whatever their owner put there, so nothing tells which session they should have.
    """
    if config.source.kind != "yfinance":
        return None
    finished, end = _finished_session(config, lake, now), config.source.end
    return finished if finished is None or end is None else min(finished, end)


def due_session(config: Config, lake: Lake, now: dt.datetime) -> dt.date | None:
    """Return the newest session that the exchange has finished, which files with its prices should have.

    None if the source is not files, or the market has no calendar.
    """
    if config.source.kind != "files":
        return None
    finished, end = _finished_session(config, lake, now), config.source.end
    return finished if finished is None or end is None else min(finished, end)


def _finished_session(config: Config, lake: Lake, now: dt.datetime) -> dt.date | None:
    calendar, overrides = exchange_calendar(config, lake), config.quality.calendar_overrides
    return None if calendar is None else newest_finished_session(calendar, now - _FINAL_AFTER, overrides)


def following_session(config: Config, lake: Lake, sessions: Sequence[dt.date]) -> dt.date:
    """Return the session that is expected after the last one.

    It is the next one of the exchange calendar with ``quality.calendar_overrides``. Without a calendar, or
    after its end, it is the next day of the market's week (`learned_week`) that is not a closure, or an
    additional session before that.

    Parameters
    ----------
    config, lake
        Name the calendar.
    sessions
        The sessions of the data up to tonight, ascending, at least one.
    """
    tonight, overrides = sessions[-1], config.quality.calendar_overrides
    calendar = calendar_of(config, lake, sessions)
    known = None if calendar is None else next_session(calendar, tonight, overrides)
    if known is not None:
        return known
    usual = _usual_next(sessions)
    while usual in overrides.closures:
        usual = _usual_next([*sessions, usual])
    return min([usual, *(day for day in overrides.sessions if day > tonight)])


def learned_week(sessions: Sequence[dt.date]) -> frozenset[int]:
    """Return the weekdays (Monday is 0) on which a market has sessions, learned from its last twelve weeks.

    A weekday counts if at least a quarter of these weeks, or of those that the data hold, have a session on
    it. So a holiday does not remove a weekday, and a single make-up session on a Saturday does not add one.

    Parameters
    ----------
    sessions
        Sessions of the data, ascending.

    Returns
    -------
    frozenset of int
        Monday to Friday if the data hold less than two weeks; empty if no weekday has enough sessions, as in
        data with one session a month.

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


def calendar_of(config: Config, lake: Lake, sessions: Sequence[dt.date]) -> str | None:
    """Return `exchange_calendar`, unless it was not named and the sessions contradict it.

    Crypto that is quoted in dollars would otherwise have the calendar of New York.
    """
    calendar = exchange_calendar(config, lake)
    guessed = calendar is not None and config.quality.calendar is None
    return None if guessed and sessions and _on_weekends(sessions, str(calendar)) else calendar


def _on_weekends(sessions: Sequence[dt.date], calendar: str) -> bool:
    """Whether a market regularly has sessions on weekend days on which an exchange is closed."""
    week = learned_week(sessions)
    recent = sessions[-7 * _LEARNT_WEEKS :]
    return any(
        day.weekday() in week and is_session(calendar, day) is False for day in recent if day.weekday() > 4
    )


def _usual_next(sessions: Sequence[dt.date]) -> dt.date:
    """Return the next day of the learned week; where there is none, one usual distance after the last."""
    last, week = sessions[-1], learned_week(sessions)
    gaps = [(after - before).days for before, after in pairwise(sessions[-_LEARNT_WEEKS:])]
    distance = median(gaps) if gaps else 1
    if not week or distance > 7:
        return last + dt.timedelta(days=max(1, round(distance)))
    after = (last + dt.timedelta(days=ahead) for ahead in range(1, 8))
    return next(day for day in after if day.weekday() in week)


def calendar_end(config: Config, lake: Lake, day: dt.date, sessions: Sequence[dt.date]) -> Finding | None:
    """Warn that the exchange calendar ends soon, and fail after its end; None if it reaches far enough.

    Without the next session a night cannot tell whether tonight is the last session of a month. A market
    without a calendar, or with a guessed one that its sessions contradict (`calendar_of`), uses its own week.
    """
    calendar, overrides = calendar_of(config, lake, sessions), config.quality.calendar_overrides
    last = None if calendar is None else last_session(calendar, day, overrides)
    if last is None or day < last - _WARN_BEFORE:
        return None
    said = f"The calendar {calendar} {'ended' if day > last else 'ends'} on {last}"
    return Finding(
        "calendar_end",
        "fail" if day > last else "warn",
        f"{said}, so it is not known which sessions follow: upgrade exchange_calendars, or list the sessions "
        "to come under quality.calendar_overrides.sessions.",
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions that tell the time and wait.

    Attributes
    ----------
    now
        Returns the current time in UTC. It may jump.
    monotonic
        Returns seconds since an arbitrary moment; never goes back.
    sleep
        Waits for a number of seconds.
    """

    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM: Final = Clock()
"""The clock of the machine."""


@dataclass(frozen=True, slots=True)
class Due:
    """A decision that is to be made tonight.

    Attributes
    ----------
    session
        Session of the schedule that it belongs to: tonight, or an earlier one whose decision was missed.
    late
        Whether it was missed.
    """

    session: dt.date
    late: bool


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


def decision_due(book: Book, dates_T: DateArray, following: dt.date, accounts: pl.DataFrame) -> Due | None:
    """Return the decision that tonight has to make; None if there is none.

    Sessions count from the first night that followed this schedule, and every ``rebalance_every``-th of them
    from the first decision, as in a backtest (`backtest.books.schedules.Schedule`). A session is served by
    the night that decided for it or kept the book. After one that refused, for lack of signals, the next
    night decides. A period is served by a night that decided in it, because an unexpected session after
    its end does not make a second decision.

    Parameters
    ----------
    book
        Settings of the book.
    dates_T
        Sessions of the data up to tonight.
    following
        The session that is expected after tonight.
    accounts
        Rows of the table ``accounts`` of the earlier nights, the newest last.
    """
    day_T = dates_T.astype("datetime64[D]")
    accounts = _under(schedule_text(book), accounts)
    first = day_T[-1] if accounts.is_empty() else np.datetime64(accounts["session"][0])
    start = int(np.searchsorted(day_T, first))
    turn_T = book_schedule(book, dates_T, slice(0, len(day_T)), following).turn_T
    turns = start + np.flatnonzero(turn_T[start:])
    if not len(turns):
        return None
    period_T: IntArray = (
        np.arange(len(day_T)) if book.rebalance_on is None else periods(day_T, book.rebalance_on)
    )

    def served(due: dt.date) -> int:
        """Number of turns up to that of a session for which a night decided."""
        if book.rebalance_on is None:
            return int(np.searchsorted(day_T[turns], np.datetime64(due), side="right"))
        at = max(int(np.searchsorted(day_T, np.datetime64(due), side="right")) - 1, 0)
        return int(np.searchsorted(period_T[turns], period_T[at], side="right"))

    decided = accounts.filter(pl.col("due").is_not_null() & (pl.col("decision") != "refused"))
    done = served(decided["due"][-1]) if decided.height else 0
    anchor = served(decided["due"][0]) if decided.height else len(turns)
    wanted = anchor + book.rebalance_every * ((len(turns) - anchor) // book.rebalance_every)
    if wanted <= done or wanted < 1:
        return None
    session: dt.date = day_T[turns[wanted - 1]].item()
    return Due(session, late=session < day_T[-1].item())


def _under(schedule: str, accounts: pl.DataFrame) -> pl.DataFrame:
    """Keep the newest nights in a row that followed a schedule."""
    others = (accounts["schedule"] != schedule).arg_true()
    return accounts if others.is_empty() else accounts[int(others[-1]) + 1 :]
