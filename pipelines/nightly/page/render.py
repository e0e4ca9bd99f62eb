"""The page of a night as one self-contained HTML file.

It has no scripts: its content security policy forbids them and all requests. So it can be mailed or read on a
phone, and a name from the data that looks like a script stays text.
"""

from __future__ import annotations

import html
from importlib.resources import files

from pipelines.nightly.page.checks import check_blocks
from pipelines.nightly.page.head import head
from pipelines.nightly.page.monitoring import monitoring_blocks
from pipelines.nightly.page.names import name_blocks
from pipelines.nightly.page.record import night_blocks, promotion_blocks, version_blocks
from pipelines.nightly.page.trades import trade_blocks
from pipelines.nightly.result import NightResult

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render_page(result: NightResult) -> str:
    """Render the page of a night, also of one that failed.

    Parameters
    ----------
    result
        The outcome of the night.

    Returns
    -------
    str
        An HTML document that loads nothing. Every text from data is escaped.
    """
    blocks = {
        "checks": ("Checks", "".join(check_blocks(result))),
        "trades": ("Trades", "".join(trade_blocks(result))),
        "names": ("Highest and lowest signals", "".join(name_blocks(result))),
        "monitoring": ("Monitoring", "".join(monitoring_blocks(result))),
        "nights": ("Last nights", "".join(night_blocks(result))),
        "promotions": ("Promotions", "".join(promotion_blocks(result))),
        "versions": ("Versions", "".join(version_blocks(result))),
    }
    if result.state == "done":  # nothing to look into: what is to be done tonight comes first
        blocks = {name: blocks[name] for name in ("trades", "names", "checks", *list(blocks)[3:])}
    shown = {anchor: block for anchor, block in blocks.items() if block[1]}
    links = "".join(f'<a href="#{anchor}">{title}</a> ' for anchor, (title, _) in shown.items())
    body = "".join(
        f'<section id="{anchor}"><h2>{title}</h2>\n{content}</section>\n'
        for anchor, (title, content) in shown.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(result.config)} {result.session}: {html.escape(result.state)}</title>\n"
        f"<style>\n{_css()}</style>\n</head>\n<body>\n<main>\n{head(result)}"
        f'<nav class="jump" aria-label="Contents">{links}</nav>\n{body}</main>\n</body>\n</html>\n'
    )


def _css() -> str:
    """The style of the report, and what differs here."""
    report = files("pipelines.pages").joinpath("templates/report.css").read_text(encoding="utf-8")
    return report + files("pipelines.nightly.page").joinpath("page.css").read_text(encoding="utf-8")
