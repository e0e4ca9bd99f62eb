"""Locks that allow one writer at a time: one per run folder, and one per lake for ingests and maintenance.

A lock is an advisory operating-system lock on a file (``flock``). The kernel releases it when the process
ends, including after a crash or a kill. A second file next to it names the process that holds the lock. That
file is used for messages only, and it is ignored if its process no longer exists.
"""

import datetime as dt
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pipelines.config.load import digest
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location, is_url
from pipelines.secrets import redact

_UNKNOWN = "another process"
_NOTICE = 30.0  # seconds between two messages of a waiting process
_LOOKS, _PAUSE = 20, 0.05  # looks for the holder's name, and seconds between two


class Locks(ExitStack):
    """The locks that a command holds; leaving its ``with`` block releases them."""

    def __init__(self, *, wait: bool, notify: Callable[[str], None]) -> None:
        super().__init__()
        self._wait, self._notify = wait, notify

    def lock_run(self, folder: Path) -> None:
        """Lock a run, whose folder may not exist yet, by a file beside it."""
        self.lock_file(_of_run(folder), f"The run {folder.name}")

    def lock_lake(self, lake: str) -> None:
        """Lock a lake against commands that change it: on an object store, those of this user and machine."""
        self.lock_in_lake(lake, ".ingest", "The lake")

    def lock_nights(self, lake: str, config_name: str) -> None:
        """Lock the nights of a config on a lake, so that no night is played twice at once."""
        self.lock_in_lake(lake, f".nights-{config_name}", f"The night of {config_name} on the lake")

    def lock_existing_lake(self, lake: Lake) -> None:
        """Lock a lake as `lock_lake` does. Nothing is locked or created if the lake is empty."""
        if lake.versions():
            self.lock_lake(lake.root)

    def lock_in_lake(self, lake: str, name: str, what: str) -> None:
        """Lock one thing in a lake: ``name`` is that of the lock's file, ``what`` begins its messages."""
        where = canonical_location(lake)
        folder = Path.home() / ".cache" / "peerglass" / "locks" if is_url(where) else Path(where)
        path = folder / f"{digest(where) if is_url(where) else ''}{name}.lock"
        self.lock_file(path, f"{what} {redact(where)}")

    def lock_file(self, path: Path, what: str) -> None:
        """Lock a file; ``what`` it stands for begins the messages."""
        self.enter_context(_hold(path, what, wait=self._wait, notify=self._notify))


@contextmanager
def _hold(path: Path, what: str, *, wait: bool, notify: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _acquire(lock, path, what, wait=wait, notify=notify)
    except OSError as error:
        raise DataError(f"{what} cannot be locked ({error}); check the permissions of {path}.") from None
    note = _note(path)
    try:
        this = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "command": redact(shlex.join(["peerglass", *sys.argv[1:]])),
            "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }
        note.write_text(json.dumps(this), encoding="utf-8")
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, path: Path, what: str, *, wait: bool, notify: Callable[[str], None]) -> None:
    timeout = 0.0
    while True:
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            for _ in range(_LOOKS):  # it may have the lock, and not have written its name yet
                if (holder := _holder(path)) != _UNKNOWN:
                    break
                time.sleep(_PAUSE)
            if not wait:
                raise DataError(
                    f"{what} is being written by {holder}; wait for it to finish, or add --wait."
                ) from None
            notify(f"{what} is being written by {holder}; waiting for it to finish.")
            timeout = _NOTICE
        else:
            return


def _of_run(folder: Path) -> Path:
    run = folder.resolve()
    return run.parent / ".locks" / f"{run.name}.lock"


def holder_of(folder: Path) -> str | None:
    """Name the process that is writing to a run; None if there is none. Takes no lock."""
    path = _of_run(folder)
    holder = _holder(path) if _note(path).is_file() else None
    return None if holder == _UNKNOWN else holder


def _holder(path: Path) -> str:
    """Name the process that holds a lock, or "another process" if it is not known."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(_note(path).read_text(encoding="utf-8"))
        host, pid = str(note["host"]), int(note["pid"])
        if host != socket.gethostname() or _is_alive(pid):
            return f"process {pid} on {host} ({note['command']}, since {note['since']})"
    return _UNKNOWN


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")
