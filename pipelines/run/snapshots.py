"""The newest snapshot of a training: one safetensors file in the run's folder, which is replaced atomically.

A training in another process gets the content of the file with its task and sends the newest content back
(`RelayedSnapshotStore`). Only the parent touches the disk.
"""

from __future__ import annotations

import glob
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from safetensors import SafetensorError
from safetensors.torch import load, save

from models.fitting.snapshot import Snapshot
from pipelines.errors import DataError
from pipelines.files import write_bytes

_NUMBERS = "numbers"


class TaskSnapshots(ABC):
    """Stores the newest snapshot of one training of a task.

    Parameters
    ----------
    path
        The file in the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the stored content; None if there is none."""

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Replace the stored content."""

    def load(self) -> Snapshot | None:
        """Read the snapshot; None if there is none.

        Raises
        ------
        DataError
            If the content is corrupted.
        """
        try:
            content = self.read()
            return None if content is None else Snapshot(load(content), _metadata(content)[_NUMBERS])
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise self.unusable(error) from None

    def save(self, snapshot: Snapshot) -> None:
        """Replace the stored snapshot."""
        self.write(save(dict(snapshot.tensors), metadata={_NUMBERS: snapshot.numbers}))

    def sibling(self, name: str) -> Self:
        """Return the store of another snapshot of the same task, in a file next to this one."""
        return self.at(self.path.with_name(f"{self.path.stem}-{name}{self.path.suffix}"))

    @abstractmethod
    def at(self, path: Path) -> Self:
        """Return the store of another file of the same folder."""

    def unusable(self, error: Exception) -> DataError:
        """Return the error of a snapshot that cannot be resumed, which names the file and the cure."""
        reason = " ".join(str(error).split())
        return DataError(
            f"The snapshot {self.path} cannot be resumed ({reason}); delete it and run 'peerglass train' "
            "again, which restarts only this training."
        )


class FileSnapshotStore(TaskSnapshots):
    """Stores a snapshot in its file, whose folder is created by the first save."""

    def read(self) -> bytes | None:
        """Return the file's content; None if there is no file."""
        return self.path.read_bytes() if self.path.is_file() else None

    def write(self, content: bytes) -> None:
        """Replace the file, atomically."""
        write_bytes(self.path, content)

    def at(self, path: Path) -> Self:
        """Return the store of another file."""
        return type(self)(path)

    def delete(self) -> None:
        """Remove the file, and what killed processes have left of it, when its training is stored."""
        for left in (self.path, *self.path.parent.glob(f".{glob.escape(self.path.name)}.*.partial")):
            left.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """New content of the file of a snapshot, on its way to the parent."""

    path: Path
    content: bytes


class RelayedSnapshotStore(TaskSnapshots):
    """Stores a snapshot with the parent.

    Parameters
    ----------
    path
        The file in the run's folder, which this process may not see.
    contents
        File -> content at the start of the task.
    send
        Sends the new content to the parent.
    """

    def __init__(
        self, path: Path, contents: Mapping[Path, bytes], send: Callable[[SavedSnapshot], None]
    ) -> None:
        super().__init__(path)
        self._contents, self._send = dict(contents), send

    def read(self) -> bytes | None:
        """Return the newest content: what came with the task, or was written since."""
        return self._contents.get(self.path)

    def write(self, content: bytes) -> None:
        """Keep the content, and send it to the parent."""
        self._contents[self.path] = content
        self._send(SavedSnapshot(self.path, content))

    def at(self, path: Path) -> Self:
        """Return the store of another file, with the same parent."""
        return type(self)(path, self._contents, self._send)


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: the first 8 bytes are the length of its JSON header."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata
