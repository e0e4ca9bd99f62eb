"""A lake's Delta tables in a local folder or an object store: opening, creating, comparing and committing.

Tables are written in the order of their dates, in files of about a million rows whose first and last dates
are in the log. A batch is compared in pieces, each only with the stored rows of its own dates: a new session
is compared with nothing, and a complete redelivery never holds the whole table twice in memory. A change is
written on top of the version that it was compared with.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import polars as pl
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pipelines.errors import DataError, one_line
from pipelines.lake.options import is_url, storage_options
from pipelines.lake.schemas import STAMPS, empty, keys, schema
from pipelines.lake.versions import DELIVERY, data_version

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FILE_BYTES: Final = 16 * 2**20  # a million bars; small files are cheap to correct, smallest ones slow to read
_PARTITIONS: Final[Mapping[str, str]] = {"forecasts": "run_id", "forecast_paths": "run_id"}
_PROPERTIES: Final = {  # all versions are kept unless `peerglass lake vacuum` removes them
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.targetFileSize": str(FILE_BYTES),
}
_ENTRY: Final = re.compile(r"\d{20}\.json")
_MOST_VIEWS: Final = 256  # maximum number of tables and versions that are kept open for reading


class _LocalTable(DeltaTable):
    """A table whose files have their names on disk, where Delta gives them as in a URL (``%20``)."""

    def file_uris(self, *filters: Any, **pruning: Any) -> list[str]:  # noqa: ANN401 (deltalake's)
        """Return the paths of the data files of this version."""
        encoded = self.table_uri.removeprefix("file://")
        uris = super().file_uris(*filters, **pruning)
        return [unquote(encoded) + uri.removeprefix(encoded) for uri in uris]


_Mark = tuple[int, int, int, int]  # version of a log's entry, and inode, time and size of its file
_View = tuple[int, int, str, int | None]  # process, thread, URI and version: neither forks nor threads share
_VIEWS: Final[dict[_View, tuple[_Mark, DeltaTable]]] = {}  # local tables that are open for reading


class Storage:
    """Opens and creates tables under a folder or URL (``s3://...``), which the first write creates."""

    def __init__(self, root: str | Path, options: Mapping[str, str]) -> None:
        self.is_url = is_url(str(root))
        self.root = str(root).rstrip("/") if self.is_url else str(Path(root).expanduser().absolute())
        self._options = storage_options(self.root, options)
        self._kind = DeltaTable if self.is_url else _LocalTable

    def uri(self, table: str) -> str:
        """Return the path or URL of a table."""
        return f"{self.root}/{table}"

    def open(self, table: str, version: int | None = None) -> DeltaTable | None:
        """Open a table at a version of its log (by default the newest); None if it does not exist."""
        schema(table)
        self._refuse_other_content(table)
        try:
            return self._kind(self.uri(table), version=version, storage_options=self._options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise DataError(
                f"{self.uri(table)} cannot be opened as a Delta table ({one_line(error)}): {self._advice()}"
            ) from error

    def view(self, table: str, version: int | None = None) -> DeltaTable | None:
        """Open a table for reading only, and keep a local one open until its log changes."""
        mark, kept = self._mark(table, version), _VIEWS.get(self._view(table, version))
        if mark is not None and kept is not None and kept[0] == mark:
            return kept[1]
        opened = self.open(table, version)
        if opened is not None:
            self._remember(table, version, mark, opened)
        return opened

    def take(self, table: str) -> DeltaTable | None:
        """Open the newest version for a writer, whose commit moves the table object."""
        opened = self.view(table)
        _VIEWS.pop(self._view(table, None), None)
        return opened

    def keep(self, table: str, written: DeltaTable) -> None:
        """Keep a table that a writer has taken open for reading, unless others have committed since."""
        self._remember(table, None, self._mark(table, None), written)

    def _remember(self, table: str, version: int | None, mark: _Mark | None, opened: DeltaTable) -> None:
        if mark is not None and opened.version() == mark[0]:  # else a commit came between
            if len(_VIEWS) >= _MOST_VIEWS:
                _VIEWS.clear()
            _VIEWS[self._view(table, version)] = mark, opened

    def _view(self, table: str, version: int | None) -> _View:
        return os.getpid(), threading.get_ident(), self.uri(table), version

    def _mark(self, table: str, version: int | None) -> _Mark | None:
        """Identify a log entry of a local table, by default the newest; None if it cannot be found."""
        if self.is_url:
            return None
        log = Path(self.uri(table)) / "_delta_log"
        try:
            if version is None:
                version = max(int(name[:20]) for name in os.listdir(log) if _ENTRY.fullmatch(name))
            entry = (log / f"{version:020d}.json").stat()
        except (OSError, ValueError):
            return None
        return version, entry.st_ino, entry.st_mtime_ns, entry.st_size

    def create(self, table: str) -> DeltaTable:
        """Create the empty table as version 0, so that a kill during the first load leaves a Delta table."""
        try:
            return self._kind.create(
                self.uri(table),
                schema=empty(table).to_arrow().schema,
                partition_by=_PARTITIONS.get(table),
                configuration=_PROPERTIES,
                storage_options=self._options or None,
            )
        except (DeltaError, OSError) as error:
            existing = self.open(table)
            if existing is None:
                cure = self._advice() if self.is_url else "check its permissions"
                raise DataError(
                    f"table {self.uri(table)} cannot be created ({one_line(error)}): {cure}"
                ) from error
            return existing

    def scan(self, table: str, opened: DeltaTable) -> pl.LazyFrame:
        """Scan an opened table with the columns of its contract, null where it gained them later."""
        missing = self.missing_columns(table, opened)
        return pl.scan_delta(opened).select(
            pl.lit(None, dtype=column.dtype).alias(name) if name in missing else pl.col(name)
            for name, column in schema(table).columns().items()
        )

    def missing_columns(self, table: str, opened: DeltaTable) -> list[str]:
        """Return the nullable columns that the contract gained later; DataError about all others."""
        stored, columns = [field.name for field in opened.schema().fields], schema(table).columns()
        if unknown := [name for name in stored if name not in columns]:
            raise DataError(
                f"{self.uri(table)} has the column(s) {', '.join(unknown)}, which this version of Peerglass "
                "does not know: use the newer version that wrote them, or name another lake root"
            )
        missing = [name for name in columns if name not in stored]
        if required := [name for name in missing if not columns[name].nullable]:
            raise DataError(
                f"{self.uri(table)} lacks the column(s) {', '.join(required)}, which every row must have: "
                "ingest the source again into another lake root"
            )
        return missing

    def files(self, table: str) -> FileSystem:
        """Return a file system whose root is the table's folder, local or remote."""
        from deltalake.fs import DeltaStorageHandler  # an eighth of a second, which few commands need
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.uri(table), self._options or None))

    def _advice(self) -> str:
        cure = "restore it, or name another lake root"
        url = "check that the URL exists, lake_options in the config, and the credentials in the environment"
        return f"{url}; or {cure}" if self.is_url else cure

    def _refuse_other_content(self, table: str) -> None:
        """Refuse a local folder with content but no Delta log; an empty folder may become a table."""
        if self.is_url:
            return
        for path in (Path(self.root), Path(self.uri(table))):
            if path.exists() and not path.is_dir():
                raise DataError(f"{path} is a file, not a lake folder: move it, or name another lake root")
        folder = Path(self.uri(table))
        # list the folder only once: another writer may create the table between two listings
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if names and "_delta_log" not in names:
            raise DataError(
                f"{folder} is not a Delta table (it has no _delta_log): move it, or name another lake root"
            )


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
