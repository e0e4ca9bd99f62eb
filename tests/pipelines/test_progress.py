"""What a user sees of a command's progress."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipelines.progress import Progress, choose_log
from pipelines.train.work import News, Note


class Terminal(io.StringIO):
    """Collects what is written to a terminal."""

    def isatty(self) -> bool:
        return True

    def last_lines(self) -> list[str]:
        """Lines as they stay on the screen, without colours."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())
        return [line.split("\r")[-1].strip() for line in plain.splitlines() if line.strip()]


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stderr by a terminal; called in the test, because pytest replaces stderr before it."""
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    return written


@pytest.fixture
def logs() -> Iterator[None]:
    """Restore how progress is reported."""
    yield
    choose_log(None)


def test_a_stage_that_ended_is_ticked_without_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    progress = Progress()
    with progress.stage("ingest"):
        pass
    with progress.stage("audit", total=1):
        progress.step("ensembles: pass")
    lines = written.last_lines()
    assert "✓ ingest 0:00:00" in lines
    assert re.fullmatch("✓ audit ━+ 1/1 0:00:00", lines[-1])


def test_a_stage_that_failed_is_not_ticked(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    with pytest.raises(ValueError, match="no"), Progress().stage("train", total=2):
        raise ValueError("no")
    assert "train" in written.getvalue()
    assert "✓" not in written.getvalue()


def test_a_log_has_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().stage("ingest"):
        pass
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(event["event"], event["stage"]) for event in events] == [("start", "ingest"), ("end", "ingest")]


def test_only_long_trainings_are_noted() -> None:
    notes: list[str] = []

    class Notes(Progress):
        def note(self, message: str) -> None:
            notes.append(message)

    news = News(cast("Any", [SimpleNamespace()]), Notes())
    for seconds, model in ((0.2, "zero"), (11.0, "temporal_peer")):
        news(0, Note((model, 0, 0), "epoch 0 has ended", seconds))
    assert notes == ["temporal_peer fold 0 seed 0: epoch 0 has ended"]
    news(0, Note(("temporal_peer", 1, 2), "A step is computed in parts."))
    assert notes[1:] == ["temporal_peer fold 1 seed 2: A step is computed in parts."]


def test_a_stage_in_two_places_has_two_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    progress = Progress()
    with progress.stage("train", total=3, places={"cuda": 1, "cpu": 2}):
        progress.step("temporal_peer fold 0", "cuda")
        progress.step("ridge fold 0", "cpu")
    lines = written.last_lines()[-2:]
    assert re.fullmatch("✓ train \\(cuda\\) ━+ 1/1 0:00:00", lines[0])
    assert re.fullmatch(". train \\(cpu\\) +━+.* 1/2 0:00:00", lines[1])
    with progress.stage("train", total=3, places={"cpu": 3}):
        progress.step("ridge fold 1", "cpu")
    assert "train (cpu)" not in written.last_lines()[-1]


def test_the_log_of_a_stage_in_two_places_counts_the_steps_of_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress()
    with progress.stage("train", total=3, places={"cuda": 1, "cpu": 2}):
        for place in ("cpu", "cuda", "cpu"):
            progress.step("done", place)
    first, *steps, _ = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert first["places"] == {"cuda": 1, "cpu": 2}
    assert [(one["place"], one["done"], one["of"]) for one in steps] == [
        ("cpu", 1, 2),
        ("cuda", 1, 1),
        ("cpu", 2, 2),
    ]


def test_text_in_a_log_has_a_line_for_each_step(capsys: pytest.CaptureFixture[str], logs: None) -> None:
    choose_log("text")
    progress = Progress()
    progress.note("the lake is locked")
    with progress.stage("train", total=1):
        progress.step("ridge fold 0")
    with pytest.raises(ValueError, match="no"), progress.stage("report"):
        raise ValueError("no")
    assert capsys.readouterr().err.splitlines() == [
        "the lake is locked",
        "train: ridge fold 0",
        "train: done after 0 s",
        "report: stopped after 0 s",
    ]


def test_a_terminal_shows_no_json_before_and_after_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    progress = Progress()
    progress.note("the lake is locked")
    with progress.stage("ingest"):
        progress.note("a note")
    progress.note("the end")
    assert [line for line in written.last_lines() if "ingest" not in line] == [
        "the lake is locked",
        "a note",
        "the end",
    ]


def test_json_may_be_chosen_on_a_terminal(monkeypatch: pytest.MonkeyPatch, logs: None) -> None:
    written = terminal(monkeypatch)
    choose_log("json")
    with Progress().stage("ingest"):
        pass
    events = [json.loads(line)["event"] for line in written.getvalue().splitlines()]
    assert events == ["start", "end"]


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_a_quiet_command_shows_no_progress(
    monkeypatch: pytest.MonkeyPatch, logs: None, on_a_terminal: bool
) -> None:
    written = terminal(monkeypatch) if on_a_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    choose_log("none")
    progress = Progress()
    progress.note("a note")
    with progress.stage("train", total=1):
        progress.step("ridge fold 0")
    assert written.getvalue() == ""


def test_what_is_printed_in_a_stage_goes_to_the_file_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    written, file = terminal(monkeypatch), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with Progress().stage("ingest"):
        print("a result")
    assert file.getvalue() == "a result\n"
    assert "a result" not in written.getvalue()
