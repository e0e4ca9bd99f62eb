"""``peerglass audit`` and the audit inside ``peerglass run``, in this process, on a tiny market."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command
from safetensors.numpy import load_file, save_file

from pipelines.audit.registry import CHECKS
from pipelines.audit.result import counts
from pipelines.lake.lake import Lake
from pipelines.run.record import open_run

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
    assert parent.data.tags["audit.future"] == "pass"
    assert parent.data.metrics["audit.fail"] == 0
    assert parent.data.metrics["audit.pass"] >= 8
    assert "audit.json" in {file.path for file in client.list_artifacts(parent.info.run_id)}


def test_audit_of_a_run_uses_its_checkpoints(done: str, peerglass: Call) -> None:
    answer = peerglass("audit", done, "--output", "runs")
    assert answer.code == 0, answer.out + answer.err
    lines = {line.split()[1]: line for line in answer.out.splitlines() if line.split()[0] in ("pass", "fail")}
    assert "repeat the stored forecasts" in lines["forecasts"]
    assert "and the stored ones" in lines["fit_scope"]
    assert "failure" not in answer.out


def test_changed_checkpoint_and_scaler_are_caught(done: str, peerglass: Call) -> None:
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


def test_leaky_input_stops_a_run_before_training(peerglass: Call) -> None:
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
    assert "Full-sample maximum: input signal" in first.out
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


def test_the_stored_forecasts_of_shorter_horizons_are_compared_with_the_checkpoint(peerglass: Call) -> None:
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
