"""Runs in a real SQLite store of MLflow: its contents after a training, an error, and one or five reports."""

from __future__ import annotations

import getpass
import json
import math
import statistics
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
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import open_run, read_scores
from pipelines.tracking import figures
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


def logged_table(parent: MlflowRun, place: str) -> dict[str, Any]:
    """A table that MLflow shows, as the arguments of a data frame."""
    assert {"path": place, "type": "table"} in json.loads(parent.data.tags["mlflow.loggedArtifacts"])
    (path,) = Path("mlartifacts").rglob(place)
    content = json.loads(path.read_text())
    return {"data": content["data"], "schema": content["columns"]}


def parent_books(parent: MlflowRun) -> tuple[str, str]:
    """The books of the run, the main one first."""
    first, second = open_run(parent.info.run_name, Path("runs")).config.backtest.books
    return first, second


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
    assert parent.data.params["folds.train"] == "120"
    assert parent.data.params["models"] == "mlp, ridge"
    assert "label.periods_per_year" not in parent.data.params, "a default"
    assert len(parent.data.params) < 30
    for one in (parent, *children.values()):
        assert one.data.tags["device"] == "cpu"
        assert one.data.tags["mlflow.user"] == getpass.getuser()
        assert one.data.tags["mlflow.source.name"] == "peerglass train tiny.yaml"
    mlp, ridge = children["mlp"].data.params, children["ridge"].data.params
    assert (mlp["model"], mlp["width"], mlp["fit.lr"]) == ("mlp", "8", "0.003")
    assert ridge["label.horizon"] == "1"
    assert "fit.lr" not in ridge, "ridge reads no learning rate"
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    scores = read_scores(open_run(answer.out.strip(), Path("runs")))
    for model, child in children.items():
        steps = client.get_metric_history(child.info.run_id, "fold.valid_rank_ic")
        expected = {
            row["fold"]: row["valid_rank_ic"] for row in scores.iter_rows(named=True) if row["model"] == model
        }
        assert {one.step: one.value for one in steps} == pytest.approx(expected)
        assert child.data.metrics["valid.rank_ic"] == pytest.approx(sum(expected.values()) / len(expected))
    places = {path.split("artifacts/")[1] for path in uploads()}
    assert {"config.yaml", "provenance.jsonl", "tables/folds.parquet"} <= places
    assert "model/fold-1-seed-0/model.safetensors" in places


def test_losses_and_validation_by_epoch_are_histories(here: Path, peerglass: Call) -> None:
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    fit = {"epochs": 4, "patience": 1, "batch_dates": 16, "lr": 0.003}
    Path("tiny.yaml").write_text(yaml.safe_dump({**settings, "seeds": [0, 1], "fit": fit}))
    answer = peerglass("train", "tiny.yaml")
    assert answer.code == 0, answer.err
    tasks = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(Path("runs").glob("*/curves/mlp-fold-*.jsonl"))
    ]
    assert len(tasks) == 4
    assert len({len(task) for task in tasks}) > 1, "a task stopped early, and counts with its last value"
    client = MlflowClient(tracking_uri=f"sqlite:///{here}/mlflow.db")
    _, children = tracked()
    for name in ("train_loss", "valid_rank_ic", "valid_ic"):
        logged = client.get_metric_history(children["mlp"].info.run_id, f"epoch.{name}")
        expected = {
            epoch: sum(task[min(epoch, len(task) - 1)][name] for task in tasks) / len(tasks)
            for epoch in range(max(map(len, tasks)))
        }
        assert {one.step: one.value for one in logged} == pytest.approx(expected)
    assert not [key for key in children["ridge"].data.metrics if key.startswith("epoch.")]


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
def test_metrics_are_those_of_the_newest_evaluation_and_a_table_has_all(here: Path, peerglass: Call) -> None:
    assert peerglass("train", "tiny.yaml").code == 0
    expensive = ("--set", "backtest.costs.half_spread_bps=50")
    for options in ((), expensive):
        assert peerglass("backtest", "tiny", "--output", "runs", *options).code == 0
    parent, children = tracked()
    table = pl.DataFrame(**logged_table(parent, "evaluations.json"), orient="row")
    assert table.height == 2 * len(MODELS) * 2, "evaluations, models, books"
    main, second = parent_books(parent)
    ridge = table.filter(model="ridge", book=main, delay=0)
    assert [f"half-spread {bps} bps" in text for bps, text in zip((50, 5), ridge["assumptions"], strict=True)]
    (high, gross, expensive_net), (low, gross_low, net) = ridge.select(
        "evaluation", "sharpe_gross", "sharpe_net"
    ).rows()
    assert gross == pytest.approx(gross_low, abs=0.02)
    assert gross > net > expensive_net
    assert (parent.data.tags["evaluation"], high != low) == (high, True)
    shown = children["ridge"].data.metrics
    assert shown["test.sharpe_net"] == pytest.approx(expensive_net, rel=1e-5)
    other = table.filter(model="ridge", book=second, delay=0, evaluation=high)
    assert shown[f"test.{second}.sharpe_net"] == pytest.approx(other["sharpe_net"].item(), rel=1e-5)
    leads = max(MODELS, key=lambda model: children[model].data.metrics["valid.rank_ic"])
    assert parent.data.tags["leader"] == leads
    for name in ("valid.rank_ic", "test.ic", "test.ic_t", "test.sharpe_net", "test.deflated_sharpe"):
        assert parent.data.metrics[name] == children[leads].data.metrics[name]


