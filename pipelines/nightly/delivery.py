"""The delivery of a night: what is new at the source goes into the lake, before any session is decided.

A source that is gone, throttled or late is asked again for ``nightly.checks.retry_minutes``. Every delivery
is an ordinary ingest, so the next one continues from there. A finished one leaves a mark in
``delivery.json``: names, sizes and times of files, or the newest session that a live source's exchange has
finished. While the mark is the same, nothing can be new and the source is not read.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError, full_disk
from pipelines.files import write_text
from pipelines.format import abbreviate
from pipelines.ingest.calendars import is_session
from pipelines.ingest.ingest import IngestStoppedError, IngestSummary, ingest, prices_to_keep
from pipelines.ingest.rules import SPARSE, SPARSE_DATES
from pipelines.lake.lake import Lake
from pipelines.nightly.result import nights_folder, prices_of_night, read_nights, sessions_of
from pipelines.nightly.schedule import (
    Clock,
    calendar_end,
    calendar_of,
    due_session,
    expected_session,
    finished_nights,
    learned_week,
    older_than_the_nights,
)
from pipelines.progress import Progress
from pipelines.run.fetch import make_source
from pipelines.run.locks import Locks
from pipelines.secrets import masked
from pipelines.sources.base import LiveSource, Source, SourceTables
from pipelines.sources.files import reading
from pipelines.sources.files.opening import resolve
from pipelines.sources.settings import FilesSourceConfig

FILE: Final = "delivery.json"
_LIVE: Final = ("yfinance", "sec")
_UNANSWERED: Final = ("throttled", "failed")
_CAN_BE_LATE: Final = ("files", *_LIVE)
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 600.0  # seconds
_ONE_DAY: Final = dt.timedelta(days=1)  # the exchange may be ahead of the clock's zone
_LIVE_DAYS: Final = dt.timedelta(days=15)  # age of an archive, for which nobody waits: longer than a holiday
_DAILY_WEEKDAYS: Final = 3  # daily prices have sessions on at least this number of weekdays


def describe_delivery(summary: IngestSummary | None) -> str:
    """Describe a delivery in one line; None is one that could bring nothing new."""
    parts = []
    for table, counts in {} if summary is None else summary.tables.items():
        changes = (
            (counts.added, "new"),
            (counts.updated, "corrected"),
            (counts.withdrawn, "withdrawn"),
            (sum(counts.quarantined.values()), "quarantined"),
        )
        said = ", ".join(f"{count:,} {what}" for count, what in changes if count)
        parts += [f"{table} {said}"] if said else []
    return "; ".join(parts) or "nothing new at the source"


class Request:
    """What is asked of a source, and the sessions that the lake holds, as they were read last."""

    def __init__(self, config: Config, lake: Lake, day: dt.date | None, clock: Clock) -> None:
        self.config, self.lake, self.day, self.clock = config, lake, day, clock
        self.sessions = sessions_of(lake)
        self.nights = read_nights(lake, config.name)
        self.last = max(finished_nights(self.nights), default=None)
        self.overrides = config.quality.calendar_overrides
        self.through = None if day is None else max(day, self.newest or day)

    @property
    def newest(self) -> dt.date | None:
        """Newest session of the lake."""
        return self.sessions[-1] if self.sessions else None

    def expected(self) -> dt.date | None:
        """Session that the delivery must bring; None if nothing tells."""
        return self.day or expected_session(self.config, self.lake, self.clock.now())

    def due(self) -> dt.date | None:
        """Session that files should have by now."""
        return due_session(self.config, self.lake, self.clock.now())

    def late(self, sessions: Sequence[dt.date]) -> str | None:
        """Say which session is missing from the prices, whose sessions are given; None if none is.

        Any source must have the session that was asked for, a live one the newest finished one, and so must
        files with a calendar after the first night. Archives (`_LIVE_DAYS`) and weekly prices are never late.
        """
        newest = sessions[-1] if sessions else None
        end = "it delivered no prices" if newest is None else f"its prices end on {newest}"
        expected = self.expected()
        if expected is not None:
            late = newest is None or newest < expected
            return f"The source has no session {expected} yet: {end}." if late else None
        due = self.due()
        if due is None or newest is None or self.last is None or newest >= due:
            return None
        is_archive = newest > self.last and due - newest > _LIVE_DAYS
        if is_archive or len(learned_week(sessions)) < _DAILY_WEEKDAYS:
            return None
        return (
            f"The source has no session {due}, which {calendar_of(self.config, self.lake, sessions)} has "
            f"finished: {end}. Deliver the missing sessions, or choose a session of an archive with --date."
        )

    def refuse_closed_day(self) -> None:
        """Refuse a day on which the exchange is closed, or a calendar that has ended, instead of waiting."""
        calendar = calendar_of(self.config, self.lake, self.sessions)
        # of a day that the data reach, they tell themselves (`pipelines.nightly.schedule`)
        ahead = self.day is not None and (self.newest is None or self.day > self.newest)
        if self.day and ahead and calendar and is_session(calendar, self.day, self.overrides) is False:
            raise ConfigError(f"--date {self.day} is not a session: {calendar} is closed on that day.")
        if (said := self.ended_calendar()) is not None:
            raise DataError(said)

    def refuse_day_off(self, sessions: Sequence[dt.date]) -> None:
        """Refuse a day after the data on which their market is never open, such as a Saturday."""
        day = self.day
        if day is None or not sessions or day <= sessions[-1] or day in self.overrides.sessions:
            return
        week = learned_week(sessions)
        learned = sessions[-1] - sessions[0] >= dt.timedelta(weeks=2)
        if learned and week and day.weekday() not in week:
            raise ConfigError(
                f"--date {day} is a {day:%A}, on which this market has no sessions; choose another day, or "
                "name an additional session in quality.calendar_overrides.sessions."
            )

    def ended_calendar(self) -> str | None:
        """Say that a live source's calendar has ended, so nothing tells which session is next; else None."""
        now = self.clock.now()
        expected = expected_session(self.config, self.lake, now)
        if expected is None or self.newest is None or self.newest < expected:
            return None
        end = calendar_end(self.config, self.lake, now.date(), self.sessions)
        return end.sentence if end is not None and end.level == "fail" else None

    def source(self) -> LiveSource | _Watched:
        """Open the source, watched if it delivers its whole scope."""
        source = make_source(self.config, through=self.through)
        if isinstance(source, LiveSource):
            return source
        then, stored = prices_of_night(self.lake, self.nights, self.last), 0
        if then is not None:
            with suppress(DataError):  # a vacuum removed the version
                stored = self.lake.count("prices", then)
        return _Watched(source, self.last, stored, self.config.nightly.checks.max_withdrawn)

    def mark(self, expected: dt.date | None) -> dict[str, Any] | None:
        """Return what the source is, as far as it can be seen without reading it; None if it cannot be."""
        settings = self.config.source
        if settings.kind in _LIVE and expected is None:
            return None
        return {
            "source": self.config.as_written()["source"],
            "quality": self.config.quality.model_dump(mode="json"),
            "through": str(self.through),
            **({"files": _stamps(settings)} if isinstance(settings, FilesSourceConfig) else {}),
            **({"expected": str(expected)} if settings.kind in _LIVE else {}),
        }

    def text(self, mark: Mapping[str, Any]) -> str:
        """Write a mark with the version of the prices, which another command may have changed since."""
        prices = {"lake": masked(self.lake.root), "prices": self.lake.version("prices")}
        return json.dumps({**mark, **prices}, indent=1, sort_keys=True)

    def unchanged(self) -> bool:
        """Whether nothing can be new at the source since the last delivery, without reading it."""
        if self.newest is None or self.late(self.sessions) is not None or self.ended_calendar():
            return False
        if self.lake.unfinished() is not None:
            return False
        mark, path = self.mark(self.expected()), nights_folder(self.config) / FILE
        return mark is not None and path.is_file() and path.read_bytes() == self.text(mark).encode()


