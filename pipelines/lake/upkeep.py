"""Looking after a lake: what it holds, joining small files, and removing what nothing needs any more.

Compaction adds files and forgets none, so every version stays readable. A vacuum removes files for good: it
keeps the newest version of a table, every version that was the newest at some time within the days that are
asked for, and every version that a run recorded, because that run could not be repeated without it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.log import TableFiles, table_files
from pipelines.lake.options import canonical_location
from pipelines.lake.readers import Recorded, collect
from pipelines.lake.schemas import SCHEMAS
from pipelines.lake.storage import FILE_BYTES, one_line

_MANY_SMALL: Final = 20
_LISTED: Final = 12


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did to a table: files before and after, among those it touched."""

    table: str
    removed: int
    added: int


@dataclass(frozen=True, slots=True)
class Vacuum:
    """What a vacuum removes, or would remove, from a table.

    Attributes
    ----------
    files, size
        Number of files and their bytes.
    unnamed
        How many of the files no version names: killed writers left them.
    lost
        Versions that cannot be read afterwards.
    kept
        Version -> runs for whose sake it is kept, of those outside the retention.
    broken
        Version -> runs that recorded it and lose it; only if runs are not protected.
    """

    table: str
    files: int
    size: int
    unnamed: int
    lost: tuple[int, ...]
    kept: Mapping[int, Sequence[str]]
    broken: Mapping[int, Sequence[str]]