@pytest.mark.slow(3)
def test_figures_that_the_newest_evaluation_lacks_are_not_those_of_an_older_one(
    here: Path, peerglass: Call
) -> None:
    assert peerglass("train", "tiny.yaml").code == 0
    assert peerglass("backtest", "tiny", "--output", "runs").code == 0
    _, second = parent_books(tracked()[0])
    before = tracked()[1]["ridge"].data.metrics
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    del settings["backtest"]["books"][second]
    Path("tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    assert peerglass("train", "tiny.yaml").code == 0
    assert peerglass("backtest", "tiny", "--output", "runs").code == 0
    shown, logged = tracked()[1]["ridge"].data.metrics, history()
    gone = [name for name in before if name.startswith(f"test.{second}.")]
    assert len(gone) == 5
    assert all(math.isnan(shown[name]) for name in gone)
    newest = figures.test_metrics(list_evaluations(open_run("tiny", Path("runs")))[0], "ridge")
    known = {n: value for n, value in shown.items() if n.startswith("test.") and not math.isnan(value)}
    assert known == newest
    assert peerglass("report", "tiny", "--output", "runs").code == 0
    assert {key: len(values) for key, values in history().items()} == {
        key: len(values) for key, values in logged.items()
    }


@pytest.mark.slow(2)
def test_the_table_of_folds_has_the_test_of_every_model_and_fold(here: Path, peerglass: Call) -> None:
    assert peerglass("train", "tiny.yaml").code == 0
    assert peerglass("backtest", "tiny", "--output", "runs").code == 0
    parent, children = tracked()
    table = pl.DataFrame(**logged_table(parent, "folds.json"), orient="row")
    assert table.select("model", "fold").rows() == [
        (model, fold) for model in ("mlp", "ridge") for fold in (0, 1)
    ]
    run = open_run(parent.info.run_name, Path("runs"))
    folds, (evaluation,) = run.read_table("folds"), list_evaluations(run)
    assert folds is not None
    main, _ = parent_books(parent)
    for row in table.iter_rows(named=True):
        fold = folds.row(row["fold"], named=True)
        assert (row["test_from"], row["test_to"]) == (str(fold["test_from"]), str(fold["test_to"]))
        inside = [
            one
            for one in evaluation.table("ic_series").filter(model=row["model"]).iter_rows(named=True)
            if fold["test_from"] <= one["date"] <= fold["test_to"]
        ]
        assert len(inside) == fold["n_test"]
        assert row["test_ic"] == pytest.approx(sum(one["ic"] for one in inside) / len(inside), rel=1e-5)
        excess = [
            one["excess_net"]
            for one in evaluation.table("equity").filter(model=row["model"], book=main).iter_rows(named=True)
            if fold["test_from"] <= one["date"] <= fold["test_to"] and one["excess_net"] is not None
        ]
        ratio = statistics.mean(excess) / statistics.stdev(excess) * math.sqrt(252)
        assert row["test_sharpe_net"] == pytest.approx(ratio, rel=1e-5)
        steps = MlflowClient(tracking_uri=f"sqlite:///{here}/mlflow.db").get_metric_history(
            children[row["model"]].info.run_id, "fold.test_sharpe_net"
        )
        assert [one.value for one in steps if one.step == row["fold"]] == [pytest.approx(ratio)]


def test_a_deleted_experiment_is_named_with_the_cure(here: Path, peerglass: Call) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{here}/mlflow.db")
    number = client.create_experiment("tiny")
    client.delete_experiment(number)
    answer = peerglass("train", "tiny.yaml", "--set", "models.mlp=null")
    assert answer.code == 6
    assert "The experiment tiny in the tracking store" in answer.err
    assert f"'mlflow experiments restore --experiment-id {number}'" in answer.err
    client.restore_experiment(number)
    assert peerglass("train", "tiny.yaml", "--set", "models.mlp=null").code == 0
    assert set(tracked()[1]) == {"ridge"}


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
    _, children = tracked()
    logged, expected = {}, {}
    for model in models:
        own = kept.filter(pl.col("model") == model)
        expected[model] = {
            "coverage_dates": (len(dates) - 20) / len(dates),
            "coverage_firms": own.height / complete,
            "tied": own.select(pl.struct("date", "forecast").is_duplicated().mean()).item(),
        }
        metrics = children[model].data.metrics
        logged[model] = {key: metrics[f"test.{key}"] for key in expected[model]}
    assert {model: pytest.approx(values) for model, values in expected.items()} == logged
    assert 0.8 < expected["ridge"]["coverage_firms"] < 0.95
    assert 0.6 < expected["ridge"]["coverage_dates"] < 0.7
    assert [expected[model]["tied"] for model in ("zero", "ridge")] == [1, 0]
    assert 0.1 < expected["momentum"]["tied"] < 0.9
