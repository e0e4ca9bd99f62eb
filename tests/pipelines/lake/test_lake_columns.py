"""Lakes written before a table gained a nullable column: reading, upserting and repeating runs."""

from __future__ import annotations

import re
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from given_files import files_source
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.load import load_config
from pipelines.dataset.tables import read_tables
from pipelines.errors import DataError
from pipelines.ingest.ingest import ingest
from pipelines.ingest.quarantine import Selection, release
from pipelines.lake.contracts import check, quarantined
from pipelines.lake.lake import Lake, UpsertCounts
from pipelines.lake.schemas import SCHEMAS, STAMPS, schema
from pipelines.lake.upkeep import compact, record_reader, recorded_in_lake
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config, make_source
from pipelines.run.open import reopen_run
from pipelines.stages import train_config

SINCE = ("listed_on", "delisting_return")  # one from the middle of the contract, one from near its end


def securities(sector: str = "energy", tickers: str = "ABC") -> pl.DataFrame:
    rows = pl.DataFrame({"ticker": list(tickers)}).with_columns(
        valid_from=pl.lit(date(2020, 1, 1)), sector=pl.lit(sector)
    )
    return check("securities", rows).valid


def write_as_before(root: Path, table: str, rows: pl.DataFrame, without: tuple[str, ...]) -> None:
    """Write a table as an earlier version of Peerglass did: created empty as version 0, then one append."""
    old = rows.drop(without)
    DeltaTable.create(str(root / table), schema=old.clear().to_arrow().schema)
    if rows.height:
        write_deltalake(str(root / table), old, mode="append")


@pytest.fixture
def old(tmp_path: Path) -> Lake:
    write_as_before(tmp_path, "securities", securities(), SINCE)
    return Lake(tmp_path)


def test_an_old_table_is_read_with_null_in_later_columns(old: Lake) -> None:
    assert_frame_equal(old.read("securities"), securities())
    assert_frame_equal(old.read("securities", version=1), securities())
    chosen = old.read("securities", columns=["ticker", "listed_on"], filters=pl.col("listed_on").is_null())
    assert chosen.rows() == [("A", None), ("B", None), ("C", None)]
    assert chosen.schema["listed_on"] == pl.Date
    assert old.read("securities", filters=pl.col("delisting_return") < 0).is_empty()


def test_a_redelivery_without_values_for_later_columns_changes_nothing(old: Lake) -> None:
    assert old.upsert("securities", securities()) == UpsertCounts(0, 0, 3, 1)
    assert "listed_on" not in [field.name for field in DeltaTable(f"{old.root}/securities").schema().fields]


@pytest.mark.parametrize("path", ["append", "merge"])
def test_an_upsert_adds_the_columns_in_its_own_commit(old: Lake, path: str) -> None:
    """New rows are appended and changed rows merged; both keep all other rows unchanged."""
    delivered = securities(tickers="CD" if path == "merge" else "D").with_columns(
        listed_on=pl.lit(date(2019, 5, 6)), delisting_return=pl.lit(-0.3)
    )
    counts = old.upsert("securities", delivered)
    assert counts == (UpsertCounts(1, 1, 0, 2) if path == "merge" else UpsertCounts(1, 0, 0, 2))
    untouched = securities(tickers="AB" if path == "merge" else "ABC")
    assert_frame_equal(old.read("securities"), pl.concat([untouched, delivered]))
    assert_frame_equal(old.read("securities", version=1), securities())
    assert old.read("securities").columns == schema("securities").column_names()
    assert old.upsert("securities", delivered) == UpsertCounts(0, 0, delivered.height, 2)


def test_an_old_empty_table_gains_the_new_columns(tmp_path: Path) -> None:
    write_as_before(tmp_path, "securities", securities().clear(), SINCE)
    lake = Lake(tmp_path)
    rows = securities().with_columns(listed_on=pl.lit(date(2019, 5, 6)))
    assert lake.upsert("securities", rows) == UpsertCounts(3, 0, 0, 1)
    assert_frame_equal(lake.read("securities"), rows)


