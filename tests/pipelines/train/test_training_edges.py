"""Data that stop a training: one sentence, exit code 5, and no partial files. Unusual but valid data train.

Each case is a market in a CSV file with one unusual property, or a machine with little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from command import Answer, Call, command

from models.fitting import loop, losses
from pipelines.lake.lake import Lake
from pipelines.machine import Machine
from pipelines.run.checkpoints import load_checkpoint

pytestmark = pytest.mark.usefixtures("untracked")

MODELS: Mapping[str, Any] = {
    "ridge": {},
    "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2},
}
NEURAL = [name for name in MODELS if name != "ridge"]


Change = Callable[[pl.DataFrame], pl.DataFrame]


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The command line, in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)

    return command(monkeypatch, capfd)


@pytest.fixture
def market(
    peerglass: Call, tiny: dict[str, Any], tiny_tables: Mapping[str, pl.DataFrame]
) -> Callable[..., None]:
    """Write a changed market and a config, and ingest it."""

    def write(change: Change = lambda prices: prices, **settings: Any) -> None:  # noqa: ANN401 (settings)
        columns = ["date", "ticker", "open", "high", "low", "close", "volume"]
        change(tiny_tables["prices"].select(columns)).write_csv("prices.csv")
        config = {
            **tiny,
            "source": {"kind": "files", "prices": "prices.csv"},
            "models": dict(MODELS),
            "folds": {**tiny["folds"], "anchor": "start", "max_folds": 1},
            **settings,
        }
        Path("mine.yaml").write_text(yaml.safe_dump(config))
        answer = peerglass("ingest", "mine.yaml")
        assert answer.code == 0, answer.err

    return write


def failed(answer: Answer, *words: str) -> None:
    """Check exit code 5, one sentence with reason and cure, and checkpoints of committed models only."""
    assert answer.code == 5, answer.err
    assert answer.out == ""
    lines = [
        line for line in answer.err.splitlines() if not line.startswith("{")
    ]  # progress events are JSON lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("peerglass: ")
    for word in words:
        assert word in lines[0], lines[0]
    committed = set()
    if Lake("lake").exists("forecasts"):
        committed = set(Lake("lake").read("forecasts")["model"])
    stored = {folder.parent.name for folder in Path("runs").glob("*/checkpoints/*/fold-*")}
    assert stored == committed
    for folder in Path("runs").glob("*/checkpoints/*/fold-*"):
        load_checkpoint(folder)  # raises if it is damaged
    assert not list(Path("runs").rglob("*.partial"))


def trained(answer: Answer) -> pl.DataFrame:
    assert answer.code == 0, answer.err
    frame = Lake("lake").read("forecasts")
    assert set(frame["model"]) == set(MODELS)
    assert frame["forecast"].is_finite().all()
    return frame


@pytest.mark.slow(8)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_learning_rate_that_explodes(market: Callable[..., None], peerglass: Call, workers: int) -> None:
    market(execution={"engine": "pool", "workers": workers})
    answer = peerglass("train", "mine.yaml", "--set", "models.temporal_peer.fit={lr: 1.0e30, clip: 1.0e30}")
    failed(answer, "temporal_peer, fold 0, seed 0: ", "Lower models.temporal_peer.fit.lr (now 1e+30)")
    before = Lake("lake").read("forecasts")  # the other tasks are computed, kept and not repeated
    assert set(before["model"]) == {"ridge", "temporal_transformer"}
    if workers == 1:
        failed(
            peerglass("train", "mine.yaml", "--set", "models.temporal_peer.fit={lr: 1.0e30, clip: 1.0e30}")
        )
        assert Lake("lake").read("forecasts").equals(before)


@pytest.mark.parametrize("model", NEURAL)
def test_a_loss_that_is_not_a_number(
    market: Callable[..., None], peerglass: Call, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    market(models={model: MODELS[model]})
    monkeypatch.setattr(loop, "horizons_loss", lambda *_: torch.tensor(float("nan"), requires_grad=True))
    failed(
        peerglass("train", "mine.yaml"), f"{model}, fold 0, seed 0: The training loss became nan: lower lr"
    )


@pytest.mark.parametrize("model", NEURAL)
def test_a_gradient_that_is_not_finite(
    market: Callable[..., None], peerglass: Call, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    market(models={model: MODELS[model]})
    original = losses.horizons_loss

    def root_of_zero(*arguments: Any) -> torch.Tensor:  # noqa: ANN401 (passed on)
        loss = original(*arguments)
        return loss + (0.0 * loss).sqrt()  # finite, but its gradient is not

    monkeypatch.setattr(loop, "horizons_loss", root_of_zero)
    failed(
        peerglass("train", "mine.yaml"), f"{model}, fold 0, seed 0: The gradient norm became nan: lower lr"
    )


@pytest.mark.parametrize(
    ("batch_dates", "cure"),
    [
        (16, "Lower models.temporal_peer.fit.batch_dates"),
        (1, "use a smaller model or universe, or set device: cpu"),
    ],
)
def test_running_out_of_memory_names_the_model_the_batch_size_and_the_cure(
    market: Callable[..., None],
    peerglass: Call,
    monkeypatch: pytest.MonkeyPatch,
    batch_dates: int,
    cure: str,
) -> None:
    market(models={"temporal_peer": MODELS["temporal_peer"]})

    def exhausted(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr("models.peers.layer.PeerLayer.forward", exhausted)
    answer = peerglass("train", "mine.yaml", "--set", f"fit.batch_dates={batch_dates}")
    failed(
        answer,
        f"temporal_peer, fold 0, seed 0: the device cpu ran out of memory at fit.batch_dates {batch_dates}",
    )
    assert cure in answer.err
    assert "finished folds are kept" in answer.err


def flat(prices: pl.DataFrame) -> pl.DataFrame:
    return prices.with_columns(pl.lit(10.0).alias(name) for name in ("open", "high", "low", "close"))


@pytest.mark.parametrize("model", MODELS)
def test_constant_prices_end_the_training(market: Callable[..., None], peerglass: Call, model: str) -> None:
    market(flat, models={model: MODELS[model]}, quality={"stale_run": "off"})
    answer = peerglass("train", "mine.yaml")
    failed(
        answer, f"{model}, fold 0, seed 0: The training targets are all the same", "Finished folds are kept."
    )


@pytest.mark.parametrize("model", MODELS)
def test_a_market_of_one_firm_ends_the_training(
    market: Callable[..., None], peerglass: Call, model: str
) -> None:
    def one_firm(prices: pl.DataFrame) -> pl.DataFrame:
        longest = prices.group_by("ticker").len().sort("len", "ticker")["ticker"][-1]
        return prices.filter(pl.col("ticker") == longest)

    market(one_firm, models={model: MODELS[model]}, label={"horizon": 1, "delay": 0, "transform": "raw"})
    answer = peerglass("train", "mine.yaml")
    failed(
        answer, f"{model}, fold 0, seed 0: None of the 25 validation dates has 3 firms", "loosen the universe"
    )


def test_dates_with_a_single_firm_are_trained_on_and_forecast(
    market: Callable[..., None], peerglass: Call
) -> None:
    single: list[Any] = []

    def thinned(prices: pl.DataFrame) -> pl.DataFrame:
        dates = prices["date"].unique().sort()
        remaining = prices.group_by("ticker").len().sort("len", "ticker")["ticker"][-1]
        single.extend([dates[60], dates[200]])  # one date in training, one in the test
        return prices.filter(~pl.col("date").is_in(single) | (pl.col("ticker") == remaining))

    market(thinned)
    frame = trained(peerglass("train", "mine.yaml"))
    assert frame["date"].n_unique() == 40


def test_a_firm_without_history_is_forecast_on_its_first_day(
    market: Callable[..., None], peerglass: Call
) -> None:
    listed: list[Any] = []

    def late(prices: pl.DataFrame) -> pl.DataFrame:
        dates = prices["date"].unique().sort()
        listed.append(dates[170])  # within the test
        longest = prices.group_by("ticker").len().sort("len", "ticker")["ticker"][-1]
        new = prices.filter(pl.col("ticker") == longest, pl.col("date") >= listed[0])
        return pl.concat([prices, new.with_columns(pl.lit("NEW").alias("ticker"))])

    market(late, universe={"min_history": 1})
    frame = trained(peerglass("train", "mine.yaml"))
    first = frame.filter(pl.col("ticker") == "NEW").group_by("model").agg(pl.col("date").min())
    assert first["date"].to_list() == [listed[0]] * len(MODELS)


@pytest.mark.slow(2)
@pytest.mark.parametrize("known", ["never", "later"])
def test_a_channel_without_training_data_is_ignored_with_a_note(
    market: Callable[..., None], peerglass: Call, known: str
) -> None:
    def unknown(prices: pl.DataFrame) -> pl.DataFrame:
        dates = prices["date"].unique().sort()
        end = dates[-1] if known == "never" else dates[190]
        return prices.with_columns(pl.when(pl.col("date") > end).then("volume").alias("volume"))

    market(unknown)
    answer = peerglass("train", "mine.yaml")
    trained(answer)
    if known == "never":
        assert "These data have no volume" in answer.err
    else:
        assert "is constant on the training sessions of fold 0, so its models ignore it" in answer.err


def test_a_characteristic_without_values_causes_no_error(
    market: Callable[..., None], peerglass: Call
) -> None:
    # a beta over one year needs more history than these 320 sessions have before the folds end
    market(features={"window": 5, "characteristics": ["return_21", "beta_252", "volatility_21"]})
    frame = trained(peerglass("train", "mine.yaml"))
    dispersion = frame.group_by("model", "date").agg(pl.col("forecast").std().alias("std"))
    assert np.isfinite(dispersion["std"].to_numpy()).all()


def test_a_machine_with_little_free_memory_trains_one_task_at_a_time_and_says_so(
    market: Callable[..., None], peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    market(execution={"engine": "pool", "workers": 2})
    monkeypatch.setattr("pipelines.execution.pool.this_machine", lambda: Machine(2.0**40, 2.0**20))
    answer = peerglass("train", "mine.yaml")
    trained(answer)
    assert "2 workers would need about" in answer.err
    assert "are available; 1 is used." in answer.err


def test_a_machine_that_is_too_small_ends_before_and_after_the_dataset_with_the_cure(
    market: Callable[..., None], peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    market(execution={"engine": "pool", "workers": 2})
    for place, words in (
        ("pipelines.execution.pool", "One task beside the dataset needs about"),
        ("pipelines.run.open", "Training on "),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{place}.this_machine", lambda: Machine(2.0**20, 2.0**20))
            answer = peerglass("train", "mine.yaml")
        assert answer.code == 3
        last = answer.err.splitlines()[-1]
        assert words in last
        assert "use a larger machine" in last
