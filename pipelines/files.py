"""Files that are written whole or not at all, and read with one sentence for a damaged one.

What is written goes to a hidden name in the same folder, ``.NAME.PID.partial``, is forced to the disk, and
then takes the place of the file or folder. A process that is killed leaves the old content, and at most such
a partial file. The old content of a folder may then be in ``.NAME.PID.former.partial``; `remove_partial` puts
it back.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import polars as pl

from pipelines.errors import DataError, one_line

PARTIAL = ".partial"  # ends the names of files and folders that are being written
_FORMER = re.compile(rf"\.(.+)\.\d+\.former{re.escape(PARTIAL)}")  # its place is about to be taken


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a file or folder to make; it takes the place of ``path`` if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, former = (
        path.with_name(f".{path.name}.{os.getpid()}{state}{PARTIAL}") for state in ("", ".former")
    )
    _remove(partial)
    try:
        yield partial
        _sync(partial)
        if partial.is_dir() and path.is_dir():  # a folder takes the place of an empty one only
            path.replace(former)
        partial.replace(path)
    finally:
        _remove(partial)
        _put_back(former)
    _sync(path.parent, below=False)


def write_text(path: Path, text: str) -> Path:
    """Write a text file in UTF-8, atomically."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file, atomically."""
    with replacing(path) as partial:
        partial.write_bytes(content)
    return path


def write_table(path: Path, frame: pl.DataFrame) -> Path:
    """Write a table as CSV, JSON or Parquet, by the ending of its name, atomically."""
    kind = path.suffix.lower()
    with replacing(path) as partial:
        if kind == ".csv":
            frame.write_csv(partial)
        elif kind == ".json":
            days = [name for name, dtype in frame.schema.items() if dtype == pl.Date]
            frame.with_columns(pl.col(days).dt.to_string("iso")).write_json(partial)
        else:
            frame.write_parquet(partial)
    return path


def remove_partial(folder: Path) -> None:
    """Remove what killed processes have left in a folder; the caller holds the lock of its files."""
    for left in [*folder.rglob(f".*{PARTIAL}")]:
        _put_back(left)


def read_json(path: Path) -> Any:  # noqa: ANN401 (JSON holds anything)
    """Read a JSON file in UTF-8; OSError or ValueError if that fails (`damaged` makes it a sentence)."""
    return json.loads(path.read_text(encoding="utf-8"))


_DAMAGES = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError),
    *(BadZipFile, pl.exceptions.PolarsError),
)


@contextmanager
def damaged(what: str, cure: str) -> Iterator[None]:
    """Read files in a ``with`` block; `DataError` names what is damaged, why, and the cure, if that fails."""
    try:
        yield
    except _DAMAGES as error:
        raise DataError(f"{what} is damaged ({one_line(error)}); {cure}.") from None


def plain_name(text: str) -> str:
    """Return a text as a name of lower-case letters, digits and underscores; empty if it has none of them.

    >>> plain_name("Prices of 2020 (new)")
    'prices_of_2020_new'
    """
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _sync(path: Path, *, below: bool = True) -> None:
    """Force a file to the disk, or a folder and what is below it."""
    for part in (path, *path.rglob("*")) if below and path.is_dir() else (path,):
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_back(left: Path) -> None:
    """Remove a partial file or folder, or put it back if it is a former folder whose place is still empty."""
    former = _FORMER.fullmatch(left.name)
    place = None if former is None else left.with_name(former[1])
    if place is not None and left.exists() and not place.exists():
        left.replace(place)
    else:
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
