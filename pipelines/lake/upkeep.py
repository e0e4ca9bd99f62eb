"""Maintenance of a lake: its status, joining small files, and removing files that are no longer needed.

Compaction adds files and removes none, so every version stays readable. A vacuum removes files permanently.
It keeps the newest version of a table, every version that was the newest at some time within the given number
of days, and every version that a run recorded, because the run could not be repeated without it. The folders
of runs cannot be found from the lake, so a run records its versions in the table ``readers`` when it starts;
the table ``signals`` names those of the nights.

An entry of the log adds and removes files (https://github.com/delta-io/delta, PROTOCOL.md, "Actions"). A file
belongs to all versions from the one that added it up to, but not including, the one that removed it.
"""

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines.errors import DataError, one_line
from pipelines.files import read_json
from pipelines.format import abbreviate, megabytes
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location
from pipelines.lake.schemas import SCHEMAS
from pipelines.lake.storage import FILE_BYTES, Storage
from pipelines.lake.versions import Commit, commits
from pipelines.terminal import text_table

_LOG_ENTRY: Final = re.compile(r"(?:^|/)_delta_log/(\d{20})\.json$")
_NEVER_REMOVED: Final = 2**63
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's log, oldest first, the versions that reference a path, and the sizes of its files."""

    commits: tuple[Commit, ...]
    version_spans: Mapping[str, tuple[tuple[int, int], ...]]
    sizes: Mapping[str, int]

    def layouts(self) -> dict[int, int]:
        """Map each version that changed rows to the newest version with the same rows, which readers use."""
        newest: dict[int, int] = {}
        changed = 0
        for commit in self.commits:
            changed = commit.version if commit.changed_rows else changed
            newest[changed] = commit.version
        newest.pop(0, None)
        return newest

    def versions_lost_without(self, paths: Iterable[str]) -> list[int]:
        """Return the versions that changed rows and could not be read without these files."""
        spans = sorted(span for path in paths for span in self.version_spans.get(path, ()))
        return [
            version
            for version, layout in self.layouts().items()
            if any(first <= layout < end for first, end in spans)
        ]

    def unreadable(self) -> list[int]:
        """Return the versions that changed rows and are no longer readable, because of a vacuum."""
        return self.versions_lost_without(path for path in self.version_spans if path not in self.sizes)

    def unreferenced(self) -> list[str]:
        """Return files that no version references: left by an interrupted writer, or by one still at work."""
        return [path for path in self.sizes if path not in self.version_spans]

    def current(self) -> list[str]:
        """Return the files of the newest version."""
        newest, spans = self.commits[-1].version, self.version_spans
        return [path for path in spans if any(first <= newest < end for first, end in spans[path])]

    def bytes_of(self, paths: Iterable[str]) -> int:
        """Return the total size of these files in bytes."""
        return sum(self.sizes.get(path, 0) for path in paths)


def table_files(storage: Storage, table: str, opened: DeltaTable) -> TableFiles:
    """Read a table's log and list its folder."""
    from pyarrow.fs import FileSelector

    files = storage.files(table)
    files_by_path = {i.path: i for i in files.get_file_info(FileSelector("", recursive=True)) if i.is_file}
    entries = sorted((int(match[1]), path) for path in files_by_path if (match := _LOG_ENTRY.search(path)))
    spans: dict[str, list[tuple[int, int]]] = {}

    def read(path: str) -> bytes:
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
        return content

    with ThreadPoolExecutor(_THREADS) as pool:
        texts = pool.map(read, [path for _, path in entries])
        for (version, _), text in zip(entries, texts, strict=True):
            for action in map(json.loads, text.splitlines()):
                if "add" in action:
                    spans.setdefault(unquote(action["add"]["path"]), []).append((version, _NEVER_REMOVED))
                elif "remove" in action:
                    # A log whose beginning was truncated mentions files only when it removes them.
                    own = spans.setdefault(unquote(action["remove"]["path"]), [(0, _NEVER_REMOVED)])
                    own[-1] = (own[-1][0], version)
    version_spans = {path: tuple(own) for path, own in spans.items()}
    sizes = {path: info.size for path, info in files_by_path.items() if not path.startswith("_delta_log/")}
    return TableFiles(tuple(commits(opened)), version_spans, sizes)


