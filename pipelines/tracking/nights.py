"""Nights in the tracking store: one MLflow run per night, in the experiment ``<name>-nightly``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from pipelines.config.schema import Config
from pipelines.tracking.store import (
    end_run,
    experiment_of,
    log_artifacts,
    log_metrics,
    log_parameters,
    log_tags,
    milliseconds,
    store,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_CONFIG_TAG: Final = "peerglass.config"
_SESSION_TAG: Final = "peerglass.session"


class TrackedNight(BaseModel):
    """What the store is told about a night; tags may change later, files are relative to its nights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    session: dt.date
    ended_at: dt.datetime
    error: str | None = None
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    files: dict[str, str] = {}


def log_night(config: Config, night: TrackedNight, nights: Path) -> None:
    """Log a night. Logging it again changes only what has changed. A file that is gone is left out."""
    with store(config) as client:
        experiment = experiment_of(client, config, f"{config.tracking.experiment or config.name}-nightly")
        known = _run_of(client, experiment, night)
        mlflow_run = known.info.run_id
        log_tags(client, known, night.tags)
        log_parameters(client, known, {"config": night.config, "session": night.session.isoformat()})
        log_metrics(client, known, {0: night.metrics})
        paths = {place: nights / path for place, path in night.files.items()}
        log_artifacts(client, mlflow_run, {place: path for place, path in paths.items() if path.is_file()})
        end_run(client, known, night.error, night.ended_at)


def _run_of(client: MlflowClient, experiment: str, night: TrackedNight) -> MlflowRun:
    """Return the MLflow run of a night; created if it does not exist."""
    session = night.session.isoformat()
    query = f"tags.`{_CONFIG_TAG}` = '{night.config}' and tags.`{_SESSION_TAG}` = '{session}'"
    known = client.search_runs([experiment], query, max_results=1)
    if known:
        return known[0]
    tags = {_CONFIG_TAG: night.config, _SESSION_TAG: session}
    seconds = night.metrics.get("seconds", 0.0)
    began = milliseconds(night.ended_at - dt.timedelta(seconds=seconds))
    return client.create_run(experiment, start_time=began, tags=tags, run_name=session)
