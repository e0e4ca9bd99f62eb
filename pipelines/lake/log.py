"""The data files that each version of a table references, and those on disk, read from the table's log.

An entry of the log adds and removes files (Delta transaction log protocol, https://github.com/delta-io/delta,
PROTOCOL.md, "Actions"). A file belongs to all versions from the one that added it up to, but not including,
the one that removed it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem

from pipelines.lake.storage import Storage
from pipelines.lake.versions import Commit, commits

_LOG_ENTRY: Final = re.compile(r"(?:^|/)_delta_log/(\d{20})\.json$")
_NEVER_REMOVED: Final = 2**63
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's files according to its log, and the files in its folder.

    Attributes
    ----------
    commits
        The log, oldest first.
    version_spans
        Path -> spans of versions ``first <= version < end`` that reference the file.
    sizes
        Path -> bytes, of the data files that exist.
    """

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
        newest = self.commits[-1].version
        return [
            p for p, spans in self.version_spans.items() if any(first <= newest < end for first, end in spans)
        ]

    def bytes_of(self, paths: Iterable[str]) -> int:
        """Return the total size of these files in bytes."""
        return sum(self.sizes.get(path, 0) for path in paths)


def table_files(storage: Storage, table: str, opened: DeltaTable) -> TableFiles:
    """Read a table's log and list its folder."""
    files = storage.files(table)
    files_by_path = {i.path: i for i in files.get_file_info(FileSelector("", recursive=True)) if i.is_file}
    entries = sorted((int(match[1]), path) for path in files_by_path if (match := _LOG_ENTRY.search(path)))
    with ThreadPoolExecutor(_THREADS) as pool:
        texts = pool.map(lambda entry: _read(files, entry[1]), entries)
        version_spans = _read_version_spans(zip((version for version, _ in entries), texts, strict=True))
    sizes = {path: info.size for path, info in files_by_path.items() if not path.startswith("_delta_log/")}
    return TableFiles(tuple(commits(opened)), version_spans, sizes)


def _read_version_spans(log: Iterable[tuple[int, str]]) -> dict[str, tuple[tuple[int, int], ...]]:
    version_spans: dict[str, list[tuple[int, int]]] = {}
    for version, text in log:
        for line in text.splitlines():
            action = json.loads(line)
            if "add" in action:
                version_spans.setdefault(unquote(action["add"]["path"]), []).append((version, _NEVER_REMOVED))
            elif "remove" in action:
                path = unquote(action["remove"]["path"])
                # A log whose beginning was truncated mentions files only when it removes them.
                spans = version_spans.setdefault(path, [(0, _NEVER_REMOVED)])
                spans[-1] = (spans[-1][0], version)
    return {path: tuple(spans) for path, spans in version_spans.items()}


def _read(files: FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data.decode()
