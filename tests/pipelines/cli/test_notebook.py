"""``peerglass notebook``: copies, parameters, and JupyterLab with the Python of this installation."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Call, command
from places import ROOT


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capfd)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Arguments and environment of the process that takes the place of the command."""
    calls: list[tuple[list[str], dict[str, str]]] = []

    def execve(_: str, arguments: list[str], environment: dict[str, str]) -> None:
        calls.append((arguments, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    known: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: known(name.replace("jupyterlab", "os"), *more)
    )
    return calls


def test_copies_are_those_that_are_shipped_and_a_changed_one_is_kept(peerglass: Call) -> None:
    answer = peerglass("notebook", "--copy")
    assert answer.code == 0, answer.err
    paths = [Path(line) for line in answer.out.splitlines()]
    assert [path.name[:2] for path in paths] == ["01", "02", "03", "04", "05", "06"]
    assert all(path.read_bytes() == (ROOT / "notebooks" / path.name).read_bytes() for path in paths)
    assert (paths[0].parent / "market.yaml").is_file()
    paths[1].write_text("mine")
    assert peerglass("notebook", "02", "--copy").out.split() == [str(paths[1])]
    assert paths[1].read_text() == "mine"


def test_lab_opens_the_copy_with_this_python(
    peerglass: Call, started: list[tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    assert peerglass("notebook").code == 0
    options = ("--date", "2024-03-01", "--ticker", "AAPL")
    assert peerglass("notebook", "02_peer_network_review.ipynb", *options).code == 0
    (all_of_them, _), (one, environment) = started
    folder = tmp_path / "notebooks"
    assert all_of_them == [sys.executable, "-m", "jupyterlab", str(folder)]
    assert one[-1] == str(folder / "02_peer_network_review.ipynb")
    assert environment["JUPYTER_PREFER_ENV_PATH"] == "1"
    assert (environment["PEERGLASS_DATE"], environment["PEERGLASS_TICKER"]) == ("2024-03-01", "AAPL")
    assert "PEERGLASS_RUN" not in environment


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["07"], "There is no notebook '07'; choose among: 01_first_run, 02_peer"),
        (["0"], "More than one notebook begins with '0'; choose among"),
        (["--html", "page.html"], "--html writes one notebook; name it"),
        (["01", "--copy", "--html", "page.html"], "give one of the two"),
        (["02", "--run", "none"], "none"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_copies_nothing(
    peerglass: Call, tmp_path: Path, arguments: list[str], words: str
) -> None:
    answer = peerglass("notebook", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "package"), [([], "jupyterlab"), (["--html", "p.html"], "nbconvert")])
def test_what_is_not_installed_is_named_with_its_cure(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], package: str
) -> None:
    known: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == package else known(name, *a)
    )
    answer = peerglass("notebook", "01", *arguments)
    assert answer.code == 2
    assert "pip install" in answer.err
    assert package in answer.err.lower()
