"""``peerglass nightly``: the delivery, then every night that is to be played, in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, PeerglassError, TrackingError, full_disk
from pipelines.nightly.already_done import done_sentence
from pipelines.nightly.changes import change_finding, changes_since, keep_acceptance, require_accepted
from pipelines.nightly.clock import SYSTEM, Clock
from pipelines.nightly.exchange import expected_session
from pipelines.nightly.finding import Finding
from pipelines.nightly.housekeeping import keep_house
from pipelines.nightly.plan import Plan, finished_nights, next_night, plan_nights
from pipelines.nightly.play.decisions import CheckFailedError, Decisions, Desk
from pipelines.nightly.play.telling import Told, tell, tell_no_delivery
from pipelines.nightly.records import require_agreement
from pipelines.nightly.sources import Delivery, deliver
from pipelines.nightly.table import finished_before, read_nights
from pipelines.progress import Progress
from pipelines.run.locks import Locks


def play_nights(
    config: Config,
    day: dt.date | None = None,
    *,
    echo: Callable[[str], None],
    dry_run: bool = False,
    accept_changes: bool = False,
    wait: bool = False,
    clock: Clock = SYSTEM,
) -> None:
    """Ingest what is new, and play every session after the last finished night.

    Parameters
    ----------
    config
        The configuration.
    day
        The session to decide at; None for the newest one, or the next one of a simulated market that grows.
    echo
        Prints the outcome of every night.
    dry_run
        Whether to print what would be done, and write nothing.
    accept_changes
        Whether to go on although settings that decide the orders have changed since the last night.
    wait
        Whether to wait for another process that plays the nights of this config or writes to its lake.
    clock
        Tells the time and waits.

    Raises
    ------
    ConfigError
        If a setting is wrong, the day is not a session or lies before the last night, or the config has
        changed and nobody has accepted it.
    DataError
        If the source is gone or late, the tables of the nights disagree, a check of the data failed, or
        another process holds a lock.
    TrackingError
        If all nights are done but the tracking store could not be reached; their records wait in the spool.
    PeerglassError
        Any other error that ended a night. The night is in the table ``nights`` as failed, and the next call
        plays it again.
    """
    progress = Progress()
    lake = open_lake(config, progress.note)
    day = next_night(config, lake, day)
    if dry_run:
        from pipelines.nightly.dry_run import describe_plan

        echo(describe_plan(config, lake, day, clock, accept_changes=accept_changes))
        return
    with Locks(wait=wait, notify=progress.note) as locks:
        locks.lock_nights(lake.root, config.name)
        desk = Desk(config, lake, progress, locks, echo, clock)
        started = clock.monotonic()
        accepted = _require_records(desk, day, accept_changes=accept_changes)
        delivery, plan = _deliver(desk, day, accepted, wait=wait)
        ingest = clock.monotonic() - started
        if not plan.sessions:
            echo(_already_done(config, plan, delivery))
            return
        nights = _play_all(desk, plan, ingest, accepted)
        untracked = [told.untracked for told in nights if told.untracked is not None]
    if untracked:
        raise TrackingError(
            f"The signals and the book are done, but {str(untracked[-1])[:1].lower()}{str(untracked[-1])[1:]}"
        )


def _require_records(desk: Desk, day: dt.date | None, *, accept_changes: bool) -> list[Finding]:
    """Require that the tables of the nights agree, and return the finding of changes that were accepted."""
    try:
        require_agreement(desk.config, desk.lake)
        changes = changes_since(desk.config, desk.lake)
        require_accepted(desk.config, changes, accept=accept_changes)
    except PeerglassError as error:
        tell_no_delivery(desk, day, None, error)
        raise
    if not changes.phrases:
        return []
    keep_acceptance(desk.config, changes)
    finding = change_finding(changes)
    desk.progress.note(finding.sentence)
    return [finding]


def _deliver(
    desk: Desk, day: dt.date | None, accepted: Sequence[Finding], *, wait: bool
) -> tuple[Delivery, Plan]:
    """Ingest what is new and plan the nights; tell it if the source fails."""
    try:
        delivery = deliver(desk.config, desk.lake, day, desk.progress, desk.clock, wait=wait)
        return delivery, plan_nights(desk.lake, desk.config.name, day)
    except ConfigError:
        raise
    except PeerglassError as error:
        expected = None if day else expected_session(desk.config, desk.lake, desk.clock.now())
        if expected in finished_nights(read_nights(desk.lake, desk.config.name)):
            expected = None  # that night stays done
        tell_no_delivery(desk, day, expected, full_disk(error) or error, accepted)
        raise


def _play_all(desk: Desk, plan: Plan, ingest: float, accepted: Sequence[Finding]) -> list[Told]:
    """Play the nights in order.

    ``ingest``, the seconds of the delivery, and the changes that were ``accepted`` belong to the first one.

    A night whose data failed a check does not stop the next one: its session is in the past by then, and
    tonight's book cannot wait for it.
    """
    told = []
    for session in plan.sessions:
        try:
            first = session == plan.sessions[0]
            night = Decisions(desk, session, ingest if first else 0.0, accepted if first else ())
            told.append(_play(desk, night))
        except CheckFailedError:
            if session == plan.sessions[-1]:
                raise
    return told


def _play(desk: Desk, night: Decisions) -> Told:
    try:
        night.make()
    except Exception as error:
        full = full_disk(error)
        night.begin_anew_if_undecided()
        tell(desk, night, full or error)
        if full is not None:
            raise full from error
        raise
    told = tell(desk, night, None)
    earlier = finished_before(read_nights(desk.lake, desk.config.name), night.session)
    for sentence in keep_house(desk.config, desk.lake, earlier.height + 1):
        desk.progress.note(sentence)
    return told


def _already_done(config: Config, plan: Plan, delivery: Delivery) -> str:
    said = done_sentence(config.name, plan.newest)
    if delivery.summary is not None:
        said += f" Ingested: {delivery.sentence()}. Signals of nights that are done are never rewritten."
    return said
