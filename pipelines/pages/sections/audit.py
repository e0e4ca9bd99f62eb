"""The audit in the header of the report: counts, failures, warnings, and a fold-out table of all checks."""

from __future__ import annotations

import html

import polars as pl

from backtest.look_ahead.finding import VERDICTS
from pipelines.audit.conduct import summary_line

_WORDS = {
    "fail": "\N{MULTIPLICATION X} fail",
    "warn": "! warning",
    "pass": "\N{CHECK MARK} pass",
    "skipped": "\N{EN DASH} skipped",
}


def audit_block(table: pl.DataFrame | None) -> str:
    """Build the block.

    Parameters
    ----------
    table
        check, verdict, sentence: one row per check; None if no audit was made.

    Returns
    -------
    str
        HTML, every value escaped. Failures and warnings are always visible; all checks are in a fold-out
        table.
    """
    if table is None:
        return (
            '<div class="audit none"><b>Audit: not run.</b> Data and features were not checked for '
            "look-ahead; run <code>peerglass audit</code>.</div>"
        )
    ordered = table.sort(
        pl.col("verdict").replace_strict({v: n for n, v in enumerate(VERDICTS)}), maintain_order=True
    )
    rows = list(ordered.select("check", "verdict", "sentence").iter_rows())
    worst = rows[0][1] if rows else "skipped"
    problems = "".join(
        f"<li><b>{html.escape(check)}</b>: {html.escape(sentence)}</li>"
        for check, verdict, sentence in rows
        if verdict in ("fail", "warn")
    )
    body = "".join(
        f'<tr class="{html.escape(verdict)}"><td>{_WORDS[verdict]}</td><td>{html.escape(check)}</td>'
        f"<td>{html.escape(sentence)}</td></tr>"
        for check, verdict, sentence in rows
    )
    return (
        f'<div class="audit {html.escape(worst)}"><details><summary><b>Audit: '
        f"{html.escape(summary_line(table))}.</b> Checks for look-ahead and for implausibly good results."
        "</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Audit"><table><thead><tr>'
        '<th scope="col">verdict</th><th scope="col">check</th><th scope="col">finding</th></tr>'
        "</thead>"
        f"<tbody>{body}</tbody></table></div></details>{f'<ul>{problems}</ul>' if problems else ''}</div>"
    )
