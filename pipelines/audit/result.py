"""What a check answers, and what an audit adds up to."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

Verdict = Literal["pass", "fail", "warn", "skipped"]
VERDICTS: Final[tuple[Verdict, ...]] = ("fail", "warn", "pass", "skipped")
"""Worst first."""

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
    """The answer of one check.

    Attributes
    ----------
    check
        Name in the registry.
    verdict
        ``fail``: numbers built on this cannot be believed. ``warn``: a hazard that a reader has to weigh.
        ``skipped``: there was nothing to look at, and the sentence says what is missing.
    sentence
        What was found, naming the culprit.
    evidence
        The numbers behind the sentence; empty where there is nothing to show.
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
    """The answers of all checks, in the registry's order.

    Attributes
    ----------
    results
        One a check.
    depth
        ``quick`` within ``peerglass run``, ``full`` otherwise.
    """

    results: tuple[Result, ...]
    depth: Literal["quick", "full"]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all."""
        found = {result.verdict for result in self.results}
        return next((verdict for verdict in VERDICTS if verdict in found), "skipped")

    @property
    def failures(self) -> tuple[Result, ...]:
        """What failed."""
        return tuple(result for result in self.results if result.verdict == "fail")

    @property
    def table(self) -> pl.DataFrame:
        """One row a check: check, verdict, sentence, seconds."""
        rows = [(r.check, r.verdict, r.sentence, r.seconds) for r in self.results]
        return pl.DataFrame(rows, schema=RESULT_SCHEMA, orient="row")

    def to_json(self) -> str:
        """Write everything, evidence included, as JSON."""
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


def counts(table: pl.DataFrame) -> dict[str, int]:
    """Count a result table's rows by verdict, those that are there, worst first."""
    found = dict(table.group_by("verdict").len().iter_rows())
    return {verdict: found[verdict] for verdict in VERDICTS if verdict in found}


def summary_line(table: pl.DataFrame) -> str:
    """Say the counts in words: ``1 failure, 9 passed, 1 warning``."""
    number = counts(table)
    order = ("fail", "pass", "warn", "skipped")
    return ", ".join(f"{number[v]} {_COUNTED[v][number[v] != 1]}" for v in order if v in number)


def describe(audit: Audit) -> str:
    """Write an audit for a terminal: verdict, check and sentence, a line each, and the counts."""
    width = max((len(result.check) for result in audit.results), default=0)
    lines = [f"{r.verdict:<8}{r.check:<{width + 2}}{r.sentence}" for r in audit.results]
    return "\n".join([*lines, f"audit: {summary_line(audit.table)}"])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Make a row's values JSON's: dates as text, what is no number as null."""
    plain: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, float):
            plain[key] = value if math.isfinite(value) else None
        else:
            plain[key] = value if isinstance(value, bool | int | str) or value is None else str(value)
    return plain
