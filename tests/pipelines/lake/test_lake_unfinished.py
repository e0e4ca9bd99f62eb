"""Readers during an ingest, and after one that was killed between two tables: all tables are of one state."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from pipelines.dataset.tables import input_versions
from pipelines.errors import DataError
from pipelines.ingest.ingest import ingest
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import SOURCE_TABLES, STAMPS, keys, schema
from pipelines.lake.storage import UpsertCounts, UpsertPlan
from pipelines.lake.upkeep import recorded_in_lake
from pipelines.nightly.result import sessions_of
from pipelines.sources.base import SourceTables, StoredData

FIRST, SECOND, THIRD = range(3)
COMMITS = 7  # of an ingest: sources, flags, quarantine, three tables of the source, and sources again
Versions = Mapping[str, int]


class Given:
    """A source whose delivery ``at`` differs in every table that a run reads, and in what is quarantined."""

    def __init__(self, at: int, name: str = "given") -> None:
        self.at, self.name = at, name

    def fetch(self) -> SourceTables:
        firms = {"ticker": ["AAA"], "valid_from": [date(2024, 1, 2)], "name": [f"name {self.at}"]}
        spell = {"universe": ["all"], "ticker": ["AAA"], "from_date": [date(2024, 1, 2 + self.at)]}
        tables = {"securities": pl.DataFrame(firms), "membership": pl.DataFrame(spell)}
        return SourceTables({"prices": self.prices(), **tables}, notes=(f"note {self.at}",))

    def prices(self) -> pl.DataFrame:
        closes = [10 + self.at + day / 1000 for day in range(60)]
        closes[20 + 5 * self.at] *= 3  # a spike that reverts is flagged
        days = [date(2024, 1, 2) + timedelta(days=i) for i in range(60)]
        sound = pl.DataFrame({"date": days, "ticker": "AAA", "close": closes})
        return pl.concat(
            [sound, pl.DataFrame({"date": days[:1], "ticker": "BBB", "close": [-1.0 - self.at]})]
        )


class Batches:
    """A live source that delivers prices and securities of one firm after another."""

    name = "live"

    def __init__(self, firms: str, close: float, seen: Callable[[], None] = lambda: None) -> None:
        self.firms, self.close, self.seen = firms, close, seen

    def batches(self, _: StoredData) -> Iterator[SourceTables]:
        for firm in self.firms:
            self.seen()
            day, name = date(2024, 1, 2), f"{firm} {self.close}"
            prices = pl.DataFrame({"date": [day], "ticker": [firm], "close": [self.close]})
            firms = pl.DataFrame({"ticker": [firm], "valid_from": [day], "name": [name]})
            yield SourceTables({"prices": prices, "securities": firms})
        self.seen()


class Statements:
    """A supplement, which adds statements to the lake of another source."""

    name = "sec"

    def batches(self, _: StoredData) -> Iterator[SourceTables]:
        one = {
            "ticker": "AAA",
            "period_end": date(2024, 3, 31),
            "known_at": date(2024, 5, 2),
            "item": "sales",
        }
        yield SourceTables({"fundamentals": pl.DataFrame([{**one, "value": 1.0, "unit": "USD"}])})


class Killed(BaseException):
    """Ends an ingest as a signal does: nothing catches it."""


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[UpsertPlan], None]]:
    """Functions that are called before every commit that changes rows."""
    before: list[Callable[[UpsertPlan], None]] = []
    apply = Lake.apply

    def observed(lake: Lake, plan: UpsertPlan, delivery: str | None = None) -> UpsertCounts:
        for call in before if plan.changes_rows else ():
            call(plan)
        return apply(lake, plan, delivery)

    monkeypatch.setattr(Lake, "apply", observed)
    return before


def killed(lake: Lake, at: int, commits: list[Callable[[UpsertPlan], None]], number: int) -> bool:
    """Ingest a delivery, killed after this number of commits; False if it ended before that."""
    left = iter(range(number))

    def kill(_: UpsertPlan) -> None:
        if next(left, None) is None:
            raise Killed

    commits.append(kill)
    try:
        ingest(Given(at), lake)
    except Killed:
        return True
    finally:
        commits.clear()
    return False


def rows(lake: Lake, versions: Versions) -> dict[str, pl.DataFrame]:
    """The rows of a source's tables in these versions, without the times of writing."""
    tables = versions.keys() & SOURCE_TABLES
    return {table: lake.read(table, versions[table]).drop(STAMPS, strict=False) for table in tables}