def test_files_with_and_without_the_column_are_compacted_and_read_alike(old: Lake) -> None:
    old.upsert("securities", securities(tickers="D").with_columns(delisting_return=pl.lit(-0.3)))
    before = old.read("securities")
    assert list(compact(old).values()) == [(2, 1)]
    assert_frame_equal(old.read("securities"), before)
    assert before["delisting_return"].to_list() == [None, None, None, -0.3]


def test_a_table_that_gains_a_column_keeps_its_id(old: Lake) -> None:
    """Delta gives a table a new id when a merge adds a column; runs on its versions must stay valid."""
    before = old.with_table_ids({"securities": 1})
    record_reader(old, "run-1", {"securities": 1})
    assert old.upsert("securities", securities(sector="metals")).updated == 3
    opened = old.storage.open("securities")
    assert opened is not None
    assert set(SINCE) <= {field.name for field in opened.schema().fields}
    assert str(opened.metadata().id) != before["securities"].id, "else this test shows nothing"
    assert old.with_table_ids({"securities": 1}) == before
    assert recorded_in_lake(old) == {("securities", 1, "run-1")}


def test_filters_on_an_old_table_still_skip_files(tmp_path: Path) -> None:
    """The column filled with null does not prevent a filter from skipping files."""
    days = [date(2020, 1, 1) + timedelta(days=i) for i in range(4)]
    bars = pl.DataFrame({"date": days}).with_columns(
        ticker=pl.lit("A"),
        close=1.0,
        source=pl.lit("s"),
        ingested_at=pl.lit("2024-01-01").str.to_datetime(time_unit="us", time_zone="UTC"),
    )
    rows = check("prices", bars).valid
    write_as_before(tmp_path, "prices", rows.head(2), ("volume",))
    write_deltalake(str(tmp_path / "prices"), rows.tail(2).drop("volume"), mode="append")
    lake = Lake(tmp_path)
    opened = lake.storage.open("prices")
    assert opened is not None
    added = pl.DataFrame(opened.get_add_actions(flatten=True)).sort("min.date")
    Path(tmp_path / "prices" / added["path"][0]).unlink()
    read = lake.read("prices", filters=pl.col("date") >= days[2])
    assert read["date"].to_list() == days[2:]
    assert read["volume"].null_count() == 2


def test_a_missing_required_column_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    rows = pl.DataFrame({"ticker": ["A"], "item": ["sales"], "value": [1.0]}).with_columns(
        period_end=pl.lit(date(2020, 3, 31)), known_at=pl.lit(date(2020, 5, 1))
    )
    valid = check("fundamentals", rows).valid
    write_as_before(tmp_path, "fundamentals", valid, ("assumed", "months"))
    lake = Lake(tmp_path)
    output = (
        rf"{re.escape(str(tmp_path))}/fundamentals lacks the column\(s\) assumed, which every row must have: "
        "ingest the source again into another lake root"
    )
    with pytest.raises(DataError, match=output):
        lake.read("fundamentals")
    with pytest.raises(DataError, match=output):
        lake.upsert("fundamentals", valid)
    assert lake.version("fundamentals") == 1, "nothing was written"


