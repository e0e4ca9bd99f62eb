"""Checkpoints of fitted models: tensors as safetensors, everything else as JSON, never a pickle."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from features.library.scaling import ChannelScaler
from models.fitting.fit import Fitted, FittedState, restore
from pipelines.dataset.fold_inputs import FoldInputs
from pipelines.errors import DataError
from pipelines.files import replacing

_TENSORS, _CONFIG = "model.safetensors", "model.json"


def save_checkpoint(folder: Path, state: FittedState, inputs: FoldInputs) -> None:
    """Write a fitted model and the inputs of its fold. The write is atomic: no partial folder is left."""
    tensors = {name: np.array(value, order="C") for name, value in state.tensors.items()}
    scaler = inputs.scaler
    tensors |= {"scaler.mean_C": scaler.mean_C, "scaler.std_C": scaler.std_C}
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
    """The contents of a checkpoint, which can be sent to another process.

    Attributes
    ----------
    folder
        Where it was read, for messages.
    state
        The fitted model as plain values.
    inputs
        The inputs of its fold.
    """

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
        if isinstance(config, dict) and "groups" not in config:
            raise DataError(
                f"The checkpoint in {folder} does not name its groups, because an older version of Peerglass "
                "wrote it; train its config again, which makes a new run."
            )
        scaler = ChannelScaler(
            mean_C=tensors.pop("scaler.mean_C"),
            std_C=tensors.pop("scaler.std_C"),
            clip=config.pop("scaler_clip"),
        )
        inputs = FoldInputs(scaler, groups=tuple(config.pop("groups")))
        return Checkpoint(folder, FittedState(config=config, tensors=tensors), inputs)


def load_checkpoint(folder: Path) -> tuple[Fitted, FoldInputs]:
    """Read a fitted model and the inputs of its fold.

    Raises
    ------
    DataError
        If the folder is missing, incomplete or corrupted, or was written before groups were stored by name.
    """
    checkpoint = read_checkpoint(folder)
    return checkpoint.restore(), checkpoint.inputs


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Turn errors about the contents of a checkpoint into one that names its folder."""
    try:
        yield
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"The checkpoint in {folder} is corrupted ({reason}); {_cure(folder)}") from None


def _cure(folder: Path) -> str:
    """Say how a checkpoint is trained again; one outside a run's folder, as in MLflow, only with its run."""
    remove = f"'rm -r {shlex.quote(str(folder))}', then " if folder.exists() else ""
    run = folder.parents[2].absolute()
    if not (run / "run.json").is_file():
        return f"run {remove}train its run again."
    return f"run {remove}'peerglass train {shlex.quote(str(run))}', which trains only what is missing."
