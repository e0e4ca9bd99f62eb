"""The feature store: channels and characteristics in mapped files, made once and read by every process.

An entry is a folder ``<key>`` with the values and ``entry.json``: their shape and a checksum of every block
of sessions. Its key is a digest of all that the values depend on: panel, universe, the user's inputs,
features, transform, code and libraries.

It is made in a folder of its own and renamed when complete; other processes wait for it. With a wrong
checksum it is made again. Beyond the limit, entries unused for longest go, except those that a process maps.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from filelock import FileLock, Timeout

from features.arithmetic.parallel import n_threads
from features.arrays import BoolArray, Float32Array
from features.panel.asof import Statements
from features.panel.panel import Panel
from pipelines.dataset.characteristics import Allocate, blocks_of, drop_pages
from pipelines.errors import DataError

_VALUES, _ENTRY, _MAKING, _LOCK = "values.f32", "entry.json", ".making-", ".lock"
_SPARE = 2**28  # bytes that stay free on the disk


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """Mapped features below a folder."""

    folder: Path  # the folder; it is created with the first entry
    limit: int  # bytes of all entries together; the newest stays even if it alone takes more
    code: str  # digest of the code and the libraries that compute features
    notify: Callable[[str], None]  # gets a sentence when an entry is damaged

    def key(
        self, panel: Panel, universe_TN: BoolArray, inputs: Mapping[str, pl.DataFrame], settings: object
    ) -> str:
        """Digest of everything that features depend on; ``settings`` are plain values."""
        sha = hashlib.blake2b(digest_size=16)
        sha.update(repr((self.code, settings, panel.tickers_N, panel.groups_S, sorted(inputs))).encode())
        _add(sha, universe_TN)
        for field in fields(panel):
            value = getattr(panel, field.name)
            if isinstance(value, np.ndarray):
                sha.update(f"{field.name} {value.dtype} {value.shape}".encode())
                _add(sha, value.view(np.int64) if value.dtype.kind == "M" else value)
            elif isinstance(value, Statements):
                for name, array in value.contents():
                    sha.update(f"{name} {array.dtype} {array.shape}".encode())
                    _add(sha, array)
        for name in sorted(inputs):
            frame = inputs[name].select("date", "ticker", "value").sort("date", "ticker")
            _add(sha, frame.hash_rows(seed=17).to_numpy())
        return sha.hexdigest()

    def get(
        self, key: str, shape: tuple[int, int, int], make: Callable[[Allocate], Float32Array]
    ) -> MappedArray:
        """Return an entry, which is made if it does not exist or is damaged."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._lock(key)):
                found = self._open(key, shape)
                if found is None:
                    self._make(key, shape, make)
                    found = open_mapped(self.folder / key / _VALUES, shape)
        except OSError as error:
            raise DataError(
                f"The feature store {self.folder} cannot be used ({error}); check its disk and permissions, "
                "or set feature_store.folder to another folder."
            ) from None
        (self.folder / key / _ENTRY).touch()  # the time of its last use
        self._evict(keep=key)
        return found

    def _open(self, key: str, shape: tuple[int, int, int]) -> MappedArray | None:
        """Map an entry after checking it; None if there is none, or a damaged one, which is removed."""
        folder = self.folder / key
        if not folder.is_dir():
            return None
        try:
            entry = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
            values_TNF = open_mapped(folder / _VALUES, shape)
            sound = entry["checksums"] == _checksums(values_TNF)
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if sound:
            return values_TNF
        self.notify(f"The features in {folder} are damaged; they are computed again.")
        shutil.rmtree(folder)
        return None

    def _make(self, key: str, shape: tuple[int, int, int], make: Callable[[Allocate], Float32Array]) -> None:
        making = self.folder / f"{_MAKING}{key}"
        shutil.rmtree(making, ignore_errors=True)  # of a process that was killed
        for left in self.folder.glob(f"{_MAKING}*"):  # a living process holds the lock of its entry
            with suppress(Timeout), FileLock(self._lock(left.name.removeprefix(_MAKING)), timeout=0):
                shutil.rmtree(left, ignore_errors=True)
        making.mkdir()
        try:
            self._require_room(2 * 4 * int(np.prod(shape)))
            files: list[Path] = []

            def allocate(size: tuple[int, ...]) -> Float32Array:
                files.append(making / str(len(files)))
                return create_mapped(files[-1], size)

            values_TNF = make(allocate)
            assert values_TNF.shape == shape, f"made {values_TNF.shape} instead of {shape}"
            entry = {"shape": shape, "checksums": _checksums(values_TNF)}
            files[-1].rename(making / _VALUES)
            for scratch in files[:-1]:
                scratch.unlink()
            (making / _ENTRY).write_text(json.dumps(entry), encoding="utf-8")
            making.rename(self.folder / key)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise

    def _require_room(self, needed: int) -> None:
        """Remove unused entries until the disk has room; DataError if that is not enough."""
        for folder, _ in entries_of(self.folder):
            if shutil.disk_usage(self.folder).free >= needed + _SPARE:
                return
            self.remove(folder)
        free = shutil.disk_usage(self.folder).free
        if free < needed + _SPARE:
            raise DataError(
                f"The features need {needed / 2**30:.1f} GiB on the disk of {self.folder} while they are "
                f"computed, and {max(free - _SPARE, 0) / 2**30:.1f} GiB are free; free some, or set "
                "feature_store.folder to a folder on another disk."
            )

    def _evict(self, keep: str) -> None:
        """Remove the least recently used entries that no process maps, until the limit is kept."""
        entries = entries_of(self.folder)
        total = sum(size for _, size in entries)
        for folder, size in entries:
            if total <= self.limit:
                return
            if folder.name != keep and self.remove(folder):
                total -= size

    def remove(self, folder: Path) -> bool:
        """Remove an entry unless a process maps, makes or opens it; whether it is gone."""
        try:
            with FileLock(self._lock(folder.name), timeout=0):
                if is_in_use(folder / _VALUES):
                    return False
                shutil.rmtree(folder)
        except FileNotFoundError:  # another process removed it
            pass
        except Timeout:
            return False
        return True

    def _lock(self, key: str) -> Path:
        return self.folder / f"{key}{_LOCK}"


