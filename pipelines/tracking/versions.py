"""Which versions of a lake's tables the runs of a tracking store have recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.schema import Config
from pipelines.errors import TrackingError
from pipelines.lake.options import place
from pipelines.lake.readers import Recorded, collect
from pipelines.tracking.store import LAKE_TAG, RUN_TAG, VERSIONS_TAG, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun

_FILE = "sqlite:///"


def recorded_in_store(config: Config, root: str) -> Recorded:
    """Return the versions that the runs of a config's tracking store have recorded.

    Runs of every experiment count, since other configs may use the same lake. A run that does not say which
    lake it read, as those of earlier versions, counts for every lake. A local store that was never made has
    no runs.

    Parameters
    ----------
    config
        Names the store.
    root
        The lake in question.

    Raises
    ------
    TrackingError
        If the store cannot be reached, or a run's record cannot be read: which versions are needed is then
        unknown.
    """
    uri = config.tracking.uri
    if uri.startswith(_FILE):
        path = uri.removeprefix(_FILE).partition("?")[0].removeprefix("file:")
        if not Path(path).is_file():
            return {}
    found: list[tuple[str, int, str]] = []
    with store(config) as client:
        for run in _runs(client):
            tags = run.data.tags
            if LAKE_TAG in tags and tags[LAKE_TAG] != place(root):
                continue
            name = tags.get(RUN_TAG, run.info.run_id)
            try:
                versions = json.loads(tags[VERSIONS_TAG])
                found += [(str(table), int(version), name) for table, version in versions.items()]
            except (ValueError, TypeError, AttributeError):
                raise TrackingError(
                    f"The tag {VERSIONS_TAG} of the run {name} in the tracking store {uri} cannot be read, "
                    "so which versions it needs is unknown; mend or delete that run in the store."
                ) from None
    return collect(found)


def _runs(client: MlflowClient) -> list[StoredRun]:
    """Every run of the store that recorded versions."""
    experiments: list[str] = []
    token: str | None = None
    while True:
        page = client.search_experiments(page_token=token)
        experiments += [str(experiment.experiment_id) for experiment in page]
        token = page.token
        if not token:
            break
    found: list[StoredRun] = []
    while experiments:
        runs = client.search_runs(experiments, f"tags.`{VERSIONS_TAG}` LIKE '%'", page_token=token)
        found += runs
        token = runs.token
        if not token:
            break
    return found
