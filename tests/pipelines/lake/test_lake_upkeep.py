"""Retention by age, versions protected by runs, and the maintenance commands of a lake."""

from __future__ import annotations

import os
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from aged_lakes import aged, sources
from recorded import recorded
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.load import check_config
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import storage_options
from pipelines.lake.upkeep import recorded_by_runs, vacuum


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_versions_that_were_newest_within_the_retention_are_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for version in range(1, 5):
        lake.upsert("sources", sources(f"v{version}"))
    aged(lake, "sources", [30, 20, 12, 8, 1])  # version 2 was the newest until eight days ago
    assert [plan.lost for plan in vacuum(lake, keep=timedelta(days=13), recorded=set())] == [()]
    (plan,) = vacuum(lake, keep=timedelta(days=9), recorded=set())
    assert (plan.files, plan.lost) == (1, (1,)), "version 1 was replaced twelve days ago"
    assert lake.read("sources", version=2)["notes"].to_list() == ["v2"]
    (plan,) = vacuum(lake, keep=timedelta(days=7), recorded=set())
    assert (plan.files, plan.lost) == (1, (2,)), "what is lost already is not announced again"


def test_files_of_a_possibly_active_writer_are_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("sources", sources("x"))
    fresh, stale = tmp_path / "sources" / "part-fresh.parquet", tmp_path / "sources" / "part-stale.parquet"
    for path in (fresh, stale):
        path.write_bytes(b"not committed")
    os.utime(stale, (time.time() - 3 * 86_400,) * 2)
    (plan,) = vacuum(lake, keep=timedelta(days=1), recorded=set())
    assert (plan.files, plan.unreferenced, plan.size) == (1, 1, len(b"not committed"))
    assert fresh.exists()
    assert not stale.exists()


def test_runs_protect_the_versions_of_their_own_lake(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = check_config(tiny, origin="tiny")
    run = recorded(config, {"prices": 2, "securities": 1})
    same = recorded(config.model_copy(update={"lake": f"file://{tmp_path}/lake"}), {"prices": 2})
    recorded(config.model_copy(update={"lake": "elsewhere"}), {"prices": 7})
    recorded(config.model_copy(update={"lake": "s3://bucket/lake"}), {"prices": 8})
    assert recorded_by_runs(Lake("lake"), [Path("runs"), Path("no-such-folder")]) == {
        *(("prices", 2, run.run_id), ("prices", 2, same.run_id)),
        ("securities", 1, run.run_id),
    }
    (run.folder / "run.json").write_text("{")
    with pytest.raises(
        DataError, match=f"run folder runs/{run.run_id} cannot be read .* repair it, or move it"
    ):
        recorded_by_runs(Lake("lake"), [Path("runs")])


def status_of(table: str) -> list[str]:
    """The row of a table, without its name."""
    rows = (line.split() for line in invoke("lake", "status", "tiny.yaml").splitlines())
    return next(row[1:] for row in rows if row[:1] == [table])


def test_the_commands_show_the_status_and_what_would_be_lost(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny))
    assert invoke("lake", "status", "tiny.yaml").endswith("lake holds no data\n")
    lake = Lake("lake")
    for version in range(1, 6):
        lake.upsert("sources", sources(f"v{version}"))
    aged(lake, "sources", [9, 8, 7, 6, 5, 4])
    run = recorded(check_config(tiny, origin="tiny"), {"sources": 3})

    assert status_of("sources")[:3] == ["5", "5", "1"]
    assert invoke("lake", "compact", "tiny.yaml") == "nothing to join\n"
    said = invoke("lake", "vacuum", "tiny.yaml", "--keep-days", "2", "--dry-run")
    assert "would remove 3 files" in said
    assert "versions that would be lost: 1, 2, 4" in said
    assert "sources: kept for runs: versions 3" in said
    said = invoke("lake", "vacuum", "tiny.yaml", "--keep-days", "2", "--dry-run", "--forget-runs")
    assert "versions that would be lost: 1, 2, 3, 4" in said
    assert f"runs that could no longer be repeated: {run.run_id}" in said
    assert status_of("sources")[:3] == ["5", "5", "1"]
    assert "removed 3 files" in invoke("lake", "vacuum", "tiny.yaml", "--keep-days", "2")
    assert status_of("sources")[:3] == ["5", "2", "1"]
    assert lake.read("sources", version=3)["notes"].to_list() == ["v3"]
    assert invoke("lake", "vacuum", "tiny.yaml", "--keep-days", "2").startswith("sources: kept for runs")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"lake": "s3://b/l", "lake_options": {"aws_secret_access_key": "hunter2"}},
            "lake_options.aws_secret_access_key is a credential, and a config is printed and logged; set it "
            "in the environment instead (for example AWS_SECRET_ACCESS_KEY)",
        ),
        ({"lake": "s3://b/l", "lake_options": {"AWS_SESSION_TOKEN": "hunter2"}}, "is a credential"),
        ({"lake": "az://b/l", "lake_options": {"azure_storage_account_key": "hunter2"}}, "is a credential"),
        ({"lake": "s3://me:hunter2@b/l"}, "lake contains a user name or a password"),
        (
            {"lake": "s3://b/l", "lake_options": {"aws_endpoint_url": "http://me:hunter2@x"}},
            "contains a user name",
        ),
        (
            {"lake": "s3://b/l", "lake_options": {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}},
            "commits could be lost",
        ),
        ({"lake": "s3://b/l", "lake_options": {"conditional_put": "disabled"}}, "commits could be lost"),
        ({"lake": "data/lake", "lake_options": {"aws_region": "eu-west-1"}}, "lake is a local path"),
    ],
)
def test_a_config_may_contain_the_lakes_location_but_no_credentials(
    tiny: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config({**tiny, **settings}, origin="tiny.yaml")
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_s3_lake_commits_by_conditional_put(tiny: dict[str, Any]) -> None:
    options = {
        "aws_endpoint_url": "http://127.0.0.1:9000",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    config = check_config({**tiny, "lake": "s3://b/l", "lake_options": options}, origin="tiny")
    assert storage_options(config.lake, config.lake_options) == {"aws_conditional_put": "etag", **options}
    assert storage_options("data/lake", {}) == {}


def test_versions_are_ordered_even_if_the_writers_clocks_disagree(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for close in (10.0, 11.0, 12.0):
        rows = pl.DataFrame({"date": [date(2020, 1, 1)], "ticker": ["A"], "close": [close]})
        stamps = {"source": pl.lit("s"), "ingested_at": pl.lit("2024-01-01").str.to_datetime(time_zone="UTC")}
        lake.upsert("prices", rows.with_columns(**stamps))
    aged(lake, "prices", [9, 5, 6, 3])  # the second writer's clock was a day behind the first's
    assert lake.versions_as_of(days_ago(4)) == {"prices": 2}
    assert lake.versions_as_of(days_ago(2)) == {"prices": 3}
    with pytest.raises(DataError, match="held no prices at"):
        lake.versions_as_of(days_ago(5.5))


def days_ago(days: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - days * 86_400))
