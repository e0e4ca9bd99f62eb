"""The result of a check and of a whole audit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

from backtest.look_ahead.finding import VERDICTS, Finding, Verdict

_COUNTED: Final = {
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
class Result:
    """The result of one check.

    Attributes
    ----------
    check
        Name in the registry.
    verdict
        ``fail``: results built on this cannot be trusted. ``warn``: a hazard that the reader must judge.
        ``skipped``: the check does not apply, and the sentence gives the reason.
    sentence
        The finding, with the name of its cause.
    evidence
        The numbers behind the sentence; may be empty.
    seconds
        Wall-clock time.
    """

    check: str
    verdict: Verdict
    sentence: str
    evidence: pl.DataFrame = field(default_factory=pl.DataFrame)
    seconds: float = 0.0


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
        present = {result.verdict for result in self.results}
        return next((verdict for verdict in VERDICTS if verdict in present), "skipped")

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
        return json.dumps(
            {
                "verdict": self.verdict,
                "depth": self.depth,
                "counts": counts(self.table),
                "results": [
                    {
                        "check": result.check,
                        "verdict": result.verdict,
                        "sentence": result.sentence,
                        "seconds": round(result.seconds, 3),
                        "evidence": [_plain(row) for row in result.evidence.iter_rows(named=True)],
                    }
                    for result in self.results
                ],
            },
            indent=1,
        )


def of_findings(check: str, findings: Mapping[str, Finding], passed: str) -> Result:
    """Return the result of a check that examined several columns, each with a finding.

    Parameters
    ----------
    check
        Name of the check.
    findings
        Column -> what was found. The sentence of a failure or warning names the column.
    passed
        Beginning of the sentence if nothing was found.
    """
    evidence = pl.DataFrame(
        [(column, one.verdict, one.sentence, one.value) for column, one in findings.items()],
        schema={"column": pl.String, "verdict": pl.String, "sentence": pl.String, "value": pl.Float64},
        orient="row",
    )
    skipped = {column: one.sentence for column, one in findings.items() if one.verdict == "skipped"}
    for verdict in ("fail", "warn"):
        bad = {column: one.sentence for column, one in findings.items() if one.verdict == verdict}
        if bad:
            also = f" Also: {', '.join(list(bad)[1:])}." if len(bad) > 1 else ""
            return Result(check, verdict, f"{next(iter(bad.values()))}{also}", evidence)
    left_out = not_examined(skipped)
    if len(skipped) == len(findings):
        return Result(check, "skipped", left_out, evidence)
    examined = ", ".join(column for column in findings if column not in skipped)
    return Result(check, "pass", f"{passed} (examined: {examined}).{left_out and ' ' + left_out}", evidence)


def not_examined(reasons: Mapping[str, str]) -> str:
    """Say which columns were not examined, by the reason of each; an empty text if there are none."""
    by_reason: dict[str, list[str]] = {}
    for column, reason in reasons.items():
        by_reason.setdefault(reason.rstrip("."), []).append(column)
    parts = [f"{', '.join(columns)} ({reason})" for reason, columns in by_reason.items()]
    return f"Not examined: {'; '.join(parts)}." if parts else ""


def counts(table: pl.DataFrame) -> dict[str, int]:
    """Count the rows of a result table by verdict, worst first; verdicts without rows are left out."""
    by_verdict = dict(table.group_by("verdict").len().iter_rows())
    return {verdict: by_verdict[verdict] for verdict in VERDICTS if verdict in by_verdict}


def summary_line(table: pl.DataFrame) -> str:
    """Format the counts: ``1 failure, 9 passed, 1 warning``."""
    number = counts(table)
    order = ("fail", "pass", "warn", "skipped")
    return ", ".join(f"{number[v]} {_COUNTED[v][number[v] != 1]}" for v in order if v in number)


def describe(audit: Audit) -> str:
    """Format an audit for a terminal: one line per check with verdict and sentence, then the counts."""
    width = max((len(result.check) for result in audit.results), default=0)
    lines = [f"{r.verdict:<8}{r.check:<{width + 2}}{r.sentence}" for r in audit.results]
    return "\n".join([*lines, f"audit: {summary_line(audit.table)}"])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row's values for JSON: dates to text, NaN and infinities to null."""
    plain: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, float):
            plain[key] = value if math.isfinite(value) else None
        else:
            plain[key] = value if isinstance(value, bool | int | str) or value is None else str(value)
    return plain
