"""A recorded run for tests that need no lake."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.lake.options import canonical_location
from pipelines.lake.versions import TableVersion
from pipelines.run.identity import build_identity
from pipelines.run.record import RecordedRun, name_run, record_run
from pipelines.secrets import masked


def recorded(config: Config, versions: Mapping[str, int]) -> RecordedRun:
    """Record a run of a config that read these versions of the lake's tables."""
    names = SimpleNamespace(channel_names=("return",), characteristic_names=("return_1",))
    tables = {table: TableVersion(f"id of {table}", version) for table, version in versions.items()}
    run = name_run(
        config,
        build_identity(config, cast("Dataset", names), masked(canonical_location(config.lake)), tables, {}),
    )
    record_run(run)
    return run