RecordedVersions = Set[tuple[str, int, str]]  # table, version, and run or night (``CONFIG@SESSION``)
_MANY_SMALL_FILES: Final = 20


@dataclass(frozen=True, slots=True)
class Vacuum:
    """The files that a vacuum removes; ``kept`` and ``broken`` map versions to runs that recorded them."""

    table: str
    files: int
    size: int
    unreferenced: int
    lost: tuple[int, ...]
    kept: Mapping[int, Sequence[str]]
    broken: Mapping[int, Sequence[str]]


def record_reader(lake: Lake, run_id: str, versions: Mapping[str, int]) -> None:
    """Record in the lake which versions a run reads, before they are used; repeating it changes nothing."""
    rows = [
        {"run_id": run_id, "table": table, "version": version, "table_id": lake.table_id(table)}
        for table, version in versions.items()
    ]
    stamp = pl.lit(dt.datetime.now(dt.UTC))
    lake.upsert("readers", pl.DataFrame(rows).with_columns(created_at=stamp))


def recorded_in_lake(lake: Lake) -> RecordedVersions:
    """Return the versions of this lake's tables that runs, and signals of nights, have read."""
    rows = lake.rows("readers", ["table", "version", "run_id", "table_id"])
    ids = {table: lake.table_id(table) for table in rows["table"].unique() if lake.exists(table)}
    nights = lake.rows("signals", ["config", "session", "data_versions"]).unique()
    unfinished = lake.unfinished()
    before = () if unfinished is None else unfinished.versions.items()  # of an ingest, which readers use
    runs = {(table, version, run) for table, version, run, own in rows.rows() if ids.get(table) == own}
    return runs.union((*one, "readers during an ingest") for one in before) | {
        (table, version, f"{config}@{session}")
        for config, session, versions in nights.iter_rows()
        for table, version in json.loads(versions).items()
    }


