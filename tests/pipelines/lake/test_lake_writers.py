"""Upserts compared with a dictionary, corrections that rewrite few files, and concurrent writers."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from warm import PEERGLASS, Process

import pipelines.lake.lake
import pipelines.lake.storage
from pipelines.errors import DataError
from pipelines.lake.lake import Lake, UpsertCounts
from pipelines.lake.storage import match_predicate

START = date(2020, 1, 1)


def bars(values: dict[tuple[int, str], float]) -> pl.DataFrame:
    """Price rows from (day, ticker) -> close, in the dictionary's order."""
    return pl.DataFrame(
        {
            "date": [START + timedelta(days=day) for day, _ in values],
            "ticker": [ticker for _, ticker in values],
            "close": list(values.values()),
        },
        schema={"date": pl.Date, "ticker": pl.String, "close": pl.Float64},
    ).with_columns(source=pl.lit("s"), ingested_at=pl.lit(datetime(2024, 1, 1, tzinfo=UTC)))


BATCHES = st.lists(
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.sampled_from("ABC")), st.sampled_from([1.0, 2.0]), max_size=20
    ),
    min_size=1,
    max_size=4,
)


@given(batches=BATCHES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_upserts_agree_with_a_dictionary(
    batches: list[dict[tuple[int, str], float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake, model = Lake(tmp_path_factory.mktemp("lake")), dict[tuple[int, str], float]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines.lake.storage, "_PIECE_ROWS", 5)
        for batch in batches:
            added = sum(key not in model for key in batch)
            updated = sum(key in model and model[key] != value for key, value in batch.items())
            counts = lake.upsert("prices", bars(batch))
            assert (counts.added, counts.updated) == (added, updated)
            assert counts.unchanged == len(batch) - added - updated
            model.update(batch)
    if model:
        expected = bars(dict(sorted(model.items()))).select("date", "ticker", "close")
        assert lake.read("prices").select("date", "ticker", "close").equals(expected)


def files(lake: Lake) -> set[str]:
    opened = lake.storage.open("prices")
    assert opened is not None
    return set(opened.file_uris())


def test_a_correction_rewrites_only_the_files_of_its_dates(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for year in range(6):
        lake.upsert("prices", bars({(year * 400 + day, t): 1.0 for day in range(50) for t in "AB"}))
    before = files(lake)
    assert len(before) == 6
    changes = {(3, "A"): 2.0, (2010, "B"): 3.0, (2500, "A"): 1.0}  # in the first file, the last, and in none
    assert lake.upsert("prices", bars(changes)) == UpsertCounts(1, 2, 0, 7)
    assert len(before & files(lake)) == 4
    stored = lake.read("prices")
    assert stored.height == 601
    assert stored.filter(pl.col("close") != 1.0)["close"].to_list() == [2.0, 3.0]


def test_a_predicate_has_at_most_sixteen_spans_and_covers_every_date() -> None:
    days = [0, 1, 2, *range(100, 3100, 100)]
    rows = bars({(day, "O'X"): 1.0 for day in days})
    predicate = match_predicate("prices", rows)
    assert predicate.count(" OR ") == 15
    assert "target.\"ticker\" = 'O''X'" in predicate
    spans = [part.split("'") for part in predicate.split('(target."date" >= ')[1:]]
    for day in rows["date"].to_list():
        assert any(date.fromisoformat(s[1]) <= day <= date.fromisoformat(s[3]) for s in spans)


def test_a_batch_in_any_order_is_stored_by_date(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("prices", bars({(day, t): 1.0 for t in "BA" for day in (2, 0, 1)}))
    (path,) = files(lake)
    held = pl.read_parquet(path.removeprefix("file://"))
    assert held["date"].is_sorted()
    assert held["ticker"].to_list() == ["A", "B"] * 3


class Intruder:
    """Lets another writer commit while a batch is compared, a given number of times."""

    def __init__(self, lake: Lake, times: int) -> None:
        self._lake, self._left, self._compare = lake, times, pipelines.lake.storage.compare

    def __call__(
        self, table: str, rows: pl.DataFrame, stored: pl.LazyFrame, scope: pl.Expr | None
    ) -> pipelines.lake.storage.RowChanges:
        answer = self._compare(table, rows, stored, scope)
        if self._left:
            self._left -= 1
            left, self._left = self._left, 0
            self._lake.upsert("prices", bars({(0, "A"): 100.0 + left, (900 + left, "Z"): 1.0}))
            self._left = left
        return answer


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    return taken


def test_a_second_writer_retries_and_commits_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    output: list[str] = []
    lake = Lake(tmp_path, notify=output.append)
    lake.upsert("prices", bars({(0, "A"): 1.0}))
    monkeypatch.setattr(pipelines.lake.storage, "compare", Intruder(Lake(tmp_path), times=3))
    counts = lake.upsert("prices", bars({(0, "A"): 7.0, (1, "B"): 7.0}))
    assert (counts.added, counts.updated, counts.version) == (1, 1, 5)
    assert [text.split("; ")[0] for text in output] == ["table prices: another process committed first"] * 3
    assert output[1].endswith("(attempt 3 of 12)")
    assert len(pauses) == 3
    for attempt, pause in enumerate(pauses, start=1):
        assert 0 < pause <= 0.05 * 2**attempt
    rows = lake.read("prices").select("date", "ticker", "close").rows()
    assert rows[:2] == [(START, "A", 7.0), (START + timedelta(days=1), "B", 7.0)]
    assert len(rows) == 5, "what the others wrote is kept"


def test_a_writer_that_never_commits_first_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    lake = Lake(tmp_path)
    lake.upsert("prices", bars({(0, "A"): 1.0}))
    monkeypatch.setattr(pipelines.lake.storage, "compare", Intruder(Lake(tmp_path), times=99))
    with pytest.raises(
        DataError, match="is being written by other processes all the time; retry when they have ended"
    ):
        lake.upsert("prices", bars({(0, "A"): 7.0}))
    assert len(pauses) == 11
    assert max(pauses) <= 5.0
    assert lake.read("prices").filter(pl.col("close") == 7.0).is_empty()


def test_two_concurrent_ingests_leave_one_complete_delivery(tmp_path: Path) -> None:
    """Two commands on files that overlap by half; each withdraws the rows that only the other has."""
    base = {
        "name": "both",
        "lake": str(tmp_path / "lake"),
        "folds": {"scheme": "expanding", "train": 9, "valid": 9, "test": 9, "embargo": 1},
        "models": {"zero": {}},
    }
    for name, days in (("one", range(60)), ("two", range(30, 90))):
        rows = {(day, f"T{i:02}"): 10.0 + i + day % 7 for day in days for i in range(40)}
        bars(rows).select("date", "ticker", "close").write_parquet(tmp_path / f"{name}.parquet")
        config = {**base, "source": {"kind": "files", "prices": f"{tmp_path}/{name}.parquet"}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    commands = [Process(PEERGLASS, ["ingest", f"{name}.yaml", "--wait"], tmp_path) for name in ("one", "two")]
    out = [command.communicate(timeout=300) for command in commands]
    assert [command.returncode for command in commands] == [0, 0], out
    stored = Lake(tmp_path / "lake").read("prices", columns=["date", "ticker", "close"])
    delivered = [
        pl.read_parquet(tmp_path / f"{name}.parquet").sort("date", "ticker") for name in ("one", "two")
    ]
    assert stored.height == 60 * 40
    assert any(stored.equals(one) for one in delivered)
    for _, progress in out:
        for line in progress.splitlines():
            event = json.loads(line)  # the note of a retry is an ordinary event
            assert event["event"] in {"start", "end", "note"}
