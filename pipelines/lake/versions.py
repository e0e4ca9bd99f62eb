"""Versions of a table: commits that changed its rows, commits that only moved them, and a moment's version.

Compaction and vacuum are commits too, but change no row. The version of a table's data is therefore its
newest commit that changed rows: a run that recorded it is continued, not begun again, after a compaction,
and is read from the compacted files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final

from deltalake import DeltaTable

from pipelines.errors import ConfigError

_MOVES_ROWS_ONLY: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of a table's log.

    Attributes
    ----------
    version
        Its number; 0 is the creation of the empty table.
    at
        When it was made, UTC, never before the commit it follows even if the writers' clocks disagree.
    changed_rows
        Whether it added, replaced or removed rows.
    """

    version: int
    at: datetime
    changed_rows: bool


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table's data for good: the id that Delta gave the table when it was made, and a version of it."""

    id: str
    version: int


def commits(opened: DeltaTable, limit: int | None = None) -> list[Commit]:
    """Return a table's commits up to the opened version, oldest first; the newest ``limit`` of them."""
    found: list[Commit] = []
    latest = datetime.fromtimestamp(0, UTC)
    for entry in reversed(opened.history(limit)):
        stamp = entry.get("timestamp")  # another tool's commit may lack it
        if stamp is not None:
            latest = max(latest, datetime.fromtimestamp(stamp / 1000, UTC))
        changed = entry.get("operation") not in _MOVES_ROWS_ONLY
        found.append(Commit(int(entry["version"]), latest, changed))
    return found


def data_version(opened: DeltaTable) -> int:
    """Return the newest version that changed rows, at or before the opened one; 0 if it was never filled."""
    for limit in (1, 16, None):
        changed = [commit.version for commit in commits(opened, limit) if commit.changed_rows]
        if changed:
            return changed[-1]
    raise AssertionError("the creation of a table is a commit that counts as a change")


def layout_version(opened: DeltaTable, version: int) -> int:
    """Return the newest version whose rows are those of ``version``: a compacted one, where there is one."""
    newest = opened.version()
    same = version
    if newest > version:
        for commit in commits(opened, newest - version):
            if commit.changed_rows:
                break
            same = commit.version
    return same


def version_at(history: Sequence[Commit], moment: datetime, *, before: bool = False) -> int | None:
    """Return the newest version that changed rows at or before a moment (strictly before it, if told so)."""
    seen = [
        commit.version
        for commit in history
        if commit.changed_rows
        and commit.version > 0
        and (commit.at < moment if before else commit.at <= moment)
    ]
    return seen[-1] if seen else None


def parse_as_of(text: str) -> int | datetime:
    """Read ``--as-of``: a whole number is a version, anything else an ISO date or time.

    A time without a zone is UTC; a date alone is the end of that day, UTC.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    text = text.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return datetime.combine(date.fromisoformat(text), time.max, UTC)
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--as-of {text!r} is neither a version of the prices table nor a date or time; write 7, "
            "2024-01-31 or 2024-01-31T18:00:00Z."
        ) from None
