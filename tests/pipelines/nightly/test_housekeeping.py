"""A night compacts and vacuums its lake on schedule, and keeps what runs and nights have read."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from aged_lakes import aged
from command import command
from polars.testing import assert_frame_equal

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.upkeep import record_reader, recorded_in_lake
from pipelines.nightly.night import keep_house
from pipelines.run.locks import Locks

NOW = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
VERSIONS = 5


def bars(close: float) -> pl.DataFrame:
    bar = dict.fromkeys(("open", "high", "low", "close"), close) | {"volume": 1.0, "dividend": 0.0}
    row = {"date": dt.date(2024, 1, 2), "ticker": "A", **bar, "split_ratio": 1.0, "source": "s"}
    return pl.DataFrame([{**row, "ingested_at": NOW}])


def signals(session: dt.date, versions: dict[str, int], revision: int = 1) -> pl.DataFrame:
    row = {
        "config": "tiny",
        "session": session,
        "ticker": "A",
        "version": "tiny-0123456789/ridge",
        "revision": revision,
        "signal": 0.5,
        "rank": 0.5,
        "seed_dispersion": 0.1,
        "in_universe": True,
        "data_versions": json.dumps(versions),
        "created_at": NOW,
    }
    return pl.DataFrame([row])


@pytest.fixture
def config(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    schedule = {"compact_every": 3, "vacuum_every": 4, "keep_days": 2}
    return check_config({**tiny, "nightly": {"housekeeping": schedule}}, origin="tiny")


@pytest.fixture
def lake(config: Config) -> Lake:
    """A lake with five versions of prices, all but the newest replaced days ago."""
    lake = open_lake(config)
    for version in range(1, VERSIONS + 1):
        lake.upsert("prices", bars(float(version)))
    aged(lake, "prices", [9, 8, 7, 6, 5, 4])
    return lake


def readable(lake: Lake) -> list[int]:
    """Versions of the prices that can be read, with the close that they held from the start."""
    found = []
    for version in range(1, VERSIONS + 1):
        try:
            closes = lake.read("prices", version=version)["close"].to_list()
        except DataError:
            continue
        assert closes == [float(version)]
        found.append(version)
    return found


def test_the_lake_is_compacted_and_vacuumed_on_schedule(config: Config, lake: Lake) -> None:
    said = {night: keep_house(config, lake, night) for night in range(1, 13)}
    of = {night: [sentence.partition(":")[0] for sentence in lines] for night, lines in said.items() if lines}
    compacted, vacuumed = "The lake was compacted", "The lake was vacuumed"
    assert of == {
        3: [compacted],
        4: [vacuumed],
        6: [compacted],
        8: [vacuumed],
        9: [compacted],
        12: [compacted, vacuumed],
    }
    never = config.nightly.model_copy(
        update={"housekeeping": config.nightly.housekeeping.model_copy(update={"compact_every": 0})}
    )
    assert keep_house(config.model_copy(update={"nightly": never}), lake, 3) == []


def test_small_files_of_many_nights_are_joined_and_the_rows_stay(config: Config) -> None:
    lake = open_lake(config)
    for day in range(6):
        date = pl.lit(dt.date(2024, 1, 2) + dt.timedelta(days=day))
        lake.upsert("prices", bars(1.0 + day).with_columns(date=date))
    before = lake.read("prices")
    assert before.height == 6
    (said,) = keep_house(config, lake, 3)
    assert said == "The lake was compacted: 6 small files were joined into 1."
    assert_frame_equal(lake.read("prices"), before, check_exact=True)
    assert lake.read("prices", version=3).height == 3, "earlier versions stay readable"


def test_a_vacuum_keeps_what_a_run_has_read_and_what_the_signals_of_a_night_name(
    config: Config, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_reader(lake, "tiny-0123456789", {"prices": 1})
    lake.upsert("signals", signals(dt.date(2024, 2, 1), {"prices": 3}))
    lake.upsert("signals", signals(dt.date(2024, 2, 1), {"prices": 4}, revision=2))
    assert recorded_in_lake(lake) == {
        *(("prices", 1, "tiny-0123456789"), ("prices", 3, "tiny@2024-02-01")),
        ("prices", 4, "tiny@2024-02-01"),
    }
    assert readable(lake) == [1, 2, 3, 4, 5]
    (said,) = keep_house(config, lake, 4)
    assert said.startswith("The lake was vacuumed: 1 files")
    assert readable(lake) == [1, 3, 4, 5]

    path = Path("tiny.yaml")
    path.write_text(json.dumps(config.as_written()))
    forgets = ("lake", "vacuum", "tiny.yaml", "--keep-days", "1", "--forget", "tiny@2024-02-01")
    assert command(monkeypatch, capsys)(*forgets).code == 0
    assert readable(lake) == [1, 5]


def test_what_cannot_be_done_tonight_is_said_and_nothing_is_removed(config: Config, lake: Lake) -> None:
    with Locks(wait=False, notify=print) as locks:
        locks.lock_lake(lake.root)
        both = keep_house(config, lake, 12)
    assert [line.partition(" is being written")[0] for line in both] == [
        f"The compaction of the lake was left out: The lake {lake.root}",
        f"The vacuum of the lake was left out: The lake {lake.root}",
    ]
    gone = config.tracking.model_copy(update={"uri": "http://127.0.0.1:9"})
    (said,) = keep_house(config.model_copy(update={"tracking": gone}), lake, 4)
    assert "left out: Nothing was removed" in said
    assert "http://127.0.0.1:9" in said
    assert readable(lake) == [1, 2, 3, 4, 5]
