"""The stages of a run, each callable alone: ingest, audit, train, backtest, explain, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from pipelines.config import Config, FilesSourceConfig
from pipelines.config_load import build_settings, load_config, override_backtest
from pipelines.dataset import Dataset, build_dataset, plan_folds
from pipelines.errors import ConfigError, DataError
from pipelines.identity import identity_of
from pipelines.ingest import ingest
from pipelines.ingest_summary import IngestStoppedError, describe_ingest
from pipelines.lake import Lake, open_lake
from pipelines.lake_options import is_url, place
from pipelines.lake_readers import record_reader
from pipelines.locks import Locks
from pipelines.progress import Progress
from pipelines.runs import Run, name_run, news, open_run, record_run
from pipelines.secrets import masked
from pipelines.sources.base import LiveSource, Source

if TYPE_CHECKING:
    from pipelines.evaluations import StoredEvaluation

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


def make_source(config: Config) -> Source | LiveSource:
    """Build the source that a config names."""
    wanted = config.source
    if wanted.kind == "simulated":
        from pipelines.sources.simulated import MarketConfig, SimulatedSource

        return SimulatedSource(build_settings(MarketConfig, wanted.market, "source.market"), seed=wanted.seed)
    if wanted.kind == "sample":
        from pipelines.sources.sample import SampleSource

        return SampleSource()
    if wanted.kind == "files":
        return _files_source(wanted)
    if wanted.kind == "yfinance":
        from pipelines.sources.yfinance_source import YFinanceSource

        return YFinanceSource(wanted)
    from pipelines.sources.sec import SecSource

    return SecSource(wanted.tickers, wanted.identity, wanted.start)


def _files_source(wanted: FilesSourceConfig) -> Source:
    from pipelines.sources.files import FilesSource
    from pipelines.sources.files_statements import StatementFiles

    statements = None
    if wanted.fundamentals:
        statements = StatementFiles(
            Path(wanted.fundamentals),
            items=wanted.items,
            assumed_lag_days=wanted.assumed_lag_days,
            months=wanted.statement_months,
            zero_is_unknown=wanted.zero_is_unknown,
            shares_stated=wanted.shares_stated,
        )
    elif wanted.items or wanted.zero_is_unknown or wanted.statement_months:
        raise ConfigError(
            "source.items, zero_is_unknown and statement_months are about source.fundamentals: name its file."
        )
    return FilesSource(
        prices=Path(wanted.prices),
        securities=Path(wanted.securities) if wanted.securities else None,
        layout=wanted.layout,
        statements=statements,
        membership=Path(wanted.membership) if wanted.membership else None,
        inputs=Path(wanted.inputs) if wanted.inputs else None,
        columns=wanted.columns,
        units=wanted.units,
        date_format=wanted.date_format,
        start=wanted.start,
        end=wanted.end,
        hazards=tuple(masked(hazard) for hazard in wanted.hazards),
    )


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


def ingest_config(
    config: Config,
    say: Callable[[str], None] = print,
    progress: Progress | None = None,
    *,
    replace: bool = False,
    wait: bool = False,
) -> None:
    """Fetch a config's source into its lake and say what became of every row, also if the source stops.

    With ``replace``, a delivery may withdraw or change most of what the lake holds. With ``wait``, an ingest
    that another process makes into the lake is waited for, and is an error otherwise.
    """
    progress = progress or Progress()
    lake = open_lake(config, progress.note)
    lake.version("prices")  # raises before anything is written if what is there is not a Delta table
    with Locks(wait=wait, say=progress.note) as locks, progress.stage("ingest"):
        locks.hold_ingest(lake.root)
        try:
            summary = ingest(make_source(config), lake, progress, config.quality, replace=replace)
        except IngestStoppedError as stopped:
            say(describe_ingest(stopped.summary))
            raise
    say(describe_ingest(summary))


def prepare(
    config: Config, progress: Progress, as_of: str | None = None, locks: Locks | None = None
) -> tuple[Run, Dataset, Lake]:
    """Name the run of a config on what its lake holds, now or as of a moment, and build its arrays.

    A command that goes on to write into the run's folder gives its ``locks``.
    """
    from pipelines.init_from import starting_runs

    lake = open_lake(config, progress.note)
    versions = input_versions(lake, as_of)
    starts = starting_runs(config)
    with progress.stage("dataset"):
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        tables = lake.identified(versions)
        dataset = build_dataset(read_tables(lake, versions), config)
        for note in dataset.notes:
            progress.note(note)
        plan_folds(dataset, config)  # too few sessions: say so before a run's folder is there
        run = name_run(config, identity_of(config, dataset, masked(place(lake.root)), tables, starts))
        told = news(run)
        if told is not None:
            progress.note(told)
    if locks is not None:
        locks.hold_run(run.folder)
    record_run(run)
    record_reader(lake, run.run_id, run.versions)
    return run, dataset, lake


def reopen(
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
        locks.hold_run(run.folder)
    return run, *_data_of(run, progress)


def _data_of(run: Run, progress: Progress) -> tuple[Dataset, Lake]:
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


def train_config(config: Config, as_of: str | None = None, *, wait: bool = False) -> str:
    """Train a config's models walk-forward; the run id is the answer."""
    from pipelines.run_tracking import tracked
    from pipelines.walkforward import train

    progress = Progress()
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = prepare(config, progress, as_of, locks)
        with tracked(run, progress):
            train(run, dataset, lake, progress)
    return run.run_id


