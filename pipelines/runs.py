"""A run's identity and its folder: ``<output>/<run_id>/``."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config import Config
from pipelines.config_load import digest, load_config, to_yaml
from pipelines.errors import ConfigError, DataError

_RUN_ID = re.compile(r"^[a-z][a-z0-9_-]{0,60}$")


@dataclass(frozen=True, slots=True)
class Run:
    """One configuration on one version of the data.

    ``run_id`` is derived from both, so repeating a command continues the same run.
    """

    run_id: str
    config: Config
    versions: Mapping[str, int]  # lake table -> Delta version that the run reads
    folder: Path

    def checkpoint(self, model: str, fold: int, seed: int) -> Path:
        """Folder of one fitted model."""
        return self.folder / "checkpoints" / model / f"fold-{fold}-seed-{seed}"

    def curve(self, model: str, fold: int, seed: int) -> Path:
        """File of one learning curve, a JSON line an epoch."""
        return self.folder / "curves" / f"{model}-fold-{fold}-seed-{seed}.jsonl"

    def snapshot(self, model: str, fold: int, seed: int) -> Path:
        """File of an unfinished training's newest snapshot."""
        return self.folder / "snapshots" / f"{model}-fold-{fold}-seed-{seed}.safetensors"

    def write_table(self, name: str, frame: pl.DataFrame) -> Path:
        """Write a result table of the run as Parquet, atomically."""
        path = self.folder / "tables" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        frame.write_parquet(partial)
        partial.replace(path)
        return path

    def read_table(self, name: str) -> pl.DataFrame | None:
        """Read a result table, or None if that stage has not been run."""
        path = self.folder / "tables" / f"{name}.parquet"
        return pl.read_parquet(path) if path.is_file() else None

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file of the run, atomically."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
        return path


def start_run(config: Config, versions: Mapping[str, int]) -> Run:
    """Name a run after its config and data, and record both in its folder."""
    inputs = {table: versions[table] for table in sorted(versions)}
    identity = {"forecasting": config.forecasting_part(), "versions": inputs, "lake": config.lake}
    run_id = f"{config.name}-{digest({**identity, 'peerglass': version('peerglass')})}"
    run = Run(run_id, config, inputs, Path(config.output) / run_id)
    run.write_text("config.yaml", to_yaml(config))
    record = {"run_id": run_id, "versions": inputs, "environment": config.from_environment()}
    run.write_text("run.json", json.dumps(record, indent=1))
    return run


def open_run(name: str, output: Path = Path("data/runs")) -> Run:
    """Open a run by its id, by its beginning where that is unique, or by its folder.

    Raises
    ------
    ConfigError
        If no run, or more than one, is meant; or if the environment gives it other settings now.
    DataError
        If the run's folder is damaged.
    """
    folder = Path(name) if (Path(name) / "run.json").is_file() else _find(name, output)
    try:
        record: dict[str, Any] = json.loads((folder / "run.json").read_text())
        config = load_config(folder / "config.yaml")
        _require_same_environment(folder, config, record.get("environment", {}))
        return Run(record["run_id"], config, record["versions"], folder)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"The run folder {folder} is damaged ({error}); run its config again.") from None


def _require_same_environment(folder: Path, config: Config, recorded: Mapping[str, Any]) -> None:
    """A run's config refers to the environment: its settings must be those that it was made with."""
    now = config.from_environment()
    for setting, value in recorded.items():
        if setting in now and now[setting] != value:
            raise ConfigError(
                f"{folder / 'config.yaml'}: {setting} comes from the environment and was {value!r} when the "
                f"run was made, but is {now[setting]!r} now; set the variable as it was."
            )


def _find(name: str, output: Path) -> Path:
    known = sorted(path.parent for path in output.glob("*/run.json"))
    if not _RUN_ID.match(name):
        raise ConfigError(f"{name!r} is neither a run id nor a run's folder; runs are listed under {output}.")
    matches = [path for path in known if path.name == name] or [p for p in known if p.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(path.name for path in (matches or known)) or "none"
    wrong = "More than one run begins" if matches else "No run begins"
    raise ConfigError(f"{wrong} with {name!r} under {output}; there: {listed}.")


def git_commit() -> str:
    """Commit of the checkout that runs, with a mark if it has uncommitted changes; 'unknown' outside git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607 (git is found on PATH)
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()
