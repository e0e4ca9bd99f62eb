"""Which data files each version of a table names, and which are on disk: read from the table's log.

An entry of the log adds and removes files (Delta transaction log protocol, https://github.com/delta-io/delta,
PROTOCOL.md, "Actions"). A file belongs to the versions from the one that added it to the one before that
removed it.
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
_FOR_EVER: Final = 2**63
_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What a table's log says of its files, and what its folder holds.

    Attributes
    ----------
    commits
        The log, oldest first.
    lives
        Path -> spans of versions ``first <= version < end`` that name it.
    sizes
        Path -> bytes, of the data files that are there.
    """

    commits: tuple[Commit, ...]
    lives: Mapping[str, tuple[tuple[int, int], ...]]
    sizes: Mapping[str, int]

    def layouts(self) -> dict[int, int]:
        """Version that changed rows -> newest version with the same rows, whose files a reader takes."""
        newest: dict[int, int] = {}
        changed = 0
        for commit in self.commits:
            changed = commit.version if commit.changed_rows else changed
            newest[changed] = commit.version
        newest.pop(0, None)
        return newest

    def lost_without(self, paths: Iterable[str]) -> list[int]:
        """Versions that changed rows and could not be read any more if these files were gone."""
        spans = sorted(span for path in paths for span in self.lives.get(path, ()))
        return [
            version
            for version, layout in self.layouts().items()
            if any(first <= layout < end for first, end in spans)
        ]

    def unreadable(self) -> list[int]:
        """Versions that changed rows and cannot be read any more, because a vacuum removed their files."""
        return self.lost_without(path for path in self.lives if path not in self.sizes)

    def unnamed(self) -> list[str]:
        """Files that no version names: what a writer that was killed, or is still at work, has left."""
        return [path for path in self.sizes if path not in self.lives]

    def live(self) -> list[str]:
        """Files of the newest version."""
        newest = self.commits[-1].version
        return [p for p, spans in self.lives.items() if any(first <= newest < end for first, end in spans)]

    def bytes_of(self, paths: Iterable[str]) -> int:
        """Bytes that these files take."""
        return sum(self.sizes.get(path, 0) for path in paths)


def table_files(storage: Storage, table: str, opened: DeltaTable) -> TableFiles:
    """Read a table's log and list its folder."""
    files = storage.files(table)
    found = {i.path: i for i in files.get_file_info(FileSelector("", recursive=True)) if i.is_file}
    entries = sorted((int(match[1]), path) for path in found if (match := _LOG_ENTRY.search(path)))
    with ThreadPoolExecutor(_READERS) as pool:
        texts = pool.map(lambda entry: _read(files, entry[1]), entries)
        lives = _lives(zip((version for version, _ in entries), texts, strict=True))
    sizes = {path: info.size for path, info in found.items() if not path.startswith("_delta_log/")}
    return TableFiles(tuple(commits(opened)), lives, sizes)


def _lives(log: Iterable[tuple[int, str]]) -> dict[str, tuple[tuple[int, int], ...]]:
    lives: dict[str, list[tuple[int, int]]] = {}
    for version, text in log:
        for line in text.splitlines():
            action = json.loads(line)
            if "add" in action:
                lives.setdefault(unquote(action["add"]["path"]), []).append((version, _FOR_EVER))
            elif "remove" in action:
                path = unquote(action["remove"]["path"])
                # A log that was cut at its beginning names files only when it removes them.
                spans = lives.setdefault(path, [(0, _FOR_EVER)])
                spans[-1] = (spans[-1][0], version)
    return {path: tuple(spans) for path, spans in lives.items()}


def _read(files: FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data.decode()
