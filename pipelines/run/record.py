"""A run and its folder ``<output>/<run_id>/``: naming, recording, and finding it again."""

import datetime as dt
import json
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from features.options import Options
from pipelines.config.load import load_config, model_settings, to_yaml
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.files import read_json, write_table, write_text
from pipelines.format import abbreviate
from pipelines.lake.versions import TableVersion
from pipelines.run.identity import Identity

TaskKey = tuple[str, int, int]  # model, fold and seed, which identify a task in its run
LATEST = "latest"  # the run started last; a config that was only audited has not been started
SCORES, QUANTILE_SCORES, CURVES = "scores", "quantile_scores", "curves"  # folders in a run's folder
_RECORD = "run.json"
MOST_LISTED = 8  # maximum number of differences in a message
_GONE = {"\n  engine: integrated_gradients\n": "explain.engine=permutation"}
"""Settings of earlier versions that have gone -> what a recorded run has instead. None changes a forecast."""
_RUN_ID = re.compile(r"^[a-z][a-z0-9_-]{0,60}$")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One configuration on one version of the data."""

    run_id: str  # name of the config and digest of the identity. The same command gives the same run.
    config: Config  # the settings. Settings that change no forecast are those of the last command.
    identity: Identity  # everything that the forecasts depend on
    folder: Path

    @property
    def tables(self) -> Mapping[str, TableVersion]:
        """Lake table -> id of the Delta table and the version that the run reads."""
        return self.identity.tables

    @property
    def versions(self) -> Mapping[str, int]:
        """Lake table -> Delta version that the run reads."""
        return {table: one.version for table, one in self.tables.items()}

    def checkpoint(self, model: str, fold: int, seed: int) -> Path:
        """Folder of one fitted model."""
        return self.folder / "checkpoints" / model / f"fold-{fold}-seed-{seed}"

    def task_file(self, folder: str, key: TaskKey, suffix: str = ".json") -> Path:
        """File of a task in a folder of the run: scores, curve, snapshot, or what an ensemble reads."""
        model, fold, seed = key
        return self.folder / folder / f"{model}-fold-{fold}-seed-{seed}{suffix}"

    def write_table(self, name: str, frame: pl.DataFrame) -> Path:
        """Write a result table of the run as Parquet, atomically."""
        return write_table(self.folder / "tables" / f"{name}.parquet", frame)

    def read_table(self, name: str) -> pl.DataFrame | None:
        """Read a result table; None if its stage has not been run."""
        path = self.folder / "tables" / f"{name}.parquet"
        return pl.read_parquet(path) if path.is_file() else None

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file of the run, atomically."""
        return write_text(self.folder / name, text)


def name_run(config: Config, identity: Identity) -> RecordedRun:
    """Create a run whose id is the config's name and the digest of the identity. Writes nothing."""
    run_id = f"{config.name}-{identity.digest}"
    return RecordedRun(run_id, config, identity, Path(config.output) / run_id)


def record_run(run: RecordedRun, *, started: bool = True) -> None:
    """Write a run's settings and identity; an audit (not ``started``) changes no record."""
    if not started and (run.folder / _RECORD).is_file():
        return
    record = {
        "run_id": run.run_id,
        "started_at": dt.datetime.now(dt.UTC).isoformat(),
        "only_audited": not started,
        "versions": run.versions,
        "environment": run.config.from_environment(),
        "identity": run.identity.record(),
    }
    run.write_text("config.yaml", to_yaml(run.config, Path.cwd()))
    run.write_text(_RECORD, json.dumps(record, indent=1))


def describe_changes(run: RecordedRun) -> str | None:
    """Describe how a new run differs from the latest one of its config's name; None if nothing is new."""
    if (run.folder / _RECORD).is_file():
        return None
    for _, record in list_records(run.folder.parent):
        name = str(record["run_id"])
        if name.rpartition("-")[0] == run.config.name:
            changes = run.identity.differences(Identity.from_record(record["identity"]))
            shown = abbreviate(changes, MOST_LISTED)
            return f"{run.run_id} is a new run; it differs from {name} in: {shown}."
    return None