def deliver(
    config: Config, lake: Lake, day: dt.date | None, progress: Progress, clock: Clock, *, wait: bool
) -> IngestSummary | None:
    """Ingest what is new at the source, and wait for what is late; None if nothing could be new."""
    asked = Request(config, lake, day, clock)
    if asked.unchanged():
        return None
    asked.refuse_closed_day()
    expected = asked.expected()
    minutes, started, pause = _minutes(config, clock, day, asked.newest), clock.monotonic(), _FIRST_PAUSE
    while True:
        mark = asked.mark(expected)  # before the source is read: it may change meanwhile
        source, problem = asked.source(), None
        with Locks(wait=wait, notify=progress.note) as locks:
            locks.lock_lake(lake.root)
            try:
                with progress.stage("ingest"):
                    summary = ingest(source, lake, progress, config.quality)
            except IngestStoppedError as stopped:
                silent = [one.ticker for one in stopped.summary.statuses if one.state in _UNANSWERED]
                problem = DataError(f"{stopped}{f'; missing: {abbreviate(silent, 5)}' if silent else ''}")
            except DataError as error:
                if full_disk(error) is not None:
                    raise
                problem = error
        if problem is None:
            asked.sessions = sessions_of(lake)
            if isinstance(source, _Watched):
                _refuse_rejected_sessions(config, lake, source, asked.sessions)
            asked.refuse_day_off(asked.sessions)
            late = asked.late(asked.sessions)
            if late is None:
                break
            problem = DataError(late)
        said, left = str(problem).rstrip("."), 60.0 * minutes - (clock.monotonic() - started)
        if left <= 0.0:
            said += f" (asked for {minutes:g} minutes)" if minutes else ""
            raise DataError(f"{said}. Nothing was decided; the next call continues from here.") from problem
        progress.note(f"{said}. The source is asked again in {min(pause, left):.0f} s.")
        clock.sleep(min(pause, left))
        pause = min(2.0 * pause, _LONGEST_PAUSE)
    due = asked.due()
    if day is None and due is not None and asked.sessions[-1] < due:
        progress.note(f"The prices end on {asked.newest}, before the newest session, {due}: an archive.")
    if config.source.kind in _LIVE and expected is None:
        mark = asked.mark(asked.expected())
    if mark is not None:
        write_text(nights_folder(config) / FILE, asked.text(mark))
    return summary


