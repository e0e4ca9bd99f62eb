"""A source with its whole scope withdraws rows that it no longer delivers; a live source never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelines.lake.storage
from pipelines.cli.main import main
from pipelines.ingest.ingest import ingest
from pipelines.lake.lake import Lake
from pipelines.sources.base import SourceTables, StoredData

FIRST = date(2024, 1, 1)
Peerglass = Callable[..., int]


def bars(firms: str, sessions: int, first: int = 0, shock: float = 0.0) -> pl.DataFrame:
    """Return closes that differ by firm and session; ``shock`` changes their returns."""
    rows = [
        (FIRST + timedelta(days=day), firm, 100.0 + (7 * i + day * (3 + i) + shock * day * day) % 11)
        for day in range(first, first + sessions)
        for i, firm in enumerate(firms)
    ]
    return pl.DataFrame(rows, schema=["date", "ticker", "close"], orient="row")


class Given:
    """A source that delivers its whole scope."""

    name = "given"

    def __init__(self, **tables: pl.DataFrame) -> None:
        self.tables = tables

    def fetch(self) -> SourceTables:
        return SourceTables(self.tables)


class Live:
    """A live source with one batch."""

    def __init__(self, name: str, **tables: pl.DataFrame) -> None:
        self.name, self.tables = name, tables

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        yield SourceTables(self.tables)


@pytest.fixture
def peerglass(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command in a folder with a config of files ``prices.csv`` and ``members.csv``."""
    monkeypatch.chdir(tmp_path)
    source = {"kind": "files", "prices": "prices.csv", "membership": "members.csv"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**tiny, "source": source}))
    bars("AB", 3).write_csv("prices.csv")
    (tmp_path / "members.csv").write_text("universe,ticker,from_date\nu,A,2024-01-01\nu,B,2024-01-02\n")

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["peerglass", *arguments])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


