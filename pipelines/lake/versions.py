"""Versions of a table: commits that changed rows, commits that only moved them, and the version at a time.

Compaction and vacuum are commits as well, but change no row. The version of a table's data is therefore its
newest commit that changed rows: after a compaction, a run that recorded this version is continued instead of
started again, and reads the compacted files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

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
        Its time in UTC, never before that of the previous commit, even if the writers' clocks disagree.
    changed_rows
        Whether it added, replaced or removed rows.
    """

    version: int
    at: datetime
    changed_rows: bool


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A permanent reference to a table's data: the id that Delta gave the table, and a version."""

    id: str
    version: int


def commits(opened: DeltaTable, limit: int | None = None) -> list[Commit]:
    """Return a table's commits up to the opened version, oldest first; only the newest ``limit`` if given."""
    history: list[Commit] = []
    latest = datetime.fromtimestamp(0, UTC)
    for entry in reversed(opened.history(limit) or _read_log(opened, limit)):
        stamp = entry.get("timestamp")  # commits by other tools may lack it
        if stamp is not None:
            latest = max(latest, datetime.fromtimestamp(stamp / 1000, UTC))
        changed = entry.get("operation") not in _MOVES_ROWS_ONLY
        history.append(Commit(int(entry["version"]), latest, changed))
    return history


def _read_log(opened: DeltaTable, limit: int | None) -> list[dict[str, Any]]:
    """Read the newest commits of a local table, newest first.

    deltalake 1.6 finds none if the name of a folder above the table contains ``#``.
    """
    log = Path(unquote(opened.table_uri.removeprefix("file://"))) / "_delta_log"
    history: list[dict[str, Any]] = []
    for version in range(opened.version(), -1, -1):
        entry = log / f"{version:020d}.json"
        if not entry.is_file() or len(history) == limit:
            break
        actions = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
        commit: dict[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
        history.append({**commit, "version": version})
    return history


def data_version(opened: DeltaTable) -> int:
    """Return the newest version that changed rows, up to the opened one; 0 if it was never filled."""
    for limit in (1, 16, None):
        changed = [commit.version for commit in commits(opened, limit) if commit.changed_rows]
        if changed:
            return changed[-1]
    raise AssertionError("the creation of a table counts as a change of rows")


def layout_version(opened: DeltaTable, version: int) -> int:
    """Return the newest version with the same rows as ``version``: a compacted one, if there is one."""
    newest = opened.version()
    same = version
    if newest > version:
        for commit in commits(opened, newest - version):
            if commit.changed_rows:
                break
            same = commit.version
    return same


def version_at(history: Sequence[Commit], moment: datetime, *, before: bool = False) -> int | None:
    """Return the newest version that changed rows at or before a time (strictly before, if ``before``)."""
    seen = [
        commit.version
        for commit in history
        if commit.changed_rows
        and commit.version > 0
        and (commit.at < moment if before else commit.at <= moment)
    ]
    return seen[-1] if seen else None


def parse_as_of(text: str) -> int | datetime:
    """Parse ``--as-of``: a whole number is a version, anything else an ISO date or time.

    A time without a zone is UTC; a date alone is the end of that day in UTC.

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
