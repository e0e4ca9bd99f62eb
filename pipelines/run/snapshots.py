"""The newest snapshot of a training on disk: one safetensors file, which is replaced atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.fitting.snapshot import Snapshot
from pipelines.errors import DataError

_NUMBERS = "numbers"


class FileSnapshotStore:
    """Stores the newest snapshot of one training in a file.

    Parameters
    ----------
    path
        The file; its folder is created by the first save.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Snapshot | None:
        """Read the snapshot; None if there is none.

        Raises
        ------
        DataError
            If the file is corrupted.
        """
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                return Snapshot(tensors, file.metadata()[_NUMBERS])
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise self.unusable(error) from None

    def save(self, snapshot: Snapshot) -> None:
        """Replace the stored snapshot."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        save_file(dict(snapshot.tensors), partial, metadata={_NUMBERS: snapshot.numbers})
        partial.replace(self.path)

    def sibling(self, name: str) -> Self:
        """Return the store of another snapshot of the same task, in a file next to this one."""
        return type(self)(self.path.with_name(f"{self.path.stem}-{name}{self.path.suffix}"))

    def delete(self) -> None:
        """Remove the file, when its training is finished and stored."""
        self.path.unlink(missing_ok=True)

    def unusable(self, error: Exception) -> DataError:
        """Return the error of a snapshot that cannot be resumed, which names the file and the cure."""
        reason = " ".join(str(error).split())
        return DataError(
            f"The snapshot {self.path} cannot be resumed ({reason}); delete it and run 'peerglass train' "
            "again, which restarts only this training."
        )