def recorded_by_runs(lake: Lake, folders: Iterable[Path]) -> RecordedVersions:
    """Return the versions that are recorded in folders of runs; DataError if one cannot be read."""
    found: set[tuple[str, int, str]] = set()
    for path in (path for folder in folders for path in sorted(folder.glob("*/run.json"))):
        try:
            record = read_json(path)
            where = canonical_location(str(record["identity"]["lake"]))
            versions = {(str(t), int(version), path.parent.name) for t, version in record["versions"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"the run folder {path.parent} cannot be read ({one_line(error)}), so the versions that "
                "it needs are unknown; repair it, or move it away"
            ) from error
        found |= versions if where == canonical_location(lake.root) else set()
    return found


def compact(lake: Lake) -> dict[str, tuple[int, int]]:
    """Join each table's small files to about `FILE_BYTES`; count those removed and added, by table."""
    done = {}
    for table, opened in _tables(lake):
        try:
            metrics = opened.optimize.compact(target_size=FILE_BYTES)
        except CommitFailedError as error:
            raise DataError(
                f"table {lake.storage.uri(table)} was changed by another process during the compaction; "
                "nothing is lost, repeat it when that process has ended"
            ) from error
        done[table] = metrics["numFilesRemoved"], metrics["numFilesAdded"]
    return done


def vacuum(
    lake: Lake, *, keep: timedelta, recorded: RecordedVersions, protect: bool = True, dry_run: bool = False
) -> list[Vacuum]:
    """Remove files that no version within ``keep``, no writer and no protected ``recorded`` one needs."""
    plans, hours = [], int(keep.total_seconds() // 3600)
    for table, opened in _tables(lake):
        files = table_files(lake.storage, table, opened)
        layouts, already_lost = files.layouts(), {*files.unreadable()}
        runs: dict[int, list[str]] = {}
        for of, version, run in sorted(recorded):
            if of == table and version in layouts:
                runs.setdefault(version, []).append(run)
        # Without keep_versions, deltalake keeps the newest version and those within the retention.
        needed = sorted({layouts[version] for version in runs}) if protect else []
        # a vacuum lists files that an earlier one has removed as well
        to_remove = [path for path in _remove(opened, hours, needed, dry_run=True) if path in files.sizes]
        unprotected = _remove(opened, hours, [], dry_run=True) if needed else []
        lost, lost_unless_protected = (
            [version for version in files.versions_lost_without(paths) if version not in already_lost]
            for paths in (to_remove, unprotected)
        )
        if to_remove and not dry_run:
            _remove(opened, hours, needed, dry_run=False)
        plans.append(
            Vacuum(
                table,
                files=len(to_remove),
                size=files.bytes_of(to_remove),
                unreferenced=len({*files.unreferenced()} & {*to_remove}),
                lost=tuple(lost),
                kept={version: runs[version] for version in runs if version in lost_unless_protected},
                broken={version: runs[version] for version in runs if version in lost},
            )
        )
    return plans


def describe_status(lake: Lake, recorded: RecordedVersions) -> str:
    """Describe a lake for a terminal: one line per table, then advice."""
    cells, advice = [], []
    for table, opened in _tables(lake):
        files = table_files(lake.storage, table, opened)
        current, for_runs = files.current(), len({version for of, version, _ in recorded if of == table})
        old = files.bytes_of(files.sizes) - files.bytes_of(current)
        readable = len(files.layouts()) - len(files.unreadable())
        changed = [commit for commit in files.commits if commit.changed_rows][-1]
        rows = int(pl.DataFrame(opened.get_add_actions(flatten=True))["num_records"].sum())
        numbers = (changed.version, readable, for_runs, f"{rows:,}", len(current))
        sizes = (megabytes(files.bytes_of(current)), megabytes(old))
        cells.append((table, *map(str, numbers), *sizes, f"{changed.at:%Y-%m-%d %H:%M:%S}"))
        small_ones = [path for path in current if files.sizes.get(path, 0) < FILE_BYTES // 4]
        folders = Counter(path.rpartition("/")[0] for path in small_ones)
        small = sum(count for count in folders.values() if count > 1)  # those that can be joined
        if small > _MANY_SMALL_FILES:
            advice.append(f"  {table}: {small} small files; 'peerglass lake compact CONFIG' joins them")
        if left := files.unreferenced():
            advice.append(
                f"  {table}: {len(left)} file(s), {megabytes(files.bytes_of(left))} MB, that no version "
                "references: left by interrupted writes, or a write is in progress; 'peerglass lake vacuum' "
                "removes them once they are old"
            )
    if not cells:
        return f"lake {lake.root} holds no data"
    heads = ("table", "version", "readable", "for runs", "rows", "files", "MB", "old MB", "last change (UTC)")
    meaning = "'old MB': used by earlier versions only; 'for runs': number of versions recorded by runs"
    return "\n".join([f"lake {lake.root}", *text_table(cells, heads), meaning, *advice])


def describe_compaction(done: Mapping[str, tuple[int, int]]) -> str:
    """Describe a compaction."""
    joined = {table: counts for table, counts in done.items() if any(counts)}
    lines = [f"{table}: {removed} files joined into {added}" for table, (removed, added) in joined.items()]
    return "\n".join(lines) or "nothing to join"


def describe_vacuum(plans: Sequence[Vacuum], *, dry_run: bool) -> str:
    """Describe what a vacuum removed, or would remove, and what is no longer readable."""
    lines = []
    for plan in plans:
        if plan.files:
            verb = "would remove" if dry_run else "removed"
            left = f", {plan.unreferenced} of them referenced by no version" if plan.unreferenced else ""
            lines.append(f"{plan.table}: {verb} {plan.files} files, {megabytes(plan.size)} MB{left}")
        if plan.lost:
            lines.append(f"  versions that {'would be' if dry_run else 'are'} lost: {abbreviate(plan.lost)}")
        if plan.broken:
            runs = sorted({run for names in plan.broken.values() for run in names})
            lines.append(
                f"  runs that {'could' if dry_run else 'can'} no longer be repeated: {abbreviate(runs)}"
            )
        if plan.kept:
            lines.append(f"{plan.table}: kept for runs: versions {abbreviate(list(plan.kept))}")
    return "\n".join(lines) or "nothing to remove"


def _tables(lake: Lake) -> list[tuple[str, DeltaTable]]:
    found = ((table, lake.storage.open(table)) for table in SCHEMAS)
    return [(table, opened) for table, opened in found if opened is not None and opened.version() > 0]


def _remove(opened: DeltaTable, hours: int, needed: list[int], *, dry_run: bool) -> list[str]:
    return opened.vacuum(
        retention_hours=hours,
        dry_run=dry_run,
        enforce_retention_duration=False,
        full=True,
        keep_versions=needed or None,
    )
