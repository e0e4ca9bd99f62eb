"""Where a night stands: the last nights, the promotions, and the versions that it used."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator

import polars as pl

from pipelines.nightly.page.names import champion_signals
from pipelines.nightly.result import NightResult
from pipelines.nightly.tables import read_warnings
from pipelines.pages.tables import DASH, Column, neutral_yes_no, number, pairs, table, text

NIGHTS = 20
"""Nights shown."""


def night_blocks(result: NightResult) -> Iterator[str]:
    """Show the last nights, newest first."""
    if result.nights.is_empty():
        yield "<p>This is the first night.</p>"
        return
    shown = list(result.nights.sort("session", descending=True).head(NIGHTS).iter_rows(named=True))
    happened = [_happened(row["error"], row["warnings"]) for row in shown]
    titles = ["session", "state", "warnings or error", "signals", "trades", "seconds", "model"]
    if not any(happened):
        titles.remove("warnings or error")
    rows = []
    for row, what in zip(shown, happened, strict=True):
        state = html.escape(row["state"])
        cells = [f'<td class="name">{row["session"]}</td>', f'<td class="{state}">{state}</td>']
        cells += [f'<td class="wide">{html.escape(what) or DASH}</td>'] if any(happened) else []
        cells += [f'<td class="num">{row[name]:,.0f}</td>' for name in ("rows", "trades", "seconds")]
        cells.append(f'<td class="name">{html.escape(row["version"] or "none")}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = f"<thead><tr>{''.join(map(_title, titles))}</tr></thead>"
    yield (
        '<div class="scroll" tabindex="0" role="region" aria-label="Nights">'
        f"<table>{head}<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _title(name: str) -> str:
    number = ' class="num"' if name in {"signals", "trades", "seconds"} else ""
    return f"<th{number}>{name}</th>"


def promotion_blocks(result: NightResult) -> Iterator[str]:
    """Show the changes of champion and challenger, newest first."""
    if result.promotions.is_empty():
        return
    yield table(
        result.promotions.sort("number", descending=True).head(NIGHTS),
        (
            Column("created_at", "when", lambda value: f"{value:%Y-%m-%d %H:%M}", numeric=False),
            Column("alias", "alias", text, numeric=False),
            Column("version", "version", text, numeric=False),
            Column("by", "by", text, numeric=False),
            Column("forced", "forced?", neutral_yes_no, numeric=False),
            Column("why", "why", text, numeric=False, wide=True),
        ),
        label="Promotions",
    )


def version_blocks(result: NightResult) -> Iterator[str]:
    """Show versions of models and data, and the seconds of each step."""
    champion = "none" if result.champion is None else str(result.champion)
    challenger = "none" if result.challenger is None else str(result.challenger)
    rows = {"champion": champion, "challenger": challenger}
    signals = champion_signals(result)
    if not signals.is_empty():
        versions = json.loads(signals["data_versions"][0])
        rows["data"] = ", ".join(f"{name} {version}" for name, version in versions.items())
        rows["revision of the signals"] = str(signals["revision"][0])
    yield pairs(rows)
    if result.seconds:
        yield "<h3>Seconds by step</h3>"
        frame = pl.DataFrame(
            {"step": list(result.seconds), "seconds": [float(value) for value in result.seconds.values()]}
        )
        yield table(
            frame,
            (Column("step", "step", text, numeric=False), Column("seconds", "seconds", number(1))),
            label="Seconds by step",
        )


def _happened(error: str | None, warnings: str) -> str:
    if error is not None:
        return error
    return ", ".join(sorted({finding.check for finding in read_warnings(warnings)}))
