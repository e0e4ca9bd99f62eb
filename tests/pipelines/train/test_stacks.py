"""A run whose seeds are trained as one stack: same forecasts, and no task lost or committed twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.errors import DivergedError
from pipelines.lake.lake import Lake
from pipelines.run.fetch import ingest_config
from pipelines.run.record import open_run, read_curves, read_scores
from pipelines.stages import train_config
from pipelines.train.task import stacks_of

pytestmark = pytest.mark.usefixtures("untracked")

MODELS: Mapping[str, Any] = {
    "ridge": {},
    "temporal_peer": {
        "encoder": {"width": 8, "heads": 2, "dropout": 0.2},
        "peer_heads": 2,
        "peer_dropout": 0.2,
    },
    "cross_peer": {"width": 8, "heads": 2, "reference": {"count": 6}},
}
SEEDS = (0, 4, 2)


def prepared(folder: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Config:  # noqa: ANN401 (settings)
    """Ingest a market in a new folder, which becomes the working folder."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    fit = {**tiny["fit"], "epochs": 1}
    settings = {**tiny, "fit": fit, "models": dict(MODELS), "seeds": list(SEEDS), **changes}
    config = check_config(settings, origin="tiny")
    ingest_config(config)
    return config


def forecasts() -> pl.DataFrame:
    return Lake("lake").read("forecasts").drop("run_id").sort("model", "fold", "seed", "date", "ticker")


def without_dropout(tiny: Mapping[str, Any]) -> dict[str, Any]:
    """One fold, and models whose forecasts do not depend on what is trained beside them."""
    encoder = {"width": 8, "heads": 2, "dropout": 0.0}
    temporal_peer = {"encoder": encoder, "peer_heads": 2, "peer_dropout": 0.0}
    models = {**MODELS, "temporal_peer": temporal_peer}
    return {"models": models, "folds": {**tiny["folds"], "max_folds": 1}}


@pytest.fixture(scope="module")
def single_seeds(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Forecasts and scores of a run that trains one seed after the other."""
    folder = tmp_path_factory.mktemp("single")
    with pytest.MonkeyPatch.context() as patched:
        config = prepared(folder / "alone", dict(tiny_settings), patched, **without_dropout(tiny_settings))
        run = open_run(str(Path("runs", train_config(config))))
        return forecasts(), read_scores(run).sort("model", "fold", "seed")


@pytest.mark.slow(10)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stacked_run_gives_the_forecasts_of_single_seeds(
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    single_seeds: tuple[pl.DataFrame, pl.DataFrame],
    workers: int,
) -> None:
    alone, scores = single_seeds
    execution = {"engine": "pool", "workers": workers}
    config = prepared(
        tmp_path / "stacked",
        tiny,
        monkeypatch,
        **without_dropout(tiny),
        stack_seeds=True,
        execution=execution,
    )
    stacked_id = train_config(config)
    stacked = forecasts()
    run = open_run(str(Path("runs", stacked_id)))
    assert stacked.drop("forecast").equals(alone.drop("forecast"))
    neither = pl.col("model").is_in(["ridge", "cross_peer"])  # these do not stack: equal to the bit
    assert stacked.filter(neither).equals(alone.filter(neither))
    ours = read_scores(run).sort("model", "fold", "seed")
    assert (ours["valid_ic"] - scores["valid_ic"]).abs().max() < 2e-3  # type: ignore[operator]  # a number
    alike = alone.with_columns(stacked=stacked["forecast"]).filter(~neither).group_by("fold", "seed")
    # in float32, AdamW amplifies rounding differences
    assert alike.agg(pl.corr("forecast", "stacked"))["forecast"].min() > 0.999  # type: ignore[operator]  # a number
    assert read_curves(run).select("model", "fold", "seed").n_unique() == len(MODELS) * len(SEEDS)


@pytest.mark.slow(3)
def test_an_interrupted_stack_is_trained_again_and_its_missing_tasks_are_committed(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: MODELS[name] for name in ("ridge", "temporal_peer")}
    config = prepared(tmp_path / "here", tiny, monkeypatch, models=models, stack_seeds=True)
    run_id = train_config(config)
    before, version = forecasts(), Lake("lake").version("forecasts")
    run = open_run(str(Path("runs", run_id)))
    weights = run.checkpoint("temporal_peer", 1, 4) / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    assert train_config(config) == run_id
    assert weights.read_bytes() == content, "the same dropout masks, because the stack has the same seeds"
    assert forecasts().equals(before)
    assert Lake("lake").version("forecasts") == version, "an upsert of the same rows changes nothing"


def test_a_stack_out_of_memory_names_its_seeds_and_the_cure(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"temporal_peer": MODELS["temporal_peer"]}
    config = prepared(tmp_path / "here", tiny, monkeypatch, models=models, stack_seeds=True)

    def exhausted(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("models.fitting.stacked.DateLoss.forward", exhausted)
    words = (
        r"temporal_peer, fold 0, seeds 0, 4, 2: .* Lower .*batch_dates, or set stack_seeds: false; finished"
    )
    with pytest.raises(DivergedError, match=words):
        train_config(config)
    assert not list(Path("runs").glob("*/checkpoints/temporal_peer/*"))


@pytest.mark.parametrize(
    ("device", "stack_seeds", "stacked"),
    [("cpu", None, False), ("cpu", True, True), ("cuda", None, True), ("cuda", False, False)],
)
def test_seeds_are_stacked_on_a_gpu_unless_the_config_says_otherwise(  # noqa: PLR0917 (fixtures)
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    stack_seeds: bool | None,
    stacked: bool,
) -> None:
    from pipelines.dataset.folds import plan_folds
    from pipelines.progress import Progress
    from pipelines.run.open import prepare_run
    from pipelines.train.walkforward import plan_tasks

    run, dataset, _ = prepare_run(prepared(tmp_path / "here", tiny, monkeypatch, device=device), Progress())
    tasks = list(plan_tasks(run, dataset, plan_folds(dataset, run.config)))
    stacks = stacks_of(tasks, set(), stack_seeds)
    assert [[task.key for task in stack] for stack in stacks] == (
        [[("temporal_peer", fold, seed) for seed in SEEDS] for fold in range(2)] if stacked else []
    )
    done = {task.key for task in tasks if task.fold.index == 0}
    assert len(stacks_of(tasks, done, stack_seeds)) == (1 if stacked else 0)
