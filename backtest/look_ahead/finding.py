"""What a check of a signal found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["fail", "warn", "pass", "skipped"]
VERDICTS: tuple[Verdict, ...] = ("fail", "warn", "pass", "skipped")
"""Worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check
        Name of the check.
    verdict
        ``fail``: the signal knows the future. ``warn``: a person should look. ``skipped``: too few data.
    sentence
        What was found, with its numbers.
    value
        The number that decided; None if there is none.
    """

    check: str
    verdict: Verdict
    sentence: str
    value: float | None = None


def worst(findings: list[Finding]) -> Verdict:
    """Return the worst verdict of some findings; ``skipped`` if there are none."""
    return min((one.verdict for one in findings), key=VERDICTS.index, default="skipped")
