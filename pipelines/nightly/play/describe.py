"""The outcome of a night in a few lines for a terminal, and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.nightly.result import NightResult, peak_memory_bytes

_WARNINGS = 8  # shown on the terminal; the page shows all


def describe_night(result: NightResult, page: Path | None) -> str:
    """Describe a night: its state in one sentence first, then models, book and warnings."""
    figures = night_figures(result)
    lines = [_headline(result)]
    if result.champion is not None:
        lines.append(f"  champion    {result.champion}: {figures['signals']:,} signals")
    if result.challenger is not None:
        lines.append(f"  challenger  {result.challenger}")
    if result.book.height:
        lines.append(
            f"  book        {result.book['book'][0]}: {figures['trades']:,} trades, turnover "
            f"{figures['turnover']:.1%}, expected cost {1e4 * figures['expected_cost']:.1f} bp"
        )
    warnings = [finding.sentence for finding in result.findings if finding.level == "warn"]
    lines += [f"  warning     {sentence}" for sentence in warnings[:_WARNINGS]]
    if len(warnings) > _WARNINGS:
        lines.append(f"  warning     and {len(warnings) - _WARNINGS} more, on the page")
    if page is not None:
        lines.append(f"  page        {page}")
    memory = peak_memory_bytes() / 2**30
    lines.append(f"  took        {sum(result.seconds.values()):.1f} s, {memory:.1f} GiB at most")
    return "\n".join(lines)


def night_figures(result: NightResult) -> dict[str, Any]:
    """Return the figures of a night: signals, trades, turnover and expected cost.

    The turnover is half the sum of the absolute trades. It and the cost are fractions of the capital; both
    are 0 without a book.
    """
    return {
        "signals": result.signal_count,
        "trades": result.trade_count,
        "turnover": result.turnover,
        "expected_cost": result.expected_cost,
    }


def night_document(result: NightResult, versions: Mapping[str, int]) -> str:
    """Write a night as JSON for other programs: state, versions, figures, findings and times."""
    document = {
        "config": result.config,
        "session": result.session.isoformat(),
        "state": result.state,
        "error": result.error,
        "champion": None if result.champion is None else str(result.champion),
        "challenger": None if result.challenger is None else str(result.challenger),
        "data_versions": dict(sorted(versions.items())),
        **night_figures(result),
        "findings": [
            {
                "check": finding.check,
                "level": finding.level,
                "subject": finding.subject,
                "sentence": finding.sentence,
                "value": finding.value,
                "limit": finding.limit,
            }
            for finding in result.findings
        ],
        "seconds": dict(result.seconds),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    return json.dumps(document, indent=1)


def _headline(result: NightResult) -> str:
    warnings = sum(finding.level == "warn" for finding in result.findings)
    said = {
        "done": "done",
        "warned": f"done with {warnings} warning{'' if warnings == 1 else 's'}",
        "failed": f"FAILED. {result.error}",
    }
    return f"{result.config}, night of {result.session}: {said[result.state]}"
