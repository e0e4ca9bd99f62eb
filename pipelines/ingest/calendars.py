"""The exchange calendar of each firm's rows, and whether the exchange was open on a date.

The calendar is the one named in the config, else that of the firm's recorded exchange; other firms and the
simulated market have none. Whether the exchange was open is unknown outside a calendar's range, and for
weekly and monthly data. ``quality.calendar_overrides`` correct it; sessions after its end extend it.
"""

from __future__ import annotations

import difflib
import functools
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from pipelines.errors import ConfigError
from pipelines.ingest.settings import AS_PUBLISHED, CalendarOverrides
from pipelines.sources.base import vendor_names

if TYPE_CHECKING:
    from exchange_calendars import ExchangeCalendar

_NEW_YORK: Final = "XNYS"
_ARTIFICIAL_DATES: Final = ("simulated",)
_EARLIEST, _LATEST, _WEEK = date(1900, 1, 1), date(2100, 1, 1), timedelta(days=7)
_DAILY_STEP: Final = 4  # calendar days, the most between usual dates of daily data
_FEWEST_STEPS: Final = 10  # that tell weekly and monthly data from daily data
_LONGEST_CLOSURE: Final = 60  # sessions that overrides may close in a row
_VENDOR_CODES: Final = {  # vendors' codes -> calendar; exchange_calendars knows its own aliases
    code: calendar for calendar, codes in vendor_names("exchanges").items() for code in codes
}


def calendar_name(exchange: str | None, currency: str | None) -> str | None:
    """Return the calendar for a recorded exchange and currency; None if neither determines one."""
    if exchange is None:
        return _NEW_YORK if currency == "USD" else None
    name = exchange.strip().upper()
    return _VENDOR_CODES.get(name) or _known_calendar(name)


def require_calendar(name: str) -> str:
    """Return the name under which exchange_calendars stores a calendar; ConfigError without one."""
    resolved = _known_calendar(name)
    if resolved is None or _calendar(resolved) is None:
        from exchange_calendars import get_calendar_names

        near = difflib.get_close_matches(name.upper(), get_calendar_names(), n=3)
        meant = f"did you mean {' or '.join(near)}? Or " if near else ""
        raise ConfigError(
            f"quality.calendar is {name!r}, which is not a calendar of exchange_calendars; {meant}use a "
            "code such as XNYS or XLON."
        )
    return resolved


def with_sessions(
    rows: pl.DataFrame, named: str | None, overrides: CalendarOverrides = AS_PUBLISHED
) -> pl.DataFrame:
    """Add ``calendar`` (``named``, or the exchange's) and ``session`` (null: unknown) to dated rows."""
    if named is not None:
        rows = rows.with_columns(calendar=pl.lit(require_calendar(named)))
    else:
        exchanges = rows.select("exchange").drop_nulls().unique()
        names = [calendar_name(exchange, None) for exchange in exchanges["exchange"]]
        by_exchange = exchanges.with_columns(calendar=pl.Series(names, dtype=pl.String))
        rows = rows.join(by_exchange, on="exchange", how="left", maintain_order="left").with_columns(
            calendar=pl.when(~pl.col("source").is_in(_ARTIFICIAL_DATES)).then("calendar")
        )
    spans = rows.group_by("calendar").agg(first=pl.col("date").min(), last=pl.col("date").max())
    open_ = pl.lit(None, dtype=pl.Boolean)
    for name, first, last in spans.drop_nulls("calendar").sort("calendar").iter_rows():
        sessions = _sessions(name, first, last, overrides)
        own = rows.filter(pl.col("calendar") == name)["date"]
        steps = own.unique().sort().diff().drop_nulls().dt.total_days()
        daily = len(steps) < _FEWEST_STEPS or float(np.median(steps.to_numpy())) <= _DAILY_STEP
        if len(sessions) and daily:
            covered = pl.col("date").is_between(sessions[0], sessions[-1]) & (pl.col("calendar") == name)
            open_ = pl.when(covered).then(pl.col("date").is_in(sessions.implode())).otherwise(open_)
    return rows.with_columns(session=open_)


def newest_finished_session(
    name: str, now: datetime, overrides: CalendarOverrides = AS_PUBLISHED
) -> date | None:
    """Return a calendar's last session that closed at or before a time; None if it has none by then."""
    calendar = _calendar(name)
    if calendar is None:
        return None
    closes = calendar.closes[calendar.closes <= now].index
    finished = [day for day in closes[-_LONGEST_CLOSURE:].date if day not in overrides.closures]
    finished += [day for day in overrides.sessions if day < now.astimezone(UTC).date()]
    return max(finished, default=None)


def next_session(name: str, day: date, overrides: CalendarOverrides = AS_PUBLISHED) -> date | None:
    """Return a calendar's first session after a day; None if the calendar does not reach it."""
    sessions = _sessions(name, day, day, overrides)
    later = sessions.filter(sessions > day)
    return None if later.is_empty() or sessions[0] > day else later[0]


def last_session(name: str, day: date, overrides: CalendarOverrides = AS_PUBLISHED) -> date | None:
    """Return the last session of a calendar that ends in the year of a day or the next one; else None."""
    year = timedelta(days=366)
    sessions = _sessions(name, day, day + year, overrides)
    reaches = date((day + year).year, 12, 1)
    return None if sessions.is_empty() or sessions[-1] >= reaches else sessions[-1]


def is_session(name: str, day: date, overrides: CalendarOverrides = AS_PUBLISHED) -> bool | None:
    """Return whether the exchange is open on a day; None if its calendar does not reach the day."""
    if day in overrides.closures:
        return False
    sessions = _sessions(name, day, day, overrides)
    if sessions.is_empty() or not sessions[0] <= day <= sessions[-1]:
        return None
    return day in sessions


def sessions_between(
    name: str, first: date, last: date, overrides: CalendarOverrides = AS_PUBLISHED
) -> pl.Series:
    """Return a calendar's sessions from ``first`` to ``last``, both inclusive, where it has any."""
    sessions = _sessions(name, first, last, overrides)
    return sessions.filter(sessions.is_between(first, last))


def _sessions(name: str, first: date, last: date, overrides: CalendarOverrides) -> pl.Series:
    """Return a calendar's sessions from a week before to a week after, corrected; none if it refuses all."""
    calendar, days = _calendar(name), list[date]()
    if calendar is not None:
        start, end = max(first, _EARLIEST) - _WEEK, min(last, _LATEST) + _WEEK
        start, end = start.replace(month=1, day=1), end.replace(month=12, day=31)
        if start < calendar.first_session.date() or end > calendar.last_session.date():
            lower, upper = type(calendar).bound_min(), type(calendar).bound_max()
            start = start if lower is None else max(start, lower.date())
            end = end if upper is None else min(end, upper.date())
            if start < end:
                calendar = _calendar(name, start=start.isoformat(), end=end.isoformat()) or calendar
        days = list(calendar.sessions.date)
    if overrides.closures or overrides.sessions:
        days = sorted(({*days} | {*overrides.sessions}) - {*overrides.closures})
    return pl.Series(days, dtype=pl.Date)


@functools.lru_cache(maxsize=64)
def _calendar(name: str, **years: str) -> ExchangeCalendar | None:
    import exchange_calendars

    try:
        return exchange_calendars.get_calendar(name, **years)
    except ValueError:
        return None


def _known_calendar(name: str) -> str | None:
    import exchange_calendars
    from exchange_calendars.calendar_utils import resolve_alias

    if name not in exchange_calendars.get_calendar_names(include_aliases=True):
        return None
    return str(resolve_alias(name))
