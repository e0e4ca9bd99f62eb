"""Lake operations on a local folder and on an S3-compatible store (moto's server on loopback)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from object_store import CREDENTIALS, object_store, options_of
from polars.testing import assert_frame_equal
from warm import Process

from pipelines.config.load import check_config
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake, UpsertCounts
from pipelines.lake.upkeep import compact, describe_status, recorded_by_runs, vacuum
from pipelines.run.fetch import ingest_config
from pipelines.run.record import open_run
from pipelines.stages import train_config

SIGNS = "my lake, 50% é#1"
"""Name of a folder that a URL cannot contain as it is."""

WRITER = """
import json, sys, time
from datetime import date, timedelta
from pathlib import Path
import polars as pl
from pipelines.lake.lake import Lake
root, options, first, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
lake = Lake(root, options, notify=lambda text: print(text, file=sys.stderr, flush=True))
print("ready", flush=True)
while not Path("go").exists():
    time.sleep(0.01)
added = 0
for i in range(rounds):
    days = [date(2020, 1, 1) + timedelta(days=first + i + k) for k in range(4)]
    rows = pl.DataFrame({"date": days}).with_columns(
        ticker=pl.lit("A"), model=pl.lit("m"), run_id=pl.lit("r"), fold=0, seed=0, forecast=0.5,
        label=pl.lit(None, dtype=pl.Float64),
    )
    added += lake.upsert("forecasts", rows).added
