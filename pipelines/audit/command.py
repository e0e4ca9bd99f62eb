"""``peerglass audit CONFIG|RUN``, and the quick audit at the start of ``peerglass run``."""

import datetime as dt
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from backtest.look_ahead.finding import VERDICTS, Result, Verdict, counts, summary_line
from pipelines.audit.checks.skill import high_scores, tests_above_validation
from pipelines.audit.registry import checks_of
from pipelines.audit.subject import Subject, budget
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.tables import input_versions, open_lake, read_tables
from pipelines.errors import AuditError, ConfigError, TrackingError
from pipelines.format import json_rows
from pipelines.ingest.quarantine import open_rejections
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results.forecast_tables import stored_forecasts
from pipelines.run.fetch import ingest_config, make_source
from pipelines.run.locks import Locks
from pipelines.run.open import prepare_run, reopen_run
from pipelines.run.provenance import AuditMade, environment, record
from pipelines.run.record import RecordedRun, record_run
from pipelines.sources.base import LiveSource
from pipelines.sources.settings import FilesSourceConfig
from pipelines.terminal import say

_FILES: Final = ("prices", "securities", "fundamentals", "membership", "inputs")
Depth = Literal["quick", "full"]
_FILE = "audit.json"
_DEGREES: Final = {"proof": "Proof. ", "evidence": "Evidence. "}
RESULT_SCHEMA: Final = {
    **dict.fromkeys(("check", "verdict", "degree", "sentence"), pl.String),
    "seconds": pl.Float64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """The results of all checks, in the registry's order."""

    results: tuple[Result, ...]
    depth: Depth  # ``quick`` within ``peerglass run``, ``full`` otherwise

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return min((result.verdict for result in self.results), key=VERDICTS.index, default="skipped")

    @property
    def failures(self) -> tuple[Result, ...]:
        """Results of failed checks."""
        return tuple(result for result in self.results if result.verdict == "fail")

    @property
    def table(self) -> pl.DataFrame:
        """One row per check: check, verdict, degree, sentence, seconds."""
        rows = [tuple(getattr(result, name) for name in RESULT_SCHEMA) for result in self.results]
        return pl.DataFrame(rows, schema=RESULT_SCHEMA, orient="row")

    def to_json(self, **head: object) -> str:
        """The audit as JSON, including the evidence."""
        results = [
            row | {"seconds": round(row["seconds"], 3), "evidence": json_rows(result.evidence)}
            for row, result in zip(self.table.to_dicts(), self.results, strict=True)
        ]
        head |= {"verdict": self.verdict, "depth": self.depth, "counts": counts(self.table)}
        return json.dumps({**head, "results": results}, indent=1, default=str)


def describe(audit: Audit) -> str:
    """Format an audit for a terminal: one line per check with verdict and sentence, then the counts."""
    width = max((len(result.check) for result in audit.results), default=0)
    lines = [
        f"{r.verdict:<8}{r.check:<{width + 2}}{_DEGREES.get(r.degree, '')}{r.sentence}" for r in audit.results
    ]
    return "\n".join([*lines, f"audit: {summary_line(audit.table)}"])


def make_subject(run: RecordedRun, dataset: Dataset, lake: Lake, depth: Depth, *, fitted: bool) -> Subject:
    """Collect the inputs of the checks of a config, or of a run's checkpoints and forecasts (``fitted``)."""
    tables = read_tables(lake, run.versions, run.config.through)
    return Subject(
        config=run.config,
        tables={name: frame for name, frame in tables.items() if not name.startswith("truth_")},
        dataset=dataset,
        budget=budget(run.config, quick=depth == "quick"),
        quarantine=open_rejections(lake),
        run=run if fitted else None,
        forecasts=stored_forecasts(run, lake) if fitted else None,
        seed=run.config.audit.seed,
    )


def run_checks(subject: Subject, progress: Progress) -> Audit:
    """Run all checks that the config does not skip; ConfigError if it skips an unknown one."""
    skip = subject.config.audit.skip
    checks = checks_of(subject.config)
    if unknown := sorted(set(skip) - set(checks)):
        raise ConfigError(
            f"audit.skip names the unknown check {unknown[0]!r}: choose among {', '.join(checks)}."
        )
    results = []
    with progress.stage("audit", total=len(checks)):
        for name, check in checks.items():
            started = time.perf_counter()
            result = Result(name, "skipped", "Skipped by audit.skip.") if name in skip else check(subject)
            results.append(replace(result, seconds=time.perf_counter() - started))
            progress.step(f"{name}: {result.verdict}")
    return Audit(tuple(results), "quick" if subject.budget.quick else "full")


def save_audit(audit: Audit, run: RecordedRun) -> Path:
    """Write an audit to its run's folder: ``audit.json``, and one table per check with evidence."""
    for stale in (run.folder / "tables").glob("audit*.parquet"):
        stale.unlink()
    run.write_table("audit", audit.table)
    for result in audit.results:
        if not result.evidence.is_empty():
            run.write_table(f"audit_{result.check}", result.evidence)
    seconds = round(sum(result.seconds for result in audit.results), 1)
    depth, verdict, number = audit.depth, audit.verdict, counts(audit.table)
    made = AuditMade(environment=environment(), depth=depth, verdict=verdict, counts=number, seconds=seconds)
    record(run, made)
    return run.write_text(_FILE, audit.to_json(settings=_settings(run)))


def _settings(run: RecordedRun) -> dict[str, Any]:
    """Settings that an audit depends on in addition to the run's identity."""
    return run.config.audit.model_dump(mode="json", include={"sessions", "seed", "skip"})


def has_passed(run: RecordedRun) -> bool:
    """Whether a run's last audit has no failure, and used the current checks and settings."""
    record = _record(run)
    if record is None:
        return False
    failed = any(row["verdict"] == "fail" for row in record["results"])
    known = {row["check"] for row in record["results"]}
    return not failed and known == set(checks_of(run.config)) and record.get("settings") == _settings(run)


def _failed_in_full(run: RecordedRun) -> bool:
    """Whether a run's last audit was a full one and failed; only another full one tells that it passes."""
    record = _record(run)
    return record is not None and (record["depth"], record["verdict"]) == ("full", "fail")


def _record(run: RecordedRun) -> dict[str, Any] | None:
    path = run.folder / _FILE
    record: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return record


def raise_on_failure(audit: Audit, run: RecordedRun) -> None:
    """Raise an AuditError with the names of the failed checks, if there are any."""
    if audit.failures:
        names = ", ".join(result.check for result in audit.failures)
        raise AuditError(
            f"The audit of {run.run_id} failed in {names} ({summary_line(audit.table)}); the evidence is in "
            f"{run.folder / _FILE}. Correct the data or the feature, or remove it from the config."
        )


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
    """Audit a config or a run; print, store and track the result; AuditError if a check failed."""
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
        subject = make_subject(run, dataset, lake, "full", fitted=not is_config)
        if vintage is not None:
            subject = replace(subject, older=read_older(vintage, run.config, lake))
        audit = run_checks(subject, progress)
        if is_config:
            record_run(run, started=False)  # only now: an interrupted audit leaves no run behind
        path = save_audit(audit, run)
        if as_json:
            print(audit.to_json(), flush=True)
        else:
            say(f"{describe(audit)}\n{path}")
        _track(run, failed=bool(audit.failures))
        raise_on_failure(audit, run)


def audit_before_training(
    run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress, echo: Callable[[str], None]
) -> None:
    """Run the quick audit, unless the run has passed one; a failure stops if ``audit.on_failure`` says so.

    The record of a full audit that failed stays, because the guard of a promotion reads it.
    """
    settings = run.config.audit
    if not settings.enabled:
        progress.note("The audit is switched off (audit.enabled).")
        return
    if has_passed(run):
        progress.note("This config has passed its audit on these data; the audit is not repeated.")
        return
    audit = run_checks(make_subject(run, dataset, lake, "quick", fitted=False), progress)
    if not _failed_in_full(run):
        save_audit(audit, run)
    poor = (one for one in audit.results if one.verdict in ("fail", "warn"))
    lines = [f"  {one.verdict}: {one.check}: {one.sentence}" for one in poor]
    echo("\n".join([f"audit: {summary_line(audit.table)}", *lines]))
    if settings.on_failure == "stop" and audit.failures:
        _track(run, failed=True)
        raise_on_failure(audit, run)


def warn_after_training(run: RecordedRun, echo: Callable[[str], None]) -> None:
    """Print what is too good in the results of a run: ICs, net Sharpe ratios, a test far above validation."""
    for finding in (*high_scores(run), *tests_above_validation(run)):
        echo(f"  warn: performance: {finding}")


def _track(run: RecordedRun, *, failed: bool) -> None:
    """Log the audit. If it failed, an unreachable tracking store is reported and does not hide it."""
    from pipelines.tracking.runs import log_audit

    try:
        log_audit(run)
    except TrackingError as error:
        if not failed:
            raise
        say(f"peerglass: {error}", sys.stderr)


def read_older(older: str, config: Config, lake: Lake) -> dict[str, pl.DataFrame]:
    """An earlier delivery: a folder with copies of the source's files, a config, or a state of the lake."""
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
    tables, now = dict(source.fetch().tables), pl.lit(dt.datetime.now(dt.UTC)).dt.cast_time_unit("us")
    tables["prices"] = tables["prices"].with_columns(source=pl.lit(config.source.kind), ingested_at=now)
    return {name: check(name, frame).valid for name, frame in tables.items() if not name.startswith("truth_")}
