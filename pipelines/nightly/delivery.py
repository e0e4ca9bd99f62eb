"""The delivery of a night: what is new at the source goes into the lake, before any session is decided.

A source that is gone, throttled or late is asked again for ``nightly.checks.retry_minutes``, unless what is
missing cannot come any more. Every delivery is an ordinary ingest: what arrived is committed, and the next
one continues from there. A complete delivery that ends before the last night is refused whole.

A finished delivery leaves a mark in ``delivery.json``: names, sizes and modification times of files, or the
newest session that a live source's exchange has finished. While the mark is the same, nothing can be new and
the source is not read; a live source's correction arrives together with its next session.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError, full_disk
from pipelines.files import write_text
from pipelines.ingest.calendars import is_session
from pipelines.ingest.ingest import IngestStoppedError, IngestSummary, ingest, prices_to_keep
from pipelines.ingest.rules import SPARSE, SPARSE_DATES
from pipelines.lake.lake import Lake
from pipelines.nightly.result import Finding, nights_folder
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
from pipelines.nightly.tables import prices_of_night, read_nights, sessions_of
from pipelines.progress import Progress
from pipelines.run.fetch import make_source
from pipelines.run.locks import Locks
from pipelines.secrets import masked
from pipelines.sources.base import LiveSource, Source, SourceTables
from pipelines.sources.files.opening import resolve
from pipelines.sources.settings import FilesSourceConfig

FILE: Final = "delivery.json"
_LIVE: Final = ("yfinance", "sec")
_CAN_BE_LATE: Final = ("files", *_LIVE)
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 600.0  # seconds
_ONE_DAY: Final = dt.timedelta(days=1)  # the exchange may be ahead of the clock's zone
_LIVE_DAYS: Final = dt.timedelta(days=15)
"""Age from which prices are an archive, for which nobody waits: longer than any holiday of an exchange."""
_DAILY_WEEKDAYS: Final = 3
"""Daily prices have sessions on at least this number of weekdays."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a delivery brought: counts per table, None if nothing could be new."""

    summary: IngestSummary | None

    def sentence(self) -> str:
        """Describe the delivery in one line."""
        if self.summary is None:
            return "nothing new at the source"
        parts = []
        for table, counts in self.summary.tables.items():
            changes = {
                "new": counts.added,
                "corrected": counts.updated,
                "withdrawn": counts.withdrawn,
                "quarantined": sum(counts.quarantined.values()),
            }
            said = [f"{count:,} {what}" for what, count in changes.items() if count]
            if said:
                parts.append(f"{table} {', '.join(said)}")
        return "; ".join(parts) or "nothing new at the source"


def deliver(
    config: Config,
    lake: Lake,
    day: dt.date | None,
    progress: Progress,
    clock: Clock,
    *,
    wait: bool,
) -> Delivery:
    """Ingest what is new at the source, and wait for what is late."""
    if is_unchanged(config, lake, day, clock):
        return Delivery(None)
    _refuse_closed_day(config, lake, day)
    _refuse_ended_calendar(config, lake, clock)
    expected, through = _wanted(config, lake, day, clock)
    wait_for_source = _Waiting(config, progress, clock, day, _newest(lake))
    while True:
        mark = _mark(config, expected, through)  # before the source is read: it may change meanwhile
        source = _watched(config, lake, make_source(config, through=through))
        try:
            summary = _ingest_once(config, lake, source, progress, wait=wait)
        except _SourceError as error:
            wait_for_source(error.error)
            continue
        sessions = sessions_of(lake)
        if isinstance(source, _Watched):
            _refuse_rejected_sessions(config, lake, source, sessions)
        _refuse_day_off(config, sessions, day)
        late = _late(config, lake, day, sessions[-1] if sessions else None, clock)
        if late is None:
            break
        wait_for_source(DataError(late))
    due = due_session(config, lake, clock.now())
    if day is None and due is not None and sessions[-1] < due:
        progress.note(f"The prices end on {sessions[-1]}, before the newest session, {due}: an archive.")
    if config.source.kind in _LIVE and expected is None:
        mark = _mark(config, expected_session(config, lake, clock.now()), through)
    if mark is not None:
        write_text(nights_folder(config) / FILE, _text(mark, lake))
    return Delivery(summary)


