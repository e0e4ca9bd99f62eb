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


def test_every_room_has_a_page_with_its_public_names(site: Path) -> None:
    folders = {
        path.parent
        for package in ("features", "models", "pipelines")
        for path in ROOT.glob(f"{package}/*/*.py")
    }
    assert len(folders) > 18
    for folder in folders - {ROOT / "pipelines" / "cli"}:  # the command line has a page of its own
        room = f"{folder.parent.name}.{folder.name}"
        page = (site / "api" / f"{room.replace('.', '_')}.html").read_text("utf-8")
        assert f'id="{room}"' in page, room
    assert 'id="models.attention.core.' in (site / "api" / "models_attention.html").read_text("utf-8")
