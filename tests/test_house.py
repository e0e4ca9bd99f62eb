"""The structure of the packages: small folders, short files, and no circle of imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest
from places import ROOT

PACKAGES = ("features", "models", "backtest", "pipelines", "peerglass")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_MODULES = 25  # per folder, without __init__
MAX_LINES = 600  # per file


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: set[str]) -> Iterator[str]:
    """Modules of the packages that a file imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_circle_of_files() -> None:
    known = {module_of(path) for path in FILES}
    edges = [
        (module_of(path), other)
        for path in FILES
        for other in imports_of(path, known)
        if other in known and other != module_of(path)
    ]
    assert len(edges) > 500
    circles = [sorted(part) for part in nx.strongly_connected_components(nx.DiGraph(edges)) if len(part) > 1]
    assert circles == []


def test_no_folder_has_more_than_25_modules() -> None:
    folders = {path.parent for path in FILES}
    assert len(folders) > 20
    for folder in folders:
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MAX_MODULES, f"{folder.relative_to(ROOT)} has {len(modules)} modules"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_file_has_at_most_600_lines_and_documents_its_public_names(path: Path) -> None:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    lines = len(source.splitlines())
    assert ast.get_docstring(tree), "the module has no docstring"
    assert lines <= MAX_LINES, f"{lines} lines"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_importing_computes_nothing_with_polars() -> None:
    """Its threads would be missing in a process that is forked later, which then waits for them for ever."""
    code = (
        "import os, pipelines.audit.command, pipelines.cli.main, pipelines.stages, pipelines.train.tune\n"
        "import pipelines.nightly.play.telling\n"
        "print([open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')])"
    )
    if not Path("/proc/self/task").is_dir():
        pytest.skip("the system does not list threads in /proc")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "python" in done.stdout, "the main thread"
    assert "polars-0" not in done.stdout
