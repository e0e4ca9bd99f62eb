"""Making an audit: every check in turn, its tables in the run's folder, its verdict as an exit code."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.audit.registry import CHECKS
from pipelines.audit.result import Audit, Result, counts, summary_line
from pipelines.audit.subject import Subject, budget
from pipelines.dataset.build import Dataset
from pipelines.errors import AuditError, ConfigError
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.quality.quarantine import open_rejections
from pipelines.results.horizons import stored_forecasts
from pipelines.run.provenance import AuditMade, environment, record
from pipelines.run.record import Run

Depth = Literal["quick", "full"]
_FILE = "audit.json"


def make_subject(
    run: Run, tables: dict[str, pl.DataFrame], dataset: Dataset, lake: Lake, depth: Depth, *, fitted: bool
) -> Subject:
    """Gather what the checks read.

    Parameters
    ----------
    run
        The run, or the one that a config would be.
    tables, dataset
        The lake's tables at the run's versions, and the arrays built from them.
    lake
        Gives quarantine and stored forecasts.
    depth
        How much may be spent.
    fitted
        Whether the run's checkpoints and stored forecasts are audited, rather than its config.
    """
    forecasts = stored_forecasts(run, lake) if fitted else None
    return Subject(
        config=run.config,
        tables={name: frame for name, frame in tables.items() if not name.startswith("truth_")},
        dataset=dataset,
        budget=budget(run.config, quick=depth == "quick"),
        quarantine=open_rejections(lake),
        run=run if fitted else None,
        forecasts=forecasts,
        seed=run.config.audit.seed,
    )


def run_checks(subject: Subject, progress: Progress) -> Audit:
    """Make every check that the config does not skip.

    Raises
    ------
    ConfigError
        If ``audit.skip`` names a check that does not exist.
    """
    skip = subject.config.audit.skip
    if unknown := sorted(set(skip) - set(CHECKS)):
        raise ConfigError(
            f"audit.skip names {unknown[0]!r}, which is no check; the checks are {', '.join(CHECKS)}."
        )
    results = []
    with progress.stage("audit", total=len(CHECKS)):
        for name, check in CHECKS.items():
            started = time.perf_counter()
            left_out = Result(name, "skipped", "Left out by audit.skip.")
            result = left_out if name in skip else check(subject)
            results.append(replace(result, seconds=time.perf_counter() - started))
            progress.step(f"{name}: {result.verdict}")
    return Audit(tuple(results), "quick" if subject.budget.quick else "full")


def save_audit(audit: Audit, run: Run) -> Path:
    """Write an audit into its run's folder: ``audit.json``, and a table for each check's evidence."""
    for stale in (run.folder / "tables").glob("audit*.parquet"):
        stale.unlink()
    run.write_table("audit", audit.table)
    for result in audit.results:
        if not result.evidence.is_empty():
            run.write_table(f"audit_{result.check}", result.evidence)
    event = AuditMade(
        environment=environment(),
        depth=audit.depth,
        verdict=audit.verdict,
        counts=counts(audit.table),
        seconds=round(sum(result.seconds for result in audit.results), 1),
    )
    record(run, event)
    whole = {"settings": _settings(run), **json.loads(audit.to_json())}
    return run.write_text(_FILE, json.dumps(whole, indent=1))


def _settings(run: Run) -> dict[str, Any]:
    """What an audit depends on beside the run's identity."""
    return run.config.audit.model_dump(mode="json", include={"sessions", "seed", "skip"})


def has_passed(run: Run) -> bool:
    """Whether a run's last audit failed nowhere, and was made with today's checks and these settings.

    A run has one identity, code included: a changed feature is another run, without an audit.
    """
    path = run.folder / _FILE
    if not path.is_file():
        return False
    record = json.loads(path.read_text())
    failed = any(row["verdict"] == "fail" for row in record["results"])
    known = {row["check"] for row in record["results"]}
    return not failed and known == set(CHECKS) and record.get("settings") == _settings(run)


def raise_on_failure(audit: Audit, run: Run) -> None:
    """Raise if anything failed.

    Raises
    ------
    AuditError
        Naming what failed.
    """
    failures = audit.failures
    if failures:
        names = ", ".join(result.check for result in failures)
        raise AuditError(
            f"The audit of {run.run_id} failed in {names} ({summary_line(audit.table)}); the evidence is in "
            f"{run.folder / _FILE}. Mend the data or the feature, or take it out of the config."
        )