def test_a_column_of_a_newer_version_is_named_and_nothing_is_written(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown column may change the meaning of the known ones, so it is not ignored."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny))
    rows = securities().with_columns(reason=pl.lit("merger"))
    write_as_before(tmp_path / "lake", "securities", rows, ())
    lake = Lake("lake")
    output = (
        r"securities has the column\(s\) reason, which this version of Peerglass does not know: use the "
        "newer version that wrote them, or name another lake root"
    )
    with pytest.raises(DataError, match=output):
        lake.read("securities")
    with pytest.raises(DataError, match=output):
        lake.upsert("securities", securities(sector="metals"))
    result = CliRunner().invoke(app, ["ingest", "tiny.yaml"])
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 3
    assert lake.version("securities") == 1


def test_a_run_on_an_old_lake_is_repeated_after_the_table_gained_the_column(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on a lake of an earlier version, an ingest into it, and the run again."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny))
    config = load_config(Path("tiny.yaml"))
    ingest_config(config, echo=lambda _: None)
    lake = Lake("lake")
    full = {table: lake.read(table) for table in ("prices", "securities", "fundamentals")}
    since = {"prices": ("volume",), "securities": SINCE, "fundamentals": ("filing_id", "months")}
    for table, without in since.items():
        shutil.rmtree(tmp_path / "lake" / table)
        write_as_before(tmp_path / "lake", table, full[table], without)
    run_id = train_config(config)
    before, dataset, _ = reopen_run(run_id, Path("runs"), Progress())

    summary = ingest(make_source(config), lake, Progress(), config.quality)
    assert summary.batches > 0
    for table, rows in full.items():
        stamps = [name for name in rows.columns if name in STAMPS]
        assert_frame_equal(lake.read(table).drop(stamps), rows.drop(stamps))
    assert lake.versions()["securities"] == before.versions["securities"] + 1
    after, again, _ = reopen_run(run_id, Path("runs"), Progress())
    assert after.versions == before.versions
    old_rows = read_tables(lake, dict(after.versions))["securities"]
    assert old_rows.select(pl.col(SINCE).null_count()).row(0) == (old_rows.height, old_rows.height)
    assert dataset.panel.close_TN.tobytes() == again.panel.close_TN.tobytes()
    assert train_config(config) != run_id, "the column's values are other data"


def rejected(table: str, **values: object) -> dict[str, Any]:
    given: dict[str, Any] = {
        "ticker": "A",
        "assumed": False,
        "item": "sales",
        "value": 1.5,
        "sector": "energy",
    }
    given |= {"valid_from": date(2020, 1, 1), "period_end": date(2020, 3, 31), "known_at": date(2020, 5, 1)}
    given |= values
    columns = schema(table).column_names()
    rows = pl.DataFrame({name: [given.get(name)] for name in columns})
    return quarantined(table, rows, pl.lit("r")).row(0, named=True)


@pytest.mark.parametrize("table", ["securities", "fundamentals"])
def test_a_row_keeps_its_hash_when_its_table_gains_columns(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release refers to a hash: if it changed, accepted rows would be quarantined again."""
    before = rejected(table)["row_hash"]
    monkeypatch.setitem(SCHEMAS, table, type("Later", (schema(table),), {"later": dy.String(nullable=True)}))
    assert rejected(table)["row_hash"] == before
    assert '"later":null' in rejected(table)["row"]
    assert len({before, *(rejected(table, later=value)["row_hash"] for value in "xy")}) == 3


def test_a_row_that_was_released_before_stays_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release in an old lake, then an ingest by a version whose table has one more column."""
    (tmp_path / "prices.csv").write_text("date,ticker,close\n2020-01-02,A,10\n")
    (tmp_path / "firms.csv").write_text(
        "ticker,valid_from,listed_on,delisted_on\nA,2020-01-01,2020-01-01,2019-01-01\n"
    )
    source = files_source(tmp_path / "prices.csv", tmp_path / "firms.csv")
    lake = Lake(tmp_path / "lake")
    assert ingest(source, lake).tables["securities"].quarantined == {"delisted_not_before_listed": 1}
    release(lake, Selection(ticker="A"))
    later = {"later": dy.String(nullable=True)}
    monkeypatch.setitem(SCHEMAS, "securities", type("Later", (schema("securities"),), later))
    again = ingest(source, lake).tables["securities"]
    assert (again.quarantined, again.unchanged) == ({}, 1)
    assert lake.read("securities")["later"].to_list() == [None]


def test_a_withdrawal_from_an_old_table_adds_the_columns_too(old: Lake) -> None:
    """One commit replaces a row and withdraws another; its markers are not stored in the table."""
    delivered = securities(tickers="AB").with_columns(listed_on=pl.lit(date(2019, 5, 6)))
    counts = old.upsert("securities", delivered, scope=pl.lit(value=True))
    assert (counts.updated, counts.withdrawn, counts.version) == (2, 1, 2)
    assert_frame_equal(old.read("securities"), delivered)
    assert_frame_equal(old.read("securities", version=1), securities())
