"""What a run leaves in a tracking store: an SQLite file, and real servers on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.data.delta_dataset_source import DeltaDatasetSource
from mlflow.entities import Run as MlflowRun
from mlflow_server import mlflow_server, postgres_programs, postgres_server
from tracking_stores import new_store
from warm import Process

from pipelines.config.load import check_config, load_config
from pipelines.errors import ConfigError, TrackingError
from pipelines.lake.lake import Lake
from pipelines.run.evaluations import list_evaluations
from pipelines.run.fetch import ingest_config
from pipelines.run.provenance import TaskDone, TrainingStarted, read_provenance
from pipelines.run.record import RecordedRun, open_run
from pipelines.stages import report_run, train_config
from pipelines.tracking.store import open_store

MODELS = {"ridge": {}, "mlp": {"width": 8}}


@dataclass(frozen=True)
class Stored:
    """A trained and measured run, and what its store says about it."""

    client: MlflowClient
    run: RecordedRun
    parent: MlflowRun
    children: Mapping[str, MlflowRun]

    @property
    def ids(self) -> set[str]:
        """The MLflow ids of the children."""
        return {one.info.run_id for one in self.children.values()}


@pytest.fixture(scope="module", params=["sqlite file", "server on sqlite", "server on postgres"])
def stored(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_settings: Mapping[str, Any],
) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as servers:
        if request.param == "sqlite file":
            uri = f"sqlite:///{folder}/mlflow.db"
        elif request.param == "server on sqlite":
            uri = servers.enter_context(mlflow_server(folder, f"sqlite:///{folder}/server.db"))
        else:
            programs = postgres_programs()
            if programs is None:
                pytest.skip("PostgreSQL's server is not installed (on Debian: apt install postgresql)")
            database = servers.enter_context(postgres_server(folder, programs))
            uri = servers.enter_context(mlflow_server(folder, database))
        settings = {
            **tiny_settings,
            "models": MODELS,
            "seeds": [0, 1],
            "audit": {"enabled": False},
            "lake": str(folder / "lake"),
            "output": str(folder / "runs"),
            "tracking": {"uri": uri, "artifacts": str(folder / "artifacts")},
        }
        (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))  # sorted: long_only comes first
        config = load_config(folder / "tiny.yaml")
        ingest_config(config, print)
        run_id = train_config(config)
        report_run(run_id, folder / "runs")
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("tiny")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        (parent,) = [one for one in runs if "mlflow.parentRunId" not in one.data.tags]
        children = {one.data.tags["peerglass.model"]: one for one in runs if one is not parent}
        assert set(children) == set(MODELS)
        yield Stored(client, open_run(run_id, folder / "runs"), parent, children)


@pytest.mark.slow(9)
def test_parameters_metrics_and_artifacts_arrive(stored: Stored) -> None:
    assert stored.parent.data.params["label.horizon"] == "1"
    (evaluation,) = list_evaluations(stored.run)
    for row in evaluation.table("ladder").iter_rows(named=True):
        metrics = stored.children[row["model"]].data.metrics
        assert metrics["test.ic"] == pytest.approx(row["ic"])
        assert metrics["test.sharpe_net"] == pytest.approx(row["long_only.sharpe_net"])
        assert metrics["test.long_short.sharpe_net"] == pytest.approx(row["long_short.sharpe_net"])
        assert metrics["valid.rank_ic"] == pytest.approx(row["valid_rank_ic"])
    listed = {one.path for one in stored.client.list_artifacts(stored.parent.info.run_id)}
    assert {"config.yaml", "report.html", "provenance.jsonl", "folds.json", "evaluations.json"} <= listed


def test_runs_sort_by_their_metrics(stored: Stored) -> None:
    order = ["metrics.`test.sharpe_net` DESC"]
    found = stored.client.search_runs([stored.parent.info.experiment_id], order_by=order)
    ratios = [one.data.metrics["test.sharpe_net"] for one in found if one.info.run_id in stored.ids]
    assert len(ratios) == len(MODELS)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > ratios[-1]


def test_commit_and_command_are_those_of_the_training(stored: Stored) -> None:
    started = [one for one in read_provenance(stored.run) if isinstance(one, TrainingStarted)]
    commit = started[-1].environment.commit
    for one in (stored.parent, *stored.children.values()):
        logged = one.data.tags.get("mlflow.source.git.commit", "unknown")
        assert logged == commit.removesuffix("-dirty")
        assert one.data.tags["mlflow.source.name"]


def test_every_table_that_was_read_is_a_dataset_with_its_delta_version(stored: Stored) -> None:
    assert stored.run.versions, "the run read tables"
    lake = Lake(stored.run.config.lake)
    for mlflow_run in (stored.parent, *stored.children.values()):
        found = stored.client.get_run(mlflow_run.info.run_id).inputs
        assert found is not None
        datasets = {one.dataset.name: one.dataset for one in found.dataset_inputs}
        assert set(datasets) == set(stored.run.versions)
        assert len(found.dataset_inputs) == len(datasets), "each is logged once"
        for table, at in stored.run.tables.items():
            source = json.loads(datasets[table].source)
            assert source["delta_table_version"] == at.version
            assert source["delta_table_id"] == at.id
            assert datasets[table].digest == f"{at.id[:8]}-v{at.version}"
            read_by_mlflow = DeltaDatasetSource.from_dict(source)
            assert read_by_mlflow.path == f"{lake.root}/{table}"
            profile, rows = json.loads(datasets[table].profile or "{}"), lake.read(table, at.version)
            assert profile["num_rows"] == rows.height
            assert profile.get("sessions") == (rows["date"].n_unique() if table == "prices" else None)
            columns = json.loads(datasets[table].schema or "{}")["mlflow_colspec"]
            assert {one["name"] for one in columns} >= set(rows.columns)
            if table == "prices":
                types = {one["name"]: one["type"] for one in columns}
                kinds = [types[name] for name in ("date", "ticker", "close", "ingested_at")]
                assert kinds == ["datetime", "string", "double", "datetime"]


def test_the_experiment_opens_as_one_of_machine_learning(stored: Stored) -> None:
    experiment = stored.client.get_experiment(stored.parent.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_each_model_has_a_version_whose_source_holds_its_checkpoints(stored: Stored, tmp_path: Path) -> None:
    for model, child in stored.children.items():
        (version,) = stored.client.search_model_versions(f"name = 'tiny.{model}'")
        assert version.tags["peerglass.model"] == model
        assert version.tags["peerglass.run_id"] == stored.run.run_id
        assert version.run_id == child.info.run_id, "its metrics are those of the model"
        assert version.source is not None
        assert version.source.endswith(f"{child.info.run_id}/artifacts/model")
        assert version.description is not None
        assert "its book long_only at delay 0 had a net Sharpe ratio of" in version.description
    place = "fold-0-seed-1/model.safetensors"
    mlp = stored.children["mlp"].info.run_id
    fetched = stored.client.download_artifacts(mlp, f"model/{place}", str(tmp_path))
    assert Path(fetched).read_bytes() == (stored.run.folder / "checkpoints" / "mlp" / place).read_bytes()


def test_descriptions_say_what_was_measured(stored: Stored) -> None:
    note = stored.parent.data.tags["mlflow.note.content"]
    folds = stored.run.read_table("folds")
    assert folds is not None
    first, last = folds["test_from"].to_list()[0], folds["test_to"].to_list()[-1]
    assert f"Test: {first} to {last}, {folds.height} folds (expanding)." in note
    metrics = stored.children["mlp"].data.metrics
    valid, ic, t = (metrics[name] for name in ("valid.rank_ic", "test.ic", "test.ic_t"))
    assert f"| mlp | {valid:.4f} | {ic:.4f} | {t:.1f} |" in note
    assert note.startswith(f"`{stored.parent.data.tags['leader']}` leads on validation.")
    assert "peerglass run config.yaml" in note
    assert f"IC was {ic:.4f} (t {t:.1f})" in stored.children["mlp"].data.tags["mlflow.note.content"]


def test_durations_are_those_of_the_work(stored: Stored) -> None:
    events = read_provenance(stored.run)
    tasks = [one for one in events if isinstance(one, TaskDone)]
    assert len(tasks) == 2 * 2 * len(MODELS)
    for model, child in stored.children.items():
        history = stored.client.get_metric_history(child.info.run_id, "fold.seconds")
        own = [one for one in tasks if one.model == model]
        expected = {f: sum(one.seconds or 0 for one in own if one.fold == f) for f in (0, 1)}
        assert {one.step: one.value for one in history} == pytest.approx(expected)
        assert all(value > 0 for value in expected.values())
        total = child.data.metrics["seconds.training"]
        assert total == pytest.approx(sum(expected.values()), abs=1e-3)
        assert child.info.end_time == round(own[-1].at.timestamp() * 1000)
    training = [one for one in events if one.event in ("training started", "task done", "training ended")]
    elapsed = sum((b.at - a.at).total_seconds() for a, b in pairwise(training))
    assert stored.parent.data.metrics["seconds.training"] == pytest.approx(elapsed, abs=1e-3)
    assert stored.parent.info.end_time is not None
    assert stored.parent.info.end_time >= round(tasks[-1].at.timestamp() * 1000)


def test_a_second_report_adds_nothing(stored: Stored) -> None:
    report_run(stored.run.run_id, stored.run.folder.parent)
    again = stored.client.get_run(stored.parent.info.run_id)
    assert again.info.end_time == stored.parent.info.end_time
    assert again.data.metrics == stored.parent.data.metrics
    of_run = f"tags.`peerglass.run_id` = '{stored.run.run_id}'"
    assert len(stored.client.search_model_versions(of_run)) == len(MODELS)


def test_a_database_without_its_driver_is_named_with_the_cure(
    tiny_settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = {"uri": "postgresql://me:hush@127.0.0.1:1/missing"}
    config = check_config({**tiny_settings, "tracking": tracking}, origin="tiny")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(ConfigError, match=r"psycopg.*pip install '\.\[postgres\]'") as error,
        open_store(config),
    ):
        pass
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("damage", ["locked", "not a database", "truncated", "of another release"])
def test_a_database_that_cannot_be_used_is_a_tracking_error_within_seconds(
    tiny_settings: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    new_store(tmp_path)
    path = tmp_path / "mlflow.db"
    monkeypatch.setattr("pipelines.tracking.store._LOCKED_SECONDS", 0.1)
    config = check_config({**tiny_settings, "tracking": {"uri": f"sqlite:///{path}"}}, origin="test")
    with ExitStack() as held:
        if damage == "locked":
            database = held.enter_context(closing(sqlite3.connect(path)))
            database.execute("BEGIN EXCLUSIVE")
        elif damage == "of another release":
            with closing(sqlite3.connect(path)) as database:
                database.execute("UPDATE alembic_version SET version_num = 'of the future'")
                database.commit()
        elif damage == "truncated":
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size // 3)
        else:
            path.write_bytes(b"a page of HTML, say")
        started = time.monotonic()
        said = r"cannot be used .*locks the file, or move a damaged file"
        with pytest.raises(TrackingError, match=said), open_store(config) as client:
            client.search_experiments()
    assert time.monotonic() - started < 20


@pytest.mark.slow(3)
def test_processes_that_start_at_once_on_a_fresh_store_all_succeed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace as Settings\n"
        "from pipelines.tracking.store import experiment_of, open_store\n"
        "folder = sys.argv[1]\n"
        "uri = f'sqlite:///{folder}/mlflow.db'\n"
        "tracking = Settings(uri=uri, artifacts=folder + '/artifacts', experiment='shared')\n"
        "with open_store(Settings(tracking=tracking)) as client:\n"
        "    print(experiment_of(client, Settings(tracking=tracking)))\n"
    )
    started = [Process(code, [str(tmp_path)]) for _ in range(5)]
    answers = [(*one.communicate(timeout=300), one.returncode) for one in started]
    assert [code for *_, code in answers] == [0] * 5, answers
    assert len({out.strip() for out, *_ in answers}) == 1, "all use one experiment"
    assert not list(tmp_path.glob("*.partial"))