def is_unchanged(config: Config, lake: Lake, day: dt.date | None, clock: Clock) -> bool:
    """Return whether nothing can be new at the source since the last delivery, without reading it."""
    newest = _newest(lake)
    expected, through = _wanted(config, lake, day, clock)
    late = None if newest is None else _late(config, lake, day, newest, clock)
    if newest is None or late is not None or _ended_calendar(config, lake, clock):
        return False
    mark = _mark(config, expected, through)
    path = nights_folder(config) / FILE
    return mark is not None and path.is_file() and path.read_bytes() == _text(mark, lake).encode()


def _newest(lake: Lake) -> dt.date | None:
    stored = sessions_of(lake)
    return stored[-1] if stored else None


def _wanted(
    config: Config, lake: Lake, day: dt.date | None, clock: Clock
) -> tuple[dt.date | None, dt.date | None]:
    """Return the session that the delivery must bring, if any, and the last one that it may bring."""
    newest = _newest(lake)
    expected = day or expected_session(config, lake, clock.now())
    return expected, None if day is None else max(day, newest or day)


def _last_night(config: Config, lake: Lake) -> dt.date | None:
    return max(finished_nights(read_nights(lake, config.name)), default=None)


def _late(
    config: Config, lake: Lake, day: dt.date | None, newest: dt.date | None, clock: Clock
) -> str | None:
    """Say which session is missing from the prices, whose newest session is given; None if none is."""
    end = "it delivered no prices" if newest is None else f"its prices end on {newest}"
    expected = day or expected_session(config, lake, clock.now())
    if expected is not None:
        if newest is not None and newest >= expected:
            return None
        return f"The source has no session {expected} yet: {end}."
    due, last = due_session(config, lake, clock.now()), _last_night(config, lake)
    if due is None or newest is None or last is None or newest >= due:
        return None
    if newest > last and due - newest > _LIVE_DAYS:
        return None
    if len(learned_week(sessions_of(lake))) < _DAILY_WEEKDAYS:
        return None
    return (
        f"The source has no session {due}, which {calendar_of(config, lake)} has finished: {end}. "
        "Deliver the missing sessions, or choose a session of an archive with --date."
    )


@dataclass
class _Watched:
    """A source that always delivers its whole scope, and must not end before the last night."""

    source: Source
    last: dt.date | None
    stored: int
    most: float
    rows: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"date": pl.Date, "rows": pl.UInt32})
    )

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return self.source.name

    def fetch(self) -> SourceTables:
        """Deliver the tables."""
        delivered = self.source.fetch()
        dates = delivered.tables["prices"].select("date").drop_nulls()
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


def _watched(config: Config, lake: Lake, source: Source | LiveSource) -> LiveSource | _Watched:
    if isinstance(source, LiveSource):
        return source
    last = _last_night(config, lake)
    then = prices_of_night(lake, read_nights(lake, config.name), last)
    stored = 0
    if then is not None:
        try:
            stored = lake.count("prices", then)
        except DataError:
            stored = 0  # a vacuum removed the version
    return _Watched(source, last, stored, config.nightly.checks.max_withdrawn)


def _refuse_rejected_sessions(
    config: Config, lake: Lake, source: _Watched, sessions: Sequence[dt.date]
) -> None:
    """Refuse a delivery of which every row of a new session was rejected."""
    calendar, overrides = calendar_of(config, lake, sessions), config.quality.calendar_overrides
    usual = source.rows["rows"].tail(SPARSE_DATES).median()  # markets grow
    new = source.rows.tail(1) if source.last is None else source.rows.filter(pl.col("date") > source.last)
    whole = new.filter(pl.col("rows") >= SPARSE * pl.lit(usual))
    for day, rows in whole.iter_rows():
        if day not in sessions and not (
            calendar is not None and is_session(calendar, day, overrides) is False
        ):
            raise DataError(
                f"All {rows:,} rows of session {day} were rejected; 'peerglass quarantine list' shows them "
                "and the rules. Nothing was decided; deliver the session again."
            )