def recorded_by_runs(lake: Lake, folders: Iterable[Path]) -> Recorded:
    """Return the versions of a lake's tables that runs have recorded in their folders.

    Parameters
    ----------
    lake
        The lake in question; runs on another lake are left out.
    folders
        Folders that hold runs, each run in a folder of its own.

    Raises
    ------
    DataError
        If a run's folder cannot be read: which versions it needs is then unknown.
    """
    found: list[tuple[str, int, str]] = []
    for folder in folders:
        for path in sorted(folder.glob("*/run.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                where = canonical_location(_lake_of(path.parent, record))
                versions = {str(table): int(version) for table, version in record["versions"].items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
                raise DataError(
                    f"the run folder {path.parent} cannot be read ({one_line(error)}), so which versions "
                    "it needs is unknown; mend it, or move it away"
                ) from error
            if where == canonical_location(lake.root):
                found += [(table, version, path.parent.name) for table, version in versions.items()]
    return collect(found)


def compact(lake: Lake) -> list[Compaction]:
    """Join each table's small files into files of about `lake_storage.FILE_BYTES`.

    Raises
    ------
    DataError
        If another process replaced rows meanwhile; nothing is lost, and it can be tried again.
    """
    done = []
    for table, opened in _tables(lake):
        try:
            metrics = opened.optimize.compact(target_size=FILE_BYTES)
        except CommitFailedError as error:
            raise DataError(
                f"table {lake.storage.uri(table)} was changed by another process while it was compacted; "
                "nothing is lost, compact again when that ends"
            ) from error
        done.append(Compaction(table, metrics["numFilesRemoved"], metrics["numFilesAdded"]))
    return done


def vacuum(
    lake: Lake, *, keep: timedelta, recorded: Recorded, protect: bool = True, dry_run: bool = False
) -> list[Vacuum]:
    """Remove the files that no kept version needs.

    Parameters
    ----------
    lake
        The lake.
    keep
        Versions that were the newest at some time within this span are kept, and so are files that no version
        names and that are younger: a writer at work may be about to commit them.
    recorded
        Versions that runs need (`lake_readers.recorded_in_lake`, `recorded_by_runs`,
        `tracking_versions.recorded_in_store`).
    protect
        Whether recorded versions are kept.
    dry_run
        Only say what would be removed.
    """
    plans = []
    for table, opened in _tables(lake):
        files = table_files(lake.storage, table, opened)
        layouts = files.layouts()
        mine = {v: runs for v, runs in recorded.get(table, {}).items() if v in layouts}
        # Told to keep nothing in particular, deltalake keeps the newest version and the retention's.
        needed = sorted({layouts[v] for v in mine}) if protect else []
        hours = int(keep.total_seconds() // 3600)
        doomed = _doomed(opened, files, hours, needed)
        gone = set(files.unreadable())
        lost = [version for version in files.lost_without(doomed) if version not in gone]
        without = set(files.lost_without(_doomed(opened, files, hours, ()))) - gone if needed else set()
        if doomed and not dry_run:
            opened.vacuum(
                retention_hours=hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                keep_versions=needed or None,
            )
        unnamed = set(files.unnamed())
        plans.append(
            Vacuum(
                table,
                len(doomed),
                files.bytes_of(doomed),
                sum(path in unnamed for path in doomed),
                tuple(lost),
                {v: runs for v, runs in sorted(mine.items()) if v in without},
                {v: runs for v, runs in sorted(mine.items()) if v in lost},
            )
        )
    return plans


def describe_status(lake: Lake, recorded: Recorded) -> str:
    """Print a lake for a terminal: a line a table, then what could be done."""
    lines = [
        f"lake {lake.root}",
        f"  {'table':<13}{'version':>8}{'readable':>9}{'for runs':>9}{'rows':>13}{'files':>7}{'MB':>9}"
        f"{'old MB':>9}  last change (UTC)",
    ]
    advice = []
    for table, opened in _tables(lake):
        files = table_files(lake.storage, table, opened)
        live, layouts = files.live(), files.layouts()
        old = files.bytes_of(files.sizes) - files.bytes_of(live)
        readable = len(layouts) - len(files.unreadable())
        changed = [commit for commit in files.commits if commit.changed_rows][-1]
        rows = int(pl.DataFrame(opened.get_add_actions(flatten=True))["num_records"].sum())
        lines.append(
            f"  {table:<13}{changed.version:>8}{readable:>9}{len(recorded.get(table, {})):>9}{rows:>13,}"
            f"{len(live):>7}{_mb(files.bytes_of(live)):>9}{_mb(old):>9}  {changed.at:%Y-%m-%d %H:%M:%S}"
        )
        small = _joinable(files)
        if small > _MANY_SMALL:
            advice.append(f"  {table}: {small} small files; 'peerglass lake compact CONFIG' joins them")
        left = files.unnamed()
        if left:
            advice.append(
                f"  {table}: {len(left)} file(s), {_mb(files.bytes_of(left))} MB, of no version: killed "
                "writers left them, or one is at work; 'peerglass lake vacuum' removes them once old"
            )
    if len(lines) == 2:
        return f"lake {lake.root} holds no data"
    lines.append("old MB: only earlier versions use them; 'for runs': versions that runs have recorded")
    return "\n".join([*lines, *advice])


def describe_compaction(done: Sequence[Compaction]) -> str:
    """Say what a compaction did."""
    lines = [
        f"{one.table}: {one.removed} files joined into {one.added}"
        for one in done
        if one.removed or one.added
    ]
    return "\n".join(lines) or "nothing to join"


def describe_vacuum(plans: Sequence[Vacuum], *, dry_run: bool) -> str:
    """Say what a vacuum removed, or would remove, and what can no longer be read."""
    lines = []
    for plan in plans:
        if plan.files:
            verb = "would remove" if dry_run else "removed"
            left = f", {plan.unnamed} of them named by no version" if plan.unnamed else ""
            lines.append(f"{plan.table}: {verb} {plan.files} files, {_mb(plan.size)} MB{left}")
        if plan.lost:
            lines.append(f"  versions that {'would be' if dry_run else 'are'} lost: {_listed(plan.lost)}")
        if plan.broken:
            runs = sorted({run for names in plan.broken.values() for run in names})
            lines.append(f"  runs that could not be repeated: {_listed(runs)}")
        if plan.kept:
            lines.append(f"{plan.table}: kept for runs: versions {_listed(list(plan.kept))}")
    return "\n".join(lines) or "nothing to remove"


def _lake_of(folder: Path, record: Mapping[str, Any]) -> str:
    """The lake of a run: as it was when the run started, or as the config of an older run has it."""
    if "identity" in record:
        return str(record["identity"]["lake"])
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    return str(config["lake"])


def _tables(lake: Lake) -> list[tuple[str, DeltaTable]]:
    found = ((table, lake.storage.open(table)) for table in SCHEMAS)
    return [(table, opened) for table, opened in found if opened is not None and opened.version() > 0]


def _doomed(opened: DeltaTable, files: TableFiles, hours: int, needed: Sequence[int]) -> list[str]:
    """List the files that a vacuum would remove; those that an earlier one removed are listed again by it."""
    listed = opened.vacuum(
        retention_hours=hours,
        dry_run=True,
        enforce_retention_duration=False,
        full=True,
        keep_versions=list(needed) or None,
    )
    return [path for path in listed if path in files.sizes]


def _joinable(files: TableFiles) -> int:
    """Count the small files of the newest version that have another beside them."""
    folders = Counter(
        path.rpartition("/")[0] for path in files.live() if files.sizes.get(path, 0) < FILE_BYTES // 4
    )
    return sum(count for count in folders.values() if count > 1)


def _listed(items: Sequence[object]) -> str:
    shown = ", ".join(str(item) for item in items[:_LISTED])
    return shown + (f" and {len(items) - _LISTED} more" if len(items) > _LISTED else "")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"
