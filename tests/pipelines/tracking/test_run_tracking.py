"""Runs in a real SQLite store of MLflow: its contents after a training, an error, and one or five reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from deltalake import DeltaTable
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from pipelines.lake.lake import Lake
from pipelines.run.record import open_run, read_scores
from pipelines.train import walkforward

MODELS = {"ridge": {}, "mlp": {"width": 8}}


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture
def here(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call) -> Path:
    monkeypatch.chdir(tmp_path)
    # absolute, because MLflow caches the store of a relative path even when the working folder changes
    tracking = {"uri": f"sqlite:///{tmp_path}/mlflow.db", "artifacts": "mlartifacts"}
    settings = {**tiny, "models": MODELS, "tracking": tracking, "audit": {"enabled": False}}
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    assert peerglass("ingest", "tiny.yaml").code == 0
    return tmp_path


def tracked() -> tuple[MlflowRun, dict[str, MlflowRun]]:
    """The parent run, and its child runs by model."""
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "tiny"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [one for one in runs if "mlflow.parentRunId" not in one.data.tags]
    children = {one.data.tags["peerglass.model"]: one for one in runs if one is not parent}
    assert all(one.data.tags["mlflow.parentRunId"] == parent.info.run_id for one in children.values())
    return parent, children


def history() -> dict[tuple[str, str], list[tuple[int, int, float]]]:
    """All logged values of all metrics: (run, key) -> list of (step, timestamp, value)."""
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    parent, children = tracked()
    return {
        (one.info.run_id, key): sorted(
            (metric.step, metric.timestamp, metric.value)
            for metric in client.get_metric_history(one.info.run_id, key)
        )
        for one in (parent, *children.values())
        for key in one.data.metrics
    }


def uploads() -> dict[str, int]:
    """Modification time of every artifact."""
    files = [path for path in Path("mlartifacts").rglob("*") if path.is_file()]
    return {str(path.relative_to("mlartifacts")): path.stat().st_mtime_ns for path in files}


def test_a_training_alone_is_tracked(here: Path, peerglass: Call) -> None:
    answer = peerglass("train", "tiny.yaml")
    assert answer.code == 0, answer.err
    parent, children = tracked()
    assert parent.info.run_name == answer.out.strip()
    assert set(children) == set(MODELS)
    assert [one.info.status for one in (parent, *children.values())] == ["FINISHED"] * 3
    assert parent.data.params["label.horizon"] == "1"
    assert parent.data.tags["device"] == "cpu"
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    scores = read_scores(open_run(answer.out.strip(), Path("runs")))
    for model, child in children.items():
        steps = client.get_metric_history(child.info.run_id, "valid_rank_ic")
        expected = {
            row["fold"]: row["valid_rank_ic"] for row in scores.iter_rows(named=True) if row["model"] == model
        }
        assert {one.step: one.value for one in steps} == pytest.approx(expected)
    places = {path.split("artifacts/")[1] for path in uploads()}
    assert {"config.yaml", "provenance.jsonl", "tables/folds.parquet"} <= places
    assert "checkpoints/mlp/fold-1-seed-0/model.safetensors" in places


@pytest.mark.slow(4)
def test_five_reports_give_the_same_store_as_one(here: Path, peerglass: Call) -> None:
    assert peerglass("train", "tiny.yaml").code == 0
    assert peerglass("report", "tiny", "--output", "runs").code == 0
    (parent, children), metrics, artifacts = tracked(), history(), uploads()
    assert len(metrics) > 20
    assert all(len({step for step, _, _ in values}) == len(values) for values in metrics.values())
    assert any(path.endswith("report.html") for path in artifacts)
    for _ in range(4):
        assert peerglass("report", "tiny", "--output", "runs").code == 0
    assert history() == metrics
    assert uploads() == artifacts
    again, children_again = tracked()
    assert again.to_dictionary() == parent.to_dictionary()
    assert {m: one.to_dictionary() for m, one in children_again.items()} == {
        m: one.to_dictionary() for m, one in children.items()
    }


@pytest.mark.slow(3)
def test_costs_are_logged_for_every_evaluation(here: Path, peerglass: Call) -> None:
    assert peerglass("train", "tiny.yaml").code == 0
    expensive = ("--set", "backtest.costs.half_spread_bps=50")
    for options in ((), expensive):
        assert peerglass("backtest", "tiny", "--output", "runs", *options).code == 0
    parent, children = tracked()
    half_spreads = {
        key.split(".")[1]: float(value)
        for key, value in parent.data.params.items()
        if key.startswith("evaluation.") and key.endswith("costs.half_spread_bps")
    }
    assert sorted(half_spreads.values()) == [5, 50]
    assert parent.data.params[f"evaluation.{next(iter(half_spreads))}.books.long_only.k"] == "4"
    low, high = sorted(half_spreads, key=lambda name: half_spreads[name])
    ridge = children["ridge"].data.metrics
    gross = [ridge[f"{name}/delay_0.long_short.sharpe_gross"] for name in (low, high)]
    net = [ridge[f"{name}/delay_0.long_short.sharpe_net"] for name in (low, high)]
    assert gross[0] == pytest.approx(gross[1], abs=0.02)
    assert gross[0] > net[0] > net[1]
    assert parent.data.tags["evaluation"] == high


def test_a_run_that_ends_with_an_error_is_marked_as_failed(here: Path, peerglass: Call) -> None:
    models = {"ridge": {}, "self_peer": {"width": 8, "heads": 2, "layers": 1, "fit": {"lr": 1e30}}}
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    Path("wild.yaml").write_text(yaml.safe_dump({**settings, "models": models}))
    failed = peerglass("train", "wild.yaml")
    assert failed.code == 5
    sentence = failed.err.splitlines()[-1].removeprefix("peerglass: ")
    parent, children = tracked()
    assert parent.info.status == "FAILED"
    assert parent.data.tags["peerglass.error"] == sentence
    assert children["self_peer"].info.status == "FAILED"
    assert "every fold" in children["self_peer"].data.tags["peerglass.error"]


def test_an_interrupted_training_is_marked_as_failed_until_it_is_completed(
    here: Path, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(walkforward, "save_checkpoint", stop)
        assert peerglass("train", "tiny.yaml").code == 130
    parent, children = tracked()
    assert (parent.info.status, parent.data.tags["peerglass.error"]) == ("FAILED", "KeyboardInterrupt")
    assert peerglass("train", "tiny.yaml").code == 0
    parent, children = tracked()
    assert [one.info.status for one in (parent, *children.values())] == ["FINISHED"] * 3
    assert not [one for one in (parent, *children.values()) if "peerglass.error" in one.data.tags]


@pytest.mark.slow(2)
def test_coverage_and_ties_of_the_ladder_are_metrics_of_each_model(here: Path, peerglass: Call) -> None:
    models = {"zero": {}, "ridge": {}, "momentum": {"characteristic": "momentum_252_21"}}
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    settings["folds"] |= {"train": 150, "test": 60}
    Path("tiny.yaml").write_text(yaml.safe_dump({**settings, "models": models}))
    answer = peerglass("train", "tiny.yaml")
    assert answer.code == 0, answer.err
    forecasts = Lake("lake").read("forecasts").filter(pl.col("label").is_not_null())
    dates, tickers = forecasts["date"].unique().sort(), forecasts["ticker"].unique().sort()
    stored = DeltaTable("lake/forecasts")
    stored.delete(f"model = 'momentum' and date < '{dates[20]}'")
    stored.delete(f"model = 'ridge' and ticker in ('{tickers[3]}', '{tickers[5]}')")
    assert peerglass("backtest", "tiny", "--output", "runs").code == 0

    kept = pl.read_delta("lake/forecasts").filter(pl.col("label").is_not_null(), pl.col("date") >= dates[20])
    complete = forecasts.filter(pl.col("model") == "zero", pl.col("date") >= dates[20]).height
    parent, children = tracked()
    name = f"{parent.data.tags['evaluation']}/delay_0"
    logged, expected = {}, {}
    for model in models:
        own = kept.filter(pl.col("model") == model)
        expected[model] = {
            "coverage_dates": (len(dates) - 20) / len(dates),
            "coverage_firms": own.height / complete,
            "tied": own.select(pl.struct("date", "forecast").is_duplicated().mean()).item(),
        }
        metrics = children[model].data.metrics
        logged[model] = {key: metrics[f"{name}.{key}"] for key in expected[model]}
    assert {model: pytest.approx(values) for model, values in expected.items()} == logged
    assert 0.8 < expected["ridge"]["coverage_firms"] < 0.95
    assert 0.6 < expected["ridge"]["coverage_dates"] < 0.7
    assert [expected[model]["tied"] for model in ("zero", "ridge")] == [1, 0]
    assert 0.1 < expected["momentum"]["tied"] < 0.9
