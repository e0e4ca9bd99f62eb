"""The head of the report: verdict, key figures, audit, hazards and notes."""

from __future__ import annotations

import html
from typing import Any

from pipelines.pages.contents.frames import is_missing
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.audit import audit_block
from pipelines.pages.sections.signal_file import guard_block
from pipelines.pages.verdict import Verdict, baseline_of, deciding_comparisons, rule
from pipelines.results.comparisons import BASELINES
from pipelines.results.describe import describe_interval

_VERDICT_WORDS = {"good": "Confirmed on the test", "caution": "Doubtful", "bad": "Do not trade"}


def head(data: ReportData, verdict: Verdict) -> str:
    """Build the head of the page as HTML, every value escaped."""
    header = data.header
    checks = audit_block(header.audit) if data.file is None else guard_block(data.file)
    kind = "run" if header.trained else "signals"
    noscript = "<noscript><p>Charts need scripts, which are disabled. All tables are shown.</p></noscript>"
    return (
        f"<header><h1>{html.escape(header.name)}</h1>"
        f'<p class="byline">{kind} {html.escape(header.run_id)} \N{MIDDLE DOT} '
        f"{html.escape(header.created_at)} "
        f"\N{MIDDLE DOT} config {html.escape(header.config_hash[:12])}{_evaluation(data)}</p>{noscript}"
        f'<div class="verdict {verdict.tone}"><p class="headline"><b>{_VERDICT_WORDS[verdict.tone]}.</b> '
        f"{html.escape(verdict.headline)}</p><p>{html.escape(verdict.evidence)}</p>"
        f'<p class="rule">{html.escape(rule(data))}</p></div>'
        f"{_tiles(data, verdict.best)}{checks}{_box('hazards', 'Hazards', header.hazards)}"
        f"{_box('coverage', 'Coverage', header.coverage)}"
        f"{_notes(header.notes)}</header>\n"
    )


def _evaluation(data: ReportData) -> str:
    """Name the evaluation shown, with a link to the others; empty if there is no list of evaluations."""
    header = data.header
    if header.evaluations is None:
        return ""
    shown = header.evaluations.filter("shown")["assumptions"].item()
    others = header.evaluations.height - 1
    more = (
        f'; <a href="#provenance">{others} other evaluation{"s" if others > 1 else ""}</a>' if others else ""
    )
    return (
        f" \N{MIDDLE DOT} evaluation {html.escape(header.evaluation)}</p>"
        f'<p class="byline">{html.escape(shown)}{more}'
    )


def _tiles(data: ReportData, best: dict[str, Any] | None) -> str:
    if best is None:
        return ""
    chosen = ("validation rank IC", _figure(best["valid_rank_ic"], 3), "used to choose the model")
    tiles = [
        *([chosen] if data.header.trained else []),
        (
            "test IC",
            _figure(best["ic"], 3),
            f"at delay {data.header.verdict_delay}, t {_figure(best['ic_t'], 1)} (Newey-West)",
        ),
        ("net Sharpe", _figure(best["sharpe_net"], 2), _sharpe_detail(best)),
        ("deflated Sharpe", _figure(best["deflated_sharpe"], 2), "probability of skill"),
        ("net return", _figure(best["annual_return_net"], 1, 100, "%"), "per year"),
        ("turnover", _figure(best["turnover"], 1, 100, "%"), "one-way, of NAV per session"),
    ]
    compared = deciding_comparisons(data, best["model"])
    for baseline, title in BASELINES.items():
        if data.header.trained and baseline_of(best) != baseline:
            answer = best[f"beats_{baseline}"] or "unknown"
            tiles.append((f"beats {title}", answer, _difference_detail(compared.get(baseline))))
    tiles.append(("trials", f"{data.header.trial_count:,}", "in the ledger"))
    cells = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(detail)}</small></dd></div>"
        for name, value, detail in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _sharpe_detail(best: dict[str, Any]) -> str:
    lower, upper = _figure(best["sharpe_lower"], 2), _figure(best["sharpe_upper"], 2)
    return f"[{lower}, {upper}]; {_figure(best['sharpe_gross'], 2)} before costs"


def _difference_detail(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not tested"
    ic = describe_interval(row["ic_difference"], row["ic_lower"], row["ic_upper"], digits=4, signed=True)
    return f"IC difference {ic}".replace("-", "\N{MINUS SIGN}")


def _figure(value: float | None, digits: int, scale: float = 1.0, unit: str = "") -> str:
    if value is None or is_missing(value):
        return "\N{EN DASH}"
    return f"{scale * value:.{digits}f}{unit}".replace("-", "\N{MINUS SIGN}")


def _box(kind: str, title: str, sentences: tuple[str, ...]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="{kind}"><h2>{title}</h2><ul>{items}</ul></div>'


def _notes(sentences: tuple[str, ...]) -> str:
    """Notes fold out, so that the figures are near the verdict; a printed page has them unfolded."""
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    count = f"{len(sentences)} note{'' if len(sentences) == 1 else 's'}"
    return (
        f'<details class="notes"><summary><b>{count}</b> on data and training</summary>'
        f"<ul>{items}</ul></details>"
    )
