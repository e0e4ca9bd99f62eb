"""The report as one self-contained HTML page, which needs no network.

The content security policy of the page forbids all requests and allows only the page's own two scripts. A
name from the data that looks like a script is therefore never executed.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files

from plotly.offline import get_plotlyjs

from pipelines.pages.contents.report import ReportData
from pipelines.pages.embed import DatePool, figure_html
from pipelines.pages.head import head
from pipelines.pages.sections.assemble import sections
from pipelines.pages.sections.section import Section
from pipelines.pages.signal_verdict import judge_report
from pipelines.pages.theme import model_styles


def render(data: ReportData) -> str:
    """Render a run's report.

    Parameters
    ----------
    data
        The results of the run.

    Returns
    -------
    str
        An HTML document: plotly.js (about 5 MB), which is included once, and less than 2 MB of results. The
        page loads nothing else. Its tables can be read without scripts.
    """
    styles = model_styles(data.models)
    verdict = judge_report(data)
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
        f'<main id="top">\n{head(data, verdict)}{body}</main>\n'
        f'<script type="application/json" id="dates">{figures.pool.to_json()}</script>\n'
        f"<script>{scripts[1]}</script>\n</body>\n</html>\n"
    )


class _Figures:
    """Numbers the figures of a page, so that each has a unique id, and collects their date axes."""

    def __init__(self) -> None:
        self._count = 0
        self.pool = DatePool()

    def next_name(self) -> str:
        self._count += 1
        return f"figure-{self._count}"


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
    return files("pipelines.pages").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _section(section: Section, figures: _Figures) -> str:
    blocks = (
        block + "\n"
        if isinstance(block, str)
        else figure_html(block[0], figures.next_name(), block[1], figures.pool)
        for block in section.blocks
    )
    return (
        f'<section id="{section.anchor}"><h2>{html.escape(section.title)}</h2>\n{"".join(blocks)}</section>\n'
    )
