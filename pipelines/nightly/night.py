"""``peerglass nightly``: the delivery, then every night that is to be played, in order."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import input_versions, open_lake
from pipelines.errors import ConfigError, DataError, PeerglassError, TrackingError, full_disk
from pipelines.ingest.ingest import IngestSummary
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.lake.upkeep import compact, vacuum
from pipelines.nightly import schedule
from pipelines.nightly.book.holdings import read_recorded
from pipelines.nightly.delivery import deliver, describe_delivery, foresee
from pipelines.nightly.play.decisions import CheckFailedError, Decisions, Desk
from pipelines.nightly.play.journal import lost_since, read_journal
from pipelines.nightly.play.telling import tell, tell_no_delivery
from pipelines.nightly.records import done_sentence, require_agreement
from pipelines.nightly.result import NightFinding, finished_before, night_folder, read_nights
from pipelines.nightly.settings import changes_since, keep_acceptance, nightly_book, require_accepted
from pipelines.nightly.training import retraining_due
from pipelines.nightly.versions import alias_history, aliases
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.tracking.store import versions_in_use


def play_nights(
    config: Config,
    day: dt.date | None = None,
    *,
    echo: Callable[[str], None],
    dry_run: bool = False,
    accept_changes: bool = False,
    wait: bool = False,
    clock: schedule.Clock = schedule.SYSTEM,
) -> None:
    """Ingest what is new, and play every session after the last finished night."""
    progress = Progress()
    lake = open_lake(config, progress.note)
    day = schedule.next_night(config, lake, day)
    if dry_run:
        echo(describe_plan(config, lake, day, clock, accept_changes=accept_changes))
        return
    with Locks(wait=wait, notify=progress.note) as locks:
        locks.lock_nights(lake.root, config.name)
        desk = Desk(config, lake, progress, locks, echo, clock)
        started = clock.monotonic()
        accepted = _require_records(desk, day, accept_changes=accept_changes)
        delivered, plan = _deliver(desk, day, accepted, wait=wait)
        ingest = clock.monotonic() - started
        if not plan.sessions:
            said = done_sentence(config.name, plan.newest)
            if delivered is not None:
                said += f" Ingested: {describe_delivery(delivered)}. Signals of nights that are done are "
                said += "never rewritten."
            echo(said)
            return
        untracked = _play_all(desk, plan, ingest, accepted)
    if untracked is not None:
        said = str(untracked)
        raise TrackingError(f"The signals and the book are done, but {said[:1].lower()}{said[1:]}")


def _require_records(desk: Desk, day: dt.date | None, *, accept_changes: bool) -> list[NightFinding]:
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
    finding = NightFinding("config", "warn", f"{changes} The change was accepted.")
    desk.progress.note(finding.sentence)
    return [finding]


def _deliver(
    desk: Desk, day: dt.date | None, accepted: Sequence[NightFinding], *, wait: bool
) -> tuple[IngestSummary | None, schedule.NightPlan]:
    """Ingest what is new and plan the nights; tell it if the source fails."""
    try:
        delivered = deliver(desk.config, desk.lake, day, desk.progress, desk.clock, wait=wait)
        return delivered, schedule.plan_nights(desk.lake, desk.config.name, day)
    except ConfigError:
        raise
    except PeerglassError as error:
        expected = None if day else schedule.expected_session(desk.config, desk.lake, desk.clock.now())
        if expected in schedule.finished_nights(read_nights(desk.lake, desk.config.name)):
            expected = None  # that night stays done
        tell_no_delivery(desk, day, expected, full_disk(error) or error, accepted)
        raise


def _play_all(
    desk: Desk, plan: schedule.NightPlan, ingest: float, accepted: Sequence[NightFinding]
) -> TrackingError | None:
    """Play the nights in order; return why the record of the last one that was not tracked waits."""
    untracked = None
    for session in plan.sessions:
        first = session == plan.sessions[0]
        night = Decisions(desk, session, ingest if first else 0.0, accepted if first else ())
        try:
            night.make()
        except Exception as error:
            full = full_disk(error)
            night.begin_anew_if_undecided()
            tell(desk, night, full or error)
            if full is not None:
                raise full from error
            if not isinstance(error, CheckFailedError) or session == plan.sessions[-1]:
                raise
            continue
        untracked = tell(desk, night, None).untracked or untracked
        earlier = finished_before(read_nights(desk.lake, desk.config.name), session)
        for sentence in keep_house(desk.config, desk.lake, earlier.height + 1):
            desk.progress.note(sentence)
    return untracked


def describe_plan(
    config: Config, lake: Lake, day: dt.date | None, clock: schedule.Clock, *, accept_changes: bool
) -> str:
    """Describe the delivery, the sessions that would be played, the trainings, the models and the data."""
    require_agreement(config, lake)
    changes = changes_since(config, lake)
    require_accepted(config, changes, accept=accept_changes)
    coming, source = foresee(config, lake, day, clock)
    nights = read_nights(lake, config.name)
    plan = schedule.choose_nights(
        coming, schedule.finished_nights(nights), day, schedule.first_begun(lake, config.name)
    )
    lines = [f"{config.name}: dry run, nothing is written"]
    if changes.phrases:
        lines.append(f"  changes     {changes} They are accepted.")
    lines.append(f"  delivery    {source}")
    if plan.sessions:
        lines.append(f"  nights      {len(plan.sessions)} to play: {_some(plan.sessions)}")
        known = {day: [one for one in coming if one <= day] for day in plan.sessions}
        lines += _describe_trainings(config, lake, nights, known)
        lines.append(_describe_book(config, lake, nights, known))
    else:
        lines.append(f"  nights      the night of {plan.newest} is already done")
    named = aliases(lake, config.name)
    lines += [f"  {alias:<12}{version or 'none'}" for alias, version in named.items()]
    versions = input_versions(lake) if lake.exists("prices") else {}
    read = ", ".join(f"{table} {version}" for table, version in sorted(versions.items())) or "none yet"
    return "\n".join([*lines, f"  data        {read}"])


def _some(nights: Sequence[object]) -> str:
    return ", ".join(map(str, nights[:5])) + (" ..." if len(nights) > 5 else "")


def _describe_trainings(
    config: Config, lake: Lake, nights: pl.DataFrame, known: Mapping[dt.date, Sequence[dt.date]]
) -> Iterator[str]:
    """Say which nights train a version, as each of them will decide it; an interrupted one has decided it."""
    promotions, none = alias_history(lake, config.name), True
    for session, sessions in known.items():
        journal = read_journal(night_folder(config, session))
        if journal is not None and journal.judged_retraining and not lost_since(journal, lake, config.name):
            due = journal.retraining
        else:
            earlier = finished_before(nights, session) if session == min(known) else nights.clear()
            due = retraining_due(config.nightly.retrain, sessions, promotions, earlier)
        if due is not None:
            none = False
            yield f"  training    due on {session}: {due.why}; the version becomes {due.alias}"
            new = pl.DataFrame({"alias": due.alias, "version": f"trained/{session}", "session": session})
            number = pl.lit(promotions.height + 1, dtype=pl.Int64).alias("number")
            promotions = pl.concat([new.with_columns(number), promotions], how="diagonal")
    if none:
        yield "  training    not due"
    if config.nightly.retrain.on_drift and len(known) > 1:
        yield f"  training    also after an alarm of the nights from {min(known)} on"


def _describe_book(
    config: Config, lake: Lake, nights: pl.DataFrame, known: Mapping[dt.date, Sequence[dt.date]]
) -> str:
    """Say on which of the nights the book decides; each counts as a decision for the nights after it."""
    name, book = nightly_book(config)
    no_renames, decisions = schema("renames").create_empty(), list[str]()
    accounts = read_recorded(lake, config.name, nights, min(known), no_renames).accounts
    for session, sessions in known.items():
        following = schedule.following_session(config, lake, sessions)
        due = schedule.decision_due(book, np.array(sessions, dtype="datetime64[D]"), following, accounts)
        made = {"session": session, "schedule": schedule.schedule_text(book), "due": None, "decision": None}
        if due is not None:
            made |= {"due": due, "decision": "made"}
            decisions.append(f"{session} (for {due}, which was missed)" if due < session else str(session))
        new = pl.DataFrame([made], schema_overrides={"due": pl.Date, "decision": pl.String})
        accounts = pl.concat([accounts, new], how="diagonal")
    said = f"decides on {_some(decisions)}" if decisions else "does not decide"
    return f"  book        {name} {said} ({schedule.schedule_text(book)})"


def keep_house(config: Config, lake: Lake, night_number: int) -> list[str]:
    """Compact and vacuum the lake if this night is due, and say what was done or had to be left out."""
    settings = config.nightly.housekeeping

    def compaction() -> str:
        counts = compact(lake).values()
        removed, added = sum(before for before, _ in counts), sum(after for _, after in counts)
        return f"The lake was compacted: {removed} small files were joined into {added}."

    def vacuuming() -> str:
        keep = dt.timedelta(days=settings.keep_days)
        plans = vacuum(lake, keep=keep, recorded=versions_in_use(config, lake, ()))
        files, size = sum(plan.files for plan in plans), sum(plan.size for plan in plans)
        return f"The lake was vacuumed: {files} files, {size / 1e6:,.1f} MB, were removed."

    tasks = {"compaction": (settings.compact_every, compaction), "vacuum": (settings.vacuum_every, vacuuming)}
    said = []
    for what, (every, work) in tasks.items():
        if not every or night_number % every:
            continue
        try:
            with Locks(wait=False, notify=lambda _: None) as locks:
                locks.lock_existing_lake(lake)
                said.append(work())
        except (DataError, TrackingError) as error:
            if full_disk(error) is not None:
                raise
            said.append(f"The {what} of the lake was left out: {error}")
    return said
