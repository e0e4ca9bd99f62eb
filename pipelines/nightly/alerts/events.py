"""What a night has to tell: a failure, a warning that the last night did not have, or a recovery."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

import polars as pl

from pipelines.nightly.finding import Finding
from pipelines.nightly.result import NightResult
from pipelines.nightly.table import read_warnings
from pipelines.secrets import redact

Kind = Literal["failure", "warning", "recovery"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One message.

    Attributes
    ----------
    kind
        ``failure``, ``warning`` or ``recovery``.
    title, text
        One line, and the sentences under it, without secrets.
    findings
        The findings that it is about.
    """

    kind: Kind
    title: str
    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def key(self) -> str:
        """The same for two alerts about the same thing: digest of kind, title and checks."""
        about = repr((self.kind, self.title, sorted((f.check, f.subject or "") for f in self.findings)))
        return hashlib.sha256(about.encode()).hexdigest()[:16]

    def document(self, result: NightResult) -> dict[str, Any]:
        """The alert as JSON for a command."""
        return {
            "kind": self.kind,
            "title": self.title,
            "text": self.text,
            "config": result.config,
            "session": str(result.session),
            "state": result.state,
            "error": result.error,
            "findings": [
                {**asdict(finding), "sentence": redact(finding.sentence)} for finding in self.findings
            ],
            "page": str(result.folder / "nightly.html"),
        }


def alert_of(result: NightResult, *, failed_before: bool = False) -> Alert | None:
    """Return the alert of a night; None if there is nothing new.

    Parameters
    ----------
    result
        The night.
    failed_before
        Whether an earlier attempt at this session failed and was reported.
    """
    name = f"{result.config} {result.session}"
    serious = tuple(finding for finding in result.findings if finding.level != "ok")
    if result.state == "failed":
        sentences = [result.error or "The night failed.", *(finding.sentence for finding in serious)]
        return Alert("failure", f"{name}: the night failed", _lines(sentences), serious)
    last_state, last_keys = _last_night(result.nights)
    new = tuple(finding for finding in serious if finding.key not in last_keys)
    recovered = failed_before or last_state == "failed" or (last_state == "warned" and not serious)
    if recovered:
        why = "a failure" if failed_before or last_state == "failed" else "its warnings"
        now = [f"The night is {result.state} after {why}.", *(finding.sentence for finding in new)]
        return Alert("recovery", f"{name}: recovered from {why}", _lines(now), new)
    if new:
        count = f"{len(new)} new warning{'' if len(new) == 1 else 's'}"
        return Alert("warning", f"{name}: {count}", _lines([f.sentence for f in new]), new)
    return None


def _last_night(nights: pl.DataFrame) -> tuple[str | None, frozenset[tuple[str, str | None]]]:
    """State of the last night, and the keys of its warnings."""
    if nights.is_empty():
        return None, frozenset()
    row = nights.sort("session", descending=True).row(0, named=True)
    return str(row["state"]), frozenset(finding.key for finding in read_warnings(row["warnings"]))


def _lines(sentences: list[str]) -> str:
    return redact("\n".join(dict.fromkeys(sentences)))
