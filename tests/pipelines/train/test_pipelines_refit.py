"""``fit.refit`` in a run: its report, its files, and interruptions between the two fits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.fitting.snapshot import Snapshot
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.errors import DataError
from pipelines.progress import Progress
from pipelines.run.checkpoints import FileSnapshotStore
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.run.record import open_run, read_scores
from pipelines.run.warm_start import write_folds
from pipelines.stages import train_config
from pipelines.train.task import Arrays, Task, collect_arrays, run_task
from pipelines.train.walkforward import collect_hazards, plan_tasks

MODEL = "temporal_peer"
FIT = {"epochs": 3, "patience": 3, "batch_dates": 16}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("refit")
    ingest_config(config_of(folder, tiny_settings), echo=lambda _: None)
    return folder


def config_of(home: Path, tiny: Mapping[str, Any], **fit: Any) -> Config:  # noqa: ANN401 (settings)
    changes = {
        "lake": str(home / "lake"),
        "output": str(home / "runs"),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": str(home / "mlartifacts")},
        "models": {MODEL: {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2}, "ridge": {}},
        "features": {"characteristics": ["return_1", "momentum_63"], "window": 5},
        "folds": {**tiny["folds"], "max_folds": 1},
        "fit": {**FIT, **fit},
    }
    return check_config({**tiny, **changes}, origin="test")


def task_of(config: Config, model: str = MODEL) -> tuple[Task, Arrays, Dataset]:
    run, dataset, _ = prepare_run(config, Progress())
    tasks = plan_tasks(run, dataset, plan_folds(dataset, config))
    task = next(task for task in tasks if task.model == model)
    return task, collect_arrays(dataset, config.features.window), dataset


class InterruptedStore(FileSnapshotStore):
    """Keeps snapshots on disk, and interrupts the second fit after its first snapshot."""

    def save(self, snapshot: Snapshot) -> None:
        super().save(snapshot)
        if self.path.stem.endswith("-refit"):
            raise KeyboardInterrupt


@pytest.mark.parametrize("model", [MODEL, "ridge"])
def test_validation_scores_are_those_of_the_fit_without_validation(
    home: Path, tiny_settings: Mapping[str, Any], model: str
) -> None:
    task, arrays, _ = task_of(config_of(home, tiny_settings, refit=True), model)
    plain, _, _ = task_of(config_of(home, tiny_settings), model)
    twice, once = run_task(task, arrays), run_task(plain, arrays)
    assert (twice.valid_rank_ic, twice.valid_ic) == (once.valid_rank_ic, once.valid_ic)
    for left, right in zip(twice.history, once.history, strict=True):
        np.testing.assert_array_equal(
            (left.train_loss, left.valid_rank_ic), (right.train_loss, right.valid_rank_ic)
        )
    known = np.isfinite(once.test_BN)
    np.testing.assert_array_equal(np.isfinite(twice.test_BN), known)
    assert np.abs(twice.test_BN - once.test_BN)[known].max() > 0


def test_an_interruption_in_the_second_fit_changes_no_bit(
    home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    task, arrays, _ = task_of(config_of(home, tiny_settings, refit=True))
    whole = run_task(task, arrays)
    assert task.snapshot is not None
    with pytest.raises(KeyboardInterrupt):
        run_task(task, arrays, InterruptedStore(task.snapshot))
    snapshots = FileSnapshotStore(task.snapshot)
    assert snapshots.load() is not None
    assert snapshots.of_refit().load() is not None
    resumed = run_task(task, arrays, snapshots)
    for name, value in whole.state.tensors.items():
        np.testing.assert_array_equal(resumed.state.tensors[name], value, err_msg=name)
    np.testing.assert_array_equal(resumed.test_BN, whole.test_BN)
    assert (resumed.valid_rank_ic, resumed.valid_ic) == (whole.valid_rank_ic, whole.valid_ic)


def test_the_error_names_the_snapshot_that_cannot_be_resumed(
    home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    task, arrays, _ = task_of(config_of(home, tiny_settings, refit=True))
    assert task.snapshot is not None
    snapshots = FileSnapshotStore(task.snapshot)
    again = snapshots.of_refit()
    again.delete()
    with pytest.raises(KeyboardInterrupt):
        run_task(task, arrays, InterruptedStore(task.snapshot))
    snapshot = again.load()
    assert snapshot is not None
    again.save(Snapshot({**snapshot.tensors, "module/other": torch.zeros(1)}, snapshot.numbers))
    with pytest.raises(DataError, match=r"temporal_peer-fold-0-seed-0-refit\.safetensors cannot be resumed"):
        run_task(task, arrays, snapshots)


def test_a_finished_run_keeps_no_snapshot_of_either_fit(home: Path, tiny_settings: Mapping[str, Any]) -> None:
    config = config_of(home, tiny_settings, refit=True, epochs=1)
    run = open_run(train_config(config), home / "runs")
    assert read_scores(run).height == 2 * len(config.seeds)
    folder = run.folder / "snapshots"
    assert folder.is_dir(), "snapshots were made"
    assert not list(folder.iterdir())


def test_the_recorded_sessions_of_a_refitted_fold_include_validation(
    home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    ends = {}
    for again in (False, True):
        config = config_of(home, tiny_settings, refit=again)
        run, dataset, _ = prepare_run(config, Progress())
        (fold,) = plan_folds(dataset, config)
        write_folds(run, dataset, [fold])
        (row,) = json.loads((run.folder / "folds.json").read_text())
        ends[again] = row["train_to"]
        last = fold.valid[-1] if again else fold.train[-1]
        assert row["train_to"] == str(dataset.panel.dates_T[last].astype("datetime64[D]"))
    assert ends[False] < ends[True]


def test_the_report_names_the_refitted_models(home: Path, tiny_settings: Mapping[str, Any]) -> None:
    config = config_of(home, tiny_settings)
    run, dataset, lake = prepare_run(config, Progress())
    assert not any("refitted to training" in note for note in collect_hazards(run, dataset, lake)[1])
    some = {**config.models, "ridge": {"fit": {"refit": True}}}
    for changed, models in (
        (config.model_copy(update={"models": some}), "ridge"),
        (config.model_copy(update={"fit": {**config.fit, "refit": True}}), "All models"),
    ):
        notes = collect_hazards(dataclasses.replace(run, config=changed), dataset, lake)[1]
        assert [note.split(":")[0] for note in notes if "refitted to training" in note] == [models]


@pytest.mark.parametrize("model", [MODEL, "ridge"])
def test_a_panel_that_exceeds_the_device_gives_the_same_forecasts(
    home: Path, tiny_settings: Mapping[str, Any], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, arrays, _ = task_of(config_of(home, tiny_settings), model)
    on_device, sizes = run_task(task, arrays), []

    def exceeds(device: str, size: int) -> bool:
        sizes.append(size)
        return True

    monkeypatch.setattr("pipelines.train.task.exceeds_device", exceeds)
    on_host = run_task(task, arrays)
    np.testing.assert_array_equal(on_host.test_BN, on_device.test_BN)
    assert np.isfinite(on_device.test_BN).any()
    windows = 0 if model == "ridge" else arrays.channels_TNC.nbytes
    assert sizes == [arrays.characteristics_TNF.nbytes + windows]