class _Waiting:
    """Waits before the source is asked again, and ends with its error when the time is over."""

    def __init__(
        self, config: Config, progress: Progress, clock: Clock, day: dt.date | None, newest: dt.date | None
    ) -> None:
        kind = config.source.kind
        wanted = newest if day is None and kind == "files" else day
        age = None if wanted is None else clock.now().date() - wanted
        comes = kind in _LIVE if age is None else kind in _CAN_BE_LATE and -_ONE_DAY <= age <= _LIVE_DAYS
        self._minutes = config.nightly.checks.retry_minutes if comes else 0.0
        self._progress, self._clock = progress, clock
        self._started, self._pause = clock.monotonic(), _FIRST_PAUSE

    def __call__(self, problem: DataError) -> None:
        """Wait; raise a DataError with the problem if the time is over."""
        left = 60.0 * self._minutes - (self._clock.monotonic() - self._started)
        said = str(problem).rstrip(".")
        if left <= 0.0:
            asked = f" (asked for {self._minutes:g} minutes)" if self._minutes else ""
            raise DataError(
                f"{said}{asked}. Nothing was decided; the next call continues from here."
            ) from problem
        pause = min(self._pause, left)
        self._progress.note(f"{said}. The source is asked again in {pause:.0f} s.")
        self._clock.sleep(pause)
        self._pause = min(2.0 * self._pause, _LONGEST_PAUSE)


class _SourceError(Exception):
    """The source gave no complete delivery; it may do so later."""

    def __init__(self, error: DataError) -> None:
        super().__init__(str(error))
        self.error = error


def _ingest_once(
    config: Config, lake: Lake, source: LiveSource | _Watched, progress: Progress, *, wait: bool
) -> IngestSummary:
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("ingest"):
        locks.lock_lake(lake.root)
        try:
            return ingest(source, lake, progress, config.quality)
        except IngestStoppedError as stopped:
            raise _SourceError(DataError(f"{stopped}{_unanswered(stopped.summary)}")) from stopped
        except DataError as error:
            if full_disk(error) is not None:
                raise
            raise _SourceError(error) from error


def _unanswered(summary: IngestSummary, named: int = 5) -> str:
    """Name the tickers without an answer."""
    missing = [status.ticker for status in summary.statuses if status.state in ("throttled", "failed")]
    if not missing:
        return ""
    more = f" and {len(missing) - named:,} more" if len(missing) > named else ""
    return f"; missing: {', '.join(missing[:named])}{more}"


def _refuse_closed_day(config: Config, lake: Lake, day: dt.date | None) -> None:
    """Refuse a day on which the exchange is closed, instead of waiting for its prices."""
    newest = _newest(lake)
    if day is None or (newest is not None and day <= newest):
        return  # the data themselves tell (`pipelines.nightly.schedule`)
    calendar = calendar_of(config, lake)
    if calendar is not None and is_session(calendar, day, config.quality.calendar_overrides) is False:
        raise ConfigError(f"--date {day} is not a session: {calendar} is closed on that day.")


def _refuse_day_off(config: Config, sessions: Sequence[dt.date], day: dt.date | None) -> None:
    """Refuse a day after the data on which their market is never open, such as a Saturday."""
    overrides = config.quality.calendar_overrides
    if day is None or not sessions or day <= sessions[-1] or day in overrides.sessions:
        return
    week = learned_week(sessions)
    learned = sessions[-1] - sessions[0] >= dt.timedelta(weeks=2)
    if learned and week and day.weekday() not in week:
        raise ConfigError(
            f"--date {day} is a {day:%A}, on which this market has no sessions; choose another day, or name "
            "an additional session in quality.calendar_overrides.sessions."
        )


