"""The examples of the public names run, and every public name has one.

Public is what ``docs/api`` lists under ``features``, ``models`` and ``backtest``, and ``peerglass.__all__``.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest
from places import ROOT

import peerglass

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LISTED = [
    name
    for page in sorted((ROOT / "docs/api").glob("*.md"))
    for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)
    if name != "peerglass"
]
MODULES = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for package in ("features", "models", "backtest")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)
OPEN = sorted(path for path in (ROOT / "peerglass").rglob("*.py") if ">>> " in path.read_text("utf-8"))
WITHOUT: frozenset[str] = frozenset({"PeerglassError"})
"""Public names that only appear where something fails."""


def run(module: str) -> None:
    """Run the examples of a module as users see them."""
    loaded = importlib.import_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = doctest.testmod(loaded, optionflags=FLAGS)
    assert found.attempted
    assert not found.failed


@pytest.mark.slow(2)
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    run(module)


@pytest.mark.slow(12)
@pytest.mark.parametrize("path", OPEN, ids=lambda path: path.stem)
def test_the_examples_of_the_public_functions_run_in_a_folder_with_a_run(
    path: Path, api_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(api_project)
    run(str(path.relative_to(ROOT).with_suffix("")).replace("/", "."))


def test_many_names_are_public() -> None:
    assert len(LISTED) == len(set(LISTED)) > 100
    assert not [name for name in LISTED if name.startswith("pipelines")]


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_name_is_defined_there_and_has_an_example(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    public = getattr(importlib.import_module(module), attribute)
    assert not attribute.startswith("_")
    if inspect.isfunction(public) or inspect.isclass(public):
        assert public.__module__ == module, "list it where it is defined"
        assert ">>> " in (inspect.getdoc(public) or ""), f"{name} has no example"


@pytest.mark.parametrize("name", sorted(set(peerglass.__all__) - WITHOUT))
def test_every_name_of_peerglass_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(peerglass, name)) or ""), f"peerglass.{name} has no example"