@dataclass
class _Watched:
    """A source that always delivers its whole scope, and must not end before the last night."""

    source: Source
    last: dt.date | None
    stored: int
    most: float
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return self.source.name

    def fetch(self) -> SourceTables:
        """Deliver the tables."""
        delivered = self.source.fetch()
        prices = delivered.tables["prices"]
        dates = prices.select(reading.day(prices)).drop_nulls()  # an unreadable day is text
        self.rows = dates.group_by("date").agg(pl.len().alias("rows")).sort("date")
        newest = self.rows["date"].max()
        if isinstance(newest, dt.date) and self.last is not None and newest < self.last:
            raise DataError(older_than_the_nights(newest, self.last))
        if dates.height < (1.0 - self.most) * self.stored:
            raise DataError(
                f"The delivery has {dates.height:,} price rows, but the last night, {self.last}, had "
                f"{self.stored:,}: it is truncated. Deliver the rest, or raise nightly.checks.max_withdrawn "
                f"({self.most:.0%})."
            )
        return delivered


def _refuse_rejected_sessions(
    config: Config, lake: Lake, source: _Watched, sessions: Sequence[dt.date]
) -> None:
    """Refuse a delivery of which every row of a new session was rejected."""
    calendar, overrides = calendar_of(config, lake, sessions), config.quality.calendar_overrides
    usual = source.rows["rows"].tail(SPARSE_DATES).median()  # markets grow
    new = source.rows.tail(1) if source.last is None else source.rows.filter(pl.col("date") > source.last)
    whole = new.filter(pl.col("rows") >= SPARSE * pl.lit(usual))
    for day, rows in whole.iter_rows():
        closed = calendar is not None and is_session(calendar, day, overrides) is False
        if day not in sessions and not closed:
            raise DataError(
                f"All {rows:,} rows of session {day} were rejected; 'peerglass quarantine list' shows them "
                "and the rules. Nothing was decided; deliver the session again."
            )


def _minutes(config: Config, clock: Clock, day: dt.date | None, newest: dt.date | None) -> float:
    """How long the source is asked again; 0 if nothing is still to come."""
    kind = config.source.kind
    wanted = newest if day is None and kind == "files" else day
    age = None if wanted is None else clock.now().date() - wanted
    comes = kind in _LIVE if age is None else kind in _CAN_BE_LATE and -_ONE_DAY <= age <= _LIVE_DAYS
    return config.nightly.checks.retry_minutes if comes else 0.0


def _stamps(settings: FilesSourceConfig) -> dict[str, list[int]]:
    """Return file -> size and modification time, for all files of a source that exist."""
    tables = ("prices", "securities", "fundamentals", "membership", "renames", "inputs")
    stamps: dict[str, os.stat_result] = {}
    for table in tables:
        if (text := getattr(settings, table)) is not None:
            with suppress(DataError):  # the ingest reports it
                stamps |= {str(path): path.stat() for path in resolve(Path(text))}
    return {path: [stat.st_size, stat.st_mtime_ns] for path, stat in stamps.items()}


def foresee(config: Config, lake: Lake, day: dt.date | None, clock: Clock) -> tuple[list[dt.date], str]:
    """Return the sessions after a delivery, and how the source would be read; a live one is not asked."""
    asked = Request(config, lake, day, clock)
    if asked.unchanged():
        return (asked.sessions, "nothing can be new at the source, which is not read")
    asked.refuse_closed_day()
    source, expected = asked.source(), asked.expected()
    if not isinstance(source, _Watched):
        asked.refuse_day_off(asked.sessions)
        sessions = sorted({*asked.sessions, *([] if expected is None else [expected])})
        return (sessions, "the source is asked; its answer is not known before")
    sessions = list(prices_to_keep(source, lake, config.quality)["date"].unique().sort())
    _refuse_rejected_sessions(config, lake, source, sessions)
    asked.refuse_day_off(sessions)
    late = asked.late(sessions)
    if late is not None:
        minutes = config.nightly.checks.retry_minutes
        raise DataError(f"{late} The source would be asked again for at most {minutes:g} minutes.")
    new = len(set(sessions) - set(asked.sessions))
    return (sessions, f"the source is read; new sessions: {new:,}")
