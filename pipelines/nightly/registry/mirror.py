"""The registry's aliases in MLflow: a copy of what the lake's table ``promotions`` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.registry.aliases import challenger, champion
from pipelines.nightly.registry.versions import open_version
from pipelines.nightly.version import ModelVersion
from pipelines.progress import Progress
from pipelines.tracking.model_versions import set_aliases
from pipelines.tracking.runs import log_run


def mirror_aliases(config: Config, lake: Lake, progress: Progress) -> tuple[ModelVersion, ...]:
    """Send the champion's and the challenger's runs to the tracking store, and set MLflow's aliases.

    A run that is gone from the output folder is not sent. Its version keeps its alias if MLflow has it.

    Parameters
    ----------
    config
        The config; its tracking store is used also for runs that were made with another.
    lake
        Lake with the table ``promotions``.
    progress
        Reports the stage.

    Returns
    -------
    tuple of ModelVersion
        The versions that have an alias.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached.
    """
    named = {"champion": champion(lake, config.name), "challenger": challenger(lake, config.name)}
    with progress.stage("track"):
        for version in named.values():
            if version is not None:
                _log(version, config, progress)
        pairs = {
            alias: None if version is None else (version.run_id, version.model)
            for alias, version in named.items()
        }
        set_aliases(config, pairs)
    return tuple(version for version in named.values() if version is not None)


def _log(version: ModelVersion, config: Config, progress: Progress) -> None:
    try:
        run = open_version(version, Path(config.output))
    except DataError as error:
        progress.note(f"{error} It is not sent to the tracking store.")
        return
    log_run(replace(run, config=run.config.model_copy(update={"tracking": config.tracking})))
