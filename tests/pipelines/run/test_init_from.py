"""``init_from``: the fold of an earlier run that a model starts from, refusals, and pretraining in runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_markets import make_subject, market

from models.batch import PanelTensors
from models.fitting import pretraining
from models.fitting.fit import NeuralFitted
from models.fitting.snapshot import Snapshot
from pipelines.audit.registry import CHECKS
from pipelines.config.load import check_config, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError, DataError
from pipelines.progress import Progress
from pipelines.run.checkpoints import FileSnapshotStore, load_checkpoint
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.run.record import RecordedRun, open_run, read_scores
from pipelines.stages import train_config
from pipelines.train.task import collect_arrays, run_task
from pipelines.train.walkforward import plan_tasks

pytestmark = pytest.mark.usefixtures("untracked")

MODEL = "temporal_transformer"
ENCODER = {"width": 8, "heads": 2, "layers": 1}
OPTIONS = {"encoder": ENCODER}
PRETRAIN = {"epochs": 2, "windows_per_epoch": 256}
FROZEN = {"epochs": 1, "lr": 1e-30, "weight_decay": 0.0, "batch_dates": 64}
"""A fit that does not change the weights."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("init_from")
    ingest_config(config_of(folder, tiny_settings), echo=lambda _: None)
    return folder


def config_of(home: Path, tiny: Mapping[str, Any], **changes: Any) -> Config:  # noqa: ANN401 (settings)
    places = {
        "lake": str(home / "lake"),
        "output": str(home / "runs"),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": str(home / "mlartifacts")},
        "models": {MODEL: OPTIONS},
    }
    few = {"characteristics": ["return_1", "momentum_63"], "window": 5}
    folds = {**tiny["folds"], "anchor": "start", "max_folds": 1, **changes.pop("folds", {})}
    return check_config({**tiny, **places, "features": few, "folds": folds, **changes}, origin="test")


@pytest.fixture(scope="module")
def earlier(home: Path, tiny_settings: Mapping[str, Any]) -> RecordedRun:
    """A pretrained run with two folds."""
    config = config_of(home, tiny_settings, folds={"max_folds": 2}, fit={"epochs": 1, "pretrain": PRETRAIN})
    return open_run(train_config(config), home / "runs")


def seen_of(run: RecordedRun) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((run.folder / "folds.json").read_text())
    return rows


def encoder_of(run: RecordedRun, fold: int) -> dict[str, torch.Tensor]:
    fitted, _ = load_checkpoint(run.checkpoint(MODEL, fold, 0))
    assert isinstance(fitted, NeuralFitted)
    return {name: value for name, value in fitted.module.state_dict().items() if name.startswith("encoder.")}


def test_a_pretraining_is_scored_and_kept_with_the_checkpoint(earlier: RecordedRun) -> None:
    losses = read_scores(earlier)["pretrain_loss"].to_list()
    assert len(losses) == 2
    for fold, loss in enumerate(losses):
        fitted, _ = load_checkpoint(earlier.checkpoint(MODEL, fold, 0))
        assert isinstance(fitted, NeuralFitted)
        assert fitted.pretraining[-1].train_loss == loss
        assert 0.1 < loss < 3.0


def test_folds_start_from_the_latest_usable_encoder_and_record_the_sessions_it_saw(
    earlier: RecordedRun, home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    changes = {"folds": {"max_folds": 2}, "fit": FROZEN, "init_from": earlier.run_id}
    run = open_run(train_config(config_of(home, tiny_settings, **changes)), home / "runs")
    for fold in (0, 1):
        ours = encoder_of(run, fold)
        for name, value in encoder_of(earlier, fold).items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-20)
    assert read_scores(run)["pretrain_loss"].to_list() == [None, None]
    assert seen_of(run) == seen_of(earlier)

    # validation ends earlier: the last session seen is then that of the warm start
    shorter = {**changes, "folds": {"valid": 20, "embargo": 3}, "init_from": run.run_id}
    chained = open_run(train_config(config_of(home, tiny_settings, **shorter)), home / "runs")
    assert seen_of(chained)[0]["seen_to"] == seen_of(earlier)[0]["seen_to"]
    np.testing.assert_allclose(
        encoder_of(chained, 0)["encoder.input.weight"].numpy(),
        encoder_of(earlier, 0)["encoder.input.weight"].numpy(),
        rtol=0,
        atol=1e-20,
    )