def _refuse_ended_calendar(config: Config, lake: Lake, clock: Clock) -> None:
    """Refuse to wait for a live source whose calendar has ended: nothing tells which session is next."""
    end = _ended_calendar(config, lake, clock)
    if end is not None:
        raise DataError(end.sentence)


def _ended_calendar(config: Config, lake: Lake, clock: Clock) -> Finding | None:
    """Say that the calendar of a live source has ended and the lake holds its last session; else None."""
    now, newest = clock.now(), _newest(lake)
    expected = expected_session(config, lake, now)
    if expected is None or newest is None or newest < expected:
        return None
    end = calendar_end(config, lake, now.date(), sessions_of(lake))
    return end if end is not None and end.level == "fail" else None


def _mark(config: Config, expected: dt.date | None, through: dt.date | None) -> dict[str, Any] | None:
    """Return what the source is, as far as it can be seen without reading it; None if it cannot be seen."""
    settings = config.source
    if settings.kind in _LIVE and expected is None:
        return None
    mark: dict[str, Any] = {
        "source": config.as_written()["source"],
        "quality": config.quality.model_dump(mode="json"),
        "through": str(through),
    }
    if isinstance(settings, FilesSourceConfig):
        mark["files"] = _stamps(settings)
    if settings.kind in _LIVE:
        mark["expected"] = str(expected)
    return mark


def _text(mark: Mapping[str, Any], lake: Lake) -> str:
    """Write a mark with the version of the prices, which another command may have changed since."""
    prices = {"lake": masked(lake.root), "prices": lake.version("prices")}
    return json.dumps({**mark, **prices}, indent=1, sort_keys=True)


def _stamps(settings: FilesSourceConfig) -> dict[str, list[int]]:
    """Return file -> size and modification time, for all files of a source that exist."""
    given = (
        settings.prices,
        settings.securities,
        settings.fundamentals,
        settings.membership,
        settings.renames,
        settings.inputs,
    )
    stamps: dict[str, list[int]] = {}
    for text in given:
        try:
            paths = [] if text is None else resolve(Path(text))
        except DataError:
            paths = []  # the ingest reports it
        for path in paths:
            stat = path.stat()
            stamps[str(path)] = [stat.st_size, stat.st_mtime_ns]
    return stamps


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The sessions of the lake after a delivery, and how the source would be read."""

    sessions: list[dt.date]
    sentence: str


def foresee(config: Config, lake: Lake, day: dt.date | None, clock: Clock) -> Foreseen:
    """Say what `deliver` would do, and store nothing.

    A source that delivers its whole scope is read, and its rows are checked as an ingest checks them. A live
    source is not asked: it is assumed to have the newest session that its exchange has finished.
    """
    stored = sessions_of(lake)
    if is_unchanged(config, lake, day, clock):
        return Foreseen(stored, "nothing can be new at the source, which is not read")
    _refuse_closed_day(config, lake, day)
    _refuse_ended_calendar(config, lake, clock)
    expected, through = _wanted(config, lake, day, clock)
    source = _watched(config, lake, make_source(config, through=through))
    if not isinstance(source, _Watched):
        _refuse_day_off(config, stored, day)
        coming = set() if expected is None else {expected}
        return Foreseen(sorted({*stored, *coming}), "the source is asked; its answer is not known before")
    sessions = list(prices_to_keep(source, lake, config.quality)["date"].unique().sort())
    _refuse_rejected_sessions(config, lake, source, sessions)
    _refuse_day_off(config, sessions, day)
    late = _late(config, lake, day, sessions[-1], clock)
    if late is not None:
        minutes = config.nightly.checks.retry_minutes
        raise DataError(f"{late} The source would be asked again for at most {minutes:g} minutes.")
    new = len(set(sessions) - set(stored))
    return Foreseen(sessions, f"the source is read; new sessions: {new:,}")
