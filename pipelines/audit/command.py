"""``peerglass audit CONFIG|RUN``, and the quick audit at the start of ``peerglass run``."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.audit.checks.skill import high_scores, tests_above_validation
from pipelines.audit.conduct import (
    describe,
    has_passed,
    make_subject,
    raise_on_failure,
    run_checks,
    save_audit,
    summary_line,
)
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.tables import input_versions, open_lake, read_tables
from pipelines.errors import ConfigError, TrackingError
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config, make_source
from pipelines.run.locks import Locks
from pipelines.run.open import prepare_run, reopen_run
from pipelines.run.record import Run, record_run
from pipelines.sources.base import LiveSource
from pipelines.sources.settings import FilesSourceConfig

_FILES: Final = ("prices", "securities", "fundamentals", "membership", "inputs")


def audit_target(
    target: str,
    overrides: list[str],
    output: Path,
    as_of: str | None,
    *,
    vintage: str | None = None,
    as_json: bool,
    wait: bool = False,
) -> None:
    """Audit a config on the data in its lake, or a run with its checkpoints.

    If the lake is empty, its source is ingested first. The audit is printed, one line per check or as JSON,
    and stored in the run's folder and in the tracking store.

    Raises
    ------
    AuditError
        If a check failed.
    """
    progress = Progress()
    is_config = Path(target).is_file() and Path(target).suffix.lower() in (".yaml", ".yml")
    with Locks(wait=wait, notify=progress.note) as locks:
        if is_config:
            config = load_config(Path(target), overrides)
            if not (filled := open_lake(config, progress.note)).exists("prices"):
                progress.note(f"The lake {filled.root} is empty: ingesting its source first.")
                ingest_config(config, progress.note, progress, wait=wait)
            run, dataset, lake = prepare_run(config, progress, as_of, locks, record=False)
        else:
            if overrides or as_of is not None:
                raise ConfigError(
                    "--set and --as-of need a CONFIG: a RUN has fixed settings and data versions."
                )
            run, dataset, lake = reopen_run(target, output, progress, locks)
        tables = read_tables(lake, run.versions, run.config.through)
        subject = make_subject(run, tables, dataset, lake, "full", fitted=not is_config)
        if vintage is not None:
            subject = replace(subject, older=read_older(vintage, run.config, lake))
        audit = run_checks(subject, progress)
        if is_config:
            record_run(run, started=False)  # only now: an interrupted audit leaves no run behind
        path = save_audit(audit, run)
        print(audit.to_json() if as_json else f"{describe(audit)}\n{path}", flush=True)
        _track(run, failed=bool(audit.failures))
        raise_on_failure(audit, run)


def audit_before_training(
    run: Run, dataset: Dataset, lake: Lake, progress: Progress, echo: Callable[[str], None]
) -> None:
    """Run the quick audit before a run is trained, unless the run has already passed one.

    Raises
    ------
    AuditError
        If a check failed and ``audit.on_failure`` is ``stop``.
    """
    settings = run.config.audit
    if not settings.enabled:
        progress.note("The audit is switched off (audit.enabled).")
        return
    if has_passed(run):
        progress.note("This config has passed its audit on these data; the audit is not repeated.")
        return
    tables = read_tables(lake, run.versions, run.config.through)
    audit = run_checks(make_subject(run, tables, dataset, lake, "quick", fitted=False), progress)
    save_audit(audit, run)
    poor = [result for result in audit.results if result.verdict in ("fail", "warn")]
    lines = [f"  {result.verdict}: {result.check}: {result.sentence}" for result in poor]
    echo("\n".join([f"audit: {summary_line(audit.table)}", *lines]))
    if settings.on_failure == "stop" and audit.failures:
        _track(run, failed=True)
        raise_on_failure(audit, run)


def warn_after_training(run: Run, echo: Callable[[str], None]) -> None:
    """Print what is too good in the results of a run: ICs, net Sharpe ratios, a test far above validation."""
    for finding in (*high_scores(run), *tests_above_validation(run)):
        echo(f"  warn: performance: {finding}")


def _track(run: Run, *, failed: bool) -> None:
    """Log the audit. If it failed, an unreachable tracking store is reported and does not hide it."""
    from pipelines.tracking.runs import log_audit

    try:
        log_audit(run)
    except TrackingError as error:
        if not failed:
            raise
        print(f"peerglass: {error}", file=sys.stderr)


def read_older(older: str, config: Config, lake: Lake) -> dict[str, pl.DataFrame]:
    """Read an earlier delivery.

    Parameters
    ----------
    older
        A folder with earlier copies of the files of the config's source, under the same names (files that are
        not there are not compared); or a config whose source reads the earlier delivery; or an earlier state
        of the lake, as for ``--as-of``.
    config
        Config of the data to compare with.
    lake
        Its lake.

    Raises
    ------
    ConfigError
        If ``older`` is none of these, or the source cannot be read again.
    DataError
        If a file cannot be read, or the lake holds no such state.
    """
    path = Path(older)
    if path.is_dir():
        return _from_folder(path, config)
    if path.is_file():
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise ConfigError(
                f"--vintage {older} is a file: give the folder that holds earlier copies of the source's "
                "files, or a config that reads them."
            )
        return _delivered(load_config(path, []))
    return read_tables(lake, input_versions(lake, older), config.through)


def _from_folder(folder: Path, config: Config) -> dict[str, pl.DataFrame]:
    source = config.source
    if not isinstance(source, FilesSourceConfig):
        raise ConfigError(
            f"--vintage {folder} is a folder, but the source of {config.name} is {source.kind}, which reads "
            "no files: give a config or an earlier state of the lake."
        )
    given = {name: getattr(source, name) for name in _FILES if getattr(source, name) is not None}
    copies = {name: folder / Path(str(file)).name for name, file in given.items()}
    found = {name: str(file) for name, file in copies.items() if file.exists()}
    if not found:
        names = ", ".join(file.name for file in copies.values())
        raise ConfigError(f"--vintage {folder} holds none of the source's files ({names}).")
    absent = {name: None for name in given if name not in found and name != "prices"}
    tables = _delivered(config.model_copy(update={"source": source.model_copy(update={**found, **absent})}))
    return {name: frame for name, frame in tables.items() if name in found}


def _delivered(config: Config) -> dict[str, pl.DataFrame]:
    source = make_source(config)
    if isinstance(source, LiveSource):
        raise ConfigError(f"The source of {config.name} is live and cannot deliver an earlier state again.")
    tables: Mapping[str, pl.DataFrame] = source.fetch().tables
    now = pl.lit(dt.datetime.now(dt.UTC)).dt.cast_time_unit("us")
    stamped = {
        name: frame.with_columns(source=pl.lit(config.source.kind), ingested_at=now)
        if name == "prices"
        else frame
        for name, frame in tables.items()
    }
    return {
        name: check(name, frame).valid for name, frame in stamped.items() if not name.startswith("truth_")
    }
