"""Starting a run on what a lake holds, and opening one again on exactly the data that it recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset, plan_folds
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import is_url, place
from pipelines.lake.readers import record_reader
from pipelines.progress import Progress
from pipelines.run.identity import build_identity
from pipelines.run.locks import Locks
from pipelines.run.record import Run, describe_changes, name_run, open_run, record_run
from pipelines.run.warm_start import warm_start_runs
from pipelines.secrets import masked

INPUT_TABLES = (
    "prices",
    "securities",
    "fundamentals",
    "membership",
    "inputs",
    "truth_mu",
    "truth_edges",
    "truth_days",
)


def open_lake(config: Config, say: Callable[[str], None] | None = None) -> Lake:
    """Return a config's lake; ``say`` is told when another writer was first."""
    return Lake(config.lake, config.lake_options, say)


def read_tables(lake: Lake, versions: dict[str, int]) -> dict[str, pl.DataFrame]:
    """Read the input tables of a run at the versions it recorded, without those that were withdrawn whole."""
    tables = {table: lake.read(table, version=version) for table, version in versions.items()}
    return {table: frame for table, frame in tables.items() if frame.height}


def input_versions(lake: Lake, as_of: str | None = None) -> dict[str, int]:
    """Versions of the tables that a run reads: the newest, or those of an earlier moment.

    Parameters
    ----------
    lake
        Where the tables are.
    as_of
        What ``--as-of`` says (`Lake.versions_as_of`); None for the newest.

    Raises
    ------
    DataError
        If nothing has been ingested yet, or nothing by then.
    ConfigError
        If ``as_of`` is neither a version nor a date or time.
    """
    there = lake.versions() if as_of is None else lake.versions_as_of(as_of)
    versions = {table: version for table, version in there.items() if table in INPUT_TABLES}
    if "prices" not in versions:
        raise DataError(f"The lake {lake.root} holds no prices yet; run 'peerglass ingest CONFIG' first.")
    return versions


def describe_as_of(as_of: str, versions: Mapping[str, int]) -> str:
    """Say which version of each table an ``--as-of`` means."""
    listed = ", ".join(f"{table} version {version}" for table, version in versions.items())
    return f"as of {as_of}: {listed}"


def prepare_run(
    config: Config, progress: Progress, as_of: str | None = None, locks: Locks | None = None
) -> tuple[Run, Dataset, Lake]:
    """Name the run of a config on what its lake holds, now or as of a moment, and build its arrays.

    A command that goes on to write into the run's folder gives its ``locks``.
    """
    lake = open_lake(config, progress.note)
    versions = input_versions(lake, as_of)
    starts = warm_start_runs(config)
    with progress.stage("dataset"):
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        tables = lake.identified(versions)
        dataset = build_dataset(read_tables(lake, versions), config)
        for note in dataset.notes:
            progress.note(note)
        plan_folds(dataset, config)  # too few sessions: say so before a run's folder is there
        run = name_run(config, build_identity(config, dataset, masked(place(lake.root)), tables, starts))
        told = describe_changes(run)
        if told is not None:
            progress.note(told)
    if locks is not None:
        locks.lock_run(run.folder)
    record_run(run)
    record_reader(lake, run.run_id, run.versions)
    return run, dataset, lake


def reopen_run(
    name: str, output: Path, progress: Progress, locks: Locks | None = None
) -> tuple[Run, Dataset, Lake]:
    """Open a finished run and build its arrays from exactly the data that it recorded.

    A command that goes on to write into the run's folder gives its ``locks``.

    Raises
    ------
    DataError
        If its lake does not hold the tables any more that it was made on.
    """
    run = open_run(name, output)
    if locks is not None:
        locks.lock_run(run.folder)
    return run, *load_run_data(run, progress)


def load_run_data(run: Run, progress: Progress) -> tuple[Dataset, Lake]:
    """Build a run's arrays from exactly the data that it recorded; DataError if its lake lost them."""
    assert run.identity is not None, "a run that is opened has recorded its identity"
    where = run.config.lake if is_url(run.identity.lake) else run.identity.lake
    lake = Lake(where, run.config.lake_options, progress.note)
    _require_same_tables(run, lake)
    with progress.stage("dataset"):
        return build_dataset(read_tables(lake, dict(run.versions)), run.config), lake


def _require_same_tables(run: Run, lake: Lake) -> None:
    for table, recorded in run.tables.items():
        if not lake.exists(table):
            raise DataError(
                f"Run {run.run_id} was made on the table {table} of {lake.root}, which is gone; restore "
                "the lake at that place, or run the config again for a new run."
            )
        if lake.identified({table: recorded.version})[table].id != recorded.id:
            raise DataError(
                f"Run {run.run_id} was made on another table {table} than the one in {lake.root}, which was "
                "deleted and made again since; restore the lake, or run the config again for a new run."
            )
