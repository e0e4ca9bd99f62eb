"""Commits: what a batch would change, and writing the change on top of the version it was compared with.

Tables are written in the order of their dates, in files of about a million rows whose first and last dates
are in the log. A batch is compared in pieces, each only with the stored rows of its own dates: a new session
is compared with nothing, and a complete redelivery never holds the whole table twice in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

import polars as pl
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipelines.lake.schemas import STAMPS, empty, keys
from pipelines.lake.storage import FILE_BYTES, Storage
from pipelines.lake.versions import DELIVERY, data_version

_WITHDRAWN: Final = ":gone"  # column of a merge's source that marks the keys to withdraw


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """Rows added, updated, unchanged and withdrawn; ``version`` is None without rows and table."""

    added: int
    updated: int
    unchanged: int
    version: int | None
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class UpsertPlan:
    """An upsert before it is written: a batch in storage order, and its differences to ``target``."""

    table: str
    rows: pl.DataFrame
    scope: pl.Expr | None
    changes: RowChanges
    target: DeltaTable | None

    @property
    def unchanged(self) -> int:
        """Number of rows that are stored already with the same values."""
        return self.rows.height - self.changes.new.height - self.changes.changed.height

    @property
    def changes_rows(self) -> bool:
        """Whether the upsert makes a new version."""
        return any(part.height for part in (self.changes.new, self.changes.changed, self.changes.withdrawn))


def compare_with_table(storage: Storage, table: str, rows: pl.DataFrame, scope: pl.Expr | None) -> UpsertPlan:
    """Compare a batch in storage order (`in_order`) with the newest version of its table."""
    target = storage.take(table)
    if target is None or target.version() == 0 or (rows.is_empty() and scope is None):
        changes = RowChanges(rows, rows.clear(), rows.select(keys(table)).clear(), 0)
    else:
        changes = compare(table, rows, storage.scan(table, target), scope)
    return UpsertPlan(table, rows, scope, changes, target)


def commit(storage: Storage, plan: UpsertPlan, delivery: str | None = None) -> UpsertCounts:
    """Write a plan's changes in one commit; CommitFailedError if another writer was faster."""
    # Exactly on top of the version that was compared: deltalake would otherwise rebase an append onto a
    # concurrent commit, and a key added by both would be stored twice.
    properties = CommitProperties(
        custom_metadata=None if delivery is None else {DELIVERY: delivery}, max_commit_retries=0
    )
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
                commit_properties=properties,
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
            commit_properties=properties,
        )
    storage.keep(plan.table, target)
    version = data_version(target) or None
    return UpsertCounts(new.height, changed.height, plan.unchanged, version, withdrawn.height)


_PIECE_ROWS: Final = 1_000_000
_SPANS: Final = 16  # date ranges in a predicate: enough to skip the files between scattered corrections


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Differences between a batch and the stored rows; ``in_scope`` counts those it could withdraw."""

    new: pl.DataFrame
    changed: pl.DataFrame
    withdrawn: pl.DataFrame
    in_scope: int


def in_order(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows in storage order: sorted by the key, with its dates first."""
    dated = _dates(table)
    order = [*dated, *(c for c in keys(table) if c not in dated)]
    ordered = pl.lit(value=True)  # comparing rows with those before is much cheaper than sorting sorted rows
    for c in reversed(order):
        before = pl.col(c).shift()
        ordered = (pl.col(c) > before) | ((pl.col(c) == before) & ordered)
    is_sorted = rows.select(ordered.fill_null(value=True).all()).item()
    return rows if is_sorted else rows.sort(order)


