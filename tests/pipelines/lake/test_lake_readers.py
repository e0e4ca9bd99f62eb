"""A vacuum keeps what runs have read, as recorded in the lake, the tracking store or folders of runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from aged_lakes import aged, sources
from command import Call, command
from mlflow import MlflowClient

from pipelines.config.load import check_config
from pipelines.errors import DataError, TrackingError
from pipelines.lake.lake import Lake
from pipelines.lake.upkeep import record_reader, recorded_in_lake
from pipelines.progress import Progress
from pipelines.run.open import reopen_run
from pipelines.tracking.store import recorded_in_store


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capsys)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake in which every version except the newest is old enough to be removed."""
    monkeypatch.chdir(tmp_path)
    lake = Lake("lake")
    for version in range(1, 5):
        lake.upsert("sources", sources(f"v{version}"))
    aged(lake, "sources", [9, 8, 7, 6, 5])
    return lake


def test_a_run_is_repeatable_after_a_vacuum_even_without_its_folder(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    """The lake is vacuumed from another folder than the run's, and again after the run's folder is gone."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    path = home / "tiny.yaml"
    path.write_text(yaml.safe_dump({**tiny, "lake": str(tmp_path / "lake"), "audit": {"enabled": False}}))
    assert peerglass("ingest", str(path)).code == 0
    lake = Lake(tmp_path / "lake")
    trained = peerglass("train", str(path))
    assert trained.code == 0, trained.err
    run_id = trained.out.strip().splitlines()[-1]
    _, before, _ = reopen_run(run_id, Path("runs"), Progress())
    for factor in (2.0, 3.0):
        lake.upsert(
            "prices", lake.read("prices").with_columns(pl.col("open", "high", "low", "close") * factor)
        )
    aged(lake, "prices", [9, 8, 7, 6])

    monkeypatch.chdir(elsewhere)
    output = peerglass("lake", "vacuum", str(path), "--keep-days", "1")
    assert output.code == 0, output.err
    assert "prices: kept for runs: versions 1" in output.out
    assert "versions that are lost: 2" in output.out
    assert list(elsewhere.iterdir()) == [], "asking for runs makes no store and no folder"
    monkeypatch.chdir(home)
    _, after, _ = reopen_run(run_id, Path("runs"), Progress())
    assert before.panel.close_TN.tobytes() == after.panel.close_TN.tobytes()

    (home / "runs").rename(home / "gone")
    output = peerglass("lake", "vacuum", str(path), "--keep-days", "1")
    assert output.code == 0, output.err
    (home / "gone").rename(home / "runs")
    _, after, _ = reopen_run(run_id, Path("runs"), Progress())
    assert before.panel.close_TN.tobytes() == after.panel.close_TN.tobytes()

    output = peerglass("lake", "vacuum", str(path), "--keep-days", "1", "--forget", "tiny-unknown")
    assert output.code == 2
    assert (
        f"--forget tiny-unknown: no run of that id has recorded a version of the lake {lake.root}"
        in output.err
    )
    assert run_id in output.err
    output = peerglass("lake", "vacuum", str(path), "--keep-days", "1", "--forget", run_id)
    assert output.code == 0, output.err
    assert "versions that are lost: 1" in output.out
    with pytest.raises(DataError, match="a vacuum removed its files"):
        lake.read("prices", version=1)


def test_a_reader_is_recorded_once_for_the_table_that_it_read(lake: Lake) -> None:
    record_reader(lake, "tiny-1", {"sources": 2})
    record_reader(lake, "tiny-1", {"sources": 2})
    record_reader(lake, "tiny-2", {"sources": 2})
    assert lake.version("readers") == 2
    assert recorded_in_lake(lake) == {("sources", 2, "tiny-1"), ("sources", 2, "tiny-2")}
    assert recorded_in_lake(Lake("other")) == set()
    shutil.rmtree("lake/sources")
    assert recorded_in_lake(lake) == set()
    lake.upsert("sources", sources("of another table"))
    lake.upsert("sources", sources("and changed"))
    assert recorded_in_lake(lake) == set(), "version 2 of this table was read by nobody"


def stored_run(uri: str, experiment: str, **tags: str) -> str:
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    made = found.experiment_id if found is not None else client.create_experiment(experiment)
    return str(client.create_run(made, tags=tags).info.run_id)


@pytest.mark.slow(2)
def test_versions_recorded_in_the_tracking_store_are_kept(
    lake: Lake, tiny: dict[str, Any], peerglass: Call
) -> None:
    """Runs of all experiments count, if they name this lake or none; runs on other lakes do not."""
    # an absolute path, because MLflow resolves a relative one only once per process
    tiny = {**tiny, "tracking": {"uri": f"sqlite:///{Path.cwd()}/mlflow.db"}}
    config = check_config(tiny, origin="tiny")
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny))
    assert recorded_in_store(config, lake.root) == set()
    assert not Path("mlflow.db").exists(), "looking makes no store"
    uri = config.tracking.uri
    here = {"peerglass.run_id": "tiny-here", "table_versions": json.dumps({"sources": 1}), "lake": lake.root}
    stored_run(uri, "tiny", **here)
    stored_run(uri, "another config", **here | {"peerglass.run_id": "other-2"})
    stored_run(uri, "tiny", **here | {"peerglass.run_id": "tiny-there", "lake": "/elsewhere/lake"})
    stored_run(uri, "tiny", **{"peerglass.run_id": "tiny-old", "table_versions": '{"sources": 3}'})
    stored_run(uri, "tiny", note="no run of ours")
    of_sources = {(1, "other-2"), (1, "tiny-here"), (3, "tiny-old")}
    assert recorded_in_store(config, lake.root) == {("sources", *one) for one in of_sources}
    output = peerglass("lake", "vacuum", "tiny.yaml", "--keep-days", "2")
    assert output.code == 0, output.err
    assert "sources: kept for runs: versions 1, 3" in output.out
    assert "versions that are lost: 2" in output.out
    assert [lake.read("sources", version=v)["notes"].item() for v in (1, 3, 4)] == ["v1", "v3", "v4"]

    broken = stored_run(uri, "tiny", table_versions="{")
    with pytest.raises(TrackingError, match=f"table_versions of the run {broken} in the tracking store"):
        recorded_in_store(config, lake.root)


@pytest.mark.parametrize("extra", [(), ("--dry-run",)])
def test_nothing_is_removed_while_the_tracking_store_is_unreachable(
    lake: Lake, tiny: dict[str, Any], peerglass: Call, extra: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "tracking": {"uri": "http://127.0.0.1:9"}}))
    files = sorted(Path("lake").glob("*/**/*"))  # of the tables
    output = peerglass("lake", "vacuum", "tiny.yaml", "--keep-days", "2", *extra)
    assert output.code == 6
    assert (
        "Nothing was removed, because runs in the store may need it: The tracking store http://127.0.0.1:9"
        in output.err
    )
    assert sorted(Path("lake").glob("*/**/*")) == files
    assert [lake.read("sources", version=v)["notes"].item() for v in (1, 2, 3)] == ["v1", "v2", "v3"]
