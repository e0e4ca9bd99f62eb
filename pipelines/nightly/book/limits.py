"""The limits of the book's rule at the decision of a night: a table, and a sentence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import polars as pl

from backtest.books.book import LimitUse
from pipelines.lake.pipeline_tables import BookLimits
from pipelines.nightly.finding import Finding


def limit_rows(config: str, session: dt.date, book: str, uses: Sequence[LimitUse]) -> pl.DataFrame:
    """Return the rows of the table ``book_limits``; none if nothing was decided or the book has no limits."""
    now = dt.datetime.now(dt.UTC)
    rows = [(config, session, use.name, book, use.value, use.limit, use.unit, use.state, now) for use in uses]
    return BookLimits.validate(pl.DataFrame(rows, schema=BookLimits.create_empty().schema, orient="row"))


def limit_findings(uses: Sequence[LimitUse]) -> list[Finding]:
    """Say which limits bind; a limit that is exceeded is a warning."""
    if not uses:
        return []
    binding = [f"{use.name} ({amount(use.limit, use.unit)})" for use in uses if use.state == "binds"]
    free = [
        f"{use.name} ({amount(use.value, use.unit)} of {amount(use.limit, use.unit)})"
        for use in uses
        if use.state == "free"
    ]
    said = f"Limits that bind: {', '.join(binding) or 'none'}."
    if free:
        said += f" Free: {', '.join(free)}."
    findings = [Finding("limits", "ok", said)]
    findings += [
        Finding(
            "limits",
            "warn",
            f"The book exceeds {use.name}: {amount(use.value, use.unit)} instead of "
            f"{amount(use.limit, use.unit)}.",
            subject=use.name,
            value=use.value,
            limit=use.limit,
        )
        for use in uses
        if use.state == "exceeded"
    ]
    return findings


def amount(value: float, unit: str) -> str:
    """Write the value of a limit with its unit; fractions as percentages."""
    if unit in {"of NAV", "a year"}:
        return f"{value:.1%} {unit}"
    return f"{value:.3g} firms" if unit == "firms" else f"beta {value:.3f}"
