"""``peerglass audit`` and the audit inside ``peerglass run``, in this process, on a tiny market."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command
from safetensors.numpy import load_file, save_file

from backtest.look_ahead.finding import counts
from pipelines.audit.checks.skill import high_scores
from pipelines.audit.registry import CHECKS
from pipelines.dataset.feature_store import _checksums
from pipelines.errors import ConfigError
from pipelines.lake.lake import Lake
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import SCORES, open_run
from pipelines.train import task as tasks

FEATURES = ["momentum_63", "return_1", "return_5", "volatility_21"]


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(autouse=True)
def _here(
    folder: Path,
    tiny_settings: Mapping[str, Any],
    every_model: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    settings = {
        **tiny_settings,
        "models": {"ridge": {}, "temporal_transformer": every_model["temporal_transformer"]},
        "features": {"window": 5, "characteristics": FEATURES},
        "explain": {"models": []},
        "audit": {"sessions": 2},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture
def done(peerglass: Call) -> str:
    """The id of a finished run."""
    known = list(Path("runs").glob("tiny-*/report.html"))
    if not known:
        assert peerglass("run", "tiny.yaml").code == 0
        known = list(Path("runs").glob("tiny-*/report.html"))
    return known[0].parent.name


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leave out the checks that a test does not look at; a whole audit takes seconds."""

    def choose(*names: str) -> None:
        chosen = {name: CHECKS[name] for name in names}
        monkeypatch.setattr("pipelines.audit.command.checks_of", lambda _: chosen)

    return choose


@pytest.mark.slow(5)
def test_run_is_audited_once_before_training(done: str, peerglass: Call) -> None:
    run = open_run(done, Path("runs"))
    table = run.read_table("audit")
    assert table is not None
    assert set(table["check"]) == set(CHECKS)
    assert "fail" not in table["verdict"].to_list()
    report = (run.folder / "report.html").read_text(encoding="utf-8")
    passed = counts(table)["pass"]
    assert f"{passed} passed" in report
    assert table.row(0, named=True)["check"] in report
    again = peerglass("run", "tiny.yaml")
    assert again.code == 0
    assert "has passed its audit" in again.err
    assert '"stage": "audit"' not in again.err.replace('"stage": "audit", "message": "This config', "")


def test_the_audit_is_in_mlflow(done: str) -> None:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (parent,) = client.search_runs(
        [experiment.experiment_id], f"tags.`peerglass.run_id` = '{done}' and tags.`peerglass.model` = '-'"
    )
    assert parent.data.tags["audit"] in ("pass", "warn")
    assert parent.data.tags["audit.fail"] == "none"
    assert parent.data.metrics["audit.fail"] == 0
    assert parent.data.metrics["audit.pass"] >= 8
    assert "audit.json" in {file.path for file in client.list_artifacts(parent.info.run_id)}


@pytest.mark.slow(2)
def test_audit_of_a_run_uses_its_checkpoints(done: str, peerglass: Call) -> None:
    answer = peerglass("audit", done, "--output", "runs")
    assert answer.code == 0, answer.out + answer.err
    lines = {line.split()[1]: line for line in answer.out.splitlines() if line.split()[0] in ("pass", "fail")}
    assert "repeat the stored forecasts" in lines["forecasts"]
    assert "and the stored ones" in lines["fit_scope"]
    assert "trained again with noise for its test, has the stored weights to the bit" in lines["retrained"]
    assert "so are the stored ones of 2 models" in lines["ensembles"]
    assert "performance" in lines
    assert "failure" not in answer.out


def test_changed_checkpoint_and_scaler_are_caught(
    done: str, peerglass: Call, only: Callable[..., None]
) -> None:
    only("forecasts", "fit_scope")
    checkpoint = open_run(done, Path("runs")).checkpoint("ridge", 1, 0) / "model.safetensors"
    honest = checkpoint.read_bytes()
    try:
        tensors = load_file(checkpoint)
        save_file({**tensors, "coefficient_F": np.ascontiguousarray(-tensors["coefficient_F"])}, checkpoint)
        answer = peerglass("audit", done, "--output", "runs", "--json")
        assert answer.code == 4
        results = {row["check"]: row for row in json.loads(answer.out)["results"]}
        assert results["forecasts"]["verdict"] == "fail"
        assert "ridge, fold 1" in results["forecasts"]["sentence"]
        save_file({**tensors, "scaler.mean_C": tensors["scaler.mean_C"] + 1e-9}, checkpoint)
        answer = peerglass("audit", done, "--output", "runs")
        assert answer.code == 4
        assert "stored in ridge, seed 0" in answer.out
    finally:
        checkpoint.write_bytes(honest)


