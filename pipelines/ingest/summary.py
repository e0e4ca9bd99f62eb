"""The result of an ingest: counts per table and rule, the outcome for every ticker, and their description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pipelines.errors import DataError
from pipelines.sources.base import TickerStatus

_STATES: Final = ("ok", "unchanged", "empty", "throttled", "failed")
_NAMED_STATES: Final = ("throttled", "failed", "empty")
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What happened to one table's rows.

    ``received == added + updated + unchanged + collapsed + sum(quarantined.values())``, always.

    Attributes
    ----------
    received
        Rows that the source delivered.
    added, updated, unchanged
        Rows with a new key, rows that replaced a different one, and rows that were already stored.
    collapsed
        Rows dropped because an identical one, or a later one with the same close, was delivered with them.
    quarantined
        Rule -> number of rejected rows, most frequent first; each row counts for the first rule that it
        broke.
    version
        The lake table's version afterwards; None if it holds nothing.
    flagged
        Rule -> number of flags on stored rows, most frequent first; one row may have several.
    withdrawn
        Stored rows that the source no longer delivers; earlier versions of the table still contain them.
    """

    received: int
    added: int
    updated: int
    unchanged: int
    collapsed: int
    quarantined: Mapping[str, int]
    version: int | None
    flagged: Mapping[str, int] = field(default_factory=dict)
    withdrawn: int = 0

    def __add__(self, later: TableSummary) -> TableSummary:
        """Add the counts of two batches of the same table; the version is the later one's."""
        return TableSummary(
            received=self.received + later.received,
            added=self.added + later.added,
            updated=self.updated + later.updated,
            unchanged=self.unchanged + later.unchanged,
            collapsed=self.collapsed + later.collapsed,
            quarantined=_sum(self.quarantined, later.quarantined),
            version=later.version,
            flagged=_sum(self.flagged, later.flagged),
            withdrawn=self.withdrawn + later.withdrawn,
        )


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """The result of an ingest per table, with notes, hazards and the last status of every ticker.

    ``batches`` is the number of committed deliveries; 0 if a live source had nothing to deliver.
    ``incomplete`` says how many of the sessions are incomplete and which have no price, one sentence each.
    """

    source: str
    tables: Mapping[str, TableSummary]
    notes: tuple[str, ...] = field(default=())
    hazards: tuple[str, ...] = field(default=())
    statuses: tuple[TickerStatus, ...] = field(default=())
    batches: int = 1
    incomplete: tuple[str, ...] = ()


class IngestStoppedError(DataError):
    """A live source stopped answering. ``summary`` describes what is in the lake."""

    def __init__(self, message: str, summary: IngestSummary) -> None:
        super().__init__(message)
        self.summary = summary


def describe_ingest(summary: IngestSummary) -> str:
    """Describe an ingest in a few lines."""
    lines = [f"source {summary.source}"]
    for table, counts in summary.tables.items():
        lines.append(
            f"  {table:<13}{counts.received:>10,} received  {counts.added:>10,} added  "
            f"{counts.updated:>8,} updated  {counts.unchanged:>10,} unchanged  "
            f"{counts.withdrawn:>8,} withdrawn  version {counts.version}"
        )
        lines += [f"    quarantined {rows:,} by rule {rule}" for rule, rows in counts.quarantined.items()]
        lines += [f"    flagged {rows:,} by rule {rule}" for rule, rows in counts.flagged.items()]
        if counts.collapsed:
            lines.append(
                f"    {counts.collapsed:,} duplicates with an equal close collapsed, the last one kept"
            )
    if not summary.tables:
        lines.append("  nothing new")
    lines += [f"  {sentence}" for sentence in summary.incomplete]
    lines += _describe_statuses(summary.statuses)
    lines += [f"  note: {note}" for note in summary.notes]
    lines += [f"  hazard: {hazard}" for hazard in summary.hazards]
    return "\n".join(lines)


def _describe_statuses(statuses: tuple[TickerStatus, ...]) -> list[str]:
    """Count the tickers by status, and name the first ones with a status worth a look."""
    if not statuses:
        return []
    by_state: dict[str, list[TickerStatus]] = {}
    for status in statuses:
        by_state.setdefault(status.state, []).append(status)
    counts = ", ".join(f"{len(by_state[state]):,} {state}" for state in _STATES if state in by_state)
    lines = [f"  tickers      {len(statuses):>10,} requested: {counts}"]
    for state in _NAMED_STATES:
        tickers = by_state.get(state, [])
        if not tickers:
            continue
        names = ", ".join(f"{s.ticker} ({s.detail})" if s.detail else s.ticker for s in tickers[:_NAMED])
        more = f" and {len(tickers) - _NAMED:,} more" if len(tickers) > _NAMED else ""
        again = "" if state == "empty" else "; requested again next time"
        lines.append(f"    {state}: {names}{more}{again}")
    return lines


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Add counts by rule, most frequent first."""
    total = Counter(first) + Counter(second)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
