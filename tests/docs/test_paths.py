"""Files and functions that the guide names exist."""

from __future__ import annotations

import ast
import re

import pytest
from places import ROOT

FOLDERS = (
    "features",
    "models",
    "backtest",
    "pipelines",
    "peerglass",
    "configs",
    "benchmarks",
    "tests",
    "docs",
    "notebooks",
    "data",
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = sorted(
    {
        (str(page.relative_to(ROOT)), path)
        for page in PAGES
        for path in re.findall(
            rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+\.(?:py|yaml|md|csv|ipynb|json))`", page.read_text("utf-8")
        )
        if not re.search(r"[A-Z]{2,}|YYYY", path.removesuffix("README.md"))
    }
)


@pytest.mark.parametrize(("page", "path"), NAMED, ids=[f"{page}: {path}" for page, path in NAMED])
def test_the_file_exists(page: str, path: str) -> None:
    assert list(ROOT.glob(path)), f"{page} names {path}"


def test_many_files_are_named() -> None:
    assert len(NAMED) > 30


def test_the_way_of_a_model_has_at_most_six_files_with_these_functions() -> None:
    text = (ROOT / "docs/extending.md").read_text("utf-8")
    section = text.partition("## The way of a model from config to checkpoint")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/.]+)` \| (.+?) \|", section, re.MULTILINE)
    assert 3 < len(rows) <= 6
    for path, functions in rows:
        named = set(re.findall(r"`(\w+)`", functions))
        files = [ROOT / path] if "NAME" not in path else list((ROOT / path).parent.glob("[a-z]*.py"))
        for file in files:
            defined = {
                node.name
                for node in ast.walk(ast.parse(file.read_text("utf-8")))
                if isinstance(node, ast.FunctionDef)
            }
            assert named <= defined, file.name
