"""Which nights are to be played: the sessions of the data after the last finished night, in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.tables import FINISHED, read_nights
from pipelines.nightly.versions import alias_history


@dataclass(frozen=True, slots=True)
class Plan:
    """The nights to be played.

    Attributes
    ----------
    sessions
        Sessions to be played, in order; none if there is nothing to do.
    last
        The last finished night before them; None if there is none.
    newest
        The night that the plan ends with, also if it is finished already.
    """

    sessions: tuple[dt.date, ...]
    last: dt.date | None
    newest: dt.date


def sessions_of(lake: Lake) -> list[dt.date]:
    """Return the sessions of the prices in the lake, ascending; none if there are no prices."""
    if not lake.exists("prices"):
        return []
    dates = lake.read("prices", columns=["date"], ordered=False)["date"]
    return list(dates.unique().sort())


def finished_nights(nights: pl.DataFrame) -> list[dt.date]:
    """Return the sessions whose nights are finished, ascending."""
    return list(nights.filter(pl.col("state").is_in(FINISHED))["session"].sort())


def next_night(config: Config, lake: Lake, day: dt.date | None) -> dt.date | None:
    """Return the session to decide at: ``day``, or the next one of a market that grows; None for the newest.

    A simulated market with ``source.grows_from`` grows by a session a night. All its weekdays are sessions.
    """
    source = config.source
    if day is not None or source.kind != "simulated" or source.grows_from is None:
        return day
    last = max(finished_nights(read_nights(lake, config.name)), default=None)
    if last is None:
        return source.grows_from
    following: np.datetime64 = np.busday_offset(np.datetime64(last), 1, roll="backward")
    return dt.date.fromisoformat(str(following))


def plan_nights(lake: Lake, config_name: str, day: dt.date | None) -> Plan:
    """Return the nights to be played: all sessions after the last finished night.

    A config without a finished night begins with the newest session, or with the one asked for, or before it
    with a night that has recorded a version or a book and was interrupted.

    Parameters
    ----------
    lake
        The lake, after the delivery of the night.
    config_name
        Name of the config.
    day
        The session that was asked for (``--date``); None for the newest.

    Raises
    ------
    ConfigError
        If the day is not a session, or lies before the last finished night without having been played.
    DataError
        If there are no prices, none of that day yet, or none of the last night any more.
    """
    finished = finished_nights(read_nights(lake, config_name))
    return choose_nights(sessions_of(lake), finished, day, first_begun(lake, config_name))


def first_begun(lake: Lake, config_name: str) -> dt.date | None:
    """Return the first session with a book, or with a version of a night without a row; None without one.

    A first night that was killed between its training and its book has entered a version and nothing else.
    """
    begun = set[dt.date]()
    if lake.exists("books"):
        begun |= set(
            lake.read("books", columns=["session"], filters=pl.col("config") == config_name)["session"]
        )
    entered = alias_history(lake, config_name)["session"].drop_nulls()
    return min(begun | (set(entered) - set(read_nights(lake, config_name)["session"])), default=None)


def choose_nights(
    sessions: Sequence[dt.date],
    finished: Sequence[dt.date],
    day: dt.date | None,
    begun: dt.date | None = None,
) -> Plan:
    """Return the nights to be played.

    Parameters
    ----------
    sessions, finished
        Sessions of the data and finished nights, ascending.
    day
        The session that was asked for; None for the newest.
    begun
        Where a config without a finished night begins; None for the session that was asked for.

    Raises
    ------
    ConfigError, DataError
        As `plan_nights`.
    """
    if not sessions:
        raise DataError("The lake holds no prices, so there is no session to decide at; check the source.")
    newest = sessions[-1] if day is None else day
    last = max(finished, default=None)
    if day is None and last is not None and newest < last:
        raise DataError(older_than_the_nights(newest, last))
    if newest in finished:
        return Plan((), last, newest)
    require_session(sessions, newest)
    if last is not None and newest < last:
        raise ConfigError(
            f"--date {newest} is before the last night, {last}, and was not played; nights are played in "
            f"order. 'peerglass signals CONFIG --date {newest}' shows the signals of that session."
        )
    if last is not None:
        pending = [session for session in sessions if last < session <= newest]
    else:
        pending = [session for session in sessions if min(begun or newest, newest) <= session <= newest]
    return Plan(tuple(pending), last, newest)


def older_than_the_nights(newest: dt.date, last: dt.date) -> str:
    """Say that prices end before the last night."""
    return (
        f"The prices end on {newest}, before the last night, {last}: the delivery is truncated, or an old "
        "one. Deliver the newer sessions again."
    )


def require_session(sessions: Sequence[dt.date], day: dt.date) -> None:
    """Require prices on a day, if the data reach it.

    Raises
    ------
    ConfigError
        If the data have sessions before and after the day but not on it.
    DataError
        If they end before it.
    """
    if day in sessions:
        return
    if not sessions or day > sessions[-1]:
        end = f"end on {sessions[-1]}" if sessions else "are empty"
        raise DataError(
            f"The prices {end}, so session {day} cannot be played yet; run the night again later."
        )
    after = next(session for session in sessions if session > day)
    before = [session for session in sessions if session < day]
    around = f"{before[-1]} and {after}" if before else f"{after}, the first one,"
    raise ConfigError(f"--date {day} is not a session of the data; the nearest are {around}.")