def entries_of(folder: Path) -> list[tuple[Path, int]]:
    """Folders of a store's entries with their bytes, the least recently used first."""
    found = [(path.stat().st_mtime, path.parent) for path in folder.glob(f"*/{_ENTRY}")]
    return [(entry, sum(path.stat().st_size for path in entry.iterdir())) for _, entry in sorted(found)]


def _checksums(values_TNF: Float32Array) -> list[int]:
    """CRC-32 of every block of sessions."""
    flat_TN = values_TNF.reshape(len(values_TNF), -1)

    def checksum(block: slice) -> int:
        return zlib.crc32(memoryview(flat_TN[block]).cast("B"))  # type: ignore[arg-type]

    with ThreadPoolExecutor(n_threads()) as pool:
        found = list(pool.map(checksum, blocks_of(*flat_TN.shape)))
    drop_pages(flat_TN)
    return found


def _add(sha: hashlib.blake2b, array: npt.NDArray[np.generic]) -> None:
    """Add an array block by block, so that a view is not copied as a whole."""
    rows = max(1, 2**22 // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        sha.update(np.ascontiguousarray(array[start : start + rows]).view(np.uint8).data)


class MappedArray(np.ndarray[Any, np.dtype[np.float32]]):
    """A read-only float32 array in a file, sent to processes as its path, and locked as in use."""

    path: Path | None = None  # the file; None for views and results

    def __array_finalize__(self, source: object) -> None:
        """Leave `path` unset: a view is not the whole file."""

    def __reduce__(self) -> Any:  # noqa: ANN401 (as numpy's)
        """Send the path of a whole file, and the values of everything else."""
        return np.asarray(self).__reduce__() if self.path is None else (open_mapped, (self.path, self.shape))


def open_mapped(path: Path, shape: tuple[int, ...]) -> MappedArray:
    """Map a file and lock it as in use."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # the mapping keeps the lock
        status = os.fstat(file.fileno())
        if status.st_nlink == 0:
            raise FileNotFoundError(path)
        expected = 4 * int(np.prod(shape))
        if status.st_size != expected or not expected:
            raise ValueError(f"{path} has {status.st_size} bytes instead of {expected}.")
        buffer = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    array = np.frombuffer(buffer, dtype=np.float32).reshape(shape).view(MappedArray)
    array.path = path
    return array


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
