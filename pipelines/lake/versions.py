"""Versions of a table: commits that changed rows or only moved them, and the version at a time.

Compaction and vacuum are commits as well, but change no row. The version of a table's data is therefore its
newest commit that changed rows: after a compaction, a run that recorded this version is continued instead of
started again, and reads the compacted files.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from deltalake import DeltaTable

from pipelines.errors import ConfigError

_MOVES_ROWS_ONLY: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
DELIVERY: Final = "peerglass.delivery"
"""Key of a commit's metadata (protocol of Delta: "Commit Provenance Information")."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of a table's log, with a time in UTC that never goes back; version 0 creates the table.

    ``delivery`` is the same for all commits of one delivery by a source; None for other commits.
    """

    version: int
    at: datetime
    changed_rows: bool
    delivery: str | None = None


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A permanent reference to a table's data: the id that Delta gave the table, and a version."""

    id: str
    version: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An ingest that runs or was interrupted: its delivery, and the versions of the tables before it.

    Readers use these versions until an ingest ends. One that was interrupted is continued by the next.
    """

    delivery: str
    versions: Mapping[str, int]


def commits(opened: DeltaTable, limit: int | None = None) -> list[Commit]:
    """Return a table's commits up to the opened version, oldest first; only the newest ``limit`` if given."""
    history: list[Commit] = []
    latest = datetime.fromtimestamp(0, UTC)
    for entry in reversed(opened.history(limit) or _read_log(opened, limit)):
        stamp = entry.get("timestamp")  # commits by other tools may lack it
        if stamp is not None:
            latest = max(latest, datetime.fromtimestamp(stamp / 1000, UTC))
        changed = entry.get("operation") not in _MOVES_ROWS_ONLY
        history.append(Commit(int(entry["version"]), latest, changed, entry.get(DELIVERY)))
    return history


def _read_log(opened: DeltaTable, limit: int | None) -> list[dict[str, Any]]:
    """Read the newest commits of a local table: deltalake 1.6 finds none below a folder with ``#`` in it."""
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
    found: dict[int, int] = vars(opened).setdefault("_changed", {})  # reading the history takes milliseconds
    newest = opened.version()
    if newest in found:
        return found[newest]
    for limit in (1, 16, None):
        changed = [commit.version for commit in commits(opened, limit) if commit.changed_rows]
        if changed:
            found[newest] = changed[-1]
            return changed[-1]
    raise AssertionError("the creation of a table counts as a change of rows")


def layout_version(opened: DeltaTable, version: int) -> int:
    """Return the newest version with the same rows as ``version``: a compacted one, if there is one."""
    same, newest = version, opened.version()
    for commit in commits(opened, newest - version) if newest > version else ():
        if commit.changed_rows:
            break
        same = commit.version
    return same


def version_at(history: Sequence[Commit], moment: datetime) -> int | None:
    """Return the newest version that changed rows at or before a time; None if there was none."""
    return _newest(commit for commit in history if commit.at <= moment)


def lake_states(histories: Mapping[str, Sequence[Commit]]) -> list[dict[str, int]]:
    """Return the versions of all tables while each version of the prices was the newest, the oldest first.

    A state ends before the first commit of the delivery that brings the next version of the prices, because a
    delivery commits flags and gaps before the prices that they belong to. A commit that names no delivery is
    placed by its time. Of a delivery that was interrupted and continued, only the last version is a state.
    """
    prices = [one for one in histories["prices"] if one.changed_rows and one.version > 0]
    ends = {one.delivery: one for one in prices if one.delivery is not None}
    prices = [one for one in prices if one.delivery is None or ends[one.delivery] is one]
    found = []
    for own, after in zip(prices, [*prices[1:], None], strict=True):
        state = {
            name: _newest(one for one in history if after is None or _is_before(one, after))
            for name, history in histories.items()
        }
        known = {name: version for name, version in state.items() if version is not None}
        found.append({**known, "prices": own.version})  # two commits may share a millisecond
    return found


def _is_before(commit: Commit, next_prices: Commit) -> bool:
    """Whether a commit was made before the next version of the prices, and not by its delivery."""
    same = commit.delivery is not None and commit.delivery == next_prices.delivery
    return commit.at < next_prices.at and not same


def _newest(history: Iterable[Commit]) -> int | None:
    changed = (one.version for one in history if one.changed_rows and one.version > 0)
    return max(changed, default=None)


def parse_as_of(text: str) -> int | datetime:
    """Parse ``--as-of``: a version, or an ISO date (its end) or time, in UTC unless it has a zone."""
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
