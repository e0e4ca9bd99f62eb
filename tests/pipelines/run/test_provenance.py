"""Provenance: versions, hazards and trials are recorded during a run, and later reports show that record."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command

from pipelines.audit.registry import CHECKS
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.run import record as runs
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun, open_run

pytestmark = pytest.mark.usefixtures("untracked")


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture
def trained(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call) -> str:
    """Train a run at the commit ``first-commit``, without a report; return its id."""
    monkeypatch.chdir(tmp_path)
    settings = {**tiny, "models": {"ridge": {}}, "folds": {**tiny["folds"], "max_folds": 1}, "seeds": [0, 1]}
    settings["audit"] = {"skip": [name for name in CHECKS if name != "labels"]}
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    assert peerglass("ingest", "tiny.yaml").code == 0
    at_commit(monkeypatch, "first-commit")
    answer = peerglass("train", "tiny.yaml")
    assert answer.code == 0, answer.err
    return answer.out.strip()


def at_commit(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    """Make git report this commit."""

    def run(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(stdout=f"{commit}\n")

    fake = SimpleNamespace(run=run, SubprocessError=subprocess.SubprocessError)
    monkeypatch.setattr(runs, "subprocess", fake)


def report(peerglass: Call, run_id: str) -> str:
    answer = peerglass("report", run_id, "--output", "runs")
    assert answer.code == 0, answer.err
    return Path("runs", run_id, "report.html").read_text(encoding="utf-8")


def section(page: str, anchor: str) -> str:
    match = re.search(rf'<section id="{anchor}">.*?</section>', page, re.DOTALL)
    assert match is not None
    return match[0]


def test_a_report_made_later_shows_the_versions_that_trained_the_run(
    trained: str, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = importlib.metadata.version("torch")
    at_commit(monkeypatch, "a-month-later")
    original = importlib.metadata.distribution

    def newer_torch(name: str) -> object:
        return SimpleNamespace(version="9.9.9") if name == "torch" else original(name)

    monkeypatch.setattr(importlib.metadata, "distribution", newer_torch)
    assert importlib.metadata.version("torch") == "9.9.9"
    monkeypatch.setattr("pipelines.run.provenance.installed", importlib.metadata.version)
    page = section(report(peerglass, trained), "provenance")
    assert f"<td>{torch}</td>" in page
    assert re.search(r"commit used in training</th><td>first-commit<", page)
    assert "9.9.9" not in page


@pytest.mark.slow(4)
def test_a_run_resumed_under_another_commit_shows_both(
    trained: str, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(trained, Path("runs"))
    (run.checkpoint("ridge", 0, 1) / "model.json").unlink()  # the task counts as not done
    at_commit(monkeypatch, "second-commit")
    assert peerglass("train", "tiny.yaml").out.strip() == trained
    at_commit(monkeypatch, "third-commit")
    assert peerglass("train", "tiny.yaml").out.strip() == trained  # there is nothing to do
    page = section(report(peerglass, trained), "provenance")
    assert re.search(r"commit used in training</th><td>first-commit, second-commit<", page)
    table = re.search(r'aria-label="Training sessions">(.*?)</table>', page, re.DOTALL)
    assert table is not None
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in table[1].split("<tr>")[2:]]
    assert [(row[1], row[2]) for row in cells] == [("2", "first-commit"), ("1", "second-commit")]


@pytest.mark.slow(3)
def test_hazards_are_those_of_the_training_and_trials_those_of_the_report(
    trained: str, peerglass: Call
) -> None:
    def trials_shown(page: str) -> list[str]:
        return re.findall(r"<dt>trials</dt><dd>([\d,]+)<", page)

    before = report(peerglass, trained)
    assert trials_shown(before) == ["2"], "two books"
    lake = Lake("lake")
    sources = lake.read("sources")
    lake.upsert("sources", sources.with_columns(hazards=pl.lit(json.dumps(["A hazard found later."]))))
    assert peerglass("train", "tiny.yaml", "--set", "models.ridge.alphas=[1.0]").code == 0
    again = report(peerglass, trained)
    assert trials_shown(again) == ["3"], "the other ridge was tried since"
    assert re.search(r"3 trials in the ledger up to \d{4}-\d\d-\d\d \d\d:\d\d UTC", again)
    assert "A hazard found later." not in again
    first, second = Path("runs").glob("*/config.yaml")
    later = next(path.parent.name for path in (first, second) if path.parent.name != trained)
    page = report(peerglass, later)
    assert "A hazard found later." in page
    assert trials_shown(page) == ["4"]


@pytest.mark.slow(2)
def test_events_are_appended_and_never_changed(trained: str, peerglass: Call) -> None:
    path = Path("runs", trained, "provenance.jsonl")
    begun = path.read_text()
    lines = [json.loads(line) for line in begun.splitlines()]
    assert [line["event"] for line in lines] == [
        "training started",
        "task done",
        "task done",
        "training ended",
    ]
    assert lines[0]["versions"] == dict(open_run(trained, Path("runs")).versions)
    assert lines[0]["environment"]["libraries"]["polars"] == importlib.metadata.version("polars")
    assert lines[0]["device"] == "cpu"
    assert {(line["model"], line["fold"], line["seed"]) for line in lines[1:3]} == {
        ("ridge", 0, 0),
        ("ridge", 0, 1),
    }
    assert peerglass("audit", "tiny.yaml").code in (0, 4)
    assert peerglass("backtest", trained, "--output", "runs").code == 0
    assert path.read_text().startswith(begun)
    added = [json.loads(line)["event"] for line in path.read_text().removeprefix(begun).splitlines()]
    assert added == ["audit", "evaluation"]
    assert peerglass("report", trained, "--output", "runs").code == 0
    assert peerglass("train", "tiny.yaml").code == 0
    assert len(path.read_text().splitlines()) == len(lines) + 2, "a report and a repeated command add nothing"


def test_an_incomplete_line_of_a_killed_process_is_ignored(tmp_path: Path, tiny: dict[str, Any]) -> None:
    from pipelines.config.load import check_config
    from pipelines.run.provenance import FILE, TaskDone, read_provenance, record

    run = RecordedRun("tiny-0123456789", check_config(tiny, origin="tiny"), Identity.nothing(), tmp_path)
    assert read_provenance(run) == ()
    for seed in (0, 1):
        record(run, TaskDone(model="ridge", fold=0, seed=seed))
    path = tmp_path / FILE
    path.write_text(path.read_text() + '{"at": "2026-01-01T00:00:00Z", "event": "task do')
    assert len(read_provenance(run)) == 2
    record(run, TaskDone(model="ridge", fold=0, seed=2))
    assert [event.seed for event in read_provenance(run) if isinstance(event, TaskDone)] == [0, 1, 2]
    path.write_text('{"event": "party"}\n')
    with pytest.raises(DataError, match="line 1, is not a valid event"):
        read_provenance(run)
