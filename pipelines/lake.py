"""The lake: Delta tables under one root, upserted by key in one commit each, readable at any version.

A table's data moves from one version to the next in a single atomic commit, so a process that is killed at
any moment leaves the version before or the version after, never something between. Versions are kept for
good: nothing here vacuums, and expiry of old log entries is switched off, because a run is repeatable only
as long as the versions that it recorded can be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pipelines.contracts import SCHEMAS, STAMPS, keys, require, schema
from pipelines.errors import DataError

_PARTITIONS: Final[Mapping[str, str]] = {"forecasts": "run_id"}
_KEEP_EVERY_VERSION: Final = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}
_ATTEMPTS: Final = 20
_ONE_COMMIT: Final = CommitProperties(max_commit_retries=0)
"""Commit exactly on top of the version that was compared with. deltalake would otherwise rebase an append on
a commit that landed in between, and a key that both of them added would be there twice."""


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """What an upsert did: rows added, updated and left alone, and the table's version after it.

    ``version`` is None only if the frame was empty and the table does not exist.
    """

    added: int
    updated: int
    unchanged: int
    version: int | None


class Lake:
    """Delta tables under a local folder or an object-store URL.

    Parameters
    ----------
    root
        Folder or URL (``s3://bucket/lake``). It is created by the first write; a URL is never made a folder.
    storage_options
        Passed to the object store (region, credentials by environment, and so on).
    """

    def __init__(self, root: str | Path, storage_options: Mapping[str, str] | None = None) -> None:
        self._is_url = "://" in str(root)
        self._root = str(root).rstrip("/") if self._is_url else str(Path(root).expanduser().absolute())
        self._storage_options = dict(storage_options) if storage_options else None

    @property
    def root(self) -> str:
        """Absolute path of the folder, or the URL."""
        return self._root

    def exists(self, table: str) -> bool:
        """Tell whether the table holds data; DataError if what is there is not a Delta table."""
        return self.version(table) is not None

    def version(self, table: str) -> int | None:
        """Return the table's newest version, None if it does not exist or was never filled.

        Raises
        ------
        DataError
            If what is there is not a Delta table.
        """
        opened = self._open(table)
        return None if opened is None or opened.version() == 0 else opened.version()

    def versions(self) -> dict[str, int]:
        """Return the newest version of every table that holds data."""
        found = {table: self.version(table) for table in SCHEMAS}
        return {table: version for table, version in found.items() if version is not None}

    def read(
        self,
        table: str,
        version: int | None = None,
        columns: list[str] | None = None,
        filters: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Read a table, sorted by its key, so that equal data gives an equal frame however it was written.

        Parameters
        ----------
        table
            Name of the lake table.
        version
            Version to read; None for the newest.
        columns
            Columns to return, in that order; None for all.
        filters
            Boolean expression over the table's columns; rows where it is not true are left out.

        Raises
        ------
        DataError
            If the table is missing, empty, not a Delta table, or has no such version.
        """
        opened = self._open(table, version)
        if opened is None or opened.version() == 0:
            raise DataError(
                f"table {table} of the lake {self._root} holds no data: run `peerglass ingest` first"
            )
        names = columns or schema(table).column_names()
        rows = pl.scan_delta(opened)
        if filters is not None:
            rows = rows.filter(filters)
        return rows.sort(keys(table)).select(names).collect()

    def upsert(self, table: str, frame: pl.DataFrame) -> UpsertCounts:
        """Add the rows whose key is new and replace those that differ, in one commit.

        Rows that differ by a stamp alone (`contracts.STAMPS`) are unchanged. Nothing is written, and the
        version stays, when nothing changed. Rows of the table that the frame does not mention are kept. Safe
        to kill at any moment, to repeat, and to run from several processes at once.

        Parameters
        ----------
        table
            Name of the lake table.
        frame
            Rows that satisfy the table's contract, each key once.

        Raises
        ------
        ValueError
            If a row breaks the contract: check a source's rows with `contracts.check` first.
        DataError
            If what is there is not a Delta table, or other writers never left room for this commit.
        """
        rows = require(table, frame)
        for _ in range(_ATTEMPTS):
            target = self._open(table)
            if rows.is_empty():
                return UpsertCounts(0, 0, 0, self.version(table))
            try:
                return self._commit(table, rows, target if target is not None else self._create(table))
            except CommitFailedError:
                continue  # somebody else committed in between: compare with what is there now
        raise DataError(
            f"table {self._uri(table)} is being written by others without pause; retry when they end"
        )

    def _commit(self, table: str, rows: pl.DataFrame, target: DeltaTable) -> UpsertCounts:
        key = keys(table)
        if target.version() == 0:
            new, changed = rows, rows.clear()
        else:
            stored = self._overlap(target, rows, key)
            new = rows.join(stored, on=key, how="anti")
            compared = [c for c in rows.columns if c not in key and c not in STAMPS]
            differs = pl.any_horizontal(
                pl.lit(value=False), *(pl.col(c).ne_missing(pl.col(f"{c}:stored")) for c in compared)
            )
            both = rows.join(stored.rename({c: f"{c}:stored" for c in compared}), on=key, how="inner")
            changed = both.filter(differs).select(rows.columns)
        if changed.height:
            self._merge(target, pl.concat([new, changed]), key)
        elif new.height:
            write_deltalake(target, new.sort(key), mode="append", commit_properties=_ONE_COMMIT)
        unchanged = rows.height - new.height - changed.height
        return UpsertCounts(new.height, changed.height, unchanged, target.version())

    @staticmethod
    def _overlap(target: DeltaTable, rows: pl.DataFrame, key: list[str]) -> pl.DataFrame:
        """Read the stored rows that may share a key: those within the batch's range of every key column."""
        within = pl.all_horizontal(
            pl.col(c).is_between(pl.lit(rows[c].min(), dtype), pl.lit(rows[c].max(), dtype))
            for c, dtype in rows.select(key).schema.items()
        )
        names = [c for c in rows.columns if c not in STAMPS]
        return pl.scan_delta(target).filter(within).select(names).collect()

    @staticmethod
    def _merge(target: DeltaTable, delta: pl.DataFrame, key: list[str]) -> None:
        (
            target.merge(
                delta,
                predicate=" AND ".join(f'target."{c}" = source."{c}"' for c in key),
                source_alias="source",
                target_alias="target",
                commit_properties=_ONE_COMMIT,
            )
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def _create(self, table: str) -> DeltaTable:
        """Create the empty table as version 0, so that a kill during the first load leaves a Delta table."""
        empty = schema(table).create_empty()
        try:
            return DeltaTable.create(
                self._uri(table),
                schema=empty.to_arrow().schema,
                partition_by=_PARTITIONS.get(table),
                configuration=_KEEP_EVERY_VERSION,
                storage_options=self._storage_options,
            )
        except (DeltaError, OSError) as error:
            existing = self._open(table)
            if existing is None:
                raise DataError(
                    f"table {self._uri(table)} cannot be created ({_one_line(error)}): check its permissions"
                ) from error
            return existing

    def _open(self, table: str, version: int | None = None) -> DeltaTable | None:
        schema(table)
        self._refuse_what_is_not_delta(table)
        try:
            opened = DeltaTable(self._uri(table), storage_options=self._storage_options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise DataError(
                f"{self._uri(table)} cannot be opened as a Delta table ({_one_line(error)}): restore it, "
                "or name another lake root"
            ) from error
        if version is None:
            return opened
        if not 0 < version <= opened.version():
            raise DataError(
                f"table {self._uri(table)} has no version {version}; it has 1 to {opened.version()}"
            )
        opened.load_as_version(version)
        return opened

    def _refuse_what_is_not_delta(self, table: str) -> None:
        """Refuse a local path that holds something, but no Delta log; an empty folder is a table to come."""
        if self._is_url:
            return
        for path in (Path(self._root), Path(self._uri(table))):
            if path.exists() and not path.is_dir():
                raise DataError(f"{path} is a file, not a lake folder: move it, or name another lake root")
        folder = Path(self._uri(table))
        if folder.is_dir() and not (folder / "_delta_log").is_dir() and any(folder.iterdir()):
            raise DataError(
                f"{folder} is not a Delta table (it has no _delta_log): move it, or name another lake root"
            )

    def _uri(self, table: str) -> str:
        return f"{self._root}/{table}"


def _one_line(error: Exception) -> str:
    """Strip the colours and line breaks that the storage layer puts into its messages."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
