"""An audit: all checks in turn, their tables in the run's folder, and the verdict as an exit code."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from backtest.look_ahead.finding import VERDICTS, Result, Verdict
from pipelines.audit.registry import CHECKS
from pipelines.audit.subject import Subject, budget
from pipelines.dataset.build import Dataset
from pipelines.errors import AuditError, ConfigError
from pipelines.ingest.quarantine import open_rejections
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results.forecast_tables import stored_forecasts
from pipelines.run.provenance import AuditMade, environment, record
from pipelines.run.record import Run

Depth = Literal["quick", "full"]
_FILE = "audit.json"
_SUMMARY: Final = {
    "fail": ("failure", "failures"),
    "pass": ("passed", "passed"),
    "warn": ("warning", "warnings"),
    "skipped": ("skipped", "skipped"),
}
RESULT_SCHEMA: Final = {
    "check": pl.String,
    "verdict": pl.String,
    "sentence": pl.String,
    "seconds": pl.Float64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """The results of all checks, in the registry's order.

    Attributes
    ----------
    results
        One per check.
    depth
        ``quick`` within ``peerglass run``, ``full`` otherwise.
    """

    results: tuple[Result, ...]
    depth: Literal["quick", "full"]

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
        """One row per check: check, verdict, sentence, seconds."""
        rows = [(r.check, r.verdict, r.sentence, r.seconds) for r in self.results]
        return pl.DataFrame(rows, schema=RESULT_SCHEMA, orient="row")

    def to_json(self) -> str:
        """Return the audit as JSON, including the evidence."""
        results = [
            {
                "check": result.check,
                "verdict": result.verdict,
                "sentence": result.sentence,
                "seconds": round(result.seconds, 3),
                "evidence": [
                    {key: _plain(value) for key, value in row.items()}
                    for row in result.evidence.iter_rows(named=True)
                ],
            }
            for result in self.results
        ]
        head = {"verdict": self.verdict, "depth": self.depth, "counts": counts(self.table)}
        return json.dumps({**head, "results": results}, indent=1)


def counts(table: pl.DataFrame) -> dict[str, int]:
    """Count the rows of a result table by verdict, worst first; verdicts without rows are left out."""
    by_verdict = dict(table.group_by("verdict").len().iter_rows())
    return {verdict: by_verdict[verdict] for verdict in VERDICTS if verdict in by_verdict}


def summary_line(table: pl.DataFrame) -> str:
    """Format the counts: ``1 failure, 9 passed, 1 warning``."""
    number = counts(table)
    return ", ".join(f"{number[v]} {words[number[v] != 1]}" for v, words in _SUMMARY.items() if v in number)


def describe(audit: Audit) -> str:
    """Format an audit for a terminal: one line per check with verdict and sentence, then the counts."""
    width = max((len(result.check) for result in audit.results), default=0)
    lines = [f"{r.verdict:<8}{r.check:<{width + 2}}{r.sentence}" for r in audit.results]
    return "\n".join([*lines, f"audit: {summary_line(audit.table)}"])


def _plain(value: object) -> object:
    """Convert a value for JSON: dates to text, NaN and infinities to null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def make_subject(
    run: Run, tables: dict[str, pl.DataFrame], dataset: Dataset, lake: Lake, depth: Depth, *, fitted: bool
) -> Subject:
    """Collect the inputs of the checks of a run, or of the run that a config would produce.

    ``fitted`` says whether the run's checkpoints and stored forecasts are audited instead of its config.
    """
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
    """Run all checks that the config does not skip.

    Raises
    ------
    ConfigError
        If ``audit.skip`` names an unknown check.
    """
    skip = subject.config.audit.skip
    if unknown := sorted(set(skip) - set(CHECKS)):
        raise ConfigError(
            f"audit.skip names the unknown check {unknown[0]!r}: choose among {', '.join(CHECKS)}."
        )
    results = []
    with progress.stage("audit", total=len(CHECKS)):
        for name, check in CHECKS.items():
            started = time.perf_counter()
            result = Result(name, "skipped", "Skipped by audit.skip.") if name in skip else check(subject)
            results.append(replace(result, seconds=time.perf_counter() - started))
            progress.step(f"{name}: {result.verdict}")
    return Audit(tuple(results), "quick" if subject.budget.quick else "full")


def save_audit(audit: Audit, run: Run) -> Path:
    """Write an audit to its run's folder: ``audit.json``, and one table per check with evidence."""
    for stale in (run.folder / "tables").glob("audit*.parquet"):
        stale.unlink()
    run.write_table("audit", audit.table)
    for result in audit.results:
        if not result.evidence.is_empty():
            run.write_table(f"audit_{result.check}", result.evidence)
    seconds = round(sum(result.seconds for result in audit.results), 1)
    event = AuditMade(
        environment=environment(),
        depth=audit.depth,
        verdict=audit.verdict,
        counts=counts(audit.table),
        seconds=seconds,
    )
    record(run, event)
    whole = {"settings": _settings(run), **json.loads(audit.to_json())}
    return run.write_text(_FILE, json.dumps(whole, indent=1))


def _settings(run: Run) -> dict[str, Any]:
    """Settings that an audit depends on in addition to the run's identity."""
    return run.config.audit.model_dump(mode="json", include={"sessions", "seed", "skip"})


def has_passed(run: Run) -> bool:
    """Whether a run's last audit has no failure, and used the current checks and settings.

    The identity of a run includes its code: changing a feature makes a new run, which has no audit yet.
    """
    path = run.folder / _FILE
    if not path.is_file():
        return False
    record = json.loads(path.read_text())
    failed = any(row["verdict"] == "fail" for row in record["results"])
    known = {row["check"] for row in record["results"]}
    return not failed and known == set(CHECKS) and record.get("settings") == _settings(run)


def raise_on_failure(audit: Audit, run: Run) -> None:
    """Raise if a check failed.

    Raises
    ------
    AuditError
        With the names of the failed checks.
    """
    failures = audit.failures
    if failures:
        names = ", ".join(result.check for result in failures)
        raise AuditError(
            f"The audit of {run.run_id} failed in {names} ({summary_line(audit.table)}); the evidence is in "
            f"{run.folder / _FILE}. Correct the data or the feature, or remove it from the config."
        )
