"""One commit of a batch: what it would change, and writing that on the version it was compared with."""

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

_GONE: Final = ":gone"
"""Column of a merge's source that marks the keys to be withdrawn."""
_ONE_COMMIT: Final = CommitProperties(max_commit_retries=0)
"""Commit exactly on top of the version that was compared with. deltalake would otherwise rebase an append on
a commit that landed in between, and a key that both of them added would be there twice."""


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """What an upsert did: rows added, updated, left alone and withdrawn, and the table's version after it.

    ``version`` is None only if the frame was empty and the table does not exist.
    """

    added: int
    updated: int
    unchanged: int
    version: int | None
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """An upsert before it is written, so that a caller can look at what it would change.

    Attributes
    ----------
    table
        Name of the lake table.
    rows
        The batch, in the order in which it is stored.
    scope
        Stored rows that are withdrawn unless the batch has them; None for none.
    changes
        How the batch differs from ``target``.
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
        """Number of rows that are stored as they are."""
        return self.rows.height - self.changes.new.height - self.changes.changed.height


def compared(storage: Storage, table: str, rows: pl.DataFrame, scope: pl.Expr | None) -> Plan:
    """Compare a batch, as `lake_compare.in_order` returns it, with the newest version of its table.

    Parameters
    ----------
    storage
        Where the table is.
    table
        Name of the lake table.
    rows
        The batch.
    scope
        Stored rows that are withdrawn unless the batch has them; None for none.

    Raises
    ------
    DataError
        If what is there is not a Delta table or has other columns (`lake_storage.Storage.scan`).
    """
    target = storage.open(table)
    if target is None or target.version() == 0 or (rows.is_empty() and scope is None):
        changes = Changes(rows, rows.clear(), rows.select(keys(table)).clear(), 0)
    else:
        changes = compare(table, rows, storage.scan(table, target), scope)
    return Plan(table, rows, scope, changes, target)


def commit(storage: Storage, plan: Plan) -> UpsertCounts:
    """Write what a plan changes, in one commit, which also adds the columns that the contract gained since.

    Nothing is written where nothing changes.

    Raises
    ------
    CommitFailedError
        If another writer has committed since the comparison.
    """
    new, changed, gone = plan.changes.new, plan.changes.changed, plan.changes.withdrawn
    target = plan.target
    if target is None:
        if new.is_empty():
            return UpsertCounts(0, 0, 0, None)
        target = storage.create(plan.table)
        if target.version() > 0:
            raise CommitFailedError(f"another process created and filled {plan.table}")
    widen = bool(storage.lacking(plan.table, target))
    if changed.height or gone.height:
        marked = pl.concat([new, changed, gone], how="diagonal").with_columns(
            pl.Series(_GONE, [False] * (new.height + changed.height) + [True] * gone.height)
        )
        touched = pl.concat([changed.select(gone.columns), gone])
        (
            target.merge(
                marked,
                predicate=match_predicate(plan.table, touched),
                source_alias="source",
                target_alias="target",
                merge_schema=widen,
                commit_properties=_ONE_COMMIT,
            )
            .when_matched_delete(f'source."{_GONE}"')
            .when_matched_update_all(except_cols=[_GONE])
            .when_not_matched_insert_all(except_cols=[_GONE])
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
    return UpsertCounts(new.height, changed.height, plan.unchanged, version, gone.height)
