"""A public class has one meaning: its name is defined in one module."""

from __future__ import annotations

import ast
from collections import defaultdict

from places import ROOT

PACKAGES = ("features", "models", "backtest", "pipelines", "peerglass")


def test_the_name_of_a_public_class_is_defined_in_one_module() -> None:
    places = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(str(path.relative_to(ROOT)))
    assert len(places) > 300
    twice = {name: sorted(files) for name, files in places.items() if len(files) > 1}
    assert twice == {}
