"""Pages from templates: one base, one style, one way to show a table or a chart.

A page is self-contained. Its content security policy forbids all requests and allows only its own scripts.
All values are escaped by the templates, so a name from the data that looks like a script is never executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipelines.pages.figure import DatePool, Figure, LineStyle, figure_json
from pipelines.pages.tables import Spec, make_table, write


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("pipelines.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["write"] = write
    made.globals["sessions"] = count_sessions
    return made


def count_sessions(count: int) -> str:
    """Write a number of sessions: "1 session", "2 sessions"."""
    return f"{count} session{'' if count == 1 else 's'}"


def asset(name: str) -> str:
    """Read a style or a script that stands beside the templates."""
    return files("pipelines.pages").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def in_script(content: object) -> Markup:
    """Encode data as JSON that cannot end the script element in which it stands."""
    return _quoted(json.dumps(content, separators=(",", ":"), allow_nan=False))


def _quoted(text: str) -> Markup:
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704  # only "<" can end the element or open a comment


class Page:
    """What one page shows its tables and charts by; ``styles`` are for the chips of models."""

    def __init__(self, styles: Mapping[str, LineStyle] | None = None) -> None:
        self.styles = styles or {}
        self.dates = DatePool()
        self._charts = 0
        self._macros = _templates().get_template("macros.jinja").module

    def chart(self, figure: Figure, caption: str) -> Markup:
        """Show a chart of plotly.js with its views, its legend and a caption."""
        self._charts += 1
        data = _quoted(figure_json(figure, self.dates))
        return self._show("chart", figure, f"figure-{self._charts}", data, caption)

    def table(
        self, frame: pl.DataFrame, columns: Sequence[Spec], label: str, best: str | None = None
    ) -> Markup:
        """Show a table (`pipelines.pages.tables.make_table`)."""
        return self._show("table", make_table(frame, columns, label, self.styles, best))

    def _show(self, macro: str, *arguments: object) -> Markup:
        return Markup(getattr(self._macros, macro)(*arguments))  # noqa: S704  # a macro escapes its arguments

    def sections(
        self, template: str, titles: Mapping[str, str], **context: object
    ) -> list[tuple[str, str, Markup]]:
        """Anchor, title and body of the macros of a template, named by anchors; none without a body."""
        macros = _templates().get_template(template).make_module(self._context(context))
        bodies = ((anchor, title, getattr(macros, anchor)()) for anchor, title in titles.items())
        return [(anchor, title, body) for anchor, title, body in bodies if body.strip()]

    def render(
        self, template: str, *, css: Sequence[str] = (), scripts: Sequence[str] = (), **context: object
    ) -> str:
        """Render a template that extends the base, with the style of all pages and some scripts."""
        hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
        allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        policy += f"form-action 'none'{f'; script-src {allowed}' if allowed else ''}"
        own = {
            "policy": Markup(policy),  # noqa: S704  # written above
            "style": Markup("".join(asset(name) for name in ("page.css", *css))),  # noqa: S704  # our own files
            "scripts": [Markup(script) for script in scripts],  # noqa: S704  # our own files
        }
        return _templates().get_template(template).render(self._context(context | own))

    def _context(self, context: Mapping[str, object]) -> dict[str, object]:
        return {"chart": self.chart, "table": self.table, **context}