def compare(table: str, rows: pl.DataFrame, stored: pl.LazyFrame, scope: pl.Expr | None = None) -> RowChanges:
    """Return what a batch in storage order changes, and withdraws of the stored rows in ``scope``."""
    key = keys(table)
    values = [c for c in rows.columns if c not in key and c not in STAMPS]
    new, changed, withdrawn = [rows.clear()], [rows.clear()], [rows.select(key).clear()]
    in_scope, pieces = 0, list(_pieces(table, rows))
    for i, piece in enumerate(pieces):
        may_match = _within(piece, key) if scope is None else _between(table, pieces, i)
        stored_rows = stored.filter(may_match).select(*key, *values).collect()
        if stored_rows.is_empty():
            new.append(piece)
            continue
        marked = stored_rows.rename({c: f"{c}:stored" for c in values})
        marked = marked.with_columns(pl.lit(value=True).alias(":there"))
        both = piece.join(marked, on=key, how="left", maintain_order="left")
        unlike = (pl.col(c).ne_missing(pl.col(f"{c}:stored")) for c in values)
        differs = pl.any_horizontal(pl.lit(value=False), *unlike)
        new.append(both.filter(pl.col(":there").is_null()).select(rows.columns))
        changed.append(both.filter(pl.col(":there") & differs).select(rows.columns))
        if scope is not None:
            in_scope_keys = stored_rows.filter(scope).select(key)
            in_scope += in_scope_keys.height
            if stored_rows.height > piece.height - new[-1].height:  # some stored rows have no match
                withdrawn.append(in_scope_keys.join(piece, on=key, how="anti"))
    return RowChanges(pl.concat(new), pl.concat(changed), pl.concat(withdrawn), in_scope)


def match_predicate(table: str, changed: pl.DataFrame) -> str:
    """Return a merge's predicate: equal keys within the changed dates, which spares the other files."""
    key = keys(table)
    terms = [f'target."{c}" = source."{c}"' for c in key]
    for c in key:
        if changed.schema[c] == pl.String and changed[c].n_unique() == 1:
            value = changed[c][0].replace("'", "''")
            terms.append(f"target.\"{c}\" = '{value}'")
    if dated := _dates(table):
        spans = _spans(changed[dated[0]].unique().sort().to_list())
        column = f'target."{dated[0]}"'
        ranges = (f"({column} >= '{first}' AND {column} <= '{last}')" for first, last in spans)
        terms.append(f"({' OR '.join(ranges)})")
    return " AND ".join(terms)


def _dates(table: str) -> list[str]:
    types = empty(table).schema
    return [c for c in keys(table) if types[c] == pl.Date]


def _pieces(table: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Split a sorted batch between dates into pieces of about `_PIECE_ROWS` rows."""
    dated = _dates(table)
    if not dated or rows.height <= _PIECE_ROWS:
        yield rows
        return
    starts = rows.select((pl.col(dated[0]).rle_id().diff(1) > 0).arg_true()).to_series().to_list()
    begin = cut = 0
    for start in (*starts, rows.height):
        if start - begin > _PIECE_ROWS and cut > begin:
            yield rows.slice(begin, cut - begin)
            begin = cut
        cut = start
    yield rows.slice(begin)


def _within(rows: pl.DataFrame, key: list[str]) -> pl.Expr:
    """Select stored rows that may share a key: those within the batch's range of every key column."""
    return pl.all_horizontal(
        pl.col(c).is_between(pl.lit(rows[c].min(), dtype), pl.lit(rows[c].max(), dtype))
        for c, dtype in rows.select(key).schema.items()
    )


def _between(table: str, pieces: list[pl.DataFrame], i: int) -> pl.Expr:
    """Select stored rows from a piece's first date to the next piece's; the ends are open."""
    day = _dates(table)[0]
    inside = pl.lit(value=True)
    if i > 0:
        inside &= pl.col(day) >= pieces[i][day][0]
    if i + 1 < len(pieces):
        inside &= pl.col(day) < pieces[i + 1][day][0]
    return inside


def _spans(days: list[date]) -> list[tuple[date, date]]:
    """Cover sorted days by at most `_SPANS` ranges, split at the widest gaps."""
    gaps = sorted(range(1, len(days)), key=lambda i: days[i] - days[i - 1], reverse=True)
    cuts = sorted(gaps[: _SPANS - 1])
    return [(days[a], days[b - 1]) for a, b in zip([0, *cuts], [*cuts, len(days)], strict=True)]
