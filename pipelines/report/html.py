"""The report as one self-contained HTML page, which needs no network.

The content security policy of the page forbids all requests and allows only the page's own two scripts. A
name from the data that looks like a script is therefore never executed.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from pipelines.report.contents.frames import is_missing
from pipelines.report.contents.report import ReportData
from pipelines.report.sections.assemble import sections
from pipelines.report.sections.audit import audit_block
from pipelines.report.sections.section import Section
from pipelines.report.theme import model_styles
from pipelines.report.verdict import RULE, Verdict, baseline_of, deciding_comparisons, judge
from pipelines.results.comparisons import BASELINES
from pipelines.results.describe import describe_interval

_VERDICT_WORDS = {"good": "Confirmed on the test", "caution": "Doubtful", "bad": "Do not trade"}


def render(data: ReportData) -> str:
    """Render a run's report.

    Parameters
    ----------
    data
        The results of the run.

    Returns
    -------
    str
        An HTML document of about 5 MB, most of it plotly.js, which is included once. The page loads nothing
        else. Its tables can be read without scripts.
    """
    styles = model_styles(data.models)
    verdict = judge(data)
    best = verdict.best["model"] if verdict.best is not None else None
    parts = list(sections(data, styles, best))
    title = html.escape(f"{data.header.name}: Peerglass report")
    scripts = (get_plotlyjs(), _asset("report.js"))
    contents = "".join(f'<a href="#{part.anchor}">{html.escape(part.title)}</a>' for part in parts)
    figures = _Figures()
    body = "".join(_section(part, figures) for part in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{_asset('report.css')}</style>\n"
        f"<script>{scripts[0]}</script>\n</head>\n<body>\n"
        f'<nav aria-label="Contents"><a class="top" href="#top">Verdict</a>{contents}</nav>\n'
        f'<main id="top">\n{_head(data, verdict)}{body}</main>\n'
        f"<script>{scripts[1]}</script>\n</body>\n</html>\n"
    )


class _Figures:
    """Numbers the figures of a page, so that each has a unique id."""

    def __init__(self) -> None:
        self._count = 0

    def place(self, figure: go.Figure, caption: str) -> str:
        self._count += 1
        name = f"figure-{self._count}"
        # inside a script element, only "<" can end the element or open a comment
        payload = str(figure.to_json()).replace("<", "\\u003c")
        height = int(figure.layout.height)
        return (
            f'<figure><div class="plot" id="{name}" style="height:{height}px"></div>'
            f'<script type="application/json" data-figure="{name}">{payload}</script>'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>\n"
        )


def _policy(scripts: tuple[str, ...]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return files("pipelines.report").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, figures: _Figures) -> str:
    blocks = (
        block + "\n" if isinstance(block, str) else figures.place(block[0], block[1])
        for block in section.blocks
    )
    return (
        f'<section id="{section.anchor}"><h2>{html.escape(section.title)}</h2>\n{"".join(blocks)}</section>\n'
    )


def _head(data: ReportData, verdict: Verdict) -> str:
    header = data.header
    noscript = "<noscript><p>Charts need scripts, which are disabled. All tables are shown.</p></noscript>"
    return (
        f"<header><h1>{html.escape(header.name)}</h1>"
        f'<p class="byline">run {html.escape(header.run_id)} \N{MIDDLE DOT} {html.escape(header.created_at)} '
        f"\N{MIDDLE DOT} config {html.escape(header.config_hash[:12])}{_evaluation(data)}</p>{noscript}"
        f'<div class="verdict {verdict.tone}"><p class="headline"><b>{_VERDICT_WORDS[verdict.tone]}.</b> '
        f"{html.escape(verdict.headline)}</p><p>{html.escape(verdict.evidence)}</p>"
        f'<p class="rule">{html.escape(RULE)}</p></div>'
        f"{_tiles(data, verdict.best)}{audit_block(header.audit)}{_box('hazards', 'Hazards', header.hazards)}"
        f"{_box('notes', 'Notes', header.notes)}</header>\n"
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
    tiles = [
        ("validation rank IC", _figure(best["valid_rank_ic"], 3), "used to choose the model"),
        (
            "test IC",
            _figure(best["ic"], 3),
            f"at delay {data.header.verdict_delay}, t {_figure(best['ic_t'], 1)} (Newey-West)",
        ),
        ("net Sharpe", _figure(best["sharpe_net"], 2), _sharpe_detail(best)),
        ("deflated Sharpe", _figure(best["deflated_sharpe"], 2), "probability of skill"),
        ("net return", _figure(best["annual_return_net"], 1, 100, "%"), "per year"),
        ("turnover", _figure(best["turnover"], 1, 100, "%"), "of NAV per session"),
    ]
    compared = deciding_comparisons(data, best["model"])
    for baseline, title in BASELINES.items():
        if baseline_of(best) != baseline:
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
