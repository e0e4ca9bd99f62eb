"""Peerglass works in a folder that has modules with the names of its packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT
from tracking_stores import new_store

from pipelines.config.load import load_config
from pipelines.run.fetch import ingest_config

PACKAGES = ("features", "models", "backtest", "pipelines")
USE = """
import peerglass, features.arrays, models.spec, backtest.costs, pipelines.errors
print([one.__file__ for one in (peerglass, features, models, backtest, pipelines)])
"""
HEAVY = "import peerglass; peerglass.Run, peerglass.load_model, peerglass.explain"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project: ``models/``, ``features.py`` and others, all of which fail when they are imported."""
    for name in PACKAGES[1:]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the users')")
    (tmp_path / "features.py").write_text("raise RuntimeError('the users')")
    return tmp_path


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_users_modules_would_come_first(folder: Path) -> None:
    for name in PACKAGES:
        assert "the users" in python(folder, "-c", f"import {name}").stderr


@pytest.mark.slow(3)
@pytest.mark.parametrize("way", ["-c", "script", "-m", "PYTHONPATH"])
def test_peerglass_finds_its_own_packages(folder: Path, way: str) -> None:
    (folder / "use.py").write_text(USE)
    ways = {
        "-c": lambda: python(folder, "-c", USE),
        "script": lambda: python(folder, "use.py"),
        "-m": lambda: python(folder, "-m", "use"),
        "PYTHONPATH": lambda: python(ROOT, "-c", USE, PYTHONPATH=str(folder)),
    }
    done = ways[way]()
    assert done.returncode == 0, done.stderr
    ours = [str(ROOT / name / "__init__.py") for name in ("peerglass", *PACKAGES)]
    assert done.stdout.strip() == str(ours)


@pytest.mark.slow(3)
def test_every_public_name_is_found_there(folder: Path) -> None:
    done = python(folder, "-c", HEAVY)
    assert done.returncode == 0, done.stderr


def test_a_users_package_that_is_imported_already_is_named(folder: Path) -> None:
    (folder / "models" / "__init__.py").write_text("")
    done = python(folder, "-c", "import models, peerglass")
    assert "ImportError: Peerglass has a package named models" in done.stderr
    assert f"{folder}/models/__init__.py" in done.stderr
    assert "rename that module, or use Peerglass in a process of its own" in done.stderr
    (folder / "pipelines" / "__init__.py").write_text("")
    done = python(folder, "-c", "import pipelines, peerglass")
    assert "ImportError: Peerglass has a package named pipelines" in done.stderr


def test_the_search_path_is_left_as_it_was(folder: Path) -> None:
    code = "import sys; before = list(sys.path); import peerglass; assert sys.path == before, sys.path"
    done = python(folder, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(13)
def test_a_command_trains_in_worker_processes_there(folder: Path, tiny: dict[str, Any]) -> None:
    """Workers are fresh processes with the search path of their parent, here with the user's folder first."""
    for name in PACKAGES[3:]:  # a worker unpickles names of pipelines before any code of ours can run
        (folder / name / "__init__.py").unlink()
    models = {"ridge": {}, "lightgbm": {"rounds": 5}}
    settings = {
        **tiny,
        "models": models,
        "folds": {**tiny["folds"], "max_folds": 1},
        "execution": {"workers": 2},
        "audit": {"enabled": False},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    new_store(folder)
    ingest_config(load_config(folder / "tiny.yaml"), print)
    done = python(folder, "-m", "peerglass", "train", "tiny.yaml", PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "runs").glob("*/checkpoints/*/*/model.safetensors"))) == 2


def test_import_is_light() -> None:
    """The heavy libraries are imported when a name is first used."""
    code = (
        "import sys, peerglass; "
        "heavy = {'torch', 'polars', 'pydantic', 'numpy', 'pandas', 'mlflow', 'shap'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = python(ROOT, "-c", code)
    assert done.returncode == 0, done.stderr
