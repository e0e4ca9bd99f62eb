"""Whole nights on a tiny market, through the command line: order, repetition, outages and two at once."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Answer, Call, command

from pipelines.config.load import load_config
from pipelines.lake.lake import Lake
from pipelines.nightly.play import decisions
from pipelines.run.fetch import make_source
from pipelines.run.locks import Locks
from pipelines.sources.base import LiveSource

NAME = "tiny"
SKIPPED = ["cross_section", "shuffled_labels", "fit_scope", "backfill", "too_good", "warm_up", "forecasts"]
"""Slow checks of the audit. The guard of a promotion needs an audit, not all checks."""


class Killed(BaseException):
    """Interrupts a night; no handler catches it."""


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The command line, in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capfd)


@pytest.fixture
def settings(tiny: dict[str, Any]) -> dict[str, Any]:
    """A night of seconds: ridge on a few characteristics, no audit and no attribution."""
    return {
        **tiny,
        "features": {
            "window": 5,
            "channels": ["return"],
            "characteristics": ["return_1", "return_5", "volatility_21", "log_market_equity"],
        },
        "label": {"horizon": 1, "delay": 1},
        "folds": {"scheme": "rolling", "train": 120, "valid": 25, "test": 40, "embargo": 1},
        "models": {"ridge": {}},
        "audit": {"enabled": False},
        "nightly": {"attributed": 0, "retrain": {"when": "never"}, "checks": {"retry_minutes": 0}},
    }


def write_config(settings: dict[str, Any]) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))


def sessions() -> list[dt.date]:
    """All sessions of the market."""
    source = make_source(load_config(Path("tiny.yaml")))
    assert not isinstance(source, LiveSource)
    return list(source.fetch().tables["prices"]["date"].unique().sort())


def night(peerglass: Call, day: dt.date | None = None, *more: str) -> Answer:
    chosen = [] if day is None else ["--date", day.isoformat()]
    return peerglass("nightly", "tiny.yaml", *chosen, *more)


def rows(table: str) -> pl.DataFrame:
    return Lake("lake").read(table)


def states() -> list[tuple[dt.date, str]]:
    nights = rows("nights").sort("session")
    return list(zip(nights["session"], nights["state"], strict=True))


@pytest.mark.slow(4)
def test_nights_are_played_in_order_once_and_caught_up(peerglass: Call, settings: dict[str, Any]) -> None:
    write_config(
        {**settings, "nightly": {**settings["nightly"], "retrain": {"when": "sessions", "every": 3}}}
    )
    days = sessions()[-6:]

    first = night(peerglass, days[0])
    assert first.code == 0, first.err
    assert f"tiny, night of {days[0]}: done" in first.out
    assert [day for day, _ in states()] == [days[0]]  # the newest session alone
    signals, book = rows("signals"), rows("books")
    assert signals["session"].unique().to_list() == [days[0]]
    assert signals.filter(pl.col("signal").is_not_null()).height > 10
    assert book.filter(pl.col("trade") != 0).height > 3
    folder = Path("runs", "nights", NAME, days[0].isoformat())
    for file in ("signals.csv", "signals.parquet", "book.csv", "nightly.html", "result.json"):
        assert (folder / file).stat().st_size > 100, file
    assert list(folder.glob("monitor/*.parquet"))
    steps = json.loads((folder / "result.json").read_text())["seconds"]
    assert {"ingest", "training", "signals", "book", "tracking"} <= set(steps)
    assert rows("nights")["seconds"].item() == pytest.approx(sum(steps.values()))

    version = rows("nights")["data_versions"].item()
    again = night(peerglass, days[0])
    assert (again.code, again.out) == (0, f"tiny: the night of {days[0]} is already done.\n")
    assert rows("signals").equals(signals)
    assert rows("nights")["data_versions"].item() == version

    caught_up = night(peerglass, days[4])
    assert caught_up.code == 0, caught_up.err
    assert [day for day, _ in states()] == days[:5]
    aliases = rows("promotions").sort("number")
    assert list(aliases["alias"]) == ["champion", "challenger"]
    assert aliases["why"][0] == "first version"
    assert aliases["why"][1] == f"3 sessions since the training of {days[0]}"
    assert aliases["session"].to_list() == [days[0], days[3]]
    by_session = rows("signals").group_by("session").agg(pl.col("version").n_unique()).sort("session")
    assert by_session["version"].to_list() == [1, 1, 1, 2, 2]  # the challenger is scored from its first night
    for day, versions in rows("nights").sort("session").select("session", "version").iter_rows():
        assert versions == aliases["version"][0], day

    late = night(peerglass, days[1])
    assert late.out == f"tiny: the night of {days[1]} is already done.\n"
    unplayed = sessions()[-9]
    refused = night(peerglass, unplayed)
    assert refused.code == 2
    assert f"before the last night, {days[4]}" in refused.err
    closed = night(peerglass, dt.date(2013, 5, 4))
    assert closed.code in (2, 3)


@pytest.mark.slow(6)
def test_a_night_in_a_new_process_equals_one_that_is_caught_up(
    peerglass: Call, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals, books = [], []
    for name in ("nightly", "at_once"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_config(settings)
        days = sessions()[-4:]
        for day in days if name == "nightly" else (days[0], days[-1]):
            assert night(peerglass, day).code == 0
        signals.append(rows("signals").drop("created_at", "version", "data_versions"))
        books.append(rows("books").drop("created_at", "version"))
    assert signals[0].height > 40
    assert signals[0].equals(signals[1])
    assert books[0].equals(books[1])


@pytest.mark.slow(3)
def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    write_config(settings)
    days = sessions()[-3:]
    before = sorted(Path().rglob("*"))
    dry = night(peerglass, days[0], "--dry-run")
    assert dry.code == 0
    assert f"1 to play: {days[0]}" in dry.out
    assert f"due on {days[0]}: first version; the version becomes champion" in dry.out
    assert sorted(Path().rglob("*")) == before
    assert night(peerglass, days[0]).code == 0
    dry = night(peerglass, days[2], "--dry-run")
    assert f"2 to play: {days[1]}, {days[2]}" in dry.out
    assert "training    not due" in dry.out
    assert "champion    tiny-" in dry.out
    source = {**settings["source"], "grows_from": days[0]}
    write_config({**settings, "source": source})
    assert f"1 to play: {days[1]}" in night(peerglass, None, "--dry-run").out, (
        "the session after the last night"
    )
    write_config({**settings, "source": source, "name": "another"})
    assert f"1 to play: {days[0]}" in night(peerglass, None, "--dry-run").out, "the first session"


def test_a_second_process_ends_with_a_sentence(peerglass: Call, settings: dict[str, Any]) -> None:
    write_config(settings)
    day = sessions()[-1]
    config = load_config(Path("tiny.yaml"))
    with Locks(wait=False, notify=print) as locks:
        locks.lock_nights(config.lake, config.name)
        second = night(peerglass, day)
    assert second.code == 3
    assert "The night of tiny on the lake" in second.err
    assert "is being written by" in second.err
    assert not Lake("lake").exists("prices")


@pytest.mark.slow(3)
def test_a_failed_check_fails_the_night_and_the_next_one_makes_its_decision(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    write_config(settings)
    days = sessions()[-4:]
    source = make_source(load_config(Path("tiny.yaml")))
    assert not isinstance(source, LiveSource)
    prices = source.fetch().tables["prices"].filter(pl.col("close") > 0)
    few = pl.col("ticker").is_in(prices["ticker"].unique().sort().head(4).implode())
    thin = prices.filter((pl.col("date") != days[1]) | few)
    thin.filter(pl.col("date") <= days[1]).write_parquet("prices.parquet")
    names = ["return_1", "return_5", "volatility_21"]
    features = {"window": 5, "channels": ["return"], "characteristics": names}
    weekly = {"kind": "top_k_long_only", "k": 3, "rebalance_on": f"{days[1]:%A}".lower()}
    write_config(
        {
            **settings,
            "source": {"kind": "files", "prices": "prices.parquet"},
            "features": features,
            "backtest": {"books": {"weekly": weekly}},
        }
    )
    assert night(peerglass, days[0]).code == 0
    failed = night(peerglass)
    assert failed.code == 3
    assert "coverage" in failed.err or "priced" in failed.err
    assert states() == [(days[0], states()[0][1]), (days[1], "failed")]
    assert rows("nights").filter(pl.col("session") == days[1])["rows"].item() == 0
    assert rows("signals").filter(pl.col("session") == days[1]).is_empty()

    thin.filter(pl.col("date") <= days[2]).write_parquet("prices.parquet")
    went_on = night(peerglass)
    assert went_on.code == 0, went_on.err
    assert [state == "failed" for _, state in states()] == [False, True, False]

    said = f"weekly decides tonight for {days[1]}"
    folder = Path("runs", "nights", NAME, days[2].isoformat())
    found = json.loads((folder / "result.json").read_text())["findings"]
    assert said in went_on.out
    assert said in (folder / "nightly.html").read_text()
    assert [said in one["sentence"] for one in found if one["check"] == "missed decision"] == [True]
    book = rows("books")
    assert book["session"].unique().to_list() == [days[2]]
    assert book["trade"].to_list() == book["weight"].to_list() == [pytest.approx(1 / 3)] * 3


@pytest.mark.slow(10)
def test_a_promotion_counts_from_the_next_night(peerglass: Call, settings: dict[str, Any]) -> None:
    nightly = {
        **settings["nightly"],
        "retrain": {"when": "sessions", "every": 5},
        "promotion": {"automatic": True, "min_sessions": 3, "margin": 1.0},
    }
    write_config({**settings, "audit": {"sessions": 1, "skip": SKIPPED}, "nightly": nightly})
    days = sessions()[-11:]
    assert night(peerglass, days[0]).code == 0
    assert night(peerglass, days[-1]).code == 0
    aliases = rows("promotions").sort("number")
    promoted = aliases.filter((pl.col("alias") == "champion") & (pl.col("number") > 1))
    assert promoted.height >= 1, aliases
    at = promoted["session"][0]
    champions = dict(rows("nights").select("session", "version").iter_rows())
    after = days[days.index(at) + 1]
    assert champions[at] == aliases["version"][0]
    assert champions[after] == promoted["version"][0]


@pytest.mark.slow(10)
def test_a_night_that_is_resumed_does_not_promote_what_was_demoted_since(
    peerglass: Call, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly = {
        **settings["nightly"],
        "retrain": {"when": "sessions", "every": 5},
        "promotion": {"automatic": True, "min_sessions": 3, "margin": 1.0},
    }
    write_config({**settings, "audit": {"sessions": 1, "skip": SKIPPED}, "nightly": nightly})
    days, original = sessions()[-11:], vars(decisions)["set_alias"]

    def killed(*arguments: Any, **options: Any) -> bool:  # noqa: ANN401 (passed on)
        original(*arguments, **options)
        raise Killed

    assert night(peerglass, days[0]).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(decisions, "set_alias", killed)
        with pytest.raises(Killed):
            night(peerglass, days[-1])
    first, _, promoted = rows("promotions").filter(pl.col("version").is_not_null()).sort("number").to_dicts()
    assert promoted["alias"] == "champion"
    assert peerglass("demote", "tiny.yaml", "--why", "its turnover doubled").code == 0
    resumed = night(peerglass, promoted["session"])
    assert resumed.code == 0, resumed.err
    champions = rows("promotions").filter(pl.col("alias") == "champion").sort("number")["version"].to_list()
    assert champions == [first["version"], promoted["version"], first["version"]]
    result = Path("runs", "nights", NAME, promoted["session"].isoformat(), "result.json")
    assert "is not promoted, because champion or challenger changed since" in result.read_text()
