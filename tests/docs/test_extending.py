"""The extensions of the guide, applied to a copy of the product as they stand there, and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

PRODUCT = ("features", "models", "backtest", "pipelines", "peerglass", "data")
LARGEST = {"A model": 2, "A characteristic": 1, "A book": 1, "An audit check": 2, "A verb": 2}
"""Heading -> the largest number of the product's files that such an extension may touch."""
SECTIONS = {
    section.partition("\n")[0]: section
    for section in (ROOT / "docs/extending.md").read_text("utf-8").split("\n## ")
}
PATCHES = {
    heading: "".join(re.findall(r"^```diff\n(.*?)^```", SECTIONS[heading], re.DOTALL | re.MULTILINE))
    for heading in LARGEST
}


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with all five extensions."""
    folder = tmp_path_factory.mktemp("extended")
    for name in PRODUCT:
        shutil.copytree(ROOT / name, folder / name)
    for heading, patch in PATCHES.items():
        done = subprocess.run(
            ["git", "apply", "-"],
            cwd=folder,
            env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)},
            input=patch,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{heading}: {done.stderr}"
    return folder


def peerglass(extended: Path, folder: Path, *arguments: str) -> str:
    """Run a command of the extended product."""
    start = "from pipelines.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("heading", LARGEST)
def test_an_extension_touches_few_files(heading: str) -> None:
    touched = set(re.findall(r"^\+\+\+ b/(.+)$", PATCHES[heading], re.MULTILINE))
    assert 1 <= len(touched) <= LARGEST[heading], touched


@pytest.mark.slow(20)
def test_a_run_uses_the_new_model_characteristic_book_and_check(
    extended: Path, tmp_path: Path, tiny_settings: Mapping[str, Any]
) -> None:
    settings = {
        **tiny_settings,
        "features": {**tiny_settings["features"], "characteristics": ["ups_63", "return_21"]},
        "folds": {**tiny_settings["folds"], "max_folds": 1},
        "models": {"linear": {}},
        "backtest": {"books": {"positive": {"kind": "positive"}}},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings))
    peerglass(extended, tmp_path, "run", "tiny.yaml")
    found = json.loads(peerglass(extended, tmp_path, "backtest", "latest", "--output", "runs", "--json"))
    (row,) = found["results"]
    assert row["model"] == "linear"
    assert row["positive.sharpe_net"] is not None
    (audit,) = (tmp_path / "runs").glob("*/audit*.json")
    assert "constant" in {one["check"] for one in json.loads(audit.read_text())["results"]}


def test_the_new_verb_answers_and_stands_in_the_help(extended: Path, tmp_path: Path) -> None:
    assert "lr" in peerglass(extended, tmp_path, "space", "temporal_peer")
    assert "space" in peerglass(extended, tmp_path, "--help")
