"""The quarantine: what it lists, what a release does to the lake and to the next ingest, what it refuses."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from pipelines.cli import main
from pipelines.contracts import check
from pipelines.errors import ConfigError, DataError
from pipelines.ingest import ingest
from pipelines.lake import Lake
from pipelines.quarantine import Selection, describe_listing, listing, release
from pipelines.sources.base import SourceTables
from pipelines.sources.files import FilesSource

BAD = """date,ticker,open,high,low,close,volume
2020-01-02,AAA,10,11,9,10.5,100
2020-01-03,AAA,10,11,9,20.5,100
2020-01-03,BBB,10,9,11,10,100
2020-01-06,BBB,10,9,11,inf,100
2020-01-02,CCC,10,11,9,10,100
2020-01-02,CCC,10,11,9,10.4,100
2020-01-02,<b>,10,11,9,10.4,100
2020-01-02,DDD,10,11,9,ten,100
2020-01-02,EEE,40,41,39,40,100
2020-01-03,EEE,20,21,19,20,100
"""


@pytest.fixture
def source(tmp_path: Path) -> FilesSource:
    (tmp_path / "prices.csv").write_text(BAD)
    return FilesSource(tmp_path / "prices.csv")


@pytest.fixture
def lake(tmp_path: Path, source: FilesSource) -> Lake:
    lake = Lake(tmp_path / "lake")
    ingest(source, lake)
    return lake


def hash_of(lake: Lake, **selection: str) -> str:
    return str(listing(lake, Selection(**selection))["row_hash"].item())


def test_the_listing_names_rejected_and_flagged_rows_with_values_and_evidence(lake: Lake) -> None:
    rows = listing(lake, Selection())
    assert rows.group_by("state", "rule").len().sort("state", "rule").rows() == [
        ("flagged", "return_without_split", 1),
        ("rejected", "close_is_positive", 1),
        ("rejected", "close_unreadable", 1),
        ("rejected", "close_within_range", 1),
        ("rejected", "duplicate_key", 2),
        ("rejected", "high_not_below_low", 1),
        ("rejected", "ticker_is_plain", 1),
    ]
    assert listing(lake, Selection(ticker="AAA")).select("table", "date", "rule").rows() == [
        ("prices", "2020-01-03", "close_within_range")
    ]
    assert listing(lake, Selection(table="securities")).is_empty()
    told = describe_listing(rows, limit=3)
    assert "2 rejected  prices  duplicate_key" in told
    assert "... and 5 more; --limit 8 shows all" in told
    assert "close 40.0 -> 20.0, split ratio 1.0" in describe_listing(rows, limit=8)
    assert describe_listing(rows.clear(), limit=3) == "nothing is quarantined or flagged"


def test_a_released_row_is_stored_as_delivered_and_not_quarantined_again(
    lake: Lake, source: FilesSource
) -> None:
    before = lake.read("prices").height
    told = release(lake, Selection(rule="close_within_range"))
    assert told == ("1 row released into prices: 1 added, 0 in place of stored ones, 0 there already")
    row = lake.read("prices", filters=pl.col("ticker") == "AAA").row(1, named=True)
    assert (row["date"], row["close"], row["high"], row["source"]) == (date(2020, 1, 3), 20.5, 11.0, "files")
    assert lake.read("prices").height == before + 1
    versions = lake.versions()
    again = ingest(source, lake).tables["prices"]
    assert "close_within_range" not in again.quarantined
    assert (again.added, again.updated) == (0, 0)
    assert lake.versions() == versions
    listed = listing(lake, Selection(ticker="AAA")).row(0, named=True)
    assert listed["released_at"] is not None
    assert "released" in describe_listing(listing(lake, Selection(ticker="AAA")), 5)
    with pytest.raises(DataError, match="Nothing to release fits rule close_within_range"):
        release(lake, Selection(rule="close_within_range"))


def test_a_released_row_whose_values_change_is_judged_anew(lake: Lake, tmp_path: Path) -> None:
    release(lake, Selection(rule="close_within_range"))
    (tmp_path / "again.csv").write_text(
        "date,ticker,open,high,low,close,volume\n2020-01-03,AAA,10,11,9,21.5,100\n2020-01-06,AAA,10,11,9,10,1\n"
    )
    counts = ingest(FilesSource(tmp_path / "again.csv"), lake).tables["prices"]
    assert counts.quarantined == {"close_within_range": 1}
    assert (
        lake.read("prices", filters=pl.col("date") == date(2020, 1, 3)).filter(ticker="AAA")["close"].item()
        == 20.5
    )


def test_one_of_two_conflicting_rows_can_be_chosen_by_its_hash_but_not_both(
    lake: Lake, source: FilesSource
) -> None:
    with pytest.raises(DataError, match=r"Nothing can be released: .*duplicate_key"):
        release(lake, Selection(rule="duplicate_key"))
    assert not lake.exists("releases")
    rows = listing(lake, Selection(rule="duplicate_key"))
    chosen = rows.filter(pl.col("what").str.contains('"close":"10.4"'))["row_hash"].item()
    release(lake, Selection(row=chosen[:10]))
    assert lake.read("prices", filters=pl.col("ticker") == "CCC")["close"].to_list() == [10.4]
    counts = ingest(source, lake).tables["prices"]
    assert counts.quarantined["duplicate_key"] == 1
    assert lake.read("prices", filters=pl.col("ticker") == "CCC")["close"].to_list() == [10.4]


@pytest.mark.parametrize("rule", ["ticker_is_plain", "close_unreadable"])
def test_what_cannot_be_stored_cannot_be_released(lake: Lake, rule: str) -> None:
    with pytest.raises(DataError, match=rf"rule {rule} can be stored, \w+ \({rule}\)"):
        release(lake, Selection(rule=rule))
    assert not lake.exists("releases")


def test_a_selection_is_released_as_far_as_it_can_be(lake: Lake) -> None:
    told = release(lake, Selection(ticker="BBB"))
    assert "1 row released into prices: 1 added" in told
    assert "1 row stays in quarantine, it cannot be stored" in told
    stored = lake.read("prices", filters=pl.col("ticker") == "BBB")
    assert stored.select("date", "high", "low").rows() == [(date(2020, 1, 3), 9.0, 11.0)]


def test_a_released_doubt_is_cleared_and_not_raised_again(lake: Lake, source: FilesSource) -> None:
    assert release(lake, Selection(rule="return_without_split")) == "1 doubt about stored rows cleared"
    assert lake.read("flags")["cleared"].to_list() == [True]
    counts = ingest(source, lake).tables["prices"]
    assert counts.flagged == {}
    assert lake.read("flags")["cleared"].to_list() == [True]
    assert listing(lake, Selection(ticker="EEE"))["released_at"].null_count() == 0


def test_releasing_needs_a_selection_that_fits(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Name what to release"):
        release(lake, Selection(table="prices"))
    with pytest.raises(DataError, match="Nothing to release fits ticker ZZZ"):
        release(lake, Selection(ticker="ZZZ"))
    with pytest.raises(DataError, match="Nothing to release"):
        release(Lake(tmp_path / "empty"), Selection(rule="duplicate_key"))
    assert listing(Lake(tmp_path / "empty"), Selection()).is_empty()


def test_rows_of_other_tables_come_back_with_their_types(tmp_path: Path) -> None:
    class Statements:
        name = "given"

        def fetch(self) -> SourceTables:
            return SourceTables(
                {
                    "prices": pl.DataFrame({"date": [date(2020, 1, 2)], "ticker": ["A"], "close": [1.0]}),
                    "fundamentals": pl.DataFrame(
                        {
                            "ticker": ["A"],
                            "period_end": [date(2020, 3, 31)],
                            "known_at": [date(2020, 3, 1)],
                            "item": ["revenue"],
                            "value": [1.5],
                            "months": [3],
                            "assumed": [True],
                        }
                    ),
                }
            )

    lake = Lake(tmp_path)
    ingest(Statements(), lake)
    release(lake, Selection(rule="known_after_period_end"))
    row = lake.read("fundamentals").row(0, named=True)
    assert (row["value"], row["months"], row["assumed"]) == (1.5, 3, True)
    assert (row["period_end"], row["known_at"]) == (date(2020, 3, 31), date(2020, 3, 1))
    assert ingest(Statements(), lake).tables["fundamentals"].quarantined == {}


def test_the_hash_of_a_row_does_not_depend_on_how_its_numbers_were_delivered() -> None:
    base = {"date": date(2020, 1, 2), "ticker": "A", "close": -10, "source": "s"}
    stamp = pl.lit(datetime(2024, 1, 1, tzinfo=UTC)).dt.cast_time_unit("us").alias("ingested_at")
    hashes = {
        check("prices", pl.DataFrame([{**base, "close": close}]).with_columns(stamp))
        .rejected["row_hash"]
        .item()
        for close in (-10, -10.0, "-10", "-10.00")
    }
    assert len(hashes) == 1


@pytest.fixture
def config(tmp_path: Path, source: FilesSource, tiny: dict[str, Any]) -> Path:
    given = {**tiny, "source": {"kind": "files", "prices": str(tmp_path / "prices.csv")}}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**given, "lake": str(tmp_path / "cli"), "universe": {}}))
    return path


def peerglass(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["peerglass", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_line_lists_and_releases(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peerglass(monkeypatch, "ingest", str(config)) == 0
    out = capsys.readouterr().out
    assert "quarantined 2 by rule duplicate_key" in out
    assert "flagged 1 by rule return_without_split" in out
    assert peerglass(monkeypatch, "quarantine", "list", str(config), "--rule", "close_within_range") == 0
    out = capsys.readouterr().out
    assert "close_within_range: open 10.0, high 11.0, low 9.0, close 20.5" in out
    assert "duplicate_key" not in out
    assert peerglass(monkeypatch, "quarantine", "release", str(config), "--ticker", "AAA") == 0
    assert "1 row released into prices" in capsys.readouterr().out
    assert peerglass(monkeypatch, "quarantine", "release", str(config)) == 2
    assert "--rule RULE, --ticker TICKER, or --row HASH" in capsys.readouterr().err
    assert peerglass(monkeypatch, "quarantine", "release", str(config), "--ticker", "AAA") == 3
    error = capsys.readouterr().err
    assert error.startswith("peerglass: Nothing to release fits ticker AAA")
    assert error.count("\n") == 1
