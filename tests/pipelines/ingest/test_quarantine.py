"""The quarantine: its listing, the effect of a release on the lake and the next ingest, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from given_files import files_source

from pipelines.audit.registry import CHECKS
from pipelines.cli.main import main
from pipelines.config.load import check_config
from pipelines.dataset.tables import read_tables
from pipelines.errors import ConfigError, DataError
from pipelines.ingest.ingest import ingest
from pipelines.ingest.quarantine import Selection, describe_listing, listing, open_rejections, release
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.run.fetch import make_source
from pipelines.sources.base import SourceTables, StoredData
from pipelines.sources.files.source import FilesSource
from pipelines.sources.simulated.source import SimulatedSource

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
    return files_source(tmp_path / "prices.csv")


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
    message = describe_listing(rows, limit=3)
    assert "2 rejected  prices  duplicate_key" in message
    assert "... and 5 more; --limit 8 shows all" in message
    assert "close 40.0 -> 20.0, split ratio 1.0" in describe_listing(rows, limit=8)
    assert describe_listing(rows.clear(), limit=3) == "nothing is quarantined or flagged"


def test_a_released_row_is_stored_as_delivered_and_not_quarantined_again(
    lake: Lake, source: FilesSource
) -> None:
    before = lake.read("prices").height
    message = release(lake, Selection(rule="close_within_range"))
    assert message == ("1 row released into prices: 1 added, 0 replaced, 0 already stored")
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
    with pytest.raises(DataError, match="Nothing to release matches rule close_within_range"):
        release(lake, Selection(rule="close_within_range"))


def test_a_released_row_with_new_values_is_checked_again(lake: Lake, tmp_path: Path) -> None:
    release(lake, Selection(rule="close_within_range"))
    (tmp_path / "again.csv").write_text(
        "date,ticker,open,high,low,close,volume\n2020-01-03,AAA,10,11,9,21.5,100\n2020-01-06,AAA,10,11,9,10,1\n"
    )
    counts = ingest(files_source(tmp_path / "again.csv"), lake).tables["prices"]
    assert counts.quarantined == {"close_within_range": 1}
    stored = lake.read("prices", filters=pl.col("ticker") == "AAA").select("date", "close").rows()
    assert stored == [(date(2020, 1, 6), 10.0)], "the source stands by none of the values it gave before"


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
def test_rows_that_cannot_be_stored_cannot_be_released(lake: Lake, rule: str) -> None:
    with pytest.raises(DataError, match=rf"rule {rule} can be stored: \w+ \({rule}\)"):
        release(lake, Selection(rule=rule))
    assert not lake.exists("releases")


def test_a_selection_is_released_as_far_as_possible(lake: Lake) -> None:
    message = release(lake, Selection(ticker="BBB"))
    assert "1 row released into prices: 1 added" in message
    assert "1 row stays in quarantine because it cannot be stored" in message
    stored = lake.read("prices", filters=pl.col("ticker") == "BBB")
    assert stored.select("date", "high", "low").rows() == [(date(2020, 1, 3), 9.0, 11.0)]


def test_a_released_flag_is_cleared_and_not_raised_again(lake: Lake, source: FilesSource) -> None:
    assert release(lake, Selection(rule="return_without_split")) == "1 flag on stored rows cleared"
    assert lake.read("flags")["cleared"].to_list() == [True]
    counts = ingest(source, lake).tables["prices"]
    assert counts.flagged == {}
    assert lake.read("flags")["cleared"].to_list() == [True]
    assert listing(lake, Selection(ticker="EEE"))["released_at"].null_count() == 0


MENDED = BAD.replace("AAA,10,11,9,20.5", "AAA,10,11,9,10.25")


def test_a_corrected_row_is_resolved_and_not_replaced_by_a_release(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(MENDED)
    ingest(files_source(tmp_path / "prices.csv"), lake)
    with pytest.raises(DataError, match="a later delivery resolved 1 row"):
        release(lake, Selection(ticker="AAA"))
    listed = listing(lake, Selection(rule="close_within_range"))
    assert listed.select("state", "ticker", "date").rows() == [("resolved", "AAA", "2020-01-03")]
    assert "1 resolved  prices  close_within_range" in describe_listing(listed, 5)
    with pytest.raises(DataError, match="a later delivery resolved 1 row"):
        release(lake, Selection(row=listed["row_hash"].item()))
    assert lake.read("prices", filters=pl.col("ticker") == "AAA")["close"].to_list() == [10.5, 10.25]
    assert not lake.exists("releases")


def test_a_removed_row_is_resolved_and_a_row_that_returns_is_rejected_again(
    lake: Lake, tmp_path: Path
) -> None:
    def states() -> dict[str, int]:
        return dict(listing(lake, Selection(rule="duplicate_key"))["state"].value_counts().iter_rows())

    assert states() == {"rejected": 2}
    without = "".join(line for line in BAD.splitlines(keepends=True) if "CCC" not in line)
    for text, expected in ((without, {"resolved": 2}), (BAD, {"rejected": 2})):
        (tmp_path / "prices.csv").write_text(text)
        ingest(files_source(tmp_path / "prices.csv"), lake)
        assert states() == expected
        versions = lake.versions()
        ingest(files_source(tmp_path / "prices.csv"), lake)
        assert lake.versions() == versions


class Batch:
    """A live source with one batch of prices."""

    name = "live"

    def __init__(self, *rows: tuple[int, str, float]) -> None:
        days = [date(2020, 1, day) for day, _, _ in rows]
        tickers, closes = [row[1] for row in rows], [row[2] for row in rows]
        self.prices = pl.DataFrame({"date": days, "ticker": tickers, "close": closes})

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        yield SourceTables({"prices": self.prices})


def test_a_live_source_resolves_only_the_rows_that_it_delivers_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    ingest(Batch((2, "A", 1.0), (3, "A", -1.0), (3, "B", -2.0)), lake)
    ingest(Batch((3, "A", 1.5)), lake)
    states = listing(lake, Selection(rule="close_is_positive")).select("ticker", "state").rows()
    assert states == [("A", "resolved"), ("B", "rejected")]
    release(lake, Selection(rule="close_is_positive"))
    stored = lake.read("prices").select("ticker", "close").rows()
    assert stored == [("A", 1.0), ("A", 1.5), ("B", -2.0)]


def test_a_released_row_stays_released_when_a_file_delivers_it_again(lake: Lake, source: FilesSource) -> None:
    release(lake, Selection(rule="close_within_range"))
    ingest(source, lake)
    assert lake.read("quarantine")["resolved_at"].null_count() == lake.read("quarantine").height
    rejected = open_rejections(lake)
    assert rejected is not None
    assert "close_within_range" not in rejected["rule"].to_list()


def test_a_duplicate_key_that_was_corrected_no_longer_fails_the_audit(
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two versions of a statement with one date; then the later one with its own publication date."""
    monkeypatch.chdir(tmp_path)
    tables = make_source(check_config(tiny, origin="tiny"))
    assert isinstance(tables, SimulatedSource)
    tables.fetch().tables["prices"].write_parquet("prices.parquet")
    source = {"kind": "files", "prices": "prices.parquet", "fundamentals": "statements.csv"}
    skipped = [name for name in CHECKS if name != "statements"]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**tiny, "source": source, "audit": {"skip": skipped}}))
    for second, code in (("2014-02-01", 4), ("2014-03-01", 0)):
        rows = ["ticker,period_end,known_at,revenue"]
        rows += [f"S000,2013-12-31,{day},{value}" for day, value in (("2014-02-01", 1), (second, 2))]
        rows += [f"S001,{year}-12-31,{year + 1}-02-01,{year}" for year in (2011, 2012, 2013)]
        (tmp_path / "statements.csv").write_text("\n".join(rows))
        assert peerglass(monkeypatch, "ingest", "c.yaml") == 0
        capsys.readouterr()
        assert peerglass(monkeypatch, "audit", "c.yaml") == code
        out = capsys.readouterr().out
        assert ("2 statement rows" in out) == (code == 4)


