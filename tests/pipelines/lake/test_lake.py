"""The lake: upserts by key, versions, refusals, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from places import ROOT
from polars.testing import assert_frame_equal

from pipelines.errors import DataError
from pipelines.lake.lake import Lake, UpsertCounts


def prices(days: int = 3, *, close: float = 10.0, stamp: int = 1) -> pl.DataFrame:
    dates = [date(2020, 1, 1) + timedelta(days=i) for i in range(days)]
    return (
        pl.DataFrame({"date": dates})
        .join(pl.DataFrame({"ticker": ["A", "B"]}), how="cross")
        .with_columns(
            close=pl.lit(close),
            source=pl.lit("test"),
            ingested_at=pl.lit(datetime(2024, 1, stamp, tzinfo=UTC)),
        )
    )


def forecasts(fold: int, rows: int = 50, run: str = "r1") -> pl.DataFrame:
    return pl.DataFrame({"ticker": [f"T{i:05}" for i in range(rows)]}).with_columns(
        run_id=pl.lit(run),
        model=pl.lit("ridge"),
        fold=pl.lit(fold),
        seed=pl.lit(0),
        date=pl.lit(date(2020, 1, 1)),
        forecast=pl.lit(0.5),
        label=pl.lit(None, dtype=pl.Float64),
    )


def test_upsert_adds_and_updates_rows_and_keeps_all_others(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert lake.version("prices") is None
    assert lake.upsert("prices", prices(2)) == UpsertCounts(4, 0, 0, 1)
    changed = prices(3).with_columns(
        close=pl.when((pl.col("date") == date(2020, 1, 2)) & (pl.col("ticker") == "B"))
        .then(11.0)
        .otherwise("close")
    )
    counts = lake.upsert("prices", changed.filter(pl.col("date") > date(2020, 1, 1)))
    assert counts == UpsertCounts(2, 1, 1, 2)
    stored = lake.read("prices")
    assert stored.select("date", "ticker", "close").rows() == changed.select("date", "ticker", "close").rows()
    assert stored["split_ratio"].to_list() == [1.0] * 6


def test_a_repeat_writes_nothing_even_with_a_newer_stamp(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("prices", prices(stamp=1))
    files = sorted(tmp_path.rglob("*"))
    assert lake.upsert("prices", prices(stamp=2)) == UpsertCounts(0, 0, 6, 1)
    assert sorted(tmp_path.rglob("*")) == files
    assert lake.read("prices")["ingested_at"].unique().to_list() == [datetime(2024, 1, 1, tzinfo=UTC)]


def test_null_becoming_a_value_and_back_is_a_change(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("prices", prices(1))
    assert lake.upsert("prices", prices(1).with_columns(volume=pl.lit(5.0))).updated == 2
    assert lake.upsert("prices", prices(1)).updated == 2
    assert lake.read("prices")["volume"].null_count() == 2


def test_every_version_can_be_read_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("prices", prices(1, close=10.0))
    lake.upsert("prices", prices(1, close=11.0))
    assert lake.versions() == {"prices": 2}
    assert lake.read("prices", version=1)["close"].to_list() == [10.0, 10.0]
    assert lake.read("prices", version=2)["close"].to_list() == [11.0, 11.0]
    for missing in (0, 3):
        with pytest.raises(DataError, match=f"no version {missing}; it has 1 to 2"):
            lake.read("prices", version=missing)
    assert (
        DeltaTable(tmp_path / "prices").metadata().configuration["delta.enableExpiredLogCleanup"] == "false"
    )


def test_the_order_of_writing_does_not_matter(tmp_path: Path) -> None:
    one, two = Lake(tmp_path / "one"), Lake(tmp_path / "two")
    one.upsert("prices", prices(4))
    two.upsert("prices", prices(4, close=3.0).filter(pl.col("ticker") == "B").reverse())
    two.upsert("prices", prices(4).filter(pl.col("ticker") == "A").reverse())
    two.upsert("prices", prices(4))
    assert_frame_equal(one.read("prices"), two.read("prices"))


def test_read_selects_columns_and_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("forecasts", forecasts(0, run="r1"))
    lake.upsert("forecasts", forecasts(1, run="r2"))
    frame = lake.read("forecasts", columns=["fold", "ticker"], filters=pl.col("run_id") == "r2")
    assert frame.columns == ["fold", "ticker"]
    assert frame["fold"].unique().to_list() == [1]
    assert frame.height == 50


def test_rows_are_counted_and_distinct_keys_found_without_the_rest(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for fold in (2, 0):
        lake.upsert("forecasts", forecasts(fold, rows=7))
    lake.upsert("forecasts", forecasts(5, rows=3, run="r2"))
    assert (lake.count("forecasts", 1), lake.count("forecasts")) == (7, 17)
    found = lake.distinct("forecasts", ["model", "fold"], pl.col("run_id") == "r1")
    assert found.rows() == [("ridge", 0), ("ridge", 2)]


def test_a_frame_that_breaks_the_contract_is_a_bug_and_writes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(ValueError, match="close_is_positive"):
        lake.upsert("prices", prices(close=-1.0))
    with pytest.raises(ValueError, match="identical_rows"):
        lake.upsert("prices", pl.concat([prices(), prices()]))
    with pytest.raises(ValueError, match="no table 'nonsense'"):
        lake.upsert("nonsense", prices())
    assert lake.versions() == {}


def test_an_empty_frame_creates_no_table(tmp_path: Path) -> None:
    assert Lake(tmp_path).upsert("prices", prices().clear()) == UpsertCounts(0, 0, 0, None)
    assert not (tmp_path / "prices").exists()


def test_a_missing_table_is_a_data_error_that_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data: run `peerglass ingest`"):
        Lake(tmp_path).read("prices")


def test_a_folder_that_is_not_delta_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "notes.txt").write_text("mine")
    lake = Lake(tmp_path)
    for act in (lambda: lake.read("prices"), lambda: lake.upsert("prices", prices()), lake.versions):
        with pytest.raises(DataError, match=r"prices is not a Delta table .*name another lake root"):
            act()
    assert [p.name for p in (tmp_path / "prices").iterdir()] == ["notes.txt"]


def test_a_broken_log_and_a_file_in_the_way_are_data_errors(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("prices", prices())
    for entry in (tmp_path / "prices" / "_delta_log").glob("*.json"):
        entry.write_text("not json")
    with pytest.raises(DataError, match="cannot be opened as a Delta table"):
        lake.read("prices")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is a file, not a lake folder"):
        Lake(tmp_path / "file").versions()


def test_a_table_created_but_never_filled_holds_no_data_and_can_be_filled(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.storage.create("prices")  # what a kill between creation and the first commit leaves
    assert not lake.exists("prices")
    with pytest.raises(DataError, match="holds no data"):
        lake.read("prices")
    assert lake.upsert("prices", prices()).version == 1
    (tmp_path / "forecasts" / "_delta_log").mkdir(parents=True)  # what a kill during creation leaves
    assert lake.upsert("forecasts", forecasts(0)).added == 50


def test_concurrent_writers_store_each_key_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: Lake(tmp_path).upsert("forecasts", forecasts(0)), range(4)))
    assert sum(c.added for c in counts) == 50
    assert Lake(tmp_path).read("forecasts").height == 50


def test_lakes_of_a_thread_share_an_open_table_and_threads_share_none(tmp_path: Path) -> None:
    """A commit moves the table object of its writer, which no other thread may be reading."""
    Lake(tmp_path).upsert("prices", prices())
    opened = Lake(tmp_path).storage.view("prices")
    assert Lake(tmp_path).storage.view("prices") is opened
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(Lake(tmp_path).storage.view, "prices").result() is not opened
        pool.submit(Lake(tmp_path).upsert, "prices", prices(close=12.0)).result()
    assert opened is not None
    assert opened.version() == 1
    assert Lake(tmp_path).version("prices") == 2


def test_an_object_store_url_creates_no_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Lake("s3://bucket/lake/").root == "s3://bucket/lake"
    with pytest.raises(
        DataError, match=r"memory://lake/prices cannot be opened .*: check that the URL exists, lake_options"
    ):
        Lake("memory://lake").version("prices")
    assert list(tmp_path.iterdir()) == []


def test_a_file_url_works_like_a_path(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    by_url = Lake(f"file://{tmp_path}/lake")
    assert by_url.version("prices") is None
    assert by_url.upsert("prices", prices(2)).added == 4
    assert by_url.upsert("prices", prices(3, close=11.0)) == UpsertCounts(2, 4, 0, 2)
    assert_frame_equal(by_url.read("prices"), Lake(tmp_path / "lake").read("prices"))


WRITER = """
import sys
from tests_lake_rows import forecasts
from pipelines.lake.lake import Lake
lake = Lake(sys.argv[1])
print("ready", flush=True)
for fold in range(int(sys.argv[2])):
    lake.upsert("forecasts", forecasts(fold, rows=2000))
    print(fold, flush=True)
"""


@pytest.mark.slow(2)
def test_a_killed_writer_loses_no_commit_and_a_rerun_duplicates_nothing(tmp_path: Path) -> None:
    folds = 12
    (tmp_path / "tests_lake_rows.py").write_text(Path(__file__).read_text())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", tmp_path)))}
    command = [sys.executable, "-c", WRITER, str(tmp_path / "lake"), str(folds)]
    lake = Lake(tmp_path / "lake")
    for delay in (0.003, 0.011, 0.027):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
            committed = [int(line) for line in writer.stdout.read().splitlines() if line.strip().isdigit()]
        if lake.exists("forecasts"):
            per_fold = lake.read("forecasts").group_by("fold").len()
            assert set(committed) <= set(per_fold["fold"])
            assert per_fold["len"].unique().to_list() == [2000]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    final = lake.read("forecasts")
    assert final.height == folds * 2000
    assert not final.select(pl.struct("fold", "ticker").is_duplicated().any()).item()
