"""``peerglass train``, killed at random times and restarted, gives the same result as an uninterrupted run.

The command runs in its own process group, which is killed by SIGKILL. The times are drawn over the duration
of an uninterrupted training. Half of them are counted from the start of the training and half from its first
commit, because a machine may be slower than when that duration was measured. Only the first kill falls into
the start-up, which only reads.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from counted import trial_count
from tracking_stores import new_store
from warm import PEERGLASS, Process

from models.fitting.snapshot import Snapshot
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.checkpoints import FileSnapshotStore, load_checkpoint
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.run.record import open_run, read_curves, read_scores
from pipelines.stages import train_config

KILLS = 10
MODELS = {
    "zero": {},
    "ridge": {},
    "self_peer": {"width": 8, "heads": 2, "layers": 1},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2},
}
SEEDS = (0, 1)
FOLDS = 2


def prepared(folder: Path, tiny: dict[str, Any], **changes: Any) -> Config:  # noqa: ANN401 (settings)
    """Make a folder with a config and a filled lake. The data are equal in every folder."""
    folder.mkdir()
    settings = {
        **tiny,
        "models": MODELS,
        "seeds": list(SEEDS),
        "fit": {"epochs": 3, "batch_dates": 16},
        **changes,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(folder / "tiny.yaml")
    ingest_config(config.model_copy(update={"lake": str(folder / "lake")}))
    new_store(folder)
    return config


@contextmanager
def training(folder: Path) -> Iterator[Process]:
    """Run the command in its own process group, which is always killed at the end."""
    process = Process(PEERGLASS, ["train", "tiny.yaml"], cwd=folder)
    try:
        yield process
    finally:
        kill_group(process)
        process.communicate()


def kill_group(process: Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def event_of(line: str) -> dict[str, Any]:
    assert line.startswith("{"), line  # anything else is an error of the command
    event: dict[str, Any] = json.loads(line)
    return event


def finish(folder: Path) -> tuple[str, float, list[dict[str, Any]]]:
    """Run the command to its end; return the run id, the seconds of training and the progress events."""
    with training(folder) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    events = [event_of(line) for line in err.splitlines()]
    ends = [event for event in events if event["stage"] == "train" and event["event"] == "end"]
    return out.strip(), ends[0]["seconds"], events


def kill_during_training(folder: Path, begin: str, after: float) -> bool:
    """Kill the command some seconds after an event of its training; return whether it was still running."""
    with training(folder) as process:
        for line in process.stderr:
            event = event_of(line)
            if event["stage"] == "train" and event["event"] == begin:
                break
        # Keep reading its progress, as a terminal or a log does.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            return True
    return False


def forecasts(folder: Path) -> pl.DataFrame:
    """All forecasts without the run id, which differs between folders."""
    return Lake(folder / "lake").read("forecasts").drop("run_id")


def check_complete(folder: Path, run_id: str, models: dict[str, Any], seeds: tuple[int, ...]) -> None:
    """Check that every task has exactly one commit, a readable checkpoint, a score and a learning curve."""
    tasks = {(model, fold, seed) for model in models for fold in range(FOLDS) for seed in seeds}
    lake = Lake(folder / "lake")
    frame = lake.read("forecasts")
    key = ["run_id", "model", "fold", "seed", "date", "ticker"]
    assert frame.height > 100 * len(tasks)
    assert frame.select(key).n_unique() == frame.height
    assert set(frame.select("model", "fold", "seed").unique().iter_rows()) == tasks
    assert frame.group_by("model", "seed").len()["len"].n_unique() == 1
    assert lake.version("forecasts") == len(tasks), "a task was committed more than once"
    assert trial_count(folder / "runs") == len(models)
    run = open_run(str(folder / "runs" / run_id))
    assert read_scores(run).height == len(tasks)
    assert read_curves(run).select("model", "fold", "seed").n_unique() == len(tasks)
    for task in tasks:
        load_checkpoint(run.checkpoint(*task))
    assert not list((run.folder / "snapshots").glob("*")), "snapshots are deleted at the end"


@pytest.mark.slow(25)
def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path, tiny: dict[str, Any]) -> None:
    prepared(tmp_path / "uninterrupted", tiny)
    run_id, seconds, _ = finish(tmp_path / "uninterrupted")
    check_complete(tmp_path / "uninterrupted", run_id, MODELS, SEEDS)

    whole = forecasts(tmp_path / "uninterrupted")
    folder = tmp_path / "killed"
    prepared(folder, tiny)
    rng = random.Random(7)  # noqa: S311 (when to kill is no secret)
    with training(folder):  # one kill before any progress event, during the imports
        time.sleep(rng.uniform(0.1, 1.0))
    kills, seen, between = 1, 0, 0
    while kills < KILLS:
        # Kills come after a tenth of a whole training on average, so nearly all of them meet unfinished work.
        begin, after = "step" if kills % 2 else "start", rng.uniform(0.0, 1.6) * seconds / KILLS
        if not kill_during_training(folder, begin, after):
            # The machine is faster than when it was measured: this run is complete, so start another one.
            assert forecasts(folder).equals(whole)
            folder, seen = tmp_path / f"killed-{kills}", 0
            prepared(folder, tiny)
            continue
        kills += 1
        kept = forecasts(folder).height if Lake(folder / "lake").exists("forecasts") else 0
        assert kept >= seen, "committed forecasts were lost"
        seen, between = kept, between + (0 < kept < whole.height)
    assert between, "some kills must fall between commits"

    again, _, events = finish(folder)
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert any("already done and are skipped" in note for note in notes) or not seen
    check_complete(folder, again, MODELS, SEEDS)
    assert forecasts(folder).equals(whole)


@pytest.mark.slow(6)
def test_an_interrupted_training_resumes_from_its_last_epoch_and_ends_with_the_same_bits(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {
        "models": {"temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2}},
        "seeds": [0],
        "fit": {"epochs": 10, "patience": 10, "batch_dates": 8},
        "folds": {**tiny["folds"], "max_folds": 1},
    }
    prepared(tmp_path / "uninterrupted", tiny, **changes)
    run_id, _, _ = finish(tmp_path / "uninterrupted")
    folder = tmp_path / "killed"
    config = prepared(folder, tiny, **changes)
    rng = random.Random(11)  # noqa: S311 (when to kill is no secret)
    monkeypatch.chdir(folder)
    own, _, _ = prepare_run(config, Progress())
    snapshot = own.task_file("snapshots", ("temporal_peer", 0, 0), ".safetensors")
    for _ in range(3):
        before = snapshot.stat().st_mtime_ns if snapshot.exists() else 0
        with training(folder) as process:
            while not snapshot.exists() or snapshot.stat().st_mtime_ns == before:  # at least one more epoch
                assert process.poll() is None, "the command ended before its first epoch was noticed"
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.1))  # and into the next epoch
    assert snapshot.is_file(), "the kills must fall between epochs"
    again, _, _ = finish(folder)
    assert again == own.run_id
    weights = Path("checkpoints", "temporal_peer", "fold-0-seed-0", "model.safetensors")
    uninterrupted = tmp_path / "uninterrupted" / "runs" / run_id
    assert (own.folder / weights).read_bytes() == (uninterrupted / weights).read_bytes()
    assert forecasts(folder).equals(forecasts(tmp_path / "uninterrupted"))
    assert not snapshot.exists()


def test_a_damaged_snapshot_is_named_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "snapshots" / "x-fold-0-seed-0.safetensors"
    snapshots = FileSnapshotStore(path)
    assert snapshots.load() is None
    snapshots.save(Snapshot({"module/w": torch.arange(3.0)}, "{}"))
    loaded = snapshots.load()
    assert loaded is not None
    assert loaded.numbers == "{}"
    assert torch.equal(loaded.tensors["module/w"], torch.arange(3.0))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for damage in (b"", path.read_bytes()[:20], b"{}" * 50):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=r"cannot be resumed .* delete it and run 'peerglass train'"):
            snapshots.load()
    snapshots.delete()
    snapshots.delete()
    assert snapshots.load() is None


@pytest.mark.slow(11)
def test_a_killed_pool_resumes_to_the_same_forecasts_as_one_process(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"ridge": {}, "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2}}
    seeds = (0, 1)
    config = prepared(tmp_path / "uninterrupted", tiny, models=models, seeds=list(seeds))
    monkeypatch.chdir(tmp_path / "uninterrupted")
    train_config(config)

    folder = tmp_path / "killed"
    prepared(folder, tiny, models=models, seeds=list(seeds), execution={"workers": 2})
    with training(folder) as process:  # kill only the parent, as the kernel does when memory runs out
        for line in process.stderr:
            if event_of(line)["event"] == "step":
                break
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert 0 < forecasts(folder).height < forecasts(tmp_path / "uninterrupted").height
        again, _, _ = finish(folder)
    check_complete(folder, again, models, seeds)
    assert forecasts(folder).equals(forecasts(tmp_path / "uninterrupted"))


@pytest.mark.slow(2)
@pytest.mark.parametrize("lost", ["checkpoint", "scores"])
def test_a_task_whose_files_are_lost_is_repeated_and_committed_once(
    tmp_path: Path, tiny: dict[str, Any], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prepared(tmp_path / "here", tiny, models={"ridge": {}}, seeds=[0])
    monkeypatch.chdir(tmp_path / "here")
    run_id = train_config(config)
    run, before = open_run(run_id, Path("runs")), forecasts(Path.cwd())
    if lost == "checkpoint":
        (run.checkpoint("ridge", 1, 0) / "model.json").unlink()
    else:
        (run.folder / "scores" / "ridge-fold-1-seed-0.json").unlink()
    assert train_config(config) == run_id
    assert forecasts(Path.cwd()).equals(before)
    check_complete(Path.cwd(), run_id, {"ridge": {}}, (0,))


def test_a_deleted_snapshot_leaves_no_part_of_a_killed_process(tmp_path: Path) -> None:
    mine, other = (FileSnapshotStore(tmp_path / f"ridge-fold-0-seed-{seed}.safetensors") for seed in (0, 1))
    for store in (mine, other):
        store.path.write_bytes(b"content")
        store.path.with_name(f".{store.path.name}.123.partial").write_bytes(b"part")
    mine.delete()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".{other.path.name}.123.partial",
        other.path.name,
    ]
