"""The lake: Delta tables under one root, upserted by key in one commit each, readable at any version.

A table moves from one version to the next in a single atomic commit. A process that is killed at any moment
leaves the previous version or the next one, never something in between. All versions are kept unless a vacuum
is requested (`pipelines.lake.upkeep`), because a run can be repeated only as long as the versions that it
recorded are readable.

A contract may gain a nullable column. Tables written before are read with null in it, at every version, and
the first upsert that writes rows adds the column in its own commit.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines.errors import DataError
from pipelines.lake.contracts import Checked, require
from pipelines.lake.schemas import READ_TABLES, SCHEMAS, empty, keys, schema
from pipelines.lake.storage import Storage, UpsertCounts, UpsertPlan, commit, compare_with_table, in_order
from pipelines.lake.versions import (
    Commit,
    TableVersion,
    Unfinished,
    commits,
    data_version,
    lake_states,
    layout_version,
    parse_as_of,
    version_at,
)

__all__ = [
    "Lake",
    "UpsertCounts",
]

_ATTEMPTS: Final = 12
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds


class Lake:
    """Delta tables under a local folder or an object-store URL.

    Parameters
    ----------
    root
        Folder or URL (``s3://bucket/lake``). The first write creates it; a URL never becomes a local folder.
    options
        Passed to the object store (endpoint, region, ...); credentials come from the environment.
    notify
        Receives a sentence when another writer committed first and an upsert is retried, and when an ingest
        is unfinished.
    """

    def __init__(
        self,
        root: str | Path,
        options: Mapping[str, str] | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.storage = Storage(root, options or {})
        self._notify = notify

    @property
    def root(self) -> str:
        """Absolute path of the folder, or the URL."""
        return self.storage.root

    def exists(self, table: str) -> bool:
        """Return whether the table holds data; DataError if it is not a Delta table."""
        return self.version(table) is not None

    def version(self, table: str) -> int | None:
        """Return the newest version that changed the table's rows; None if it was never filled.

        Raises
        ------
        DataError
            If the location holds something other than a Delta table.
        """
        opened = self.storage.view(table)
        return None if opened is None else data_version(opened) or None

    def count(self, table: str, version: int | None = None) -> int:
        """Count a table's rows from its log, without reading them; errors as in `read`."""
        return int(self._open_version(table, version).count())

    def distinct(self, table: str, columns: list[str], filters: pl.Expr) -> pl.DataFrame:
        """Return the distinct values of columns in the newest version, sorted, without reading other columns.

        Arguments and errors as in `read`.
        """
        rows = self.storage.scan(table, self._open_version(table, None)).filter(filters)
        return rows.select(columns).unique().collect(engine="streaming").sort(columns)

    def versions(self) -> dict[str, int]:
        """Return the newest version of every table that holds data."""
        versions = {table: self.version(table) for table in SCHEMAS}
        return {table: version for table, version in versions.items() if version is not None}

    def unfinished(self) -> Unfinished | None:
        """Return the ingest that has begun and not ended, if there is one."""
        marks = self.rows("sources", ["unfinished"])["unfinished"].drop_nulls()
        return Unfinished(**json.loads(marks[0])) if marks.len() else None

    def versions_to_read(self) -> dict[str, int]:
        """Return the newest versions of `READ_TABLES`, or those before an unfinished ingest.

        Raises
        ------
        DataError
            If the unfinished ingest is the first one, or a location holds something other than a Delta table.
        """
        opened, unfinished = self._open_together(SCHEMAS)  # a table that is none is an error in any case
        if unfinished is not None:
            return dict(unfinished.versions)
        found = {table: data_version(opened[table]) for table in READ_TABLES if table in opened}
        return {table: version for table, version in found.items() if version}

    def histories(self) -> dict[str, list[Commit]]:
        """Return the commits of all tables, those that are read up to `versions_to_read`; errors as there."""
        opened, unfinished = self._open_together(SCHEMAS)
        found = {table: commits(one) for table, one in opened.items()}
        if unfinished is not None:
            for table in found.keys() & READ_TABLES:
                last = unfinished.versions.get(table, 0)
                found[table] = [one for one in found[table] if one.version <= last]
        return found

    def _open_together(self, tables: Iterable[str]) -> tuple[dict[str, DeltaTable], Unfinished | None]:
        """Open all tables while no ingest begins or ends, which is a commit to ``sources``."""
        while True:
            begun, unfinished = self.version("sources"), self.unfinished()
            opened = {table: one for table in tables if (one := self.storage.view(table)) is not None}
            if self.version("sources") == begun:
                break
        if unfinished is not None and "prices" not in unfinished.versions:
            raise DataError(
                f"The first ingest into the lake {self.root} is running or was interrupted: wait for its "
                "end, or run 'peerglass ingest CONFIG' again, which completes it."
            )
        if unfinished is not None and self._notify is not None:
            self._notify(
                f"an ingest into the lake {self.root} is running or was interrupted: the data before it are "
                f"read (prices version {unfinished.versions['prices']}); the same ingest, run again, "
                "completes it"
            )
        return opened, unfinished

    def with_table_ids(self, versions: Mapping[str, int]) -> dict[str, TableVersion]:
        """Add each table's id (`table_id`) to its version.

        Raises
        ------
        DataError
            If a table is missing or not a Delta table.
        """
        return {table: TableVersion(self.table_id(table), version) for table, version in versions.items()}

    def table_id(self, table: str) -> str:
        """Return the id of a table's first version, which identifies the table.

        A table that is created later at the same location has another id. The newest version may have another
        id too, because Delta assigns a new one when a merge adds a column.

        Raises
        ------
        DataError
            If the table is missing or not a Delta table.
        """
        self._open_version(table, None)  # raises where there is no table
        first = self.storage.view(table, 0)
        assert first is not None, "the table was just opened"
        return str(first.metadata().id)

    def versions_as_of(self, text: str) -> dict[str, int]:
        """Return every table's version at an earlier time; tables that held nothing then are left out.

        Parameters
        ----------
        text
            An ISO date or time: every table's newest version committed at or before it, without ingests that
            ended later (`parse_as_of` defines a missing zone or time). Or a version of the prices table: the
            lake while that version was the newest, including what was ingested together with it.

        Raises
        ------
        ConfigError
            If the text is neither.
        DataError
            If the lake held no prices by then, or the prices have no such version.
        """
        version_or_time = parse_as_of(text)
        histories = self.histories()
        prices = [c for c in histories.get("prices", []) if c.changed_rows and c.version > 0]
        if not prices:
            raise DataError(
                f"table prices of the lake {self.root} holds no data: run `peerglass ingest` first"
            )
        if isinstance(version_or_time, datetime):
            later = {one.delivery for of in histories.values() for one in of if one.at > version_or_time}
            whole = {
                table: [one for one in history if one.delivery is None or one.delivery not in later]
                for table, history in histories.items()
            }
            versions = {table: version_at(history, version_or_time) for table, history in whole.items()}
            if versions["prices"] is None:
                raise DataError(
                    f"the lake {self.root} held no prices at {version_or_time:%Y-%m-%d %H:%M:%S} UTC; its "
                    f"first were committed at {prices[0].at:%Y-%m-%d %H:%M:%S} UTC"
                )
            return {table: version for table, version in versions.items() if version is not None}
        states = lake_states(histories)
        if not states[0]["prices"] <= version_or_time <= histories["prices"][-1].version:
            raise DataError(
                f"the prices of the lake {self.root} have no version {version_or_time}; they have "
                f"{states[0]['prices']} to {prices[-1].version} (write dates as 2024-01-31)"
            )
        return [state for state in states if state["prices"] <= version_or_time][-1]

    def read(
        self,
        table: str,
        version: int | None = None,
        columns: list[str] | None = None,
        filters: pl.Expr | None = None,
        *,
        ordered: bool = True,
    ) -> pl.DataFrame:
        """Read a table, sorted by its key, so that equal data gives equal frames however it was written.

        Parameters
        ----------
        table
            Name of the lake table.
        version
            Version to read; None for the newest.
        columns
            Columns to return, in that order; None for all.
        filters
            Boolean expression over the table's columns; only rows where it is true are returned.
        ordered
            Whether to sort the rows. Without sorting, large tables are read several times faster.

        Raises
        ------
        DataError
            If the table is missing, empty, not a Delta table, has no such version, lost it to a vacuum, lacks
            columns that its contract requires, or has unknown ones (`pipelines.lake.storage.Storage.scan`).
        """
        opened = self._open_version(table, version)
        names = columns or schema(table).column_names()
        rows = self.storage.scan(table, opened)
        if filters is not None:
            rows = rows.filter(filters)
        try:
            return (rows.sort(keys(table)) if ordered else rows).select(names).collect()
        except OSError as error:
            if not self._is_incomplete(table, opened):
                raise
            raise DataError(
                f"version {version or opened.version()} of {self.storage.uri(table)} can no longer be "
                "read, because a vacuum removed its files; read a newer version"
            ) from error

    def rows(
        self, table: str, columns: list[str] | None = None, filters: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Read the newest version of a table as `read` does; no rows if it was never filled."""
        if self.exists(table):
            return self.read(table, columns=columns, filters=filters)
        return empty(table).select(columns or pl.all())

    def upsert(
        self,
        table: str,
        frame: pl.DataFrame,
        released: Collection[str] = (),
        scope: pl.Expr | None = None,
        delivery: str | None = None,
    ) -> UpsertCounts:
        """Add rows with a new key, replace rows that differ, and withdraw others, in one commit.

        Rows that differ only by a stamp (`contracts.STAMPS`) are unchanged. If nothing changes, nothing is
        written and the version stays the same. Stored rows that the frame does not contain are kept unless
        they are in ``scope``; earlier versions still contain withdrawn rows. The upsert can be killed at any
        moment, repeated, and run from several processes at once: a writer that finds another commit says so,
        waits briefly, compares again and commits on top.

        Parameters
        ----------
        table
            Name of the lake table.
        frame
            Rows that satisfy the table's contract, each key once.
        released
            Hashes of rows that a user accepted although they break a rule.
        scope
            Boolean expression over the table's columns: stored rows for which it is true are withdrawn unless
            the frame contains their key. None: nothing is withdrawn.
        delivery
            Recorded with the commit. Commits of one delivery are together in or not in a state of the lake
            (`versions_as_of`).

        Raises
        ------
        ValueError
            If a row breaks the contract: check a source's rows with `contracts.check` first.
        DataError
            If the location holds something other than a Delta table or a table with other columns
            (`pipelines.lake.storage.Storage.scan`), or if other writers committed first in every attempt.
        """
        return self.apply(self.plan(table, frame, released, scope), delivery)

    def plan(
        self,
        table: str,
        frame: pl.DataFrame | Checked,
        released: Collection[str] = (),
        scope: pl.Expr | None = None,
    ) -> UpsertPlan:
        """Compare a batch with the table without writing; parameters and errors as in `upsert`.

        The valid rows of a `Checked` batch are not checked a second time.
        """
        rows = frame.valid if isinstance(frame, Checked) else require(table, frame, released)
        return compare_with_table(self.storage, table, in_order(table, rows), scope)

    def apply(self, plan: UpsertPlan, delivery: str | None = None) -> UpsertCounts:
        """Commit a plan; if another writer committed first, compare again and commit on top (`upsert`)."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return commit(self.storage, plan, delivery)
            except CommitFailedError:
                if attempt < _ATTEMPTS:
                    self._wait(plan.table, attempt)
                    plan = compare_with_table(self.storage, plan.table, plan.rows, plan.scope)
        raise DataError(
            f"table {self.storage.uri(plan.table)} is being written by other processes all the time; "
            "retry when they have ended"
        )

    def _wait(self, table: str, attempt: int) -> None:
        """Pause for a random time with a limit that doubles, so that writers do not collide again."""
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
        pause = random.uniform(longest / 4, longest)  # noqa: S311 (no secret depends on it)
        if self._notify is not None:
            self._notify(
                f"table {table}: another process committed first; retrying in {pause:.2f} s "
                f"(attempt {attempt + 1} of {_ATTEMPTS})"
            )
        time.sleep(pause)

    def _open_version(self, table: str, version: int | None) -> DeltaTable:
        opened = self.storage.view(table)
        if opened is None or opened.version() == 0:
            raise DataError(
                f"table {table} of the lake {self.root} holds no data: run `peerglass ingest` first"
            )
        if version is None:
            return opened
        if not 0 < version <= opened.version():
            newest = data_version(opened)
            raise DataError(f"table {self.storage.uri(table)} has no version {version}; it has 1 to {newest}")
        layout = layout_version(opened, version)
        if layout == opened.version():
            return opened
        earlier = self.storage.view(table, layout)
        assert earlier is not None, "the table was just opened"
        return earlier

    def _is_incomplete(self, table: str, opened: DeltaTable) -> bool:
        """Return whether a file that this version references is missing."""
        paths = pl.DataFrame(opened.get_add_actions(flatten=True))["path"].to_list()
        infos = self.storage.files(table).get_file_info(paths)
        return any(info.type.name == "NotFound" for info in infos)
