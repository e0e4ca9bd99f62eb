"""``peerglass signals`` and live runs on the command line: files, revisions, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from growing_lakes import Tables, deliver, sessions_of

from pipelines.commands.signals import COLUMNS, explain_differences
from pipelines.lake import storage
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the lake and the runs that all tests of the module share."""
    return tmp_path_factory.mktemp("signals")


@pytest.fixture(autouse=True)
def _here(folder: Path, tiny: dict[str, Any], tiny_tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if Path("live.yaml").is_file():
        return
    days = sessions_of(tiny_tables)
    live = {"scheme": "live", "through": days[240], "train": 100, "valid": 25, "embargo": 1}
    settings = {**tiny, "models": {"ridge": {}}, "audit": {"sessions": 2}}
    Path("live.yaml").write_text(yaml.safe_dump({**settings, "folds": live}))
    two = {**settings, "name": "walk", "models": {"ridge": {}, "zero": {}}}
    Path("walk.yaml").write_text(yaml.safe_dump(two))
    deliver(Lake("lake"), tiny_tables, days[300])


@pytest.fixture
def live(peerglass: Call) -> str:
    """The id of the live run; the first test that needs it trains it."""
    trained = peerglass("train", "live.yaml")
    assert trained.code == 0, trained.err
    return trained.out.split()[-1]


def test_a_live_run_is_scored_and_written_in_every_format(live: str, peerglass: Call) -> None:
    first = peerglass("signals", "live.yaml", "--out", "out/s.csv")
    assert first.code == 0, first.err
    assert f"by {live}/ridge" in first.out
    assert "60 sessions ago" in first.out
    assert "Revision 1" in first.out
    stored = Lake("lake").read("signals")
    assert stored["version"].unique().to_list() == [f"{live}/ridge"]
    text = pl.read_csv("out/s.csv", try_parse_dates=True)
    assert peerglass("signals", live, "--output", "runs", "--out", "s.parquet").code == 0
    assert peerglass("signals", "live.yaml", "--out", "s.json").code == 0
    binary, records = pl.read_parquet("s.parquet"), json.loads(Path("s.json").read_text())
    expected = stored.select(COLUMNS).sort("ticker")
    assert expected.height > 10
    assert binary.equals(expected)
    assert text["signal"].to_list() == expected["signal"].to_list()
    assert [row["rank"] for row in records] == expected["rank"].to_list()
    assert [row["session"] for row in records] == [str(day) for day in expected["session"]]
    assert tuple(text.columns) == tuple(records[0]) == COLUMNS
    assert not list(Path().rglob("*.partial"))


def test_a_correction_makes_a_revision_and_is_named(live: str, peerglass: Call, tiny_tables: Tables) -> None:
    days, ticker = sessions_of(tiny_tables), Lake("lake").read("signals")["ticker"][0]
    day = days[280]
    assert "Revision 1" in peerglass("signals", "live.yaml", "--date", str(day)).out
    prices = Lake("lake").read("prices", filters=(pl.col("ticker") == ticker) & (pl.col("date") == day))
    assert prices.height == 1
    quotes = pl.col("open", "high", "low", "close")
    Lake("lake").upsert("prices", prices.with_columns(quotes * 1.05))
    again = peerglass("signals", "live.yaml", "--date", str(day))
    assert again.code == 0
    assert "Revision 2 differs from revision 1 for" in again.out
    assert f"prices of {ticker} were corrected on {day}" in again.out
    before = peerglass("signals", "live.yaml", "--date", str(days[279]))
    assert "Revision 1" in before.out, "scored for the first time"
    Lake("lake").upsert("prices", prices)
    back = peerglass("signals", "live.yaml", "--date", str(day))
    assert (
        "Revision 3 equals revision 1 for every firm. No row known at the session was corrected." in back.out
    )


def test_statements_that_are_compared_in_pieces_differ_where_they_were_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_PIECE_ROWS", 4)
    lake, ends = Lake(tmp_path), [dt.date(2020, month, 1) for month in (1, 4, 7, 10)]
    rows = pl.DataFrame({"ticker": list("ABC")}).join(pl.DataFrame({"period_end": ends}), how="cross")
    rows = rows.with_columns(
        item=pl.lit("sales"), value=1.0, known_at=pl.col("period_end").dt.offset_by("20d")
    )
    corrected = (
        pl.when((pl.col("ticker") == "B") & (pl.col("period_end") == ends[1])).then(2.0).otherwise(1.0)
    )
    for batch in (rows, rows.with_columns(value=corrected)):
        lake.upsert("fundamentals", check("fundamentals", batch).valid)
    key = {"config": "c", "session": dt.date(2021, 1, 4), "version": "r/m", "ticker": "A"}
    one, two = (
        pl.DataFrame(
            [
                key
                | {"revision": n, "signal": 0.0, "rank": 0.5, "in_universe": True}
                | {"data_versions": json.dumps({"fundamentals": n})}
            ]
        )
        for n in (1, 2)
    )
    found = explain_differences(lake, one, two).corrections
    assert found.rows() == [("fundamentals", "B", dt.date(2020, 4, 21), "corrected")]


def test_a_walk_forward_run_scores_with_its_newest_fold(live: str, peerglass: Call) -> None:
    walk = peerglass("train", "walk.yaml").out.split()[-1]
    which = peerglass("signals", walk, "--output", "runs")
    assert which.code == 2
    assert "has the models ridge, zero; choose one with --model" in which.err
    scored = peerglass("signals", walk, "--output", "runs", "--model", "ridge")
    assert scored.code == 0, scored.err
    assert "a walk-forward run" in scored.out
    assert live not in scored.out


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("live.yaml", "--out", "s.xlsx"), 2, "its suffix must be one of .csv, .parquet, .json"),
        (("live.yaml", "--model", "nothing"), 3, "has no trained version of the model 'nothing'"),
        (("live.yaml", "--version", "nonsense"), 2, "it must be RUN/MODEL"),
        (("live.yaml", "--version", "tiny-0000000000/ridge"), 3, "is not under"),
        (("live.yaml", "--date", "2014-01-04"), 3, "has no prices"),
        (("walk.yaml", "--set", "name=other"), 3, "other has no trained version in"),
    ],
)
def test_what_cannot_be_scored_ends_with_a_sentence(
    live: str, peerglass: Call, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    refused = peerglass("signals", *arguments)
    assert live
    assert refused.code == code, refused.err
    assert sentence in refused.err.splitlines()[-1]


def test_a_session_that_the_model_has_seen_is_refused(
    live: str, peerglass: Call, tiny_tables: Tables
) -> None:
    refused = peerglass("signals", "live.yaml", "--date", str(sessions_of(tiny_tables)[239]))
    assert refused.code == 2
    assert f"{live}/ridge has seen data up to {sessions_of(tiny_tables)[240]}" in refused.err


@pytest.mark.parametrize("verb", ["backtest", "report", "explain"])
def test_a_live_run_has_no_test_to_measure(live: str, peerglass: Call, verb: str) -> None:
    refused = peerglass(verb, live, "--output", "runs")
    assert refused.code == 2
    assert "was trained for use, through" in refused.err.splitlines()[-1]
    whole = peerglass("run", "live.yaml")
    assert whole.code == 2
    assert "folds.scheme is live" in whole.err.splitlines()[-1]


@pytest.mark.slow(3)
def test_a_live_run_is_audited_listed_and_not_trained_twice(live: str, peerglass: Call) -> None:
    audited = peerglass("audit", live, "--output", "runs")
    assert audited.code == 0, audited.out
    assert "checkpoints of a live fold: their forecasts are bitwise identical" in audited.out
    assert "pass    shuffled_labels" in audited.out
    assert "complete" in peerglass("runs", "list", "--output", "runs").out
    assert "no test" in peerglass("runs", "show", live, "--output", "runs").out
    again = peerglass("train", "live.yaml")
    assert again.out.split()[-1] == live
    assert not again.steps, "every task was done"
    assert not Lake("lake").exists("forecasts") or live not in set(Lake("lake").read("forecasts")["run_id"])


def test_the_ends_of_the_ranking_are_explained(live: str, peerglass: Call) -> None:
    answer = peerglass("signals", "live.yaml", "--explain", "2")
    assert answer.code == 0, answer.err
    written = peerglass("signals", "live.yaml", "--out", "ends.csv")
    assert written.code == 0, written.err
    newest = pl.read_csv("ends.csv").filter(pl.col("in_universe")).sort("signal")
    ends = newest["ticker"].to_list()
    assert len(set(ends)) == len(ends)
    told = answer.out.split("why, in the unit of the signal")[1]
    places = [told.index(f"  {ticker} ") for ticker in (ends[-1], ends[-2], ends[1], ends[0])]
    assert places == sorted(places), "the highest signal first"
    assert told.count("without any player") == 4
    assert "(error " in told
    refused = peerglass("signals", "live.yaml", "--explain", "0")
    assert refused.code == 2
    assert "--explain is 0; it must be at least 1" in refused.err
