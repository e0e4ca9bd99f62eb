"""Ends the processes of a Ray that a command has started, however the command ends (Linux).

When the command is killed, the kernel ends Ray's two servers, but workers that are starting and Ray's agents
stay for up to a minute. So the command starts a small process beside Ray, the guard, and holds the other end
of its standard input. The guard follows Ray's processes: those that inherited a mark in their environment,
and their descendants, because Ray's workers overwrite the memory that shows their environment. When the input
ends, the command has ended, and the guard kills what is left.

The guard is this file as a program. It imports nothing of Peerglass, so that it starts at once.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "PEERGLASS_RAY"
_EVERY_SECONDS = 0.5  # between two looks at the processes
_LOOKS = 4  # at the environment of a new process, which may be about to start another program
_GIVE_UP_SECONDS = 20.0

Process = tuple[int, str]
"""A process id, and the time of its start in ticks, because ids are used again."""


class Guard:
    """The guard's process, as the command sees it. On systems without ``/proc`` there is none."""

    def __init__(self) -> None:
        self._mark, self._process = uuid.uuid4().hex, None
        if sys.platform == "linux":
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and code)
                [sys.executable, "-I", "-S", __file__, self._mark],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Mark every process that is started in the ``with`` block."""
        os.environ[MARK] = self._mark
        try:
            yield
        finally:
            del os.environ[MARK]

    def end(self) -> None:
        """Kill what Ray has left, and wait for the guard's own end."""
        if self._process is not None:
            self._process.communicate()


class Followed:
    """The processes that have a mark, or descend from one that has.

    Parameters
    ----------
    mark
        Value of the environment variable `MARK`.
    """

    def __init__(self, mark: str) -> None:
        self._wanted = f"{MARK}={mark}".encode()
        self._found: set[Process] = set()
        self._looks: dict[Process, int] = {}

    def look(self) -> set[Process]:
        """Return the followed processes that run now."""
        parents = _running()
        by_id = {process[0]: process for process in parents}
        self._found &= parents.keys()
        self._looks = {process: looks for process, looks in self._looks.items() if process in parents}
        for process in parents:
            if process not in self._found and self._looks.get(process, 0) < _LOOKS:
                self._looks[process] = self._looks.get(process, 0) + 1
                if self._is_marked(process[0]):
                    self._found.add(process)
        new = set(self._found)
        while new:
            new = {
                process
                for process, parent in parents.items()
                if process not in self._found and by_id.get(parent) in self._found
            }
            self._found |= new
        return set(self._found)

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # of another user, or gone
            return False


def _running() -> dict[Process, int]:
    """All processes with the ids of their parents; without zombies, and without this one."""
    found: dict[Process, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
                if fields[0] != "Z":
                    found[int(name), fields[19]] = int(fields[1])
    return found


def main(mark: str) -> None:
    """Follow the processes until the standard input ends, then kill them."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    followed = Followed(mark)
    while not select.select([sys.stdin], [], [], _EVERY_SECONDS)[0]:
        followed.look()
    ended = time.monotonic()
    quiet = 0
    while quiet < 2 and time.monotonic() - ended < _GIVE_UP_SECONDS:
        left = followed.look()
        quiet = 0 if left else quiet + 1
        for pid, _ in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