def test_weights_that_were_trained_on_the_test_are_caught(
    peerglass: Call, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only("retrained")
    original = tasks.run_task

    def greedy(task: Any, arrays: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401 (patched)
        wide = np.concatenate([task.fold.train, task.fold.valid, task.fold.test])
        fold = dataclasses.replace(task.fold, train=wide)
        return original(dataclasses.replace(task, fold=fold), arrays, *rest, **named)

    monkeypatch.setattr("pipelines.train.work.run_task", greedy)
    trained = peerglass("train", "tiny.yaml", "--set", "seeds=[7]", "--set", "execution.engine=serial")
    assert trained.code == 0, trained.err
    monkeypatch.setattr("pipelines.train.work.run_task", original)
    answer = peerglass("audit", trained.out.strip(), "--output", "runs", "--json")
    assert answer.code == 4
    (found,) = [row for row in json.loads(answer.out)["results"] if row["check"] == "retrained"]
    assert found["verdict"] == "fail"
    assert "The test was used in training" in found["sentence"]
    assert {row["model"] for row in found["evidence"]} == {"ridge", "temporal_transformer"}


def test_forecasts_that_know_the_test_are_caught_by_ensembles_and_performance(
    done: str, peerglass: Call, only: Callable[..., None]
) -> None:
    only("ensembles", "performance")
    lake = Lake("lake")
    stored = lake.read("forecasts", filters=pl.col("run_id") == done)
    better = pl.when(pl.col("model") == "ridge").then(pl.col("label").fill_null(0.0)).otherwise("forecast")
    lake.upsert("forecasts", stored.with_columns(forecast=better))
    try:
        answer = peerglass("audit", done, "--output", "runs", "--json")
    finally:
        lake.upsert("forecasts", stored)
    assert answer.code == 4
    results = {row["check"]: row for row in json.loads(answer.out)["results"]}
    assert results["ensembles"]["verdict"] == "fail"
    assert "that is stored for ridge" in results["ensembles"]["sentence"]
    assert (results["performance"]["verdict"], results["performance"]["degree"]) == ("fail", "evidence")
    assert "The stored forecasts of ridge know the future" in results["performance"]["sentence"]
    found = {
        row["sentence"].partition(" has a mean test IC")[0] for row in results["performance"]["evidence"]
    }
    assert "ridge" in found, "a test that is better than validation is named as well"
    assert not any("temporal_transformer" in one for one in found)


def test_a_feature_store_two_sessions_ahead_is_caught(
    done: str, peerglass: Call, only: Callable[..., None]
) -> None:
    only("stored_features", "performance")
    honest = peerglass("audit", done, "--output", "runs", "--json")
    results = {row["check"]: row for row in json.loads(honest.out)["results"]}
    assert [row["verdict"] for row in results.values()] == ["pass", "pass"], results
    entries = [path.parent for path in Path("features").glob("*-characteristics/entry.json")]
    assert entries, "the run uses a feature store"
    before = {
        entry: ((entry / "values.f32").read_bytes(), (entry / "entry.json").read_text()) for entry in entries
    }
    try:
        for entry in entries:
            shape = json.loads((entry / "entry.json").read_text())["shape"]
            values_TNF = np.fromfile(entry / "values.f32", np.float32).reshape(shape)
            values_TNF = np.roll(values_TNF, -2, axis=0)
            values_TNF.tofile(entry / "values.f32")
            record = {"shape": shape, "checksums": _checksums(values_TNF)}
            (entry / "entry.json").write_text(json.dumps(record))
        answer = peerglass("audit", done, "--output", "runs", "--json")
    finally:
        for entry, (values, written) in before.items():
            (entry / "values.f32").write_bytes(values)
            (entry / "entry.json").write_text(written)
    assert answer.code == 4
    (found,) = [row for row in json.loads(answer.out)["results"] if row["check"] == "stored_features"]
    assert (found["verdict"], found["degree"]) == ("fail", "proof")
    assert "They are those of 2 sessions later" in found["sentence"]
    assert "Delete the feature store" in found["sentence"]
    assert len(found["evidence"]) == len(FEATURES)


def test_high_validation_ics_and_sharpe_ratios_are_named(done: str) -> None:
    run = open_run(done, Path("runs"))
    assert not high_scores(run)
    score = run.task_file(SCORES, ("ridge", 1, 0))
    ladder = newest_evaluation(run).folder / "ladder.parquet"  # type: ignore[union-attr]
    honest = score.read_text(), ladder.read_bytes()
    try:
        score.write_text(json.dumps({"valid_rank_ic": 0.5, "valid_ic": 0.5}))
        pl.read_parquet(ladder).with_columns(pl.lit(15.0).alias("long_only.sharpe_net")).write_parquet(ladder)
        named = " ".join(high_scores(run))
    finally:
        score.write_text(honest[0])
        ladder.write_bytes(honest[1])
    assert "ridge has a mean validation IC of" in named
    assert "Book long_only of ridge has a net Sharpe ratio of 15.0" in named


@pytest.mark.slow(4)
def test_leaky_input_stops_a_run_before_training(peerglass: Call, only: Callable[..., None]) -> None:
    only("fingerprints", "horizons")
    assert peerglass("ingest", "tiny.yaml").code == 0
    prices = Lake("lake").read("prices").select("date", "ticker", "open", "high", "low", "close", "volume")
    signal = prices.select("date", "ticker", signal=pl.col("close") / pl.col("close").max().over("ticker"))
    prices.write_parquet("prices.parquet")
    signal.write_parquet("signal.parquet")
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    source = {"kind": "files", "prices": "prices.parquet", "inputs": "signal.parquet"}
    leaky = {**settings, "name": "leaky", "source": source, "lake": "lake-leaky"}
    Path("leaky.yaml").write_text(yaml.safe_dump(leaky))
    first = peerglass("audit", "leaky.yaml")  # the lake is empty, so its source is ingested first
    assert first.code == 4
    assert "Evidence. Full-sample maximum: input signal" in first.out
    assert "failed in fingerprints" in first.err
    stopped = peerglass("run", "leaky.yaml")
    assert stopped.code == 4
    assert "Full-sample maximum" in stopped.out
    assert not list(Path("runs").glob("leaky-*/checkpoints/*/*")), "nothing was trained"
    warned = peerglass("run", "leaky.yaml", "--set", "audit.on_failure=warn")
    assert warned.code == 0
    (report,) = Path("runs").glob("leaky-*/report.html")
    assert "1 failure" in report.read_text(encoding="utf-8")


def test_invalid_commands_raise_with_a_message(peerglass: Call) -> None:
    assert peerglass("audit", "nothing-like-it", "--output", "runs").code == 2
    answer = peerglass("audit", "tiny", "--output", "runs", "--set", "seeds=[1]")
    assert answer.code == 2
    assert "need a CONFIG" in answer.err


@pytest.mark.slow(3)
def test_the_stored_forecasts_of_shorter_horizons_are_compared_with_the_checkpoint(
    peerglass: Call, only: Callable[..., None]
) -> None:
    only("forecasts")
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    label = {"horizon": 5, "delay": 1, "transform": "demean", "shorter_horizons": [1, 3]}
    models = {"zero": {}, "seq2seq": {"encoder": {"width": 8, "heads": 2, "layers": 1}}}
    paths = {**settings, "name": "paths", "label": label, "models": models}
    Path("paths.yaml").write_text(yaml.safe_dump(paths))
    assert peerglass("ingest", "paths.yaml").code == 0
    trained = peerglass("train", "paths.yaml")
    assert trained.code == 0, trained.err
    run_id = trained.out.strip()

    honest = peerglass("audit", run_id, "--output", "runs", "--json")
    assert honest.out, honest.err
    results = {row["check"]: row for row in json.loads(honest.out)["results"]}
    assert results["forecasts"]["verdict"] == "pass", results["forecasts"]

    lake = Lake("lake")
    stored = lake.read("forecast_paths", filters=pl.col("run_id") == run_id)
    better = stored.with_columns(  # forecasts of one horizon are replaced by the realised labels
        forecast=pl.when(pl.col("horizon") == 3).then(pl.col("label").fill_null(0.0)).otherwise("forecast")
    )
    lake.upsert("forecast_paths", better)
    answer = peerglass("audit", run_id, "--output", "runs", "--json")
    results = {row["check"]: row for row in json.loads(answer.out)["results"]}
    assert answer.code == 4
    assert results["forecasts"]["verdict"] == "fail"
    assert (
        "the stored forecasts of horizon 3 differ from those of the checkpoint"
        in results["forecasts"]["sentence"]
    )
    named = {row["what"] for row in results["forecasts"]["evidence"]}
    assert named == {"the stored forecasts of horizon 3 differ from those of the checkpoint"}


def test_an_audited_config_never_becomes_the_latest_run(
    done: str, peerglass: Call, only: Callable[..., None]
) -> None:
    only("bars")
    before, known = open_run("latest", Path("runs")), len(list(Path("runs").glob("*/run.json")))
    assert peerglass("audit", "tiny.yaml", "--set", "label.horizon=2").code == 0
    assert len(list(Path("runs").glob("*/run.json"))) == known + 1
    record = (before.folder / "run.json").read_bytes()
    assert peerglass("audit", "tiny.yaml").code == 0
    assert open_run("latest", Path("runs")).run_id == before.run_id
    assert (before.folder / "run.json").read_bytes() == record, "an audit starts no run again"
    assert peerglass("audit", "tiny.yaml", "--set", "label.horizon=2", "--set", "output=alone").code == 0
    with pytest.raises(ConfigError, match="There is no run"):
        open_run("latest", Path("alone"))
