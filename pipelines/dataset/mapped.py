"""Arrays that live in a file: processes map the file instead of copying the values.

A file holds the values alone, as float32 in C order. Shape suffixes are those of the caller.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import Any, Self

import numpy as np

from features.arrays import Float32Array


class MappedArray(np.ndarray[Any, np.dtype[np.float32]]):
    """A read-only float32 array in a file, which is sent to another process as the file's path.

    While the array or a view of it exists, the file is locked as in use (`is_in_use`). Views and results of
    arithmetic are ordinary arrays, and are sent with their values.

    Attributes
    ----------
    path
        The file; None for views and results.
    """

    path: Path | None = None

    def __array_finalize__(self, source: object) -> None:
        """Leave `path` unset: a view is not the whole file."""

    def __reduce__(self) -> Any:  # noqa: ANN401 (as numpy's)
        """Send the path of a whole file, and the values of everything else."""
        return np.asarray(self).__reduce__() if self.path is None else (open_mapped, (self.path, self.shape))

    @classmethod
    def of(cls, path: Path, shape: tuple[int, ...], buffer: mmap.mmap) -> Self:
        """Wrap a mapped file."""
        array = np.frombuffer(buffer, dtype=np.float32).reshape(shape).view(cls)
        array.path = path
        return array


def open_mapped(path: Path, shape: tuple[int, ...]) -> MappedArray:
    """Map a file and lock it as in use.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or it was removed in this moment.
    ValueError
        If its size does not match the shape.
    """
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # the mapping keeps the lock
        status = os.fstat(file.fileno())
        if status.st_nlink == 0:
            raise FileNotFoundError(path)
        expected = 4 * int(np.prod(shape))
        if status.st_size != expected or not expected:
            raise ValueError(f"{path} has {status.st_size} bytes instead of {expected}.")
        return MappedArray.of(path, shape, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def create_mapped(path: Path, shape: tuple[int, ...]) -> Float32Array:
    """Create a file and map it for writing; its room on the disk is reserved, so that writing cannot fail."""
    size = 4 * int(np.prod(shape))
    with path.open("xb+") as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        buffer = mmap.mmap(file.fileno(), size)
    return np.frombuffer(buffer, dtype=np.float32).reshape(shape)


def is_in_use(path: Path) -> bool:
    """Whether a process maps the file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
