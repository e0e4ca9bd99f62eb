"""What a question found, and what a check says of all its findings.

The guard on signal files, the audit and the nights ask the same questions; each answer is a `Finding`. A
check is a group of questions, and `conclude` makes its `Result`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

Verdict = Literal["fail", "warn", "pass", "skipped"]
VERDICTS: tuple[Verdict, ...] = ("fail", "warn", "pass", "skipped")  # worst first
Degree = Literal["proof", "evidence", "nothing found", "not checkable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question."""

    check: str  # the question, such as ``choice of rows``
    # ``fail``: the data know the future. ``warn``: a person should look. ``skipped``: too few data
    verdict: Verdict
    sentence: str = ""  # what was found, with its numbers; for ``skipped``, the reason
    value: float | None = None  # the number that decided, and its limit, if there are any
    limit: float | None = None
    subject: str = ""  # what was examined, such as a column; empty for the whole


def judged_by(  # noqa: PLR0917  (a question, its answer, and what decided)
    check: str, bad: bool, sentence: str, value: float, limit: float | None = None, worst: Verdict = "fail"
) -> Finding:
    """Return a finding that passes unless what was found is bad; ``worst`` is the verdict then."""
    return Finding(check, worst if bad else "pass", sentence, value, limit)


_EVIDENCE: Final = {
    **dict.fromkeys(("subject", "check", "verdict"), pl.String),
    **dict.fromkeys(("value", "limit"), pl.Float64),
    "sentence": pl.String,
}


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a check says."""

    check: str
    # ``fail``: results built on this cannot be trusted. ``warn``: a hazard that the reader must judge.
    # ``skipped``: the check does not apply, and the sentence gives the reason
    verdict: Verdict
    sentence: str  # the finding, with the name of its cause
    evidence: pl.DataFrame = field(default_factory=pl.DataFrame)  # numbers behind the sentence; may be empty
    seconds: float = 0.0  # wall-clock time
    exact: bool = False  # whether no honest data can fail

    @property
    def degree(self) -> Degree:
        """How certain the finding is: a failure of an exact check is a proof, any other finding is evidence.

        >>> Result("future", "fail", "Channel return used future data.", exact=True).degree
        'proof'
        """
        if self.verdict in ("fail", "warn"):
            return "proof" if self.exact and self.verdict == "fail" else "evidence"
        return "nothing found" if self.verdict == "pass" else "not checkable"


_SUMMARY: Final = {
    "fail": ("failure", "failures"),
    "pass": ("passed", "passed"),
    "warn": ("warning", "warnings"),
    "skipped": ("skipped", "skipped"),
}


def answer(verdict: Verdict, sentence: str, rows: Iterable[Mapping[str, Any]] | pl.DataFrame = ()) -> Result:
    """Return a result whose check is named later (by the registry), with a table or rows of evidence."""
    if not isinstance(rows, pl.DataFrame):
        rows = pl.DataFrame(list(rows), infer_schema_length=None)
    return Result("", verdict, sentence, rows)


def skipped(sentence: str) -> Result:
    """Return the result of a check that examined nothing, for a reason."""
    return answer("skipped", sentence)


def conclude(findings: Iterable[Finding], passed: str, rows: pl.DataFrame | None = None) -> Result:
    """Return the result of a check from its findings.

    A failure, or else a warning, speaks for the check; the first one counts, and the others are named after
    it. If no finding examined anything, the check is skipped, and the sentence gives the reasons.

    ``passed`` is the sentence if nothing was found; ``{n}`` and ``{names}`` in it are the number and names of
    the subjects that were examined. The evidence is the findings themselves, or ``rows``.
    """
    found = list(findings)
    if rows is None:
        rows = pl.DataFrame(
            [tuple(getattr(one, name) for name in _EVIDENCE) for one in found], _EVIDENCE, orient="row"
        )
    bad = sorted((one for one in found if one.verdict in ("fail", "warn")), key=lambda one: one.verdict)
    if bad:
        others = [named for one in bad[1:] if (named := _named(one)) != bad[0].subject]
        also = f" Also: {', '.join(dict.fromkeys(others))}." if others else ""
        return answer(bad[0].verdict, f"{bad[0].sentence}{also}", rows)
    examined = list(dict.fromkeys(one.subject for one in found if one.verdict != "skipped"))
    skips = [one for one in found if one.verdict == "skipped" and (one.subject or None) not in examined]
    left_out = not_examined({one.subject or one.check: one.sentence for one in skips})
    if found and not examined:
        return answer("skipped", left_out, rows)
    sentence = passed.replace("{n}", f"{len(examined)}").replace("{names}", ", ".join(examined))
    return answer("pass", f"{sentence} {left_out}".rstrip(), rows)


def not_examined(reasons: Mapping[str, str]) -> str:
    """Say which subjects were not examined, by the reason of each; an empty text if there are none."""
    by_reason: dict[str, list[str]] = {}
    for subject, reason in reasons.items():
        by_reason.setdefault(reason.rstrip("."), []).append(subject)
    parts = [f"{', '.join(subjects)} ({reason})" for reason, subjects in by_reason.items()]
    return f"Not examined: {'; '.join(parts)}." if parts else ""


def _named(one: Finding) -> str:
    if one.subject or one.value is None or one.limit is None:
        return one.subject or one.check
    return f"{one.check} {one.value:.3g} (limit {one.limit:g})"


def counts(table: pl.DataFrame) -> dict[str, int]:
    """Count the rows of a result table by verdict, worst first; verdicts without rows are left out."""
    by_verdict = dict(table.group_by("verdict").len().iter_rows())
    return {verdict: by_verdict[verdict] for verdict in VERDICTS if verdict in by_verdict}


def summary_line(table: pl.DataFrame) -> str:
    """Format the counts: ``1 failure, 9 passed, 1 warning``."""
    number = counts(table)
    return ", ".join(f"{number[v]} {words[number[v] != 1]}" for v, words in _SUMMARY.items() if v in number)
