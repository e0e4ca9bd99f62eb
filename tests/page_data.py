"""A page as its elements, and its data as its scripts read them."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any


def unpack(text: str) -> Any:  # noqa: ANN401  # any JSON value
    """Read the compressed JSON of a page."""
    (packed,) = re.findall(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


class Page(HTMLParser):
    """Parses a page into elements with attributes, text, scripts and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.style = ""
        self.text = ""
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, code = self.scripts[-1]
            self.scripts[-1] = (attrs, code + data)
        elif self._inside == "style":
            self.style += data
        else:
            self.text += data


def section_titles(page: str) -> list[str]:
    return re.findall(r"<section id=\"([a-z]+)\">", page)
