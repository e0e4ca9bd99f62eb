"""Draws of the sampling engines, kept in the run's folder, so that a higher precision continues them."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import models.explain
from models.explain.engines.engine import SamplerState

_FOLDER = "explanations"


@dataclass(frozen=True, slots=True)
class StoredDraws:
    """The file of the draws that belong to a checkpoint, a date, players, an engine and a seed.

    Attributes
    ----------
    path
        ``explanations/<digest>.npz`` in the run's folder. A run reads fixed data versions, so the folder
        stands for them.
    """

    path: Path

    def read(self) -> SamplerState | None:
        """Read the draws; None if there are none, or the file is damaged, which is drawn again."""
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files if name != "about"}
                about = json.loads(str(stored["about"]))
            return SamplerState(**about, arrays=arrays)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return None

    def write(self, state: SamplerState) -> None:
        """Write the draws atomically."""
        about = {name: getattr(state, name) for name in ("engine", "n_players", "seed", "draws")}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.stem}.{os.getpid()}.npz")
        np.savez(partial, about=np.array(json.dumps(about)), **state.arrays)  # type: ignore[arg-type]
        partial.replace(self.path)


def stored_draws(run_folder: Path, checkpoint: Path, question: Mapping[str, object]) -> StoredDraws:
    """Name the file of some draws.

    Parameters
    ----------
    run_folder
        Folder of the run.
    checkpoint
        Folder of the fitted model. Its contents are part of the name: other weights are other draws.
    question
        Everything else that the draws depend on, as JSON.
    """
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode())
    code = sorted(Path(str(models.explain.__file__)).parent.rglob("*.py"))
    for file in (*sorted(checkpoint.iterdir()), *code):
        digest.update(file.name.encode() + file.read_bytes())
    return StoredDraws(run_folder / _FOLDER / f"{digest.hexdigest()[:24]}.npz")
