"""Model versions by name, and what the run of a version says about it: completeness, audit, data."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.nightly.registry.aliases import challenger, champion
from pipelines.nightly.version import ModelVersion
from pipelines.run.checkpoints import checkpoint_exists
from pipelines.run.record import Run, open_run


def find_version(name: str, config: Config | None, output: Path) -> tuple[ModelVersion, Run]:
    """Find the model version that a command names.

    Parameters
    ----------
    name
        A run (its id, a unique prefix, ``latest`` or its folder), ``RUN/MODEL``, the number of a version in
        MLflow's registry, or one of the aliases ``champion`` and ``challenger``.
    config
        The config whose aliases and numbers are meant; None if there is none, then only runs can be named.
    output
        Folder that holds the runs.

    Raises
    ------
    ConfigError
        If there is no such version, a run with several models is named without one, or the run was not
        trained for use.
    DataError
        If the version's run is gone.
    TrackingError
        If a number is named and the tracking store cannot be reached.
    """
    version, run = _find(name, config, output)
    if config is not None and run.config.name != config.name:
        raise ConfigError(
            f"{version} is a version of the config {run.config.name!r}, not of {config.name!r}; name a "
            "version of the same config."
        )
    return version, run


def _find(name: str, config: Config | None, output: Path) -> tuple[ModelVersion, Run]:
    if name in ("champion", "challenger") or name.isdigit():
        if config is None:
            raise ConfigError(f"{name!r} is a name within a config; add --config CONFIG.")
        version = _by_number(int(name), config) if name.isdigit() else _by_alias(name, config)
        return version, open_version(version, output)
    is_folder = (Path(name) / "run.json").is_file()
    run_name, _, model = (name, "", "") if is_folder else name.partition("/")
    run = open_run(run_name, output)
    models = list(run.config.models)
    if not model and len(models) > 1:
        raise ConfigError(f"Run {run.run_id} has several models; name one: {run.run_id}/{models[0]}.")
    version = ModelVersion(run.run_id, model or models[0])
    _require_usable(version, run)
    return version, run


def _by_alias(alias: str, config: Config) -> ModelVersion:
    lake = open_lake(config)
    version = (champion if alias == "champion" else challenger)(lake, config.name)
    if version is None:
        raise ConfigError(f"The config {config.name!r} has no {alias} in the lake {lake.root}.")
    return version


def _by_number(number: int, config: Config) -> ModelVersion:
    from pipelines.tracking.model_versions import find_number

    return ModelVersion(*find_number(config, number))


def open_version(version: ModelVersion, output: Path) -> Run:
    """Open the run of a version.

    Raises
    ------
    ConfigError
        If the run has no such model, or was not trained for use.
    DataError
        If the run's folder is gone or damaged.
    """
    run = open_run(str(folder_of(version, output)))
    _require_usable(version, run)
    return run


def folder_of(version: ModelVersion, output: Path) -> Path:
    """Return the folder of the run of a version; DataError if it is gone."""
    folder = output / version.run_id
    if not (folder / "run.json").is_file():
        raise DataError(
            f"The run of {version} is not under {output.absolute()}; restore its folder from a backup, look "
            "elsewhere (the config's 'output', --output FOLDER), or go back to the champion before it with "
            "'peerglass demote CONFIG --why TEXT'."
        )
    return folder


def _require_usable(version: ModelVersion, run: Run) -> None:
    if version.model not in run.config.models:
        known = ", ".join(run.config.models)
        raise ConfigError(f"Run {run.run_id} has no model {version.model!r}; it has {known}.")
    if run.config.folds.scheme != "live":
        raise ConfigError(
            f"Run {run.run_id} was trained with folds.scheme {run.config.folds.scheme}, to be tested. "
            "'peerglass nightly CONFIG' trains versions for use, on all data that are known at a session."
        )


def missing_seeds(run: Run, model: str) -> tuple[int, ...]:
    """Return the seeds whose fitted model is not in the run's folder."""
    return tuple(seed for seed in run.config.seeds if not checkpoint_exists(run.checkpoint(model, 0, seed)))


def require_complete(version: ModelVersion, run: Run) -> None:
    """Require a fitted model of every seed; DataError otherwise, because such a version cannot be scored."""
    missing = missing_seeds(run, version.model)
    if missing:
        raise DataError(
            f"{version} is incomplete: {describe_missing(missing)}; run 'peerglass train "
            f"{shlex.quote(str(run.folder.absolute()))}', which trains only what is missing."
        )


def describe_missing(seeds: tuple[int, ...]) -> str:
    """Say which seeds are missing: ``no fitted model of seed 1, 2``."""
    return f"no fitted model of seed {', '.join(map(str, seeds))}"


def audit_verdict(run: Run) -> str | None:
    """Return the worst verdict of a run's last audit; None if none was made."""
    table = run.read_table("audit")
    if table is None:
        return None
    present = set(table["verdict"])
    return next((one for one in ("fail", "warn", "pass") if one in present), "skipped")


def failed_checks(run: Run) -> tuple[str, ...]:
    """Return the names of the checks that failed in a run's last audit."""
    table = run.read_table("audit")
    return () if table is None else tuple(table.filter(pl.col("verdict") == "fail")["check"])


def trained_through(run: Run) -> dt.date:
    """Return the session at whose close a version was trained: it has seen no label that ends later."""
    folds = run.config.folds
    assert folds.scheme == "live", "an opened version was trained for use"
    return folds.through
