"""Ingest: every row is accounted for, bad data is quarantined, and bad input leaves the lake unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from given_files import files_source
from places import DATA

from pipelines.cli.main import main
from pipelines.errors import ConfigError, DataError
from pipelines.ingest.calendars import sessions_between
from pipelines.ingest.ingest import IngestStoppedError, TableSummary, describe_ingest, ingest
from pipelines.lake.lake import Lake
from pipelines.sources.base import SourceTables, StoredData, TickerStatus
from pipelines.sources.files.source import FilesSource
from pipelines.sources.sample import SampleSource
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.source import SimulatedSource

BAD = """date,ticker,open,high,low,close,volume
2020-01-06,AAA,10,11,9,10.5,100
2020-01-02,AAA,10,11,9,10.5,100
2020-01-02,AAA,10,11,9,10.5,100
2020-01-03,AAA,10,11,9,-10.5,100
2020-01-02,BBB,10,9,11,10,100
2020-01-03,BBB,10,11,9,10.5,inf
2020-01-02,../../x,10,11,9,10.5,100
2020-01-02,<script>,10,11,9,10.5,100
2020-01-02,CCC,10,11,9,10.5,100
2020-01-02,CCC,10,11,9,10.4,100
"""


class Given:
    """A source with the given tables."""

    name = "given"

    def __init__(self, **tables: pl.DataFrame) -> None:
        self.tables = tables

    def fetch(self) -> SourceTables:
        return SourceTables(self.tables, notes=("a note",), hazards=("a hazard",))


class Live:
    """A live source with the given batches that records what is stored when each is requested."""

    name = "live"

    def __init__(self, lake: Lake, *batches: SourceTables | BaseException) -> None:
        self.lake, self.given = lake, batches
        self.given_stored: StoredData | None = None
        self.stored: list[int] = []

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        self.given_stored = stored
        for batch in self.given:
            held = self.lake.read("prices").height if self.lake.exists("prices") else 0
            self.stored.append(held)
            if isinstance(batch, BaseException):
                raise batch
            yield batch


def bars(ticker: str, *closes: float, first: date = date(2024, 1, 2)) -> pl.DataFrame:
    days = [first + timedelta(days=i) for i in range(len(closes))]
    return pl.DataFrame({"date": days, "ticker": [ticker] * len(closes), "close": list(closes)})


def files(folder: Path, text: str) -> FilesSource:
    path = folder / "prices.csv"
    path.write_text(text)
    return files_source(path)


def accounted(summary: TableSummary) -> int:
    stored = summary.added + summary.updated + summary.unchanged
    return stored + summary.collapsed + sum(summary.quarantined.values())


def test_bad_rows_are_quarantined_by_rule_and_good_ones_stored(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    prices = ingest(files(tmp_path, BAD), lake).tables["prices"]
    assert dict(prices.quarantined) == {
        "duplicate_key": 2,
        "ticker_is_plain": 2,
        "close_is_positive": 1,
        "high_not_below_low": 1,
        "volume_is_finite_and_not_negative": 1,
    }
    assert (prices.received, prices.added, prices.collapsed, prices.version) == (10, 2, 1, 1)
    assert accounted(prices) == prices.received
    stored = lake.read("prices")
    assert stored.select("date", "ticker", "source").rows() == [
        (date(2020, 1, 2), "AAA", "files"),
        (date(2020, 1, 6), "AAA", "files"),
    ]
    quarantine = lake.read("quarantine")
    assert quarantine.height == 7
    assert quarantine["rule"].value_counts().sort("rule").rows() == sorted(prices.quarantined.items())
    assert any("<script>" in row for row in quarantine["row"])
    assert sorted(p.name for p in (tmp_path / "lake").iterdir()) == [
        "gaps",
        "prices",
        "quarantine",
        "sources",
    ]


def test_ingesting_again_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    source = files(tmp_path, BAD)
    ingest(source, lake)
    versions, quarantine = lake.versions(), lake.read("quarantine")
    again = ingest(source, lake).tables["prices"]
    assert (again.added, again.updated, again.unchanged) == (0, 0, 2)
    assert accounted(again) == again.received
    assert lake.versions() == versions
    assert lake.read("quarantine").equals(quarantine)


def test_a_correction_updates_the_row_and_keeps_the_rest(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(files(tmp_path, BAD), lake)
    text = "date,ticker,open,high,low,close,volume\n2020-01-02,AAA,10,11,9,10.5,100\n"
    text += "2020-01-06,AAA,,,,12,\n2020-01-07,AAA,,,,13,\n"
    summary = ingest(files(tmp_path, text), lake).tables["prices"]
    assert (summary.added, summary.updated, summary.unchanged, summary.version) == (1, 1, 1, 2)
    assert lake.read("prices")["close"].to_list() == [10.5, 12.0, 13.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date,ticker\n2020-01-02,AAA\n", "no column 'close'"),
        (
            "date,ticker,close\n2020-01-02,AAA,-1\n2020-01-03,AAA,0\n",
            r"2 of 2 rows of prices break the rules close_is_positive \(2 rows, such as close '-1.0' of AAA",
        ),
        (
            "date,ticker,close\n02/01/2020,AAA,1\n",
            r"date_unreadable \(1 rows, such as date '02/01/2020' of AAA;",
        ),
        ("date,ticker,close\n", "no rows"),
        (None, "there is no file"),
    ],
)
def test_an_unusable_input_leaves_the_lake_unchanged(tmp_path: Path, text: str | None, message: str) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(files(tmp_path, BAD), lake)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "lake").rglob("*")}
    source = files_source(tmp_path / "absent.csv") if text is None else files(tmp_path, text)
    with pytest.raises(DataError, match=message):
        ingest(source, lake)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "lake").rglob("*")} == before


def test_a_folder_that_is_no_table_stops_the_ingest_before_any_write(tmp_path: Path) -> None:
    (tmp_path / "lake" / "quarantine").mkdir(parents=True)
    (tmp_path / "lake" / "quarantine" / "x").write_text("x")
    with pytest.raises(DataError, match="quarantine is not a Delta table"):
        ingest(files(tmp_path, BAD), Lake(tmp_path / "lake"))
    assert not (tmp_path / "lake" / "prices").exists()


def test_config_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not set"):
        ingest(files_source(Path("$NOT_SET_HERE/p.csv")), Lake(tmp_path))


def test_every_table_of_a_source_is_stored_with_notes_and_hazards(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    source = Given(
        prices=pl.DataFrame({"date": [date(2020, 1, 2)], "ticker": ["A"], "close": [1.0]}),
        truth_edges=pl.DataFrame(
            {"leader": ["A"], "follower": ["B"], "lag": [1], "hop": [1], "weight": [0.1], "explained": [True]}
        ).with_columns(valid_from=pl.lit(date(2020, 1, 2))),
        membership=pl.DataFrame(
            {"universe": ["u", "u"], "ticker": ["A", "<b>"], "from_date": [date(2020, 1, 1)] * 2}
        ),
    )
    summary = ingest(source, lake)
    assert (summary.source, summary.notes, summary.hazards) == ("given", ("a note",), ("a hazard",))
    assert lake.versions() == {
        "prices": 1,
        "membership": 1,
        "quarantine": 1,
        "truth_edges": 1,
        "sources": 2,
    }
    assert summary.tables["membership"].quarantined == {"ticker_is_plain": 1}
    assert lake.read("quarantine")["table"].to_list() == ["membership"]
    assert lake.read("truth_edges")["explained"].to_list() == [True]


def test_as_of_a_version_of_the_prices_is_the_lake_that_its_ingest_left(tmp_path: Path) -> None:
    """Flags and the quarantine are committed before the prices that they belong to."""
    lake, left = Lake(tmp_path / "lake"), []
    for at in range(3):
        closes = [10 + at + day / 1000 for day in range(60)]
        closes[20 + 5 * at] *= 3  # a spike that reverts
        firms = {"ticker": ["AAA"], "valid_from": [date(2024, 1, 2)], "name": [f"name {at}"]}
        prices = pl.concat([bars("AAA", *closes), bars("BBB", -1.0 - at)])
        ingest(Given(prices=prices, securities=pl.DataFrame(firms)), lake)
        left.append(lake.versions())
    assert [one["prices"] for one in left] == [1, 2, 3]
    assert len({one["flags"] for one in left}) == len({one["quarantine"] for one in left}) == 3
    assert [lake.versions_as_of(str(one["prices"])) for one in left] == left


def test_a_source_that_delivers_pipeline_tables_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a source must deliver prices"):
        ingest(Given(forecasts=pl.DataFrame()), Lake(tmp_path))


def test_the_sample_is_ingested_completely_and_a_repeat_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first = ingest(SampleSource(), lake)
    assert (first.tables["prices"].added, first.tables["prices"].quarantined) == (166_260, {})
    second = ingest(SampleSource(), lake)
    assert second.tables["prices"].unchanged == 166_260
    assert lake.versions() == {"prices": 1, "securities": 1, "flags": 1, "sources": 2}
    assert second.tables["prices"].flagged == first.tables["prices"].flagged
    assert set(lake.read("flags", filters=pl.col("rule") == "stale_run")["ticker"]) == {"RRC"}  # 1990 to 1992


def test_the_simulated_market_is_stored_except_for_its_bad_ticks(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    source = SimulatedSource(MarketConfig(firms=40, sessions=300), seed=3)
    delivered = source.fetch().tables
    summary = ingest(source, lake)
    for table, counts in summary.tables.items():
        assert accounted(counts) == counts.received == delivered[table].height > 0
        assert counts.collapsed == 0
        assert table == "prices" or counts.added == counts.received
        assert set(delivered[table].columns) <= set(lake.read(table).columns)
    versions = lake.versions()
    ingest(source, lake)
    assert lake.versions() == versions


def test_only_prices_are_said_to_have_duplicates_with_an_equal_close(tmp_path: Path) -> None:
    prices, spell = bars("A", 1.0), {"universe": "u", "ticker": "A", "from_date": date(2024, 1, 2)}
    twice = {"prices": pl.concat([prices, prices]), "membership": pl.DataFrame([spell, spell])}
    lake = Lake(tmp_path)
    told = describe_ingest(ingest(Live(lake, SourceTables(twice)), lake)).splitlines()
    assert "    1 duplicates with an equal close collapsed, the last one kept" in told
    assert "    1 identical duplicates collapsed" in told


def test_a_live_source_is_committed_batch_by_batch_and_summarised(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    source = Live(
        lake,
        SourceTables(
            {"prices": bars("A", 1.0, 2.0)},
            notes=("n",),
            statuses=(TickerStatus("A", "ok"), TickerStatus("B", "throttled", "429")),
        ),
        SourceTables({"prices": bars("B", 3.0, -4.0)}, notes=("n", "m"), statuses=(TickerStatus("B", "ok"),)),
        SourceTables({"prices": pl.DataFrame()}, statuses=(TickerStatus("C", "empty", "no data"),)),
    )
    summary = ingest(source, lake)
    assert source.stored == [0, 2, 3]
    prices = summary.tables["prices"]
    assert (prices.received, prices.added, prices.quarantined) == (4, 3, {"close_is_positive": 1})
    assert accounted(prices) == prices.received
    assert prices.version == lake.version("prices") == 2
    assert (summary.notes, summary.batches) == (("n", "m"), 3)
    assert [(s.ticker, s.state) for s in summary.statuses] == [("A", "ok"), ("B", "ok"), ("C", "empty")]
    told = describe_ingest(summary)
    assert "3 requested: 2 ok, 1 empty" in told
    assert "empty: C (no data)" in told


def test_a_live_source_receives_what_the_lake_holds(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first = SourceTables({"prices": bars("A", 1.0, 2.0)})
    ingest(Live(lake, first, SourceTables({"prices": bars("B", 1.0)})), lake)
    again = Live(lake)
    summary = ingest(again, lake)
    one, two = date(2024, 1, 2), date(2024, 1, 3)
    assert again.given_stored == StoredData(
        last_price={"A": two, "B": one},
        first_price={"A": one, "B": one},
        last_close={"A": 2.0, "B": 1.0},
    )
    assert (summary.batches, dict(summary.tables)) == (0, {})
    assert "nothing new" in describe_ingest(summary)


def test_an_answer_without_valid_rows_changes_nothing_of_a_listed_ticker(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    ingest(Live(lake, SourceTables({"prices": bars("A", 1.0, 2.0)})), lake)
    before = lake.read("prices")
    nothing = bars("A", 1.0).clear()
    bad = bars("A", -1.0, first=date(2024, 1, 4))
    summary = ingest(Live(lake, SourceTables({"prices": nothing}), SourceTables({"prices": bad})), lake)
    assert summary.tables["prices"].quarantined == {"close_is_positive": 1}
    assert lake.read("prices").equals(before)


def test_a_live_source_may_deliver_statements_only(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = pl.DataFrame({"ticker": ["A"], "item": ["revenue"], "value": [1.0]}).with_columns(
        period_end=pl.lit(date(2023, 12, 31)), known_at=pl.lit(date(2024, 2, 1))
    )
    ingest(Live(lake, SourceTables({"fundamentals": frame})), lake)
    assert lake.versions() == {"fundamentals": 1, "sources": 1}


def test_data_from_before_a_refusal_stays_and_is_summarised(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    throttled = tuple(TickerStatus(f"T{i}", "throttled", "429") for i in range(7))
    source = Live(
        lake,
        SourceTables({"prices": bars("A", 1.0, 2.0)}, statuses=throttled),
        DataError("live refuses to answer: run the same command later"),
    )
    with pytest.raises(IngestStoppedError, match="run the same command later") as stopped:
        ingest(source, lake)
    assert stopped.value.exit_code == 3
    assert stopped.value.summary.tables["prices"].added == lake.read("prices").height == 2
    told = describe_ingest(stopped.value.summary)
    assert "throttled: T0 (429), T1 (429)" in told
    assert "and 2 more; requested again next time" in told


@pytest.mark.parametrize("end", [DataError("refused: later"), KeyboardInterrupt()])
def test_an_ingest_after_one_that_stopped_checks_the_coverage_of_both(
    tmp_path: Path, end: BaseException
) -> None:
    """Twelve firms lack one session of New York, and all but one of them another."""
    names = [f"T{n:02}" for n in range(12)]
    missing, thin = date(2024, 1, 31), date(2024, 4, 12)
    rows = sessions_between("XNYS", date(2024, 1, 2), date(2024, 5, 31)).alias("date").to_frame()
    rows = rows.join(pl.DataFrame({"ticker": names}), how="cross").with_columns(
        close=10 + pl.col("date").dt.day() / 100
    )
    rows = rows.filter(pl.col("date") != missing, (pl.col("date") != thin) | (pl.col("ticker") == "T00"))
    firms = pl.DataFrame({"ticker": names, "valid_from": [date(2024, 1, 2)] * 12, "exchange": ["NYSE"] * 12})
    first = SourceTables({"prices": rows, "securities": firms})
    again = SourceTables({"prices": rows.filter(pl.col("date") > date(2024, 5, 24))})
    lakes = Lake(tmp_path / "stopped"), Lake(tmp_path / "whole")
    with pytest.raises((IngestStoppedError, KeyboardInterrupt)):
        ingest(Live(lakes[0], first, end), lakes[0])
    told = [ingest(Live(lake, one), lake) for lake, one in zip(lakes, (again, first), strict=True)]
    for table in ("gaps", "flags"):
        stopped, whole = (lake.read(table).drop("flagged_at", strict=False) for lake in lakes)
        assert stopped.equals(whole), table
    assert lakes[0].read("gaps")["date"].unique().to_list() == [missing]
    flags = lakes[0].read("flags", filters=pl.col("rule") == "coverage_collapse")
    assert flags["date"].to_list() == [thin]
    assert [len(one.incomplete) for one in told] == [0, 1]
    version = lakes[0].version("flags")
    ingest(Live(lakes[0], again), lakes[0])
    assert lakes[0].version("flags") == version


def test_the_command_shows_what_arrived_and_exits_3_when_a_source_stops(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tiny))
    lake = Lake(tmp_path / "lake")
    status = (TickerStatus("A", "ok"), TickerStatus("B", "throttled", "429"))
    source = Live(
        lake, SourceTables({"prices": bars("A", 1.0, 2.0)}, (), ("h",), status), DataError("B: later")
    )
    monkeypatch.setattr("pipelines.run.fetch.make_source", lambda config, through: source)
    monkeypatch.setattr("sys.argv", ["peerglass", "ingest", "c.yaml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 3
    output = capsys.readouterr()
    assert "2 received           2 added" in output.out
    assert "throttled: B (429); requested again next time" in output.out
    assert output.err.splitlines()[-1] == "peerglass: B: later"
    assert '"message": "2 prices of 2 tickers"' in output.err
    assert lake.read("sources")["hazards"].to_list() == ['["h"]']


def test_a_live_source_that_refuses_from_the_start_leaves_the_lake_unchanged(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(DataError, match="no answer") as refused:
        ingest(Live(lake, DataError("no answer: retry later")), lake)
    assert not isinstance(refused.value, IngestStoppedError)
    assert lake.versions() == {}


@pytest.mark.slow(9)
@pytest.mark.skipif(
    not (DATA / "nasdaq_prices.parquet").exists(), reason="the shared Nasdaq data is not here"
)
def test_four_million_real_rows_ingest_with_the_defects_found(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    prices = ingest(files_source(DATA / "nasdaq_prices.parquet"), lake).tables["prices"]
    assert dict(prices.quarantined) == {
        "close_within_range": 40,
        "high_not_below_low": 11,
        "close_is_positive": 1,
    }
    assert accounted(prices) == prices.received == 3_718_572
    assert lake.read("prices", columns=["close"], filters=pl.col("close") <= 0).is_empty()
