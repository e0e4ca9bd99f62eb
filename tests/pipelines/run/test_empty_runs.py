"""A command that ends without a result for its run leaves no run behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import Call, command
from counted import trial_count
from warm import Process

from pipelines.audit.registry import CHECKS
from pipelines.errors import DataError
from pipelines.run.locks import Locks

OUTPUT = Path("runs")
WAIT = """
import sys
from pathlib import Path
from pipelines.run.locks import Locks
with Locks(wait=True, notify=lambda sentence: print("waits", flush=True)) as locks:
    locks.lock_run(Path(sys.argv[1]))
print("done")
"""


@pytest.fixture
def peerglass(
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """The command line, in a folder with the ingested config ``tiny.yaml``."""
    monkeypatch.chdir(tmp_path)
    models = {"ridge": {}, "lightgbm": {"rounds": 10, "evaluate_every": 5, "min_data_in_leaf": 50}}
    audit = {"sessions": 1, "skip": [name for name in CHECKS if name not in ("labels", "future")]}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "models": models, "audit": audit}))
    call = command(monkeypatch, capsys)
    assert call("ingest", "tiny.yaml").code == 0
    return call


def test_a_search_leaves_its_trials_and_no_run(peerglass: Call) -> None:
    answer = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "2")
    assert answer.code == 0, answer.err
    assert trial_count(OUTPUT) == 2
    assert [path.parent.parent.name for path in OUTPUT.rglob("trials.db")] == ["searches"]
    assert list(OUTPUT.glob("tiny-*")) == []
    assert peerglass("runs", "list", "--output", "runs").out == "no runs\n"


def test_an_interrupted_audit_leaves_no_run_and_a_finished_one_leaves_its_verdict(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def stop(*_: object) -> None:
            raise DataError("stopped in the middle")

        broken.setattr("pipelines.audit.command.run_checks", stop)
        answer = peerglass("audit", "tiny.yaml")
    assert (answer.code, list(OUTPUT.glob("tiny-*"))) == (3, [])
    peerglass("audit", "tiny.yaml")
    (run,) = OUTPUT.glob("tiny-*")
    assert {"audit.json", "run.json", "config.yaml"} <= {path.name for path in run.iterdir()}


def test_a_process_waits_for_the_lock_of_a_run_that_has_no_folder_yet(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tiny-1"
    with Locks(wait=False, notify=print) as locks:
        locks.lock_run(folder)
        waiting = Process(WAIT, [str(folder)])
        assert waiting.stdout.readline() == "waits\n"
    assert waiting.communicate(timeout=300)[0] == "done\n"
    assert waiting.returncode == 0
    assert not folder.exists()


def test_processes_that_come_and_go_never_hold_a_lock_together(tmp_path: Path) -> None:
    folder, inside, most = tmp_path / "tiny-1", [0], [0]
    guard = threading.Lock()

    def come_and_go() -> None:
        for _ in range(60):
            with Locks(wait=True, notify=lambda _: None) as locks:
                locks.lock_run(folder)
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                with guard:
                    inside[0] -= 1

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads)
    assert most == [1]
    assert not folder.exists()
