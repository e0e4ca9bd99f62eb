"""What a check of a night found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check
        Name of the check, such as ``coverage``. A warning is new if the last night had none of this name and
        subject.
    level
        ``ok``, ``warn`` or ``fail``. A failure ends the night.
    sentence
        What was seen, with its number and limit, and the cure if there is one.
    subject
        What it is about, such as a feature or a table; None for the whole night.
    value, limit
        The number that was checked and its limit; None if the check has no number.
    """

    check: str
    level: Literal["ok", "warn", "fail"]
    sentence: str
    subject: str | None = None
    value: float | None = None
    limit: float | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Check and subject: two findings with the same key are about the same thing."""
        return (self.check, self.subject)
