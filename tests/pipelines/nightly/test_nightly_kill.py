"""A night killed by SIGKILL after chosen steps ends as if undisturbed.

benchmarks/kill_nightly.py kills nights of a whole season, with trainings and promotions, at random moments.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from places import ROOT
from tracking_stores import new_store
from warm import PEERGLASS, Process

SCRIPT = ROOT / "benchmarks" / "kill_nightly.py"
KILLED_AFTER = """
import importlib, os, signal, sys
from pipelines.cli.main import main
module, name = sys.argv.pop().split(":")
target = importlib.import_module(module)
step = getattr(target, name)
def step_and_die(*given, **named):
    step(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(target, name, step_and_die)
main()
"""
DECISIONS, TELLING = "pipelines.nightly.play.decisions", "pipelines.nightly.play.telling"
STEPS = (
    "pipelines.nightly.delivery:ingest",
    f"{DECISIONS}:train_live",
    f"{DECISIONS}:enter_version",
    f"{DECISIONS}:next_book",
    f"{DECISIONS}:account_tables",
    f"{TELLING}:write_night",
)


def start(season: Any, day: date) -> Process:  # noqa: ANN401 (a class of the script)
    """Start a night without loading the libraries again."""
    return Process(PEERGLASS, ["nightly", "season.yaml", "--date", day.isoformat()], cwd=season.folder)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("kill_nightly", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kill_nightly", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.Season, "start", start)
    return module


@pytest.mark.slow(17)
def test_a_night_killed_after_every_step_ends_as_if_undisturbed(tmp_path: Path, script: ModuleType) -> None:
    settings = {
        **script.SETTINGS,
        "models": {"ridge": {}},
        "seeds": [0],
        "audit": {"enabled": False},
        "nightly": {"retrain": {"when": "sessions", "every": 1}, "checks": {"retry_minutes": 0}},
    }
    season, before = script.Season(tmp_path / "season", settings), tmp_path / "before"
    new_store(season.folder)
    first, day = script.sessions_of_the_market(settings)[-2:]
    season.finish(first)
    script.keep(season.folder, before)
    season.finish(day)
    undisturbed = season.state()
    tonight = {table: rows.filter(session=day) for table, rows in undisturbed.tables.items()}
    assert tonight["signals"].height > 20  # of champion and challenger
    assert tonight["books"].height > 3
    assert tonight["positions"].height > 3
    assert tonight["profits"].height == 1
    assert undisturbed.tables["promotions"]["alias"].to_list() == ["champion", "challenger"]
    assert len([name for name in undisturbed.files if name.startswith(f"season/{day}/")]) > 5
    assert len(undisturbed.tracked) >= 4  # two nights, and the runs of two versions

    script.keep(before, season.folder)
    for step in STEPS:
        arguments = ["nightly", "season.yaml", "--date", day.isoformat(), step]
        killed = Process(KILLED_AFTER, arguments, cwd=season.folder)
        out, err = killed.communicate()
        assert killed.returncode == -signal.SIGKILL, (step, out, err[-2000:])
    season.finish(day)
    assert season.state().difference(undisturbed) is None
