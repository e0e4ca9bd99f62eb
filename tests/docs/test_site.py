"""The guide builds without a warning, has a page for every room, and loads nothing from other hosts."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that make a browser fetch something by themselves, and by which attribute."""


class Fetched(html.parser.HTMLParser):
    """Collects what a browser fetches when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADING.get(tag, ""))
        if address:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the guide is built with the dev extra")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow(6)
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text("utf-8"))
        assert len(fetched.addresses) > 3, page.name
        outside = [one for one in fetched.addresses if re.match(r"(?:https?:)?//", one)]
        assert outside == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text("utf-8")), (
            sheet.name
        )


def test_search_works_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text("utf-8")
    assert index.startswith("var __index = ")
    assert "embargo" in index
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text("utf-8")


def test_every_public_name_is_on_its_page(site: Path) -> None:
    for package in ("features", "models", "backtest"):
        page = (site / "api" / f"{package}.html").read_text("utf-8")
        listed = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/api" / f"{package}.md").read_text("utf-8"), re.M)
        assert listed
        assert [name for name in listed if f'id="{name}"' not in page] == []


def test_every_row_is_in_a_table(site: Path) -> None:
    rows = re.compile(r"^(?:<p>)?\| .* \|(?:</p>)?$", re.M)
    assert "<table" in (site / "experiments/index.html").read_text("utf-8")
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text("utf-8"), flags=re.S)
        assert rows.findall(text) == [], page.name
