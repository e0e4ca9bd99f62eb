"""``peerglass nightly --dry-run``: what a night would do. Nothing is written and nothing is locked.

The plan is made by the functions that the real call uses, in the same order, and ends with the same errors.
What only the nights themselves can tell is said: the checks of the data, an audit, alarms of the monitoring.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import input_versions
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.book.next_book import nightly_book
from pipelines.nightly.book.recorded import read_recorded
from pipelines.nightly.book.schedule import decision_due, schedule_text
from pipelines.nightly.changes import changes_since, require_accepted
from pipelines.nightly.clock import Clock
from pipelines.nightly.exchange import following_session
from pipelines.nightly.folder import night_folder
from pipelines.nightly.plan import choose_nights, finished_nights, first_begun
from pipelines.nightly.play.journal import Retraining, lost_since, read_journal
from pipelines.nightly.records import require_agreement
from pipelines.nightly.registry.aliases import alias_history, challenger, champion
from pipelines.nightly.sources import foresee
from pipelines.nightly.table import finished_before, read_nights
from pipelines.nightly.training.due import retraining_due

_LISTED = 5  # nights in a line


def describe_plan(
    config: Config, lake: Lake, day: dt.date | None, clock: Clock, *, accept_changes: bool
) -> str:
    """Describe the delivery, the sessions that would be played, the trainings, the models and the data.

    Source files and the simulated market are read to learn which sessions they have. A live source is not
    asked: its sessions are those that its exchange has finished.

    Raises
    ------
    ConfigError, DataError
        The error with which the real call would end before it decides anything.
    """
    require_agreement(config, lake)
    changes = changes_since(config, lake)
    require_accepted(config, changes, accept=accept_changes)
    coming = foresee(config, lake, day, clock)
    nights = read_nights(lake, config.name)
    plan = choose_nights(coming.sessions, finished_nights(nights), day, first_begun(lake, config.name))
    lines = [f"{config.name}: dry run, nothing is written"]
    if changes.phrases:
        lines.append(f"  changes     {changes} They are accepted.")
    lines.append(f"  delivery    {coming.sentence}")
    if not plan.sessions:
        lines.append(f"  nights      the night of {plan.newest} is already done")
    else:
        more = " ..." if len(plan.sessions) > _LISTED else ""
        listed = ", ".join(map(str, plan.sessions[:_LISTED])) + more
        lines.append(f"  nights      {len(plan.sessions)} to play: {listed}")
        lines += _describe_trainings(config, lake, coming.sessions, plan.sessions)
        lines.append(_describe_book(config, lake, coming.sessions, plan.sessions))
    named = {"champion": champion(lake, config.name), "challenger": challenger(lake, config.name)}
    lines += [f"  {alias:<12}{version or 'none'}" for alias, version in named.items()]
    versions = input_versions(lake) if lake.exists("prices") else {}
    listed = ", ".join(f"{table} {version}" for table, version in sorted(versions.items())) or "none yet"
    lines.append(f"  data        {listed}")
    return "\n".join(lines)


def _describe_trainings(
    config: Config, lake: Lake, sessions: Sequence[dt.date], pending: Sequence[dt.date]
) -> Iterator[str]:
    due = list(_trainings(config, lake, sessions, pending))
    for session, training in due:
        yield f"  training    due on {session}: {training.why}; the version becomes {training.alias}"
    if not due:
        yield "  training    not due"
    if config.nightly.retrain.on_drift and len(pending) > 1:
        yield f"  training    also after an alarm of the nights from {pending[0]} on"


def _describe_book(
    config: Config, lake: Lake, sessions: Sequence[dt.date], pending: Sequence[dt.date]
) -> str:
    """Say on which of the nights the book decides; each counts as a decision for the nights after it."""
    name, book = nightly_book(config)
    nights = read_nights(lake, config.name)
    no_renames, decisions = schema("renames").create_empty(), list[str]()
    accounts = read_recorded(lake, config.name, nights, pending[0], no_renames).accounts
    for session in pending:
        known = [one for one in sessions if one <= session]
        following = following_session(config, lake, known)
        due = decision_due(book, np.array(known, dtype="datetime64[D]"), following, accounts)
        made = {"session": session, "schedule": schedule_text(book), "due": None, "decision": None}
        if due is not None:
            made |= {"due": due.session, "decision": "made"}
            late = f" (for {due.session}, which was missed)" if due.late else ""
            decisions.append(f"{session}{late}")
        new = pl.DataFrame([made], schema_overrides={"due": pl.Date, "decision": pl.String})
        accounts = pl.concat([accounts, new], how="diagonal")
    if not decisions:
        return f"  book        {name} does not decide ({schedule_text(book)})"
    listed = ", ".join(decisions[:_LISTED]) + (" ..." if len(decisions) > _LISTED else "")
    return f"  book        {name} decides on {listed} ({schedule_text(book)})"


def _trainings(
    config: Config, lake: Lake, sessions: Sequence[dt.date], pending: Sequence[dt.date]
) -> Iterator[tuple[dt.date, Retraining]]:
    """Yield the nights that train a version, as each of them will decide it.

    An interrupted night has decided it already. Warnings of the nights to come are not known.
    """
    aliases, nights = alias_history(lake, config.name), read_nights(lake, config.name)
    for session in pending:
        journal = read_journal(night_folder(config, session))
        if journal is not None and journal.judged_retraining and not lost_since(journal, lake, config.name):
            due = journal.retraining
        else:
            known = [one for one in sessions if one <= session]
            earlier = finished_before(nights, session) if session == pending[0] else nights.clear()
            due = retraining_due(config.nightly.retrain, known, aliases, earlier)
        if due is not None:
            yield session, due
            new = pl.DataFrame({"alias": due.alias, "version": f"trained on {session}", "session": session})
            number = pl.lit(aliases.height + 1, dtype=pl.Int64).alias("number")
            aliases = pl.concat([aliases, new.with_columns(number)], how="diagonal")
