"""The look-ahead guard in the head of a signal file's report, and the rows of the file that were left out."""

from __future__ import annotations

import html
from collections.abc import Iterator

import polars as pl

from pipelines.pages.contents.signal_file import SignalFile
from pipelines.pages.sections.section import Block, paragraph
from pipelines.pages.tables import Column, number, table, text

_WORDS = {
    "fail": "\N{MULTIPLICATION X} fail",
    "warn": "! warning",
    "pass": "\N{CHECK MARK} pass",
    "skipped": "\N{EN DASH} skipped",
}


def guard_block(signals: SignalFile) -> str:
    """Build the block of the look-ahead guard as HTML; failures and warnings are visible without a click."""
    verdict = pl.col("verdict").cast(pl.String)
    rows = list(signals.guard.select("signal", "check", verdict, "sentence").iter_rows())
    verdicts = [row[2] for row in rows]
    worst = next((name for name in _WORDS if name in verdicts), "skipped")
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in _WORDS if name in verdicts)
    problems = "".join(
        f"<li><b>{html.escape(signal)}, {html.escape(check)}</b>: {html.escape(sentence)}</li>"
        for signal, check, verdict, sentence in rows
        if verdict in ("fail", "warn")
    )
    body = "".join(
        f'<tr class="{verdict}"><td>{_WORDS[verdict]}</td><td>{html.escape(signal)}</td>'
        f"<td>{html.escape(check)}</td><td>{html.escape(sentence)}</td></tr>"
        for signal, check, verdict, sentence in rows
    )
    return (
        f'<div class="audit {worst}"><details><summary><b>Look-ahead guard: {html.escape(counts)}.</b> Signs '
        "that a signal knows prices after its date.</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Look-ahead guard"><table><thead><tr>'
        '<th scope="col">verdict</th><th scope="col">signal</th><th scope="col">check</th>'
        f'<th scope="col">finding</th></tr></thead><tbody>{body}</tbody></table></div></details>'
        f"{f'<ul>{problems}</ul>' if problems else ''}</div>"
    )


def row_blocks(signals: SignalFile | None) -> Iterator[Block]:
    """Show how many rows of the file were used, and why the others were left out."""
    if signals is None:
        return
    yield paragraph(
        f"Rows of {signals.file}. A row counts under the first reason that applies to it. A signal dated t "
        "is used if the firm is in the universe at the close of t."
    )
    shown = signals.rows.filter((pl.col("rows") > 0) | (pl.col("reason") == "used")).pivot(
        on="reason", index="signal", values="rows"
    )
    columns = [Column(reason, reason, number(0)) for reason in shown.columns[1:]]
    yield table(shown, (Column("signal", "signal", text, numeric=False), *columns), label="Rows of the file")
