"""The checks of a night: failures and warnings first, then what was found in order."""

from __future__ import annotations

import html
from collections.abc import Iterator

from pipelines.nightly.result import Finding, NightResult

_ORDER = {"fail": 0, "warn": 1, "ok": 2}
_WORDS = {"fail": "\N{MULTIPLICATION X} failed", "warn": "! warning", "ok": "\N{CHECK MARK} ok"}


def check_blocks(result: NightResult) -> Iterator[str]:
    """Show the findings; those that are in order fold out."""
    found = sorted(result.findings, key=lambda finding: _ORDER[finding.level])
    serious = [finding for finding in found if finding.level != "ok"]
    fine = [finding for finding in found if finding.level == "ok"]
    if serious:
        yield _table(serious)
    elif fine:
        yield f"<p>{len(fine)} checks, none of them failed or warned.</p>"
    if fine:
        count = f"{len(fine)} check{'' if len(fine) == 1 else 's'}"
        yield f"<details><summary>{count} in order</summary>{_table(fine)}</details>"


def _table(findings: list[Finding]) -> str:
    rows = "".join(
        f'<tr class="{finding.level}"><td>{_WORDS[finding.level]}</td><td>{html.escape(finding.check)}'
        f"{f' ({html.escape(finding.subject)})' if finding.subject else ''}</td>"
        f'<td class="wide">{html.escape(finding.sentence)}</td></tr>'
        for finding in findings
    )
    head = "<tr><th>result</th><th>check</th><th>finding</th></tr>"
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Checks">'
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
    )