def list_records(output: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Folder and record of every run in an output folder, newest start first, without damaged ones."""
    found = []
    for path in output.glob(f"*/{_RECORD}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record: dict[str, Any] = read_json(path)
            Identity.from_record(record["identity"])
            found.append((str(record["started_at"]), str(record["run_id"]), path.parent, record))
    found.sort(key=lambda one: one[:2], reverse=True)
    return [(folder, record) for *_, folder, record in found]


def open_run(name: str, output: Path = Path("data/runs"), *, models: bool = True) -> RecordedRun:
    """Open a run; without ``models``, theirs stay as its config gives them, and PyTorch is not imported."""
    folder = Path(name) if (Path(name) / _RECORD).is_file() else find_folder(name, output)
    return _open(folder, models=models)


def open_named_run(name: str, config: Config) -> RecordedRun:
    """Open the run that a config names: an id, prefix or path, never ``latest`` or a folder without ``/``."""
    if name == LATEST:
        raise ConfigError(f"init_from is {name!r}, which changes with every run; give the id of a run.")
    if "/" in name and not (Path(name) / _RECORD).is_file():
        raise ConfigError(f"init_from: there is no run in the folder {name}; correct the path.")
    return _open(Path(name) if "/" in name else find_folder(name, Path(config.output)))


def _open(folder: Path, *, models: bool = True) -> RecordedRun:
    try:
        record: dict[str, Any] = read_json(folder / _RECORD)
        identity, path = Identity.from_record(record["identity"]), folder / "config.yaml"
        overrides = [to for was, to in _GONE.items() if was in path.read_text("utf-8")]
        config = load_config(path, overrides, models=models)
        _require_same_environment(folder, config, record.get("environment", {}))
        config = _as_recorded(config, identity) if models else config
        return RecordedRun(record["run_id"], config, identity, folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"The run folder {folder} is damaged ({error}); run its config again.") from None


def _as_recorded(config: Config, identity: Identity) -> Config:
    """Give models the settings that the run had, where what its config leaves out has a new default today."""

    def since_changed(today: Options, recorded: Mapping[str, Any]) -> dict[str, Any]:
        now = today.model_dump(mode="json", exclude=set(today.COMPUTED))
        return {key: recorded[key] for key in now if key in recorded and recorded[key] != now[key]}

    models = dict(config.models)
    for name, recorded in identity.settings["models"].items():
        today = model_settings(config, name)
        models[name] = models[name] | since_changed(today.options, recorded)
        if fit := since_changed(today.fit, recorded["fit"]):
            models[name] |= {"fit": {**models[name].get("fit", {}), **fit}}
    return config.model_copy(update={"models": models})


def _require_same_environment(folder: Path, config: Config, recorded: Mapping[str, Any]) -> None:
    """Require that settings taken from environment variables are the same as when the run was made."""
    now = config.from_environment()
    for setting, value in recorded.items():
        if setting in now and now[setting] != value:
            raise ConfigError(
                f"{folder / 'config.yaml'}: {setting} comes from an environment variable. It was {value!r} "
                f"when the run was made and is {now[setting]!r} now; restore the old value of the variable."
            )


def find_folder(name: str, output: Path) -> Path:
    """Return the folder of the run with this id, or with this unique prefix of its id, or of ``latest``."""
    where = f"under {output.absolute()}"
    elsewhere = "(--output FOLDER looks in another folder; a run's own folder is a name as well)"
    folders = sorted(path.parent for path in output.glob(f"*/{_RECORD}"))
    if name == LATEST:
        started = [folder for folder, record in list_records(output) if not record.get("only_audited")]
        if not started:
            raise ConfigError(f"There is no run {where} {elsewhere}.")
        return started[0]
    if not _RUN_ID.match(name):
        cure = f"runs are looked for {where}"
        if Path(name).suffix.lower() in (".csv", ".parquet"):
            cure = (
                f"measure signals by 'peerglass backtest {name} --config CONFIG', and use the name it prints"
            )
        raise ConfigError(f"{name!r} is neither a run id nor a run's folder; {cure}.")
    matches = [path for path in folders if path.name == name]
    matches = matches or [path for path in folders if path.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(path.name for path in (matches or folders)) or "none"
    wrong = "More than one run begins" if matches else "No run begins"
    raise ConfigError(f"{wrong} with {name!r} {where}; choose among: {listed} {elsewhere}.")


def git_commit() -> str:
    """Git commit of this checkout, with ``-dirty`` for uncommitted changes; ``unknown`` outside git."""
    command, here = ["git", "describe", "--always", "--dirty", "--abbrev=12"], Path(__file__).parent
    try:
        git = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
        return git.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def read_scores(run: RecordedRun) -> pl.DataFrame:
    """Read the scores of all finished tasks, by model, fold and seed; null where there is none."""
    paths = sorted((run.folder / SCORES).glob("*.json"))
    figures = ("valid_rank_ic", "valid_ic", "pretrain_loss", "calibration_slope", "calibration_error")
    return pl.DataFrame(
        [{**task_of(path), **json.loads(path.read_text())} for path in paths],
        schema={"model": pl.String, "fold": pl.Int64, "seed": pl.Int64, **dict.fromkeys(figures, pl.Float64)},
    )


def read_curves(run: RecordedRun) -> pl.DataFrame:
    """Read the learning curves of all tasks: model, fold, seed, epoch, train_loss, valid_rank_ic and more."""
    paths = sorted((run.folder / CURVES).glob("*.jsonl"))
    return pl.DataFrame(
        [task_of(path) | json.loads(line) for path in paths for line in path.read_text().splitlines()]
    )


def task_of(path: Path) -> dict[str, Any]:
    """Model, fold and seed of a file of a task."""
    model, _, rest = path.stem.rpartition("-fold-")
    fold, _, seed = rest.partition("-seed-")
    return {"model": model, "fold": int(fold), "seed": int(seed)}