def backtest_target(
    target: str,
    config: Path | None,
    overrides: list[str],
    output: Path,
    *,
    say: Callable[[str], None],
    as_of: str | None = None,
    wait: bool = False,
) -> None:
    """``peerglass backtest RUN|FILE``; ``--set`` on a RUN adds an evaluation beside those that it has."""
    from pipelines.measuring import describe_evaluation, evaluate_run

    progress = Progress()
    if config is None and not Path(target).is_file():
        if as_of is not None:
            raise ConfigError("--as-of needs --config and a FILE: a run has recorded its data versions.")
        with Locks(wait=wait, say=progress.note) as locks:
            run = open_run(target, output)
            locks.hold_run(run.folder)
            run = replace(run, config=override_backtest(run.config, overrides))
            evaluation = evaluate_run(run, *_data_of(run, progress), progress)
            say(describe_evaluation(evaluation, run.config))
            track_run(run, progress)
        return
    if config is None:
        raise ConfigError(f"{target} is a file: add --config CONFIG to say on which lake, label and costs.")
    from pipelines.signals import backtest_file

    say(backtest_file(Path(target), load_config(config, overrides), progress, as_of))


def explain_run(name: str, output: Path, *, wait: bool = False) -> str:
    """``peerglass explain RUN``."""
    from pipelines.explanation import explain

    progress = Progress()
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = reopen(name, output, progress, locks)
        return explain(run, dataset, lake, progress)


def report_run(name: str, output: Path, wanted: str | None = None, *, wait: bool = False) -> str:
    """``peerglass report RUN``: the report's path; ``wanted`` is an evaluation's id, None the newest."""
    from pipelines.evaluations import find_evaluation, newest_evaluation
    from pipelines.measuring import evaluate_run, missing_now

    progress = Progress()
    with Locks(wait=wait, say=progress.note) as locks:
        run = open_run(name, output)
        locks.hold_run(run.folder)
        evaluation = newest_evaluation(run) if wanted is None else find_evaluation(run, wanted)
        if evaluation is not None:
            run = replace(run, config=evaluation.record.applied_to(run.config))
        dataset, lake = _data_of(run, progress)
        if evaluation is None or evaluation.record.missing != missing_now(run, dataset, lake):
            evaluation = evaluate_run(run, dataset, lake, progress)
        path = write_report(run, evaluation, dataset, lake, progress)
        track_run(run, progress)
    return str(path)


def write_report(
    run: Run, evaluation: StoredEvaluation, dataset: Dataset, lake: Lake, progress: Progress
) -> Path:
    """Render a run with one of its evaluations and answer with the report's path."""
    from pipelines.report.html import render
    from pipelines.report_data import report_data

    with progress.stage("report"):
        if evaluation.record.incomplete is not None:
            progress.note(f"The run is incomplete. Missing: {evaluation.record.incomplete}.")
        return run.write_text("report.html", render(report_data(run, evaluation, dataset, lake)))


def track_run(run: Run, progress: Progress) -> None:
    """Log what a run's folder holds in the tracking store."""
    from pipelines.run_tracking import log_run

    with progress.stage("track"):
        log_run(run)


def run_config(
    config: Config, say: Callable[[str], None], as_of: str | None = None, *, wait: bool = False
) -> Path:
    """Ingest, audit, train, backtest, explain, report; what each stage found is said as soon as it is known.

    With ``as_of`` nothing is ingested, and the lake is read as it was.

    Returns
    -------
    Path
        The report.
    """
    from pipelines.audit.command import audit_before_training
    from pipelines.explanation import explain
    from pipelines.measuring import describe_evaluation, evaluate_run
    from pipelines.run_tracking import tracked
    from pipelines.walkforward import train

    progress = Progress()
    if as_of is None:
        ingest_config(config, say, progress, wait=wait)
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = prepare(config, progress, as_of, locks)
        with tracked(run, progress):
            audit_before_training(run, dataset, lake, progress, say)
            train(run, dataset, lake, progress)
            evaluation = evaluate_run(run, dataset, lake, progress)
            say(f"\n{describe_evaluation(evaluation, config)}\n")
            say(explain(run, dataset, lake, progress))
            path = write_report(run, evaluation, dataset, lake, progress)
    took = "  ".join(f"{stage} {seconds:.0f} s" for stage, seconds in progress.seconds.items())
    say(f"\nrun {run.run_id}  ({took})")
    return path.resolve()
