"""Networks in the pipeline: reference tickers, losses of a portfolio, and errors that name a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from places import ROOT

from models.fitting.fit import NeuralFitted, restore
from pipelines.config.load import check_config, load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError, DivergedError
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun
from pipelines.train import task as tasks
from pipelines.train.task import collect_arrays, run_task, to_tensors
from pipelines.train.walkforward import plan_tasks
from pipelines.train.work import GroupItem, train_group


@pytest.fixture(scope="module")
def dataset(tiny_tables: Mapping[str, pl.DataFrame], tiny_config: Config) -> Dataset:
    return build_dataset(tiny_tables, tiny_config)


def task_of(
    name: str, options: dict[str, Any], dataset: Dataset, config: Config, folder: Path
) -> tuple[tasks.Task, tasks.Arrays]:
    only = config.model_copy(update={"models": {name: options}, "fit": {"epochs": 1}})
    run = RecordedRun("tiny", only, Identity.nothing(), folder)
    task = next(plan_tasks(run, dataset, plan_folds(dataset, only)[:1]))
    return task, collect_arrays(dataset, only.features.window)


def attempted(task: tasks.Task, arrays: tasks.Arrays) -> None:
    """Train a task as a worker does, whose errors become sentences."""
    train_group(arrays, GroupItem((task,), {}), lambda _: None)


def test_a_list_of_reference_tickers_is_the_reference_universe(
    dataset: Dataset, tiny_config: Config, tmp_path: Path
) -> None:
    present_N = dataset.universe_TN[-60:].all(axis=0)
    reference = [dataset.panel.tickers_N[n] for n in np.flatnonzero(present_N)[1:4]]
    options = {"width": 8, "heads": 2, "reference": {"by": "list", "tickers": reference}}
    task, arrays = task_of("cross_peer", options, dataset, tiny_config, tmp_path)
    fitted = restore(run_task(task, arrays).state)
    assert isinstance(fitted, NeuralFitted)
    batch = to_tensors(arrays, task.inputs, "cpu").batch(torch.tensor([dataset.panel.n_sessions - 2]))
    weights = fitted.module.attention(batch).peers_BLHNN
    assert weights is not None
    attended = (weights[0].detach().sum(dim=(0, 1, 2)) > 0).nonzero().squeeze(1)
    assert [dataset.panel.tickers_N[n] for n in batch.firms_N[attended].tolist()] == sorted(reference)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("momentum", {"characteristic": "nonesuch"}, "models.momentum: momentum needs the characteristic"),
        ("cross_peer", {"reference": {"by": "list", "tickers": ["UNKNOWN"]}}, "cross_peer needs 'UNKNOWN'"),
        ("sector_mean", {"recent_days": 99}, "models.sector_mean: recent_days is 99"),
    ],
)
def test_options_that_do_not_fit_the_data_are_config_errors(  # noqa: PLR0917 (fixtures)
    name: str, options: dict[str, Any], words: str, dataset: Dataset, tiny_config: Config, tmp_path: Path
) -> None:
    task, arrays = task_of(name, options, dataset, tiny_config, tmp_path)
    with pytest.raises(ConfigError, match=words):
        attempted(task, arrays)


@pytest.mark.parametrize("name", ["ridge", "lightgbm", "sector_mean"])
def test_a_constant_label_is_a_failed_training(
    name: str, dataset: Dataset, tiny_config: Config, tmp_path: Path
) -> None:
    task, arrays = task_of(name, {}, dataset, tiny_config, tmp_path)
    flat = dataclasses.replace(arrays, target_TN=np.zeros_like(arrays.target_TN))
    with pytest.raises(DivergedError, match=f"{name}, fold 0, seed 0: The training targets are all the same"):
        attempted(task, flat)


@pytest.mark.parametrize("loss", ["sharpe", "net_utility"])
def test_a_portfolio_is_trained_on_the_raw_label_and_calibrated_to_the_target(
    loss: str, dataset: Dataset, tiny_config: Config, tmp_path: Path
) -> None:
    ranked = dataclasses.replace(dataset, target_TN=np.sign(dataset.target_TN))
    task, arrays = task_of("mlp", {"fit": {"loss": loss}}, ranked, tiny_config, tmp_path)
    label_TN = arrays.label_TN.astype(np.float32)
    data = to_tensors(arrays, task.inputs, "cpu", returns=True)
    assert data.return_TN is not None
    np.testing.assert_array_equal(data.return_TN.numpy(), label_TN)
    assert not np.array_equal(data.target_TN.numpy(), label_TN, equal_nan=True)
    outcome = run_task(task, arrays)
    assert np.isfinite(outcome.test_BN).any()
    assert len(outcome.state.config["calibration"]) == 1
    other = dataclasses.replace(arrays, label_TN=-arrays.label_TN)
    assert not np.array_equal(run_task(task, other).test_BN, outcome.test_BN, equal_nan=True)


def test_net_utility_needs_a_label_of_one_session(tiny: dict[str, Any]) -> None:
    given = {**tiny, "models": {"mlp": {"fit": {"loss": "net_utility"}}}}
    check_config(given, origin="tiny")
    for other in ({"horizon": 5}, {"forecast_frequency": "weekly"}):
        with pytest.raises(
            ConfigError, match=r"models\.mlp\.fit\.loss is net_utility, .* set label.horizon to 1"
        ):
            check_config({**given, "label": {**tiny["label"], **other}}, origin="tiny")


def test_nested_options_are_checked_when_a_config_is_read(tiny: dict[str, Any]) -> None:
    for reference, words in (
        ({"cuont": 5}, "cuont"),
        ({"by": "fame"}, "reference"),
        ({"by": "list"}, "list needs tickers"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_config({**tiny, "models": {"cross_peer": {"reference": reference}}}, origin="tiny")
    check_config(
        {**tiny, "models": {"cross_peer": {"reference": {"by": "group", "count": 2}}}}, origin="tiny"
    )


def test_the_ladders_config_has_every_rung_and_no_daily_characteristic() -> None:
    config = load_config(ROOT / "configs" / "ladder.yaml")
    rungs = {"sector_mean", "kernel_regression", "cross_peer", "self_peer", "temporal_peer"}
    assert rungs | {"ridge", "lightgbm", "mlp", "lstm", "tcn", "temporal_transformer"} <= set(config.models)
    assert config.features.characteristics is not None
    assert not [name for name in config.features.characteristics if name.endswith(("_1", "_5", "return"))]
