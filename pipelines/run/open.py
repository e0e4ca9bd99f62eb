"""Prepare a run on the data in a lake, and open an earlier run on exactly the data that it recorded."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from features.panel.derived import forget
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import benchmark_closes, published_factors, require_closes
from pipelines.dataset.build import Dataset, add_features
from pipelines.dataset.folds import plan_folds
from pipelines.dataset.market import Market, build_market
from pipelines.dataset.memory import require_memory
from pipelines.dataset.tables import (
    describe_as_of,
    input_versions,
    newest_tickers,
    open_lake,
    read_market_tables,
    read_tables,
)
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location, is_url
from pipelines.lake.upkeep import record_reader
from pipelines.machine import this_machine
from pipelines.progress import Progress
from pipelines.run.identity import build_identity, feature_store
from pipelines.run.locks import Locks
from pipelines.run.record import RecordedRun, describe_changes, name_run, open_run, record_run
from pipelines.run.stored import StoredRun
from pipelines.run.warm_start import warm_start_runs
from pipelines.secrets import masked


def prepare_run(
    config: Config,
    progress: Progress,
    as_of: str | None = None,
    locks: Locks | None = None,
    *,
    record: bool = True,
) -> tuple[RecordedRun, Dataset, Lake]:
    """Create the run of a config on its lake, or continue the same one; record it, build its dataset."""
    lake = open_lake(config, progress.note)
    versions = input_versions(lake, as_of)
    warm_start_runs(config)  # raises before the dataset is built
    if config.execution.engine != "ray":  # Ray places tasks on machines with enough memory
        require_memory(config, lake.count("prices", versions["prices"]), this_machine())
    with progress.stage("dataset"):
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        dataset = read_dataset(config, lake, versions, progress)
        for note in dataset.notes:
            progress.note(note)
    run = create_run(config, lake, versions, dataset, progress, locks)
    if record:
        record_run(run)
    return run, dataset, lake


def create_run(  # noqa: PLR0917  (the data, then who is told and what is locked)
    config: Config,
    lake: Lake,
    versions: Mapping[str, int],
    dataset: Dataset,
    progress: Progress,
    locks: Locks | None,
) -> RecordedRun:
    """Create the run of a config on a dataset; the lake records which versions it reads."""
    tested = [fold.test for fold in plan_folds(dataset, config) if len(fold.test)]
    if tested:  # a night reads neither indices nor factors
        sessions = np.concatenate(tested)
        label, delay = config.label, config.backtest.delay
        after = (max(label.delays) if delay is None else delay) + label.horizon + 1  # as books are held
        held = slice(int(sessions.min()), min(int(sessions.max()) + after, dataset.panel.n_sessions))
        for name, close_T in benchmark_closes(config.backtest.benchmarks, dataset.panel).items():
            require_closes(name, close_T, dataset.panel, held)
        published_factors(config.backtest.factors, dataset.panel)  # raises before anything is trained
    location, tables = masked(canonical_location(lake.root)), lake.with_table_ids(versions)
    run = name_run(config, build_identity(config, dataset, location, tables, warm_start_runs(config)))
    if (changes := describe_changes(run)) is not None:
        progress.note(changes)
    if locks is not None:
        locks.lock_run(run.folder)
        StoredRun(run).fetch()
    record_reader(lake, run.run_id, run.versions)
    return run


def reopen_run(
    name: str, output: Path, progress: Progress, locks: Locks | None = None
) -> tuple[RecordedRun, Dataset, Lake]:
    """Open an earlier run and build its dataset from exactly the data versions that it recorded."""
    run = open_run(name, output)
    if locks is not None:
        locks.lock_run(run.folder)
    return run, *load_run_data(run, progress)


def load_run_data(run: RecordedRun, progress: Progress) -> tuple[Dataset, Lake]:
    """Build a run's dataset from exactly the data versions that it recorded."""
    lake = _lake_of(run, progress)
    with progress.stage("dataset"):
        return read_dataset(run.config, lake, run.versions, progress), lake


def read_dataset(config: Config, lake: Lake, versions: Mapping[str, int], progress: Progress) -> Dataset:
    """Build a dataset whose features are in the feature store."""
    market = _read_market(config, lake, versions)
    inputs = {table: version for table, version in versions.items() if table == "inputs"}
    tables = read_tables(lake, inputs, config.through) if inputs else {}
    dataset = add_features(market, tables, config, feature_store(config, progress))
    forget(market.panel)
    return dataset


def _read_market(config: Config, lake: Lake, versions: Mapping[str, int]) -> Market:
    tables = read_market_tables(lake, versions, config.through)
    return build_market(tables, config, newest_tickers(lake, versions, config.through))


def load_run_market(run: RecordedRun, progress: Progress) -> tuple[Market, Lake]:
    """Build prices, universe and labels from the data versions that a run recorded, without features."""
    lake = _lake_of(run, progress)
    with progress.stage("prices"):
        return _read_market(run.config, lake, run.versions), lake


def _lake_of(run: RecordedRun, progress: Progress) -> Lake:
    """The lake of a run, at the place where the run recorded it, if it holds the run's tables."""
    location = run.config.lake if is_url(run.identity.lake) else run.identity.lake
    lake = Lake(location, run.config.lake_options, progress.note)
    for table, recorded in run.tables.items():
        if not lake.exists(table):
            raise DataError(
                f"Run {run.run_id} was made on the table {table} of {lake.root}, which no longer exists; "
                "restore the lake at that location, or run the config again to make a new run."
            )
        if lake.with_table_ids({table: recorded.version})[table].id != recorded.id:
            raise DataError(
                f"Run {run.run_id} was made on a table {table} of {lake.root} that has since been deleted "
                "and created again; restore the lake, or run the config again to make a new run."
            )
    return lake
