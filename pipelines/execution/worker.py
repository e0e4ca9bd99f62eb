"""A worker process of the pool: gets tasks from its parent, sends back reports, and ends with its parent."""

import importlib
import io
import mmap
import os
import pickle
import queue
import signal
import struct
import sys
import tempfile
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, BinaryIO, cast

from pipelines import plugins
from pipelines.execution.protocol import Ticket, attempt

_PR_SET_PDEATHSIG = 1  # prctl(2): the signal that the kernel sends when the parent dies


def main(pipe: int, parent: int, prepare: str, modules: list[str]) -> None:
    """Compute tasks until the parent closes its end of the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    end_with(parent)
    connection = Connection(pipe)
    plugins.load_those_there(modules)  # before objects of their classes arrive
    if prepare:  # what fails here fails again in the tasks, whose logs say so
        module, function = prepare.split(":")
        unread = io.StringIO()
        with suppress(Exception), redirect_stdout(unread), redirect_stderr(unread):
            getattr(importlib.import_module(module), function)()
    received: queue.SimpleQueue[int | tuple[Ticket, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    call: Any = None
    shared: Any = None
    while True:
        message = received.get()
        if isinstance(message, int):
            call = shared = None  # before the next one is there
            call, shared = read_shared(message)
            os.close(message)
            continue
        ticket, item = message
        report = attempt(call, shared, item, ticket, lambda news: _send(connection, news))
        _send(connection, report, is_report=True)
        del message, ticket, item, report


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even if compiled code keeps it busy (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _receive(connection: Connection, received: queue.SimpleQueue[int | tuple[Ticket, Any]]) -> None:
    """Receive shared objects and tasks. When the parent ends, the connection does, and then this process."""
    while True:
        try:
            message = connection.recv_bytes()
            content = pickle.loads(message) if message else reduction.recv_handle(connection)  # noqa: S301
        except (EOFError, OSError):
            os._exit(1)
        except Exception:  # a content that cannot be read here, such as an object of a plugin that is gone
            traceback.print_exc()
            os._exit(1)
        received.put(content)


def _send(connection: Connection, content: object, *, is_report: bool = False) -> None:
    try:
        connection.send_bytes(pickle.dumps((is_report, content), protocol=5))
    except OSError:
        os._exit(1)  # the parent is gone


_ALIGNMENT = 64  # bytes: a cache line
_HEADER = struct.Struct("<QQ")  # where the list of buffers starts, and its length


def write_shared(value: object) -> BinaryIO:
    """Write an object into an unnamed temporary file, with its arrays as they are (pickle protocol 5)."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 (the caller closes it)
    file.write(_HEADER.pack(0, 0))
    places = []
    for buffer in buffers:
        raw = buffer.raw()
        file.seek(-file.tell() % _ALIGNMENT, 1)
        places.append((file.tell(), raw.nbytes))
        file.write(raw)
        buffer.release()
    start = file.tell()
    index = pickle.dumps((places, content))
    file.write(index)
    file.seek(0)
    file.write(_HEADER.pack(start, len(index)))
    file.flush()
    return file


def read_shared(file: int) -> Any:  # noqa: ANN401 (whatever was written)
    """Read the object from a file descriptor. Its arrays are read-only views of the file."""
    mapped = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    start, length = _HEADER.unpack_from(mapped)
    places, content = pickle.loads(mapped[start : start + length])  # noqa: S301 (written by the parent)
    return pickle.loads(content, buffers=[mapped[at : at + size] for at, size in places])  # noqa: S301
