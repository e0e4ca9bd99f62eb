"""Checkpoints of fitted models: tensors as safetensors, everything else as JSON, never a pickle."""

import glob
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from features.library.scaling import ChannelScaler
from models.fitted import Fitted, FittedState
from models.fitting.fit import restore
from models.fitting.snapshot import Snapshot
from pipelines.dataset.folds import FoldInputs
from pipelines.errors import DataError, one_line
from pipelines.files import replacing, write_bytes

_TENSORS, _CONFIG = "model.safetensors", "model.json"
_SCALER = "scaler."  # prefix of the arrays of the channel scaler among the tensors


def save_checkpoint(folder: Path, state: FittedState, inputs: FoldInputs) -> None:
    """Write a fitted model and the inputs of its fold. The write is atomic: no partial folder is left."""
    tensors = {name: np.array(value, order="C") for name, value in state.tensors.items()}
    scaler = inputs.scaler
    tensors |= {f"{_SCALER}{name}": value for name, value in scaler.arrays().items()}
    config = {**state.config, "scaler_clip": scaler.clip, "groups": list(inputs.groups)}
    with replacing(folder) as partial:
        partial.mkdir()
        save_file(tensors, partial / _TENSORS)
        (partial / _CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True))


def checkpoint_exists(folder: Path) -> bool:
    """Whether a folder holds a checkpoint. The files are not read, so they may be corrupted."""
    return (folder / _TENSORS).is_file() and (folder / _CONFIG).is_file()


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The contents of a checkpoint, which can be sent to another process."""

    folder: Path
    state: FittedState
    inputs: FoldInputs

    def restore(self) -> Fitted:
        """Build the fitted model; DataError if the contents are not those of a model."""
        with _naming(self.folder):
            return restore(self.state)


def checkpoint_config(folder: Path) -> dict[str, Any]:
    """Read the part of a checkpoint that is not tensors; empty if there is none."""
    with _naming(folder):
        stored = json.loads((folder / _CONFIG).read_text()) if checkpoint_exists(folder) else {}
    return stored if isinstance(stored, dict) else {}


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the contents of a checkpoint. Raises the same errors as `load_checkpoint`."""
    if not checkpoint_exists(folder):
        raise DataError(f"There is no checkpoint in {folder}; {_cure(folder)}")
    with _naming(folder):
        tensors = load_file(folder / _TENSORS)
        config = json.loads((folder / _CONFIG).read_text())
        of_scaler = [name for name in tensors if name.startswith(_SCALER)]
        arrays = {name.removeprefix(_SCALER): tensors.pop(name) for name in of_scaler}
        scaler = ChannelScaler.of(arrays, clip=config.pop("scaler_clip"))
        inputs = FoldInputs(scaler, groups=tuple(config.pop("groups")))
        return Checkpoint(folder, FittedState(config=config, tensors=tensors), inputs)


def load_checkpoint(folder: Path) -> tuple[Fitted, FoldInputs]:
    """Read a fitted model and the inputs of its fold."""
    checkpoint = read_checkpoint(folder)
    return checkpoint.restore(), checkpoint.inputs


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Turn errors about the contents of a checkpoint into one that names its folder."""
    try:
        yield
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"The checkpoint in {folder} is corrupted ({one_line(error)}); {_cure(folder)}"
        ) from None


def _cure(folder: Path) -> str:
    """Say how a checkpoint is trained again; one outside a run's folder, as in MLflow, only with its run."""
    remove = f"'rm -r {shlex.quote(str(folder))}', then " if folder.exists() else ""
    run = folder.parents[2].absolute()
    if not (run / "run.json").is_file():
        return f"run {remove}train its run again."
    return f"run {remove}'peerglass train {shlex.quote(str(run))}', which trains only what is missing."


_NUMBERS = "numbers"


def read_snapshot(path: Path) -> bytes | None:
    """Read the file of a snapshot; None if there is none."""
    return path.read_bytes() if path.is_file() else None


class FileSnapshotStore:
    """Stores the newest snapshot of one training of a task: in its file, or with the parent of a worker."""

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], bytes | None] = read_snapshot,
        write: Callable[[Path, bytes], object] = write_bytes,
    ) -> None:
        self.path, self._read, self._write = path, read, write

    def load(self) -> Snapshot | None:
        """Read the snapshot; None if there is none, DataError if the content is corrupted."""
        from safetensors.torch import load  # imports torch, which readers of other checkpoints do not need

        try:
            content = self._read(self.path)
            return None if content is None else Snapshot(load(content), _metadata(content)[_NUMBERS])
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise self.unusable(error) from None

    def save(self, snapshot: Snapshot) -> None:
        """Replace the stored snapshot, atomically."""
        from safetensors.torch import save

        self._write(self.path, save(dict(snapshot.tensors), metadata={_NUMBERS: snapshot.numbers}))

    def of_refit(self) -> Self:
        """Return the store of the second fit of the same task, in a file next to this one."""
        path = self.path.with_name(f"{self.path.stem}-refit{self.path.suffix}")
        return type(self)(path, self._read, self._write)

    def unusable(self, error: Exception) -> DataError:
        """Return the error of a snapshot that cannot be resumed, which names the file and the cure."""
        return DataError(
            f"The snapshot {self.path} cannot be resumed ({one_line(error)}); delete it and run 'peerglass "
            "train' again, which restarts only this training."
        )

    def delete(self) -> None:
        """Remove the file, and what killed processes have left of it, when its training is stored."""
        for left in (self.path, *self.path.parent.glob(f".{glob.escape(self.path.name)}.*.partial")):
            left.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """New content of the file of a snapshot, on its way to the parent."""

    path: Path
    content: bytes


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: the first 8 bytes are the length of its JSON header."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata
