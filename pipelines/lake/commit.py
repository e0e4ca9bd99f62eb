"""Commits: what a batch would change, and writing the change on top of the version it was compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipelines.lake.compare import Changes, compare, match_predicate
from pipelines.lake.schemas import keys
from pipelines.lake.storage import FILE_BYTES, Storage
from pipelines.lake.versions import data_version

_WITHDRAWN: Final = ":gone"
"""Column of a merge's source that marks the keys to withdraw."""
_ONE_COMMIT: Final = CommitProperties(max_commit_retries=0)
"""Commit exactly on top of the version that was compared. Otherwise deltalake would rebase an append onto a
concurrent commit, and a key added by both would be stored twice."""


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """The result of an upsert: number of rows added, updated, unchanged and withdrawn, and the new version.

    ``version`` is None only if the frame was empty and the table does not exist.
    """

    added: int
    updated: int
    unchanged: int
    version: int | None
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """An upsert before it is written, so that a caller can inspect what it would change.

    Attributes
    ----------
    table
        Name of the lake table.
    rows
        The batch, in storage order.
    scope
        Stored rows that are withdrawn unless the batch contains them; None for none.
    changes
        Differences between the batch and ``target``.
    target
        The table at the version that the batch was compared with; None if it does not exist.
    """

    table: str
    rows: pl.DataFrame
    scope: pl.Expr | None
    changes: Changes
    target: DeltaTable | None

    @property
    def unchanged(self) -> int:
        """Number of rows that are stored already with the same values."""
        return self.rows.height - self.changes.new.height - self.changes.changed.height


def compare_with_table(storage: Storage, table: str, rows: pl.DataFrame, scope: pl.Expr | None) -> Plan:
    """Compare a batch, sorted by `pipelines.lake.compare.in_order`, with the newest version of its table.

    Parameters
    ----------
    storage
        Location of the table.
    table
        Name of the lake table.
    rows
        The batch.
    scope
        Stored rows that are withdrawn unless the batch contains them; None for none.

    Raises
    ------
    DataError
        If the location holds something other than a Delta table, or a table with other columns
        (`pipelines.lake.storage.Storage.scan`).
    """
    target = storage.open(table)
    if target is None or target.version() == 0 or (rows.is_empty() and scope is None):
        changes = Changes(rows, rows.clear(), rows.select(keys(table)).clear(), 0)
    else:
        changes = compare(table, rows, storage.scan(table, target), scope)
    return Plan(table, rows, scope, changes, target)


def commit(storage: Storage, plan: Plan) -> UpsertCounts:
    """Write a plan's changes in one commit, which also adds columns that the contract has gained since.

    Nothing is written if nothing changes.

    Raises
    ------
    CommitFailedError
        If another writer has committed since the comparison.
    """
    new, changed, withdrawn = plan.changes.new, plan.changes.changed, plan.changes.withdrawn
    target = plan.target
    if target is None:
        if new.is_empty():
            return UpsertCounts(0, 0, 0, None)
        target = storage.create(plan.table)
        if target.version() > 0:
            raise CommitFailedError(f"another process created and filled {plan.table}")
    widen = bool(storage.missing_columns(plan.table, target))
    if changed.height or withdrawn.height:
        marked = pl.concat([new, changed, withdrawn], how="diagonal").with_columns(
            pl.Series(_WITHDRAWN, [False] * (new.height + changed.height) + [True] * withdrawn.height)
        )
        touched = pl.concat([changed.select(withdrawn.columns), withdrawn])
        (
            target.merge(
                marked,
                predicate=match_predicate(plan.table, touched),
                source_alias="source",
                target_alias="target",
                merge_schema=widen,
                commit_properties=_ONE_COMMIT,
            )
            .when_matched_delete(f'source."{_WITHDRAWN}"')
            .when_matched_update_all(except_cols=[_WITHDRAWN])
            .when_not_matched_insert_all(except_cols=[_WITHDRAWN])
            .execute()
        )
    elif new.height:
        write_deltalake(
            target,
            new,
            mode="append",
            schema_mode="merge" if widen else None,
            target_file_size=FILE_BYTES,
            commit_properties=_ONE_COMMIT,
        )
    version = data_version(target) or None
    return UpsertCounts(new.height, changed.height, plan.unchanged, version, withdrawn.height)
