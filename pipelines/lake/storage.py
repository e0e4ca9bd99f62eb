"""The location of a lake's Delta tables: a local folder or an object store; opening and creating tables."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pipelines.errors import DataError, one_line
from pipelines.lake.options import is_url, storage_options
from pipelines.lake.schemas import empty, schema

if TYPE_CHECKING:
    from deltalake.table import FilePruningPredicateType, FilterType
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

    def file_uris(
        self,
        partition_filters: FilterType | None = None,
        *,
        file_pruning_predicate: FilePruningPredicateType | None = None,
    ) -> list[str]:
        """Return the paths of the data files of this version."""
        encoded = self.table_uri.removeprefix("file://")
        uris = super().file_uris(partition_filters, file_pruning_predicate=file_pruning_predicate)
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