print(added, flush=True)
"""


@dataclass(frozen=True)
class Place:
    """Location of a lake, and the options that it is opened with."""

    root: str
    options: dict[str, str]

    def lake(self) -> Lake:
        return Lake(self.root, self.options)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "folder":
        return Place(str(tmp_path / SIGNS / "lake"), {})
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    options = options_of(request.getfixturevalue("endpoint"))
    return Place(f"s3://bucket/{tmp_path.name}/lake", options)


def prices(days: int, close: float = 10.0, start: int = 0) -> pl.DataFrame:
    dates = [date(2020, 1, 1) + timedelta(days=start + i) for i in range(days)]
    return (
        pl.DataFrame({"date": dates})
        .join(pl.DataFrame({"ticker": ["A", "B"]}), how="cross")
        .with_columns(
            close=pl.lit(close),
            source=pl.lit("test"),
            ingested_at=pl.lit(datetime(2024, 1, 1, tzinfo=UTC)),
        )
    )


def test_create_upsert_read_and_refuse(place: Place) -> None:
    lake = place.lake()
    assert lake.versions() == {}
    assert lake.upsert("prices", prices(3)) == UpsertCounts(6, 0, 0, 1)
    assert lake.upsert("prices", prices(3)) == UpsertCounts(0, 0, 6, 1)
    assert lake.upsert("prices", prices(2, close=11.0, start=2)) == UpsertCounts(2, 2, 0, 2)
    assert lake.read("prices", version=1)["close"].to_list() == [10.0] * 6
    assert lake.read("prices", columns=["close"])["close"].to_list() == [10.0] * 4 + [11.0] * 4
    assert lake.read("prices", filters=pl.col("date") == date(2020, 1, 4)).height == 2
    with pytest.raises(DataError, match="no version 3; it has 1 to 2"):
        lake.read("prices", version=3)
    with pytest.raises(DataError, match="holds no data: run `peerglass ingest`"):
        lake.read("securities")


@pytest.mark.slow(4)
def test_as_of_a_time_and_as_of_a_version(place: Place) -> None:
    lake = place.lake()
    moments = []
    for close, name in ((10.0, None), (11.0, "one"), (12.0, "two")):
        lake.upsert("prices", prices(2, close=close))
        if name is not None:
            firm = {"ticker": ["A"], "valid_from": [date(2020, 1, 1)], "name": [name]}
            lake.upsert("securities", pl.DataFrame(firm))
        time.sleep(0.01)
        moments.append(datetime.now(UTC))
        time.sleep(0.01)
    lake.upsert("securities", pl.DataFrame({**firm, "ticker": ["B"]}))
    assert lake.versions() == {"prices": 3, "securities": 3}

    versions = [lake.versions_as_of(moment.isoformat()) for moment in moments]
    assert versions == [{"prices": 1}, {"prices": 2, "securities": 1}, {"prices": 3, "securities": 2}]
    naive = moments[1].replace(tzinfo=None).isoformat()
    assert lake.versions_as_of(naive) == versions[1], "without a zone it is UTC"
    elsewhere = moments[1].astimezone(datetime.strptime("+0530", "%z").tzinfo).isoformat()
    assert lake.versions_as_of(elsewhere) == versions[1]
    today = lake.versions_as_of(datetime.now(UTC).date().isoformat())
    assert today == lake.versions(), "a date alone is the end of that day"

    assert lake.versions_as_of("1") == {"prices": 1}
    assert lake.versions_as_of("2") == {"prices": 2, "securities": 1}, (
        "with what came while it was the newest"
    )
    assert lake.versions_as_of("3") == lake.versions()
    with pytest.raises(DataError, match=r"no version 4; they have 1 to 3 \(write dates as 2024"):
        lake.versions_as_of("4")
    with pytest.raises(DataError, match=r"no version 0"):
        lake.versions_as_of("0")
    with pytest.raises(
        DataError, match=r"held no prices at 2001-01-01 23:59:59 UTC; its first were committed"
    ):
        lake.versions_as_of("2001-01-01")
    for wrong in ("yesterday", "-1", "2024-13-01", "1.5", "", "2024-01-01T25:00"):
        with pytest.raises(ConfigError, match="is neither a version of the prices table nor a date or time"):
            lake.versions_as_of(wrong)


@pytest.mark.slow(2)
def test_compaction_keeps_every_version_and_its_number(place: Place) -> None:
    lake = place.lake()
    for day in range(6):
        lake.upsert("prices", prices(1, close=10.0 + day, start=day))
    before = {version: lake.read("prices", version=version) for version in range(1, 7)}
    opened = lake.storage.open("prices")
    assert opened is not None
    assert len(opened.file_uris()) == 6

    assert list(compact(lake).values()) == [(6, 1)]
    assert list(compact(lake).values()) == [(0, 0)], "a second one finds nothing"
    assert lake.versions() == {"prices": 6}, "no row changed, so runs on this version go on"
    reopened = lake.storage.open("prices")
    assert reopened is not None
    assert (reopened.version(), len(reopened.file_uris())) == (7, 1)
    assert lake.versions_as_of("6") == {"prices": 6}
    for version, rows in before.items():
        assert_frame_equal(lake.read("prices", version=version), rows)

    assert lake.upsert("prices", prices(1, start=6)).version == 8
    assert lake.versions_as_of("7") == {"prices": 6}
    assert_frame_equal(lake.read("prices", version=6), before[6])


@pytest.mark.slow(3)
def test_a_vacuum_keeps_the_newest_and_what_runs_recorded(place: Place) -> None:
    lake = place.lake()
    for version in range(1, 6):
        lake.upsert("prices", prices(2, close=10.0 + version))
    recorded = {("prices", 2, "run-a"), ("prices", 2, "run-b"), ("prices", 5, "run-c")}
    recorded.add(("prices", 99, "of a lake that was deleted"))

    (kept,) = vacuum(lake, keep=timedelta(days=1), recorded=set())
    assert (kept.files, kept.lost) == (0, ()), "everything is younger than a day"
    (plan,) = vacuum(lake, keep=timedelta(0), recorded=recorded, dry_run=True)
    assert (plan.files, plan.lost, dict(plan.kept), dict(plan.broken)) == (
        3,
        (1, 3, 4),
        {2: ["run-a", "run-b"]},
        {},
    )
    assert plan.size > 0
    assert [lake.read("prices", version=v)["close"][0] for v in range(1, 6)] == [11.0, 12.0, 13.0, 14.0, 15.0]

    assert vacuum(lake, keep=timedelta(0), recorded=recorded) == [plan], "it does what the dry run says"
    assert lake.versions() == {"prices": 5}
    assert lake.read("prices")["close"][0] == 15.0
    assert lake.read("prices", version=2)["close"][0] == 12.0
    for lost in (1, 3, 4):
        with pytest.raises(
            DataError, match=f"version {lost} of .*/prices can no longer be read, because a vacuum"
        ):
            lake.read("prices", version=lost)
    (row,) = (line for line in describe_status(lake, recorded).splitlines() if " prices " in line)
    assert row.split()[1:3] == ["5", "2"], "the newest version, and how many can be read"

    (forced,) = vacuum(lake, keep=timedelta(0), recorded=recorded, protect=False)
    assert (forced.files, forced.lost, dict(forced.broken)) == (1, (2,), {2: ["run-a", "run-b"]})
    with pytest.raises(DataError, match=r"version 2 of .*/prices can no longer be read"):
        lake.read("prices", version=2)
    assert lake.read("prices", version=5)["close"][0] == 15.0
    assert lake.upsert("prices", prices(1, close=99.0)).updated == 2


def test_after_compaction_a_vacuum_frees_the_small_files_of_a_recorded_version(place: Place) -> None:
    lake = place.lake()
    for day in range(4):
        lake.upsert("prices", prices(1, start=day))
    whole = lake.read("prices", version=4)
    compact(lake)
    (plan,) = vacuum(lake, keep=timedelta(0), recorded={("prices", 4, "run")})
    assert (plan.files, plan.lost) == (4, (1, 2, 3))
    assert_frame_equal(lake.read("prices", version=4), whole)


@pytest.mark.slow(5)
def test_two_concurrent_processes_store_every_key_once(place: Place, tmp_path: Path) -> None:
    rounds = 12
    options = json.dumps(place.options)
    writers = [Process(WRITER, [place.root, options, str(first), str(rounds)], tmp_path) for first in (0, 2)]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
    (tmp_path / "go").touch()
    out = [writer.communicate(timeout=300) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], out
    frame = place.lake().read("forecasts")
    assert frame["date"].to_list() == [date(2020, 1, 1) + timedelta(days=i) for i in range(rounds + 5)]
    assert sum(int(text) for text, _ in out) == frame.height, "each key was added by one of them"
    for _, notes in out:
        for line in notes.splitlines():
            assert "another process committed first; retrying in" in line


@pytest.mark.slow(4)
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_config_with_a_url_ingests_and_trains(
    place: Place, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / SIGNS
    home.mkdir(exist_ok=True)
    monkeypatch.chdir(home)
    settings = {**tiny, "lake": place.root, "lake_options": place.options}
    config = check_config(settings, origin="tiny")
    output: list[str] = []
    ingest_config(config, output.append)
    assert "prices" in output[0]
    run = open_run(train_config(config), Path("runs"))
    assert run.versions["prices"] == 1
    assert run.config.lake == place.root
    assert place.lake().read("forecasts", filters=pl.col("run_id") == run.run_id).height > 0
    assert ("prices", 1, run.run_id) in recorded_by_runs(place.lake(), [Path("runs")])
    tracking = {"mlflow.db", ".mlflow.db.lock", "mlartifacts"}
    made = {path.name for path in home.iterdir()} - {"lake", *tracking}
    assert made == {"runs", "features"}, "a URL is never made a folder"


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", ["my%20lake", "a?b", "a[1]", "a|b", "a\\b"])
def test_a_folder_whose_name_the_tables_cannot_have_is_refused_with_the_sign(
    name: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"lake is .*, whose '.*' is read as something else"):
        check_config({**tiny, "lake": str(tmp_path / name)}, origin="tiny")
    store = {"uri": f"sqlite:///{tmp_path / name / 'mlflow.db'}"}
    with pytest.raises(ConfigError, match=r"tracking\.uri is .*, whose '.*' is read as something else"):
        check_config({**tiny, "tracking": store}, origin="tiny")