def test_rows_that_a_file_lacks_leave_the_next_version_and_stay_in_the_one_before(
    peerglass: Peerglass, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peerglass("ingest", "c.yaml") == 0
    bars("AB", 3).filter((pl.col("ticker") == "A") | (pl.col("date") != FIRST)).write_csv("prices.csv")
    capsys.readouterr()
    assert peerglass("ingest", "c.yaml") == 0
    lines = capsys.readouterr().out.splitlines()
    message = next(line for line in lines if line.split()[0] == "prices")
    assert "0 added" in message
    assert "5 unchanged         1 withdrawn  version 2" in message
    lake = Lake("lake")
    kept = [(FIRST, "A"), *((FIRST + timedelta(days=d), t) for d in (1, 2) for t in "AB")]
    assert lake.read("prices").select("date", "ticker").rows() == kept
    assert lake.read("prices", version=1).height == 6


def test_a_corrected_from_date_leaves_no_trace_of_the_earlier_spell(peerglass: Peerglass) -> None:
    assert peerglass("ingest", "c.yaml") == 0
    Path("members.csv").write_text("universe,ticker,from_date\nu,A,2024-01-01\nu,B,2024-01-03\n")
    assert peerglass("ingest", "c.yaml") == 0
    lake = Lake("lake")
    assert lake.read("membership").select("ticker", "from_date").rows() == [
        ("A", date(2024, 1, 1)),
        ("B", date(2024, 1, 3)),
    ]
    assert lake.version("membership") == 2, "one commit takes the old spell out and puts the new one in"
    assert lake.read("membership", version=1)["from_date"].to_list() == [date(2024, 1, 1), date(2024, 1, 2)]


def test_a_table_removed_from_the_config_is_withdrawn(
    peerglass: Peerglass, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peerglass("ingest", "c.yaml") == 0
    assert peerglass("ingest", "c.yaml", "--set", "source.membership=null") == 0
    assert "2 withdrawn" in next(
        line for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["membership", "0"]
    )
    lake = Lake("lake")
    assert lake.read("membership").is_empty()
    assert lake.read("membership", version=1).height == 2
    versions = lake.versions()
    assert peerglass("ingest", "c.yaml", "--set", "source.membership=null") == 0
    assert lake.versions() == versions


def test_a_row_that_now_breaks_its_contract_is_withdrawn(peerglass: Peerglass) -> None:
    assert peerglass("ingest", "c.yaml") == 0
    wrong = (pl.col("date") == FIRST) & (pl.col("ticker") == "B")
    bars("AB", 3).with_columns(close=pl.when(wrong).then(-1.0).otherwise("close")).write_csv("prices.csv")
    assert peerglass("ingest", "c.yaml") == 0
    stored = Lake("lake").read("prices")
    assert stored.height == 5
    assert stored.filter(wrong).is_empty()
    assert Lake("lake").read("quarantine")["rule"].to_list() == ["close_is_positive"]


def test_a_file_that_lacks_most_stored_rows_is_refused_without_replace(
    peerglass: Peerglass, capsys: pytest.CaptureFixture[str]
) -> None:
    bars("ABCD", 60).write_csv("prices.csv")
    assert peerglass("ingest", "c.yaml") == 0
    versions = Lake("lake").versions()
    bars("ABCD", 29).write_csv("prices.csv")  # an incomplete download
    assert peerglass("ingest", "c.yaml") == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no longer delivers 124 of the 240 rows of prices" in error
    assert "'peerglass ingest CONFIG --replace'" in error
    assert Lake("lake").versions() == versions
    bars("ABCD", 60, first=60).write_csv("prices.csv")  # new sessions only
    assert peerglass("ingest", "c.yaml") == 3
    bars("ABCD", 30).write_csv("prices.csv")
    assert peerglass("ingest", "c.yaml") == 0
    bars("ABCD", 3).write_csv("prices.csv")
    assert peerglass("ingest", "c.yaml") == 3
    assert peerglass("ingest", "c.yaml", "--replace") == 0
    assert Lake("lake").read("prices").height == 12


def test_a_live_source_withdraws_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    ingest(Live("live", prices=bars("AB", 3)), lake)
    summary = ingest(Live("live", prices=bars("A", 1, first=3)), lake).tables["prices"]
    assert (summary.added, summary.withdrawn) == (1, 0)
    assert lake.read("prices").height == 7


def statement(ticker: str, value: float, filing: str | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "ticker": [ticker],
            "period_end": [date(2023, 12, 31)],
            "known_at": [date(2024, 2, 1)],
            "item": ["revenue"],
            "value": [value],
            "filing_id": [filing],
        },
        schema_overrides={"filing_id": pl.String},
    )


def test_a_file_does_not_withdraw_the_statements_that_the_sec_added(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    own = pl.concat([statement("A", 1.0, "own-1"), statement("B", 2.0, "own-2")])
    ingest(Given(prices=bars("AB", 3), fundamentals=own), lake)
    ingest(Live("sec", fundamentals=statement("C", 3.0, "0000000000-24-000001")), lake)
    ingest(Given(prices=bars("AB", 3), fundamentals=own.head(1)), lake)
    assert lake.read("fundamentals").select("ticker", "source").rows() == [("A", None), ("C", "sec")]
    ingest(Given(prices=bars("AB", 3)), lake)
    assert lake.read("fundamentals")["ticker"].to_list() == ["C"]


def test_an_unchanged_delivery_commits_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    given_ = Given(prices=bars("AB", 30), fundamentals=statement("A", 1.0, None))
    ingest(given_, lake)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    counts = ingest(given_, lake).tables["prices"]
    assert (counts.unchanged, counts.withdrawn) == (60, 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files


KEYS = [(day, firm) for day in range(9) for firm in "ABC"]
rows_of = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=27)


@pytest.mark.slow(3)
@settings(max_examples=25)
@given(deliveries=st.lists(rows_of, min_size=2, max_size=4), piece=st.sampled_from([1, 4, 100]))
def test_after_every_delivery_the_lake_equals_a_new_one(
    deliveries: list[dict[tuple[int, str], float]], piece: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reference is one dictionary per delivery; small pieces exercise the boundaries between dates."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    seen: list[tuple[int | None, dict[tuple[int, str], float]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines.lake.storage, "_PIECE_ROWS", piece)
        held: dict[tuple[int, str], float] = {}
        for wanted in deliveries:
            frame = pl.DataFrame(
                [(FIRST + timedelta(days=day), firm, close) for (day, firm), close in wanted.items()],
                schema=["date", "ticker", "close"],
                orient="row",
            )
            stamps = {"source": pl.lit("given"), "ingested_at": pl.lit(FIRST).cast(pl.Datetime("us", "UTC"))}
            counts = lake.upsert("prices", frame.with_columns(**stamps), scope=pl.lit(value=True))
            assert counts.withdrawn == len(held.keys() - wanted.keys())
            assert counts.added == len(wanted.keys() - held.keys())
            assert counts.updated == sum(held[k] != wanted[k] for k in held.keys() & wanted.keys())
            held = wanted
            seen.append((counts.version, wanted))
    for version, wanted in seen:
        stored = lake.read("prices", version=version, columns=["date", "ticker", "close"]).rows()
        expected = [(FIRST + timedelta(days=day), firm, wanted[day, firm]) for day, firm in sorted(wanted)]
        assert stored == expected
