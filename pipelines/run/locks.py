"""One writer at a time: a lock for the folder of a run, and one for the ingests and the upkeep of a lake.

A lock is an advisory lock of the operating system on a file (``flock``), which the kernel releases when its
process ends, however it ends. Beside it, a note says who holds it. The note is for messages alone: one that
a dead process has left is not believed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipelines.config.load import digest
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import is_url, place
from pipelines.secrets import redact

_NOTICE = 30.0  # seconds between two notes of a process that waits


class Locks(ExitStack):
    """The locks that a command holds; leaving its ``with`` block releases them.

    Parameters
    ----------
    wait
        Whether to wait for another holder to end, or to raise at once.
    say
        Told in a sentence that this process waits, and for whom.
    """

    def __init__(self, *, wait: bool, say: Callable[[str], None]) -> None:
        super().__init__()
        self._wait, self._say = wait, say

    def hold_run(self, folder: Path) -> None:
        """Hold the folder of a run.

        Raises
        ------
        DataError
            If another process holds it and this one is not to wait, or it cannot be written to.
        """
        what = f"The run {folder.name}"
        self.enter_context(_hold(folder / ".lock", what, wait=self._wait, say=self._say))

    def hold_ingest(self, lake: str) -> None:
        """Hold the ingests of a lake, and every other command that changes its rows or files.

        Errors are those of `hold_run`. The lock of a lake on an object store is a file in the user's cache on
        this machine: processes of other machines or users do not see it. Their commits are kept apart by the
        tables themselves.
        """
        where = place(lake)
        path = Path(where) / ".ingest.lock"
        if is_url(where):
            path = Path.home() / ".cache" / "peerglass" / "locks" / f"{digest(where)}.lock"
        what = f"The lake {redact(where)}"
        self.enter_context(_hold(path, what, wait=self._wait, say=self._say))

    def hold_upkeep(self, lake: Lake) -> None:
        """Hold the ingests of a lake that holds something; one that is empty is not created for its lock."""
        if lake.versions():
            self.hold_ingest(lake.root)


@contextmanager
def _hold(path: Path, what: str, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _acquire(lock, path, what, wait=wait, say=say)
    except OSError as error:
        raise DataError(f"{what} cannot be locked ({error}); check the permissions of {path}.") from None
    note = _note(path)
    try:
        note.write_text(json.dumps(_me()), encoding="utf-8")
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, path: Path, what: str, *, wait: bool, say: Callable[[str], None]) -> None:
    timeout = 0.0
    while True:
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            holder = _holder(path)
            if not wait:
                raise DataError(
                    f"{what} is being written by {holder}; wait for it to end, or add --wait."
                ) from None
            say(f"{what} is being written by {holder}: waiting for it to end.")
            timeout = _NOTICE
        else:
            return


def _me() -> dict[str, str | int]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": redact(shlex.join(["peerglass", *sys.argv[1:]])),
        "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _holder(path: Path) -> str:
    """Name the process that holds a lock; a note of a process that is not there is not its holder's."""
    try:
        note = json.loads(_note(path).read_text(encoding="utf-8"))
        host, pid = str(note["host"]), int(note["pid"])
        if host == socket.gethostname() and not _is_alive(pid):
            return "another process"
        return f"process {pid} on {host} ({note['command']}, since {note['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")