def assert_same(found: Mapping[str, pl.DataFrame], expected: Mapping[str, pl.DataFrame]) -> None:
    assert {"prices", "securities", "membership"} == found.keys() == expected.keys()
    for table in found:
        assert_frame_equal(found[table], expected[table])


def newest(lake: Lake) -> Versions:
    return {table: one for table, one in lake.versions().items() if table not in ("sources", "quarantine")}


def moment() -> str:
    """The time now, as --as-of; commits before and after it have other milliseconds."""
    time.sleep(0.002)
    now = datetime.now(UTC).isoformat()
    time.sleep(0.002)
    return now


def test_readers_during_an_ingest_get_the_state_before_it(
    tmp_path: Path, commits: list[Callable[[UpsertPlan], None]]
) -> None:
    lake = Lake(tmp_path)
    ingest(Given(FIRST), lake)
    before, times = input_versions(lake), [moment()]
    assert {"prices", "securities", "membership", "flags"} == before.keys()
    committed = []

    def read(plan: UpsertPlan) -> None:
        committed.append(plan.table)
        told: list[str] = []
        assert input_versions(Lake(tmp_path, notify=told.append)) == before
        assert len(told) == (len(committed) > 1)
        assert input_versions(lake, moment()) == before
        times.append(moment())

    commits.append(read)
    ingest(Given(SECOND), lake)
    commits.clear()
    assert committed[0] == committed[-1] == "sources"
    assert {*committed[1:-1]} == {*before, "quarantine"}
    assert len(committed) == COMMITS
    told: list[str] = []
    after = input_versions(Lake(tmp_path, notify=told.append))
    assert after == newest(lake) == {table: version + 1 for table, version in before.items()}
    assert not told
    for one in times:
        assert input_versions(lake, one) == before, "no time within an ingest is a state"
    assert input_versions(lake, moment()) == input_versions(lake, "2") == after


@pytest.mark.slow(12)
@pytest.mark.parametrize("again", [FIRST, SECOND, THIRD])
def test_a_killed_ingest_is_not_read_until_an_ingest_ends(
    tmp_path: Path, commits: list[Callable[[UpsertPlan], None]], again: int
) -> None:
    """The repetition may deliver the same, what was there before (so perhaps nothing is left), or more."""
    expected, first = Lake(tmp_path / "expected"), Lake(tmp_path / "first")
    ingest(Given(again), expected)
    ingest(Given(FIRST), first)
    before = input_versions(first)
    for number in range(1, COMMITS):
        shutil.copytree(first.root, tmp_path / str(number))
        lake, told = Lake(tmp_path / str(number)), list[str]()
        assert killed(lake, SECOND, commits, number)
        reader = Lake(lake.root, notify=told.append)
        assert input_versions(reader) == input_versions(reader, "1") == before
        assert "is running or was interrupted: the data before it are read (prices version 1)" in told[0]
        assert input_versions(reader, killed_at := moment()) == before
        protected = {(table, version) for table, version, _ in recorded_in_lake(lake)}
        assert protected == {*before.items()}, "a vacuum keeps what is read"
        if newest(lake)["prices"] > 1:
            with pytest.raises(DataError, match="have no version 2; they have 1 to 1"):
                input_versions(lake, "2")
        if again == SECOND:  # another kill, in the first commit after those of the first one
            assert killed(lake, SECOND, commits, 0)
            assert input_versions(lake) == before
        ingest(Given(again), lake)
        told.clear()
        after = input_versions(reader)
        assert not told
        assert after == newest(lake)
        assert_same(rows(lake, after), rows(expected, input_versions(expected)))
        assert input_versions(lake, killed_at) == before, "the repetition continues the delivery"
        for version in range(1, after["prices"]):
            assert input_versions(lake, str(version)) == before
        assert input_versions(lake, str(after["prices"])) == after


