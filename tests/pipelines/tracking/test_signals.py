"""Measured signals in a real SQLite store of MLflow: metrics, data, guard, and a store that is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from pipelines.lake.lake import Lake
from pipelines.results.signal_file import find_signals
from pipelines.run.evaluations import newest_evaluation


@pytest.fixture
def peerglass(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.chdir(tmp_path)
    tracking = {"uri": f"sqlite:///{tmp_path}/mlflow.db", "artifacts": "mlartifacts"}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "models": {"ridge": {}}, "tracking": tracking}))
    call = command(monkeypatch, capfd)
    assert call("ingest", "tiny.yaml").code == 0
    prices = Lake("lake").read("prices").select("date", "ticker", "close", "volume")
    signals = prices.with_columns(low_price=-pl.col("close"), busy=pl.col("volume").cast(pl.Float64)).drop(
        "close", "volume"
    )
    signals.write_csv("two.csv")
    return call


def logged() -> dict[str, MlflowRun]:
    """Runs of the signals by name."""
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny-signals")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len({one.info.run_name for one in runs}) == len(runs)
    return {str(one.info.run_name): one for one in runs}


@pytest.mark.slow(5)
def test_every_signal_is_a_run_with_the_metrics_of_a_model(peerglass: Call) -> None:
    measure = ("backtest", "two.csv", "--config", "tiny.yaml", "--force")
    assert peerglass(*measure).code == 0
    runs = logged()
    assert set(runs) == {"low_price", "busy"}
    (folder,) = [path.parent for path in Path("runs").glob("*/signals.json")]
    measured = find_signals(str(folder), Path("runs"))
    assert measured is not None
    evaluation = newest_evaluation(measured)
    assert evaluation is not None
    main = next(iter(evaluation.record.backtest.books))
    for row in evaluation.table("ladder").filter(delay=1).iter_rows(named=True):
        run = runs[row["model"]]
        assert run.data.metrics["test.ic"] == row["ic"]
        assert run.data.metrics["test.ic_t"] == row["ic_t"]
        assert run.data.metrics["test.sharpe_net"] == row[f"{main}.sharpe_net"]
        assert run.info.status == "FINISHED"
        assert run.data.params["file"] == "two.csv"
        assert run.data.params["label.delay"] == "1"
        assert f"Signal `{row['model']}` of `two.csv`" in run.data.tags["mlflow.note.content"]
        verdicts = evaluation.table("guard").filter(signal=row["model"])["verdict"].to_list()
        expected = next(one for one in ("fail", "warn", "pass") if one in verdicts)
        assert run.data.tags["guard"] == expected
        assert run.inputs is not None
        datasets = {one.dataset.name: one.dataset for one in run.inputs.dataset_inputs}
        assert set(datasets) == {"two.csv", *measured.record.tables}
        assert datasets["two.csv"].digest == measured.record.signals[row["model"]]
        assert json.loads(datasets["two.csv"].profile or "{}") == {"num_rows": measured.record.rows}
        client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
        files = {one.path for one in client.list_artifacts(run.info.run_id)}
        assert {"report.html", "config.yaml", "guard.json"} <= files

    before = {name: run.to_dictionary() for name, run in runs.items()}
    assert peerglass(*measure).code == 0
    assert {name: run.to_dictionary() for name, run in logged().items()} == before, "nothing is logged twice"


@pytest.mark.slow(3)
def test_the_sides_of_a_knowledge_cutoff_are_a_table_of_the_run(peerglass: Call) -> None:
    cutoff = ("--set", f"known_from={pl.read_csv('two.csv')['date'].unique().sort()[-60]}")
    assert peerglass("backtest", "two.csv", "--config", "tiny.yaml", "--force", *cutoff).code == 0
    (folder,) = [path.parent for path in Path("runs").glob("*/signals.json")]
    measured = find_signals(str(folder), Path("runs"))
    assert measured is not None
    evaluation = newest_evaluation(measured)
    assert evaluation is not None
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    for name, run in logged().items():
        path = client.download_artifacts(run.info.run_id, "cutoffs.json", str(Path.cwd()))
        table = json.loads(Path(path).read_text())
        expected = evaluation.table("cutoffs").filter(signal=name)
        assert table["columns"] == expected.columns
        assert [row[:4] for row in table["data"]] == [
            list(row) for row in expected.select("signal", "known_from", "part", "dates").iter_rows()
        ]
        ics = [row[table["columns"].index("ic")] for row in table["data"]]
        assert ics == pytest.approx(expected["ic"].to_list(), rel=1e-5)
        tables = json.loads(run.data.tags["mlflow.loggedArtifacts"])
        assert [one["path"] for one in tables] == ["guard.json", "cutoffs.json"]


def test_a_store_that_is_gone_is_exit_code_6_after_the_result(peerglass: Call) -> None:
    gone = ("--set", "tracking.uri=http://127.0.0.1:9")
    answer = peerglass("backtest", "two.csv", "--config", "tiny.yaml", "--signal", "busy", "--force", *gone)
    assert answer.code == 6
    assert "The tracking store http://127.0.0.1:9 cannot be used" in answer.err
    assert "report.html" in answer.out