def test_a_release_needs_a_matching_selection(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Select what to release"):
        release(lake, Selection(table="prices"))
    with pytest.raises(DataError, match="Nothing to release matches ticker ZZZ"):
        release(lake, Selection(ticker="ZZZ"))
    with pytest.raises(DataError, match="Nothing to release"):
        release(Lake(tmp_path / "empty"), Selection(rule="duplicate_key"))
    assert listing(Lake(tmp_path / "empty"), Selection()).is_empty()


def test_released_rows_of_other_tables_keep_their_types(tmp_path: Path) -> None:
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
    assert "--rule RULE, --ticker TICKER or --row HASH" in capsys.readouterr().err
    assert peerglass(monkeypatch, "quarantine", "release", str(config), "--ticker", "AAA") == 3
    error = capsys.readouterr().err
    assert error.startswith("peerglass: Nothing to release matches ticker AAA")
    assert error.count("\n") == 1


SPLIT = """date,ticker,open,high,low,close,volume,split_ratio,dividend
2020-01-02,AAA,40,41,39,40,100,1,0
2020-01-03,AAA,20,18,22,20,100,2,1
2020-01-06,AAA,20,21,19,20,100,1,0
2020-01-07,AAA,5,6,4,10,100,2,0
2020-01-08,AAA,10,11,9,10,100,1,0.5
2020-01-02,BBB,40,41,39,40,100,1,0
2020-01-03,BBB,40,39,41,40,100,2,0
"""


class Night:
    """A live source that delivers the first session again, and another one."""

    name = "given"

    def __init__(self, *sessions: date) -> None:
        rows = pl.read_csv(SPLIT.encode(), try_parse_dates=True, schema_overrides={"dividend": pl.Float64})
        self.prices = rows.filter(pl.col("date").is_in(sessions))

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        yield SourceTables({"prices": self.prices})


@pytest.mark.parametrize("again", [[], [2]], ids=["alone", "with_an_earlier_row"])
@pytest.mark.parametrize("nights", [[], [2, 3, 6, 7, 8]], ids=["one_delivery", "night_by_night"])
def test_a_rejected_row_keeps_its_split_and_dividend(
    tmp_path: Path, nights: list[int], again: list[int]
) -> None:
    lake = Lake(tmp_path / "lake")
    quality = QualityConfig(split_without_return="reject", return_without_split="reject")
    for day in nights:
        ingest(Night(*(date(2020, 1, one) for one in {day, *again})), lake, quality=quality)
    if not nights:
        (tmp_path / "prices.csv").write_text(SPLIT)
        ingest(files_source(tmp_path / "prices.csv"), lake, quality=quality)
    assert lake.rows("flags").is_empty()
    rows = read_tables(lake, lake.versions_to_read())["prices"].filter(ticker="AAA")
    assert rows.select("date", "split_ratio", "dividend").rows() == [
        (date(2020, 1, 2), 1.0, 0.0),
        (date(2020, 1, 6), 2.0, 1.0),
        (date(2020, 1, 8), 2.0, 0.5),
    ]
    release(lake, Selection(rule="high_not_below_low", ticker="AAA"))
    rows = read_tables(lake, lake.versions_to_read())["prices"].filter(ticker="AAA")
    assert rows["split_ratio"].to_list() == [1.0, 2.0, 1.0, 2.0], "the split of a released row counts once"
