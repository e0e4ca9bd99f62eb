"""An object that many processes of one machine read: pickled once, its arrays mapped into each process.

The file has no name, so that nothing is left of it when its processes end, however they end.
"""

from __future__ import annotations

import mmap
import pickle
import struct
import tempfile
from typing import Any, BinaryIO, cast

_ALIGNMENT = 64  # bytes: a cache line
_HEADER = struct.Struct("<QQ")  # where the list of buffers starts, and its length


def write_shared(value: object) -> BinaryIO:
    """Write an object into an unnamed temporary file, which exists until the last process closes it.

    Contiguous arrays are written as they are (pickle protocol 5, out of band).
    """
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