@pytest.mark.slow(4)
def test_a_killed_first_ingest_leaves_nothing_to_read(
    tmp_path: Path, commits: list[Callable[[UpsertPlan], None]]
) -> None:
    for number in range(1, COMMITS):
        lake = Lake(tmp_path / str(number))
        assert killed(lake, FIRST, commits, number)
        cause = "The first ingest .* was interrupted: .* run 'peerglass ingest CONFIG' again"
        for as_of in (None, "1", moment()):
            with pytest.raises(DataError, match=cause):
                input_versions(lake, as_of)
        # a lake without prices may also be filled from another source
        ingest(Given(SECOND, "given" if lake.exists("prices") else "another"), lake)
        assert input_versions(lake) == newest(lake)


def test_batches_of_a_live_source_are_read_one_after_another(
    tmp_path: Path, commits: list[Callable[[UpsertPlan], None]]
) -> None:
    lake, read = Lake(tmp_path), list[int]()

    def seen() -> None:
        if lake.exists("prices"):
            versions = input_versions(lake)
            read.append(lake.count("prices", versions["prices"]))
            assert read[-1] == lake.count("securities", versions["securities"])

    ingest(Batches("AB", 1.0, seen), lake)
    assert read == [1, 2]

    def kill(plan: UpsertPlan) -> None:
        if plan.table == "securities" and plan.rows["ticker"][0] == "B":
            raise Killed

    commits.append(kill)
    with pytest.raises(Killed):
        ingest(Batches("ABC", 2.0), lake)
    commits.clear()
    settled = input_versions(lake)
    assert lake.read("prices", settled["prices"])["close"].to_list() == [2.0, 1.0]
    assert lake.read("securities", settled["securities"])["name"].to_list() == ["A 2.0", "B 1.0"]
    ingest(Statements(), lake)
    assert input_versions(lake) == settled, "statements do not complete the prices"

    states: list[Versions] = []
    ingest(Batches("ABC", 2.0, lambda: states.append(input_versions(lake))), lake)
    assert states == [settled] * 4, "the first batch does not complete the second"
    assert input_versions(lake) == newest(lake)
    assert lake.read("securities")["name"].to_list() == ["A 2.0", "B 2.0", "C 2.0"]


def test_a_lake_without_marks_is_read_at_its_newest_versions(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    lake = Lake(tmp_path)
    for version in (1, 2):
        lake.upsert("prices", ready("prices", Given(version).prices().head(60)))
    assert input_versions(lake) == {"prices": 2}
    row = pl.DataFrame({"source": ["given"], "notes": ["[]"], "hazards": ["[]"], "market": ["{}"]})
    DeltaTable.create(str(tmp_path / "sources"), schema=row.clear().to_arrow().schema)
    write_deltalake(str(tmp_path / "sources"), row, mode="append")
    assert input_versions(lake) == {"prices": 2}
    ingest(Given(THIRD), lake)
    assert input_versions(lake) == newest(lake)
    assert lake.read("sources").select("source", "notes", "unfinished").row(0) == (
        "given",
        '["note 2"]',
        None,
    )


def ready(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows with all columns of their contract."""
    now = pl.lit(datetime.now(UTC))
    filled = pl.concat([schema(table).create_empty(), frame], how="diagonal_relaxed")
    return filled.with_columns(source=pl.lit("given"), ingested_at=now).sort(keys(table))


def test_the_sessions_of_a_night_are_those_that_it_can_read(
    tmp_path: Path, commits: list[Callable[[UpsertPlan], None]]
) -> None:
    lake, seen = Lake(tmp_path), list[tuple[int, date]]()

    def look(_: UpsertPlan) -> None:
        sessions = sessions_of(lake)
        if sessions:
            versions = input_versions(lake)
            newest = lake.read("prices", versions["prices"], columns=["date"])["date"].max()
            assert sessions[-1] == newest
            seen.append((versions["prices"], sessions[-1]))

    day = date(2024, 1, 2)
    for days in (1, 2):
        commits.append(look)
        frame = pl.DataFrame({"date": [day + timedelta(days=n) for n in range(days)]})
        ingest(Prices(frame.with_columns(ticker=pl.lit("AAA"), close=10.0)), lake)
        commits.clear()
    assert len(seen) > 1
    assert {*seen} == {(1, day)}
    assert sessions_of(lake) == [day, day + timedelta(days=1)]


class Prices:
    """A source with these prices."""

    name = "given"

    def __init__(self, prices: pl.DataFrame) -> None:
        self.prices = prices

    def fetch(self) -> SourceTables:
        return SourceTables({"prices": self.prices})