@pytest.mark.slow(2)
def test_a_run_that_would_leak_or_does_not_fit_is_refused(
    earlier: RecordedRun, home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    def refused(kind: type[Exception], message: str, **changes: Any) -> None:  # noqa: ANN401 (settings)
        with pytest.raises(kind, match=message):
            train_config(config_of(home, tiny_settings, **{"init_from": earlier.run_id, **changes}))

    first = seen_of(earlier)[0]
    refused(
        ConfigError,
        "was trained on sessions after .* name a run whose training ended earlier",
        folds={"train": 100},
    )
    refused(
        ConfigError,
        f"has seen sessions up to {first['seen_to']}, but the test of fold 0 starts",
        folds={"valid": 5},
    )
    refused(
        ConfigError,
        "has no model 'temporal_peer'",
        models={"temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2}},
    )
    refused(
        ConfigError, "width 8 and this model has 16", models={MODEL: {"encoder": {**ENCODER, "width": 16}}}
    )
    refused(ConfigError, "No run begins with", init_from="absent")
    text = (earlier.folder / "folds.json").read_text()
    (earlier.folder / "folds.json").write_text("[{}]")
    refused(DataError, r"has not recorded which sessions its folds have seen \(Field required\); run")
    (earlier.folder / "folds.json").write_text(text)


def test_settings_are_checked_by_name_and_init_from_changes_no_other_setting(
    home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    plain = config_of(home, tiny_settings)
    own = config_of(home, tiny_settings, models={MODEL: {**OPTIONS, "init_from": "b"}})
    assert model_settings(own, MODEL) == replace(model_settings(plain, MODEL), init_from="b")
    for wrong, message in (
        (
            {"fit": {"pretrain": {"epoch": 1}}},
            r"fit.pretrain.epoch is not a known name; did you mean 'epochs'",
        ),
        ({"fit": {"pretrain": {"objective": "guess"}}}, "objective"),
        ({"fit": {"label_share": 0}}, "label_share"),
        (
            {"models": {"mlp": {"fit": {"pretrain": PRETRAIN}}}},
            "models.mlp sets pretrain, which needs a day encoder",
        ),
        ({"models": {"ridge": {"init_from": "x"}}}, "models.ridge sets init_from, which needs a day encoder"),
    ):
        with pytest.raises(ConfigError, match=message):
            config_of(home, tiny_settings, **wrong)


@pytest.mark.parametrize("frequency", ["daily", "weekly"])
def test_the_audit_passes_a_pretraining_and_fails_one_with_look_ahead(
    frequency: str, tiny_settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **tiny_settings,
        "models": {MODEL: {**OPTIONS, "fit": {"pretrain": PRETRAIN}}},
        "features": {"window": 3, "characteristics": ["return_1"]},
        "label": {**tiny_settings["label"], "forecast_frequency": frequency},
    }
    result = CHECKS["fit_scope"](make_subject(*market(settings)))
    assert result.verdict == "pass", result.sentence
    original = pretraining.windows_of

    def leaky(data: PanelTensors, train: Any) -> Any:  # noqa: ANN401 (passed on)
        return original(data, np.arange(train[0], len(data.mask_TN)))

    monkeypatch.setattr(pretraining, "windows_of", leaky)
    result = CHECKS["fit_scope"](make_subject(*market(settings)))
    assert result.verdict == "fail"


class InterruptedStore(FileSnapshotStore):
    """Keeps snapshots on disk, and interrupts the training after the first."""

    def save(self, snapshot: Snapshot) -> None:
        super().save(snapshot)
        raise KeyboardInterrupt


def test_a_task_killed_during_pretraining_resumes_from_its_file_to_the_same_bits(
    home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    config = config_of(home, tiny_settings, fit={"epochs": 1, "pretrain": PRETRAIN})
    run, dataset, _ = prepare_run(config, Progress())
    (task,) = plan_tasks(run, dataset, plan_folds(dataset, config))
    arrays = collect_arrays(dataset, config.features.window)
    whole = run_task(task, arrays)
    assert task.snapshot is not None
    with pytest.raises(KeyboardInterrupt):
        run_task(task, arrays, InterruptedStore(task.snapshot))
    snapshots = FileSnapshotStore(task.snapshot)
    kept = snapshots.load()
    assert kept is not None
    assert kept.stage == "pretrain"
    resumed = run_task(task, arrays, snapshots)
    for name, value in whole.state.tensors.items():
        np.testing.assert_array_equal(resumed.state.tensors[name], value, err_msg=name)
