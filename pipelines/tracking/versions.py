"""The versions of a lake's tables that are in use by runs of a tracking store, of folders, or of the lake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.schema import Config
from pipelines.errors import TrackingError
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location
from pipelines.lake.upkeep import (
    RecordedVersions,
    flatten_versions,
    group_by_version,
    recorded_by_runs,
    recorded_in_lake,
)
from pipelines.tracking.store import LAKE_TAG, RUN_TAG, VERSIONS_TAG, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun

_FILE = "sqlite:///"


def versions_in_use(config: Config, lake: Lake, folders: Iterable[Path]) -> RecordedVersions:
    """Return the versions of a lake's tables that a vacuum must keep, wherever they are recorded.

    Parameters
    ----------
    config
        Names the tracking store and the output folder.
    lake
        The lake.
    folders
        Further folders of runs.

    Raises
    ------
    TrackingError
        If the store cannot be reached or read, because runs in it may need any version.
    DataError
        If a run's folder cannot be read.
    """
    try:
        in_store = recorded_in_store(config, lake.root)
    except TrackingError as error:
        raise TrackingError(f"Nothing was removed, because runs in the store may need it: {error}") from None
    in_folders = recorded_by_runs(lake, [Path(config.output), *folders])
    sources = (recorded_in_lake(lake), in_folders, in_store)
    return group_by_version(entry for source in sources for entry in flatten_versions(source))


def recorded_in_store(config: Config, root: str) -> RecordedVersions:
    """Return the versions that the runs of a config's tracking store have recorded.

    Runs of all experiments are included, because other configs may use the same lake. A run without a lake
    tag, as logged by older versions of Peerglass, is included for every lake. A local store that does not
    exist has no runs.

    Parameters
    ----------
    config
        Names the store.
    root
        Root of the lake.

    Raises
    ------
    TrackingError
        If the store cannot be reached or the record of a run cannot be read, because it is then unknown which
        versions are needed.
    """
    uri = config.tracking.uri
    if uri.startswith(_FILE):
        path = uri.removeprefix(_FILE).partition("?")[0].removeprefix("file:")
        if not Path(path).is_file():
            return {}
    recorded: list[tuple[str, int, str]] = []
    with store(config) as client:
        for run in _runs(client):
            tags = run.data.tags
            if LAKE_TAG in tags and tags[LAKE_TAG] != canonical_location(root):
                continue
            name = tags.get(RUN_TAG, run.info.run_id)
            try:
                versions = json.loads(tags[VERSIONS_TAG])
                recorded += [(str(table), int(version), name) for table, version in versions.items()]
            except (ValueError, TypeError, AttributeError):
                raise TrackingError(
                    f"The tag {VERSIONS_TAG} of the run {name} in the tracking store {uri} cannot be read, "
                    "so it is unknown which versions the run needs; correct or delete that run in the store."
                ) from None
    return group_by_version(recorded)


def _runs(client: MlflowClient) -> list[StoredRun]:
    """All runs of the store that have recorded versions."""
    experiments: list[str] = []
    token: str | None = None
    while True:
        page = client.search_experiments(page_token=token)
        experiments += [str(experiment.experiment_id) for experiment in page]
        token = page.token
        if not token:
            break
    runs: list[StoredRun] = []
    while experiments:
        page_of_runs = client.search_runs(experiments, f"tags.`{VERSIONS_TAG}` LIKE '%'", page_token=token)
        runs += page_of_runs
        token = page_of_runs.token
        if not token:
            break
    return runs
