"""The copy of a run's folder on an object store (section ``output_store`` of a config).

A command works in the run's folder on its own machine, and brings the copy up to date at each commit. Before
it starts, it fetches the files that another machine has changed. So a run that was begun on one machine can
be finished on another that shares no disk with it.

Every file is uploaded whole, in the order in which the files were written, so that the copy is at any moment
a state that the folder has had. As in the folder, the file of a task's scores comes last. Left out are locks,
partial files and the snapshots of unfinished trainings, which are written too often.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError

from pipelines.errors import DataError, one_line
from pipelines.files import read_json, write_bytes, write_text
from pipelines.lake.options import storage_options
from pipelines.run.record import RecordedRun

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_KNOWN = ".stored.json"

State = tuple[int, int, int, int]  # bytes and time (ns) of the last change of a file, then of its copy


class StoredRun:
    """A run's folder and its copy; without ``output_store.url``, nothing is copied."""

    def __init__(self, run: RecordedRun) -> None:
        self._folder, store = run.folder, run.config.output_store
        self._url = None if store.url is None else f"{store.url.rstrip('/')}/{run.folder.name}"
        self._files: FileSystem | None = None
        if self._url is not None:
            from deltalake.fs import DeltaStorageHandler  # an eighth of a second, which few commands need
            from pyarrow.fs import PyFileSystem

            if self._url.startswith("file://"):
                Path(self._url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
            options = storage_options(self._url, store.options)
            self._handler = DeltaStorageHandler(self._url, options or None)
            self._files = PyFileSystem(self._handler)

    def fetch(self) -> None:
        """Download the files whose copy was changed by another machine, or that are missing here."""
        if self._files is None:
            return
        from pyarrow.fs import FileSelector

        known = self._known()
        with self._naming("read"):
            listed = self._files.get_file_info(FileSelector("", recursive=True, allow_not_found=True))
            for copy in (info for info in listed if info.is_file):
                path, state = self._folder / copy.path, (copy.size, copy.mtime_ns)
                if path.is_file() and known.get(copy.path, ())[2:] == state:
                    continue
                with self._files.open_input_stream(copy.path) as stream:
                    write_bytes(path, stream.read())
                known[copy.path] = (*_state(path), *state)
        self._remember(known)

    def store(self) -> None:
        """Upload the files that have changed since the last time."""
        if self._files is None or not self._folder.is_dir():
            return
        known = self._known()
        changed = {name: state for name, state in self._own().items() if known.get(name, ())[:2] != state}
        if not changed:
            return
        with self._naming("written"):
            for name, state in sorted(changed.items(), key=lambda item: item[1][1]):
                # the stream of the public interface refuses the buffers that pyarrow hands to it
                stream: Any = self._handler._handler.open_output_stream(name, None)
                stream.write((self._folder / name).read_bytes())
                stream.close()
                (info,) = self._files.get_file_info([name])
                known[name] = (*state, info.size, info.mtime_ns)
        self._remember(known)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Fetch the copy before a ``with`` block, and store the folder after it, also after an error."""
        self.fetch()
        try:
            yield
        finally:
            self.store()

    def _own(self) -> dict[str, tuple[int, int]]:
        """Relative path -> bytes and time of the last change, of the files that are copied."""
        found = {}
        for path in self._folder.rglob("*"):
            name = path.relative_to(self._folder)
            hidden = any(part.startswith(".") for part in name.parts)
            if path.is_file() and not hidden and name.parts[0] != "snapshots" and path.suffix != ".partial":
                found[name.as_posix()] = _state(path)
        return found

    def _known(self) -> dict[str, State]:
        """The files as they were when they and their copies were last equal."""
        try:
            record = read_json(self._folder / _KNOWN)
            return {name: tuple(state) for name, state in record[str(self._url)].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # all files are compared as if they were new

    def _remember(self, known: dict[str, State]) -> None:
        write_text(self._folder / _KNOWN, json.dumps({str(self._url): known}))

    @contextmanager
    def _naming(self, done: str) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise DataError(
                f"The copy of the run at {self._url} cannot be {done} ({one_line(error)}): check "
                "output_store in the config and the credentials in the environment, and repeat the command; "
                f"the files are in {self._folder}."
            ) from None


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
