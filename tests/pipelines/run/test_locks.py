"""Locks between processes: one writer at a time."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import command
from tracking_stores import new_store
from warm import PEERGLASS, Process

from pipelines.config.load import load_config
from pipelines.errors import DataError
from pipelines.ingest.quarantine import Selection, listing
from pipelines.lake.lake import Lake
from pipelines.lake.upkeep import record_reader
from pipelines.run.fetch import ingest_config
from pipelines.run.locks import Locks
from pipelines.run.record import open_run, read_scores

HOLD = """
import sys, time
from pathlib import Path
from pipelines.run.locks import Locks
with Locks(wait=False, notify=print) as locks:
    getattr(locks, sys.argv[1])(Path(sys.argv[2]) if sys.argv[1] == "lock_run" else sys.argv[2])
    print("held", flush=True)
    time.sleep(60)
"""


def holder(method: str, place: Path | str) -> Process:
    """Another process that holds a lock."""
    process = Process(HOLD, [method, str(place)])
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("method", ["lock_run", "lock_lake"])
def test_a_second_process_names_the_holder_and_takes_over_the_lock_of_a_dead_one(
    tmp_path: Path, method: str
) -> None:
    place = tmp_path / "tiny-1"

    def take() -> None:
        with Locks(wait=False, notify=print) as locks:
            getattr(locks, method)(place if method == "lock_run" else str(place))

    process = holder(method, place)
    try:
        with pytest.raises(DataError, match=rf"being written by process {process.pid} on .*, since 20"):
            take()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert [*tmp_path.rglob("*.holder")], "the note of the dead process is still there"
    take()
    process = holder(method, place)
    try:
        (note,) = [*tmp_path.rglob("*.holder")]
        stale = json.loads(note.read_text()) | {"pid": 2**22 + 1}
        note.write_text(json.dumps(stale))
        with pytest.raises(DataError, match="being written by another process;"):
            take()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow(9)
@pytest.mark.parametrize("wait", [False, True])
def test_two_trainings_of_one_config_end_with_one_complete_run(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"ridge": {}, "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2}}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "models": models, "fit": {"epochs": 12}}))
    ingest_config(load_config(Path("tiny.yaml")), echo=lambda _: None)
    new_store(tmp_path)
    arguments = ["train", "tiny.yaml", *(["--wait"] if wait else [])]
    started = [Process(PEERGLASS, arguments) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in started]
    codes = sorted(process.wait() for process in started)
    assert codes == ([0, 0] if wait else [0, 3]), outputs
    if not wait:
        (refused,) = [err for process, (_, err) in zip(started, outputs, strict=True) if process.returncode]
        (other,) = [process.pid for process in started if not process.returncode]
        assert f"is being written by process {other} on" in refused.splitlines()[-1]
        assert "add --wait" in refused.splitlines()[-1]
    (run_id,) = {out.strip() for out, _ in outputs if out}
    assert Lake("lake").version("forecasts") == 4, "each of four tasks was committed once"
    keys = Lake("lake").read("forecasts").select("model", "fold", "seed").unique()
    assert keys.height == 4
    assert read_scores(open_run(run_id, Path("runs"))).select(pl.len()).item() == 4


def test_the_lock_of_a_lake_at_a_url_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)

    def take(lake: str) -> None:
        with Locks(wait=False, notify=print) as locks:
            locks.lock_lake(lake)

    process = holder("lock_lake", "s3://bucket/lake")
    try:
        (lock,) = (home / ".cache" / "peerglass" / "locks").glob("*.lock")
        held = rf"The lake s3://bucket/lake is being written by process {process.pid} on "
        for written in ("s3://bucket/lake", "s3://bucket/lake/"):
            with pytest.raises(DataError, match=held):
                take(written)
        take("s3://bucket/other")
    finally:
        process.kill()
        process.communicate()
    take("s3://bucket/lake")
    assert lock.is_file()
    assert list(tmp_path.iterdir()) == [home], "a URL is not taken for a folder"

    process = holder("lock_lake", tmp_path / "lake")
    try:
        with pytest.raises(DataError, match=rf"being written by process {process.pid} on "):
            take(f"file://{tmp_path}/lake")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    """A folder with a config and its lake, which has rejected rows and a table of two small files."""
    folder = tmp_path_factory.mktemp("filled")
    settings = {
        **tiny_settings,
        "lake": str(folder / "lake"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": "artifacts"},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    ingest_config(load_config(folder / "tiny.yaml"), echo=lambda _: None)
    lake = Lake(str(folder / "lake"))
    for run in ("tiny-1", "tiny-2"):
        record_reader(lake, run, {"prices": 1})
    return folder


@pytest.mark.parametrize(
    ("command", "done"),
    [
        (("lake", "compact", "tiny.yaml"), "readers: 2 files joined into 1"),
        (("lake", "vacuum", "tiny.yaml", "--keep-days", "1"), "nothing to remove"),
        (("quarantine", "release", "tiny.yaml", "--row"), "1 row released into prices"),
    ],
    ids=["compact", "vacuum", "release"],
)
def test_commands_that_change_a_lake_wait_for_a_running_ingest_or_name_it(
    filled: Path, command: tuple[str, ...], done: str
) -> None:
    lake = Lake(str(filled / "lake"))
    if command[-1] == "--row":
        rejected = listing(lake, Selection(table="prices")).filter(pl.col("state") == "rejected")
        command = (*command, rejected["row_hash"][0])
    commits = sorted(filled.glob("lake/*/_delta_log/*"))
    process = holder("lock_lake", lake.root)
    try:
        refused = Process(PEERGLASS, command, cwd=filled)
        out, err = refused.communicate(timeout=300)
        assert (refused.returncode, out) == (3, ""), err
        sentence = err.splitlines()[-1]
        assert f"The lake {lake.root} is being written by process {process.pid} on" in sentence
        assert sentence.endswith("wait for it to finish, or add --wait.")
        waiting = Process(PEERGLASS, [*command, "--wait"], cwd=filled)
        assert any("waiting for it to finish" in line for line in waiting.stderr)
        assert waiting.poll() is None
        assert sorted(filled.glob("lake/*/_delta_log/*")) == commits
    finally:
        process.kill()
        process.communicate()
    out, err = waiting.communicate(timeout=300)
    assert waiting.returncode == 0, err
    assert done in out


def test_a_dry_run_of_a_vacuum_needs_no_lock(filled: Path) -> None:
    process = holder("lock_lake", filled / "lake")
    try:
        dry = Process(PEERGLASS, ["lake", "vacuum", "tiny.yaml", "--keep-days", "1", "--dry-run"], cwd=filled)
        assert dry.communicate(timeout=300)[0] == "nothing to remove\n"
        assert dry.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_maintenance_of_an_absent_lake_creates_no_folder(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny))
    answer = command(monkeypatch, capfd)("lake", "compact", "tiny.yaml")
    assert (answer.code, answer.out) == (0, "nothing to join\n")
    assert not Path("lake").exists()
