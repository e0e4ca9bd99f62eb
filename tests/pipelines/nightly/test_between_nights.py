"""What may happen between two nights: tables are lost, the config changes, deliveries are late or damaged."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import desk_nights
import polars as pl
import pytest
import yaml
from command import Answer, Call, command
from desk_nights import Nights

from pipelines.config.load import load_config
from pipelines.errors import DataError
from pipelines.nightly.night import play_nights
from pipelines.nightly.play.journal import FILE
from pipelines.nightly.result import nights_folder
from pipelines.nightly.schedule import Clock
from pipelines.nightly.spool import sync
from pipelines.tracking import store


@pytest.fixture(scope="module")
def season(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder in which nights are played, and where their outcome is kept."""
    base = tmp_path_factory.mktemp("desk")
    return base / "here", base / "kept"


@pytest.fixture
def nights(
    season: tuple[Path, Path],
    tiny: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Nights:
    """Three nights that are done."""
    here, kept = season
    monkeypatch.setattr("pipelines.nightly.play.telling.sync", lambda *_: None)  # the store takes no part
    peerglass: Call = command(monkeypatch, capfd)
    if not kept.exists():
        here.mkdir()
        monkeypatch.chdir(here)
        desk_nights.play(here, tiny, peerglass)
        shutil.copytree(here, kept)
    else:
        shutil.rmtree(here)
        shutil.copytree(kept, here)
    monkeypatch.chdir(here)
    sessions = desk_nights.days()[desk_nights.FIRST :]
    return Nights(here, peerglass, tuple(sessions[: desk_nights.PLAYED]), sessions[desk_nights.PLAYED])


@pytest.mark.slow(3)
def test_nights_whose_tables_agree_go_on(nights: Nights) -> None:
    assert nights.night().code == 0
    assert list(nights.states()) == [*nights.played, nights.next]
    repeated = nights.peerglass("nightly", "desk.yaml")
    assert (repeated.code, repeated.out) == (0, f"desk: the night of {nights.next} is already done.\n")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("signals", "signals lacks rows of 3 nights"),
        ("books", "books lacks orders of 3 nights"),
        ("accounts", "accounts lacks the night of"),
        ("holdings", "holdings lacks positions of the night of"),
        ("promotions", "promotions lacks desk-"),
        ("nights", "nights lacks 3 nights"),
    ],
)
def test_a_table_that_is_gone_ends_every_call_with_its_name(nights: Nights, table: str, said: str) -> None:
    nights.remove(table)
    others = {name: nights.rows(name) for name in ("signals", "books", "promotions") if name != table}
    for call in (("--dry-run",), (), ()):
        answer = nights.night(*call)
        assert answer.code == 3, (answer.out, answer.err)
        assert said in answer.err
        assert "Restore the table" in answer.err
    assert not nights.lake.exists(table), "so that it can be restored"
    assert all(nights.rows(name).equals(rows) for name, rows in others.items())
    nights.deliver(nights.played[-1])
    assert nights.peerglass("nightly", "desk.yaml").code == 3, "also where the night is done"


@pytest.mark.parametrize(
    ("table", "sessions", "said"),
    [
        ("signals", 1, "signals lacks rows of the night of"),
        ("books", 1, "books lacks orders of the night of"),
        ("nights", 2, "nights lacks 2 nights"),
    ],
)
def test_a_table_that_was_rolled_back_ends_the_night(
    nights: Nights, table: str, sessions: int, said: str
) -> None:
    nights.roll_back(table, sessions)
    answer = nights.night()
    assert answer.code == 3
    assert said in answer.err


def test_a_night_of_which_only_its_row_is_missing_is_told_again_without_other_orders(nights: Nights) -> None:
    before = {table: nights.rows(table) for table in ("signals", "books")}
    nights.roll_back("nights", 1)
    assert nights.night().code == 0
    assert list(nights.states()) == [*nights.played, nights.next]
    for table, rows in before.items():
        now = nights.rows(table).filter(pl.col("session") < nights.next)
        assert now.drop("created_at").equals(rows.drop("created_at"))


def test_all_tables_of_the_nights_but_one_are_gone(nights: Nights) -> None:
    nights.remove("nights", "books", "promotions")
    answer = nights.night()
    assert answer.code == 3
    assert "nights lacks 3 nights" in answer.err
    nights.remove("signals")
    assert nights.night().code == 0, "nothing is left, which is a first night"
    assert list(nights.states()) == [nights.next]


def test_a_first_night_that_lost_its_row_alone_is_noticed(nights: Nights) -> None:
    for table, sessions in (("signals", 2), ("books", 2), ("nights", 2)):
        nights.roll_back(table, sessions)
    nights.remove("nights")
    answer = nights.night()
    assert answer.code == 3
    assert f"nights lacks the night of {nights.played[0]}" in answer.err
    shutil.rmtree(nights.folder / "runs" / "nights")  # without its journal it may have been interrupted
    again = nights.night()
    assert again.code == 0
    assert list(nights.states()) == [*nights.played, nights.next]
    assert nights.rows("books").select("session", "ticker").is_unique().all()


def test_a_first_night_that_was_killed_before_its_book_is_played_first(nights: Nights) -> None:
    """It has entered a version; without its night, the tables would disagree for ever."""
    nights.remove("nights", "signals", "books", "accounts", "holdings")
    shutil.rmtree(nights.folder / "runs" / "nights")
    assert nights.night().code == 0
    assert list(nights.states()) == [*nights.played, nights.next]
    again = nights.peerglass("nightly", "desk.yaml")
    assert (again.code, again.out.count("already done")) == (0, 1), again.err


@pytest.mark.slow(2)
def test_an_interrupted_night_whose_session_is_withdrawn_does_not_count(nights: Nights) -> None:
    assert nights.night().code == 0
    nights.roll_back("nights", 1)
    journal = nights_folder(load_config(Path("desk.yaml"))) / str(nights.next) / FILE
    recorded = journal.read_text()
    journal.write_text(recorded.replace('"recorded": true', '"recorded": false'))
    assert journal.read_text() != recorded
    later = desk_nights.days()[desk_nights.FIRST + desk_nights.PLAYED + 1 :][:2]
    for day in later:
        desk_nights.prices(day).filter(pl.col("date") != nights.next).write_csv("prices.csv")
        answer = nights.peerglass("nightly", "desk.yaml")
        assert answer.code == 0, answer.err
    assert list(nights.states()) == [*nights.played, *later]
    journal.write_text(recorded)
    assert nights.peerglass("nightly", "desk.yaml").code == 3, "its row was written and is lost"


def change(nights: Nights, **sections: Mapping[str, Any]) -> None:
    """Change sections of the config."""
    settings = yaml.safe_load(Path("desk.yaml").read_text())
    Path("desk.yaml").write_text(yaml.safe_dump({**settings, **sections}, sort_keys=False))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("backtest.costs.half_spread_bps=20", "backtest.costs.half_spread_bps (5.0 -> 20.0)"),
        ("nightly.book=long_only", "book.kind (quantile_long_short -> top_k_long_only)"),
        ("universe.min_price=5", "universe.min_price (None -> 5.0)"),
        ("label.horizon=2", "label.horizon (1 -> 2)"),
        ("models.ridge.alphas=[7]", "model.alphas (-0.0001, -0.001, -0.01, -0.1, -1.0, -10.0, +7.0)"),
        ("features.window=6", "features.window (5 -> 6)"),
    ],
)
def test_a_config_that_changed_is_named_and_refused(nights: Nights, setting: str, said: str) -> None:
    for more in (("--dry-run",), ()):
        refused = nights.night("--set", setting, *more)
        assert refused.code == 2, (refused.out, refused.err)
        assert f"changed since the night of {nights.played[-1]}: " in refused.err
        assert said in refused.err
        assert "--accept-changes" in refused.err
    assert list(nights.states()) == list(nights.played)


@pytest.mark.slow(3)
def test_an_accepted_change_is_recorded_once(nights: Nights) -> None:
    setting = ("--set", "backtest.costs.half_spread_bps=20")
    dry = nights.night(*setting, "--dry-run", "--accept-changes")
    assert dry.code == 0, dry.err
    assert "half_spread_bps (5.0 -> 20.0)" in dry.out
    accepted = nights.night(*setting, "--accept-changes")
    assert accepted.code == 0, accepted.err
    assert "half_spread_bps (5.0 -> 20.0). The change was accepted." in accepted.out
    night = nights.rows("nights").filter(session=nights.next)
    assert "half_spread_bps (5.0 -> 20.0)" in night["warnings"].item()
    nights.deliver(desk_nights.days()[desk_nights.FIRST + 4])
    again = nights.peerglass("nightly", "desk.yaml", *setting)
    assert again.code == 0, again.err
    assert "half_spread" not in again.out
    back = nights.peerglass("nightly", "desk.yaml")
    assert (back.code, back.out.count("already done")) == (0, 1)
    nights.deliver(desk_nights.days()[desk_nights.FIRST + 5])
    assert "half_spread_bps (20.0 -> 5.0)" in nights.peerglass("nightly", "desk.yaml").err


def test_a_change_is_recorded_by_a_night_that_is_finished(nights: Nights) -> None:
    """The row of a failed night is replaced, and with it its warning of the change."""
    setting = ("--set", "backtest.costs.half_spread_bps=20")
    few = (pl.col("date") < nights.next) | pl.col("ticker").is_in(desk_nights.TICKERS[:5])
    desk_nights.prices(nights.next).filter(few).write_csv("prices.csv")
    failed = nights.peerglass("nightly", "desk.yaml", *setting, "--accept-changes")
    assert (failed.code, nights.states()[nights.next]) == (3, "failed")
    assert nights.night(*setting).code == 0, "it was accepted"
    row = nights.rows("nights").filter(session=nights.next)
    assert row["state"].item() == "warned"
    assert "half_spread_bps (5.0 -> 20.0). The change was accepted." in row["warnings"].item()


def test_a_change_may_be_accepted_before_the_night(nights: Nights) -> None:
    setting = ("--set", "backtest.costs.half_spread_bps=20")
    noon = nights.peerglass("nightly", "desk.yaml", *setting, "--accept-changes")
    assert (noon.code, noon.out) == (0, f"desk: the night of {nights.played[-1]} is already done.\n")
    other = nights.night("--set", "backtest.costs.half_spread_bps=30")
    assert other.code == 2, "another change was not accepted"
    evening = nights.night(*setting)
    assert evening.code == 0, evening.err
    assert "half_spread_bps (5.0 -> 20.0). The change was accepted." in evening.out
    nights.deliver(desk_nights.days()[desk_nights.FIRST + 4])
    assert nights.peerglass("nightly", "desk.yaml").code == 2, "the way back is another change"


def test_settings_that_trade_nothing_may_change(nights: Nights) -> None:
    settings = ("nightly.checks.max_stale=0.5", "nightly.retrain.when=monthly", "seeds=[0]")
    assert nights.night(*(part for one in settings for part in ("--set", one))).code == 0


def test_how_a_model_is_computed_trades_nothing(nights: Nights) -> None:
    """Earlier nights recorded it, also for settings whose default has changed since."""
    rows = nights.rows("nights")
    settings = [json.loads(text) for text in rows["settings"]]
    for one in settings:
        assert one["model"]["fit"]["compile"] is False, "whatever the config says"
        one["model"]["fit"]["compile"] = "auto"
    texts = pl.Series("settings", list(map(json.dumps, settings)))
    nights.lake.upsert("nights", rows.with_columns(texts))
    assert nights.night("--set", "fit.compile=true").code == 0


def test_without_recorded_settings_the_champion_is_what_a_config_is_compared_with(nights: Nights) -> None:
    rows = nights.rows("nights").with_columns(settings=pl.lit(None, dtype=pl.String))
    nights.lake.upsert("nights", rows)
    refused = nights.night("--set", "label.horizon=3")
    assert refused.code == 2
    assert "since the training of the champion desk-" in refused.err
    assert "label.horizon (1 -> 3)" in refused.err


def test_only_firms_of_the_configs_universe_are_bought(nights: Nights) -> None:
    names = list(desk_nights.TICKERS[:9])
    Path("members.csv").write_text(
        "universe,ticker,from_date\n" + "".join(f"big,{name},2020-01-01\n" for name in names)
    )
    change(
        nights,
        source={"kind": "files", "prices": "prices.csv", "membership": "members.csv"},
        universe={"min_history": 30, "membership": "big"},
    )
    answer = nights.night("--accept-changes")
    assert answer.code == 0, answer.err
    assert "The champion keeps the settings of its training" in answer.out
    signals = nights.rows("signals").filter(session=nights.next)
    assert signals.filter(pl.col("signal").is_not_null())["ticker"].to_list() == names
    ranks = signals.filter(pl.col("in_universe"))["rank"]
    assert (ranks.len(), ranks.min(), ranks.max()) == (len(names), 0, 1)
    book = nights.rows("books").filter(session=nights.next)
    outside = book.filter(~pl.col("ticker").is_in(names))
    assert outside.height > 0, "they were held"
    assert outside.filter(pl.col("weight").abs() > pl.col("previous").abs()).is_empty()
    assert book.filter(pl.col("ticker").is_in(names) & (pl.col("weight") != 0)).height >= 4


def both(nights: Nights, *arguments: str) -> list[Answer]:
    """The answers of a dry run and of the call itself."""
    return [nights.peerglass("nightly", "desk.yaml", *arguments, *more) for more in (("--dry-run",), ())]


def test_a_file_that_ends_before_the_last_night_is_refused_and_not_stored(nights: Nights) -> None:
    stored = nights.rows("prices")
    nights.deliver(nights.played[0])
    for answer in both(nights):
        assert answer.code == 3, answer.out
        assert f"end on {nights.played[0]}, before the last night, {nights.played[-1]}" in answer.err
    assert nights.rows("prices").equals(stored)
    assert nights.night().code == 0


def test_a_session_whose_every_row_is_rejected_is_no_night(nights: Nights) -> None:
    wrong = pl.when(pl.col("date") == nights.next).then(-pl.col("close")).otherwise("close")
    desk_nights.prices(nights.next).with_columns(wrong.alias("close")).write_csv("prices.csv")
    for answer in both(nights):
        assert answer.code == 3, answer.out
        assert f"All 16 rows of session {nights.next} were rejected" in answer.err
    later = desk_nights.days()[desk_nights.FIRST + 4]
    desk_nights.prices(later).with_columns(wrong.alias("close")).write_csv("prices.csv")
    for answer in both(nights):
        assert answer.code == 3, "a session in the middle"
    assert list(nights.states()) == list(nights.played)
    assert nights.night().code == 0


def test_a_delivery_that_lacks_much_history_is_refused_and_not_stored(nights: Nights) -> None:
    stored = nights.rows("prices")
    kept = pl.col("date") > desk_nights.days()[40]
    for through in (nights.played[-1], nights.next):  # without a new session, and with one
        desk_nights.prices(through).filter(kept).write_csv("prices.csv")
        for answer in both(nights):
            assert answer.code == 3, answer.out
            assert "price rows, but the last night, 2023-08-02, had 2,448: it is truncated" in answer.err
    assert nights.rows("prices").equals(stored)
    allowed = nights.peerglass("nightly", "desk.yaml", "--set", "nightly.checks.max_withdrawn=0.5")
    assert allowed.code == 0, allowed.err


def test_history_that_is_rejected_fails_the_night(nights: Nights) -> None:
    old = pl.col("date") <= desk_nights.days()[40]
    wrong = pl.when(old).then(-pl.col("close")).otherwise("close")
    desk_nights.prices(nights.next).with_columns(wrong.alias("close")).write_csv("prices.csv")
    answer = nights.peerglass("nightly", "desk.yaml")
    assert answer.code == 3, answer.out
    assert (
        "656 of the 2,448 price rows of the night of 2023-08-02 were withdrawn, which is 26.8%" in answer.err
    )
    assert nights.states()[nights.next] == "failed"


def test_firms_whose_whole_history_is_withdrawn_are_missed(nights: Nights) -> None:
    few = pl.col("ticker").is_in(desk_nights.TICKERS[:12])
    desk_nights.prices(nights.next).filter(few).write_csv("prices.csv")
    answer = nights.peerglass("nightly", "desk.yaml", "--set", "nightly.checks.max_withdrawn=1")
    assert answer.code == 3, answer.out
    assert "12 of the 16 firms priced on 2023-08-02, in the data of that night, have a price" in answer.err
    one_less = pl.col("ticker").is_in(desk_nights.TICKERS[:15])
    desk_nights.prices(nights.next).filter(one_less).write_csv("prices.csv")
    assert nights.peerglass("nightly", "desk.yaml").code == 0, "a single firm may go"


@pytest.mark.slow(4)
def test_a_delivery_that_the_calendar_expects_is_late(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(nights, quality={"calendar": "XNYS"})
    config, days = load_config(Path("desk.yaml")), desk_nights.days()

    def at(day: dt.date) -> Clock:
        return Clock(now=lambda: dt.datetime(day.year, day.month, day.day, 22, tzinfo=dt.UTC))

    def play(day: dt.date) -> None:
        play_nights(config, None, echo=lambda _: None, clock=at(day))

    play(nights.played[-1])
    with pytest.raises(
        DataError, match=rf"no session {nights.next}, which XNYS has finished: its prices end"
    ):
        play(nights.next)
    nights.deliver(nights.next)
    with pytest.raises(DataError, match=f"no session {days[desk_nights.FIRST + 4]}, which XNYS"):
        play(days[desk_nights.FIRST + 4])
    assert list(nights.states()) == list(nights.played)
    play(nights.next)
    assert nights.states()[nights.next] in ("done", "warned")  # holidays of the file are withdrawn
    nights.deliver(days[desk_nights.FIRST + 4])
    play(nights.next + dt.timedelta(days=100))  # an archive
    assert list(nights.states())[-1] == days[desk_nights.FIRST + 4]


def test_nobody_waits_for_what_cannot_come(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    def asleep(seconds: float) -> None:
        raise AssertionError(seconds)

    monkeypatch.setattr("time.sleep", asleep)
    waits = ("--set", "nightly.checks.retry_minutes=60")
    saturday = dt.date(2023, 8, 5)
    for answer in both(nights, "--date", str(saturday), *waits):
        assert answer.code == 2
        assert "--date 2023-08-05 is a Saturday, on which this market has no sessions" in answer.err
    for day in (nights.next, dt.date(2200, 1, 2)):
        (_, answer) = both(nights, "--date", str(day), *waits)
        assert (answer.code, f"no session {day} yet: its prices end on" in answer.err) == (3, True)
    nights.deliver(nights.played[0])
    assert nights.peerglass("nightly", "desk.yaml", *waits).code == 3
    Path("prices.csv").unlink()
    gone = nights.peerglass("nightly", "desk.yaml", *waits)
    assert (gone.code, "prices.csv" in gone.err) == (3, True)


@pytest.mark.slow(7)
def test_a_dry_run_names_every_training_of_the_nights_to_come(nights: Nights) -> None:
    days = desk_nights.days()[desk_nights.FIRST :]
    nights.deliver(days[8])
    setting = ("--set", "nightly.retrain.when=sessions", "--set", "nightly.retrain.every=4")
    dry, real = both(nights, *setting)
    assert (dry.code, real.code) == (0, 0), real.err
    assert "6 to play: 2023-08-03, 2023-08-04, 2023-08-07, 2023-08-08, 2023-08-09 ..." in dry.out
    trained = nights.rows("promotions").filter(pl.col("number") > 1).sort("number")
    assert trained["session"].to_list() == [days[4], days[8]]
    for session, why in trained.select("session", "why").iter_rows():
        assert f"training    due on {session}: {why}; the version becomes challenger" in dry.out
    assert dry.out.count("  training    ") == 2


@pytest.mark.slow(12)
def test_a_dry_run_names_the_nights_on_which_the_book_decides(nights: Nights) -> None:
    days = desk_nights.days()[desk_nights.FIRST :]
    book = {"kind": "top_k_long_only", "k": 4, "rebalance_on": "friday"}
    change(nights, backtest={"books": {"weekly": book}})
    nights.deliver(days[7])
    dry, real = both(nights, "--accept-changes")
    assert (dry.code, real.code) == (0, 0), real.err
    made = nights.rows("accounts").filter((pl.col("decision") == "made") & (pl.col("book") == "weekly"))
    assert made["session"].to_list() == [dt.date(2023, 8, 4)]
    assert "book        weekly decides on 2023-08-04 (friday)" in dry.out
    nights.deliver(days[8])
    (dry, _) = both(nights)
    assert "book        weekly does not decide (friday)" in dry.out


@pytest.mark.slow(4)
def test_a_dry_run_knows_what_an_interrupted_night_has_decided(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DataError("the power fails")

    setting = ("--set", "nightly.retrain.when=sessions", "--set", "nightly.retrain.every=3")
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.nightly.play.decisions.next_book", fail)
        assert nights.night(*setting).code == 3
    dry, real = both(nights)  # another schedule, but the training was decided
    assert f"due on {nights.next}: 3 sessions since the training" in dry.out
    assert real.code == 0, real.err
    assert nights.rows("promotions")["session"].to_list() == [nights.played[0], nights.next]


@pytest.mark.slow(5)
def test_a_lake_that_is_older_than_the_output_folder_goes_on(nights: Nights) -> None:
    backup = nights.folder / "backup"
    shutil.copytree(nights.folder / "lake", backup)
    assert (
        nights.night("--set", "nightly.retrain.when=sessions", "--set", "nightly.retrain.every=3").code == 0
    )
    undisturbed = {table: nights.rows(table).drop("created_at") for table in ("signals", "books")}
    shutil.rmtree(nights.folder / "lake")
    backup.rename(nights.folder / "lake")
    assert list(nights.states()) == list(nights.played)
    again = nights.night()
    assert again.code == 0, again.err
    assert (
        f"The journal of the night of {nights.next} is newer than the lake (it has trained desk-" in again.out
    )
    now = nights.rows("signals").drop("created_at")
    champion = nights.rows("nights")["version"][-1]
    assert now.equals(undisturbed["signals"].filter(version=champion))
    assert nights.rows("books").drop("created_at").equals(undisturbed["books"])


@pytest.mark.slow(3)
def test_the_journal_of_another_lake_at_the_same_place_is_discarded(nights: Nights) -> None:
    shutil.rmtree(nights.folder / "lake")
    nights.deliver(nights.played[-1])
    for _ in range(2):
        answer = nights.peerglass("ingest", "desk.yaml")
        assert answer.code == 0, answer.err
    first = nights.peerglass("nightly", "desk.yaml")
    assert first.code == 0, first.err
    assert "newer than the lake" in first.out
    assert list(nights.states()) == [nights.played[-1]]


@pytest.mark.slow(7)
@pytest.mark.parametrize("damage", ["locked", "not a database"])
def test_a_night_is_recorded_although_the_tracking_file_cannot_be_used(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("pipelines.nightly.play.telling.sync", sync)
    monkeypatch.setattr("pipelines.tracking.store._LOCKED_SECONDS", 0.1)
    uri = ("--set", f"tracking.uri=sqlite:///{nights.folder}/{damage[:3]}.db")
    path = nights.folder / f"{damage[:3]}.db"
    store._create_database(str(path))
    if damage == "not a database":
        path.write_bytes(b"<html>a page</html>")
    with closing(sqlite3.connect(path)) as database:
        if damage == "locked":
            database.execute("BEGIN EXCLUSIVE")
        answer = nights.night(*uri)
    assert answer.code == 6, (answer.out, answer.err)
    assert "a bug" not in answer.err
    assert "Traceback" not in answer.err
    assert nights.states()[nights.next] == "warned"
    assert nights.rows("books").filter(session=nights.next).height > 3
    spool = nights.folder / "runs" / "nights" / "desk" / "spool"
    assert (spool / f"{nights.next}.json").is_file()
    path.unlink()
    sent = nights.peerglass("track", "sync", "desk.yaml", *uri)
    assert sent.code == 0, sent.err
    assert not list(spool.glob("*.json"))


@pytest.mark.slow(11)
@pytest.mark.parametrize("damage", ["a file is gone", "all is gone", "garbage"])
def test_the_printed_cure_of_a_missing_checkpoint_works(nights: Nights, damage: str) -> None:
    champion = nights.rows("nights")["version"][-1]
    (folder,) = (nights.folder / "runs" / champion.partition("/")[0] / "checkpoints").glob("*/*")
    whole = (folder / "model.safetensors").read_bytes()
    if damage == "all is gone":
        shutil.rmtree(folder)
    elif damage == "garbage":
        (folder / "model.safetensors").write_bytes(b"garbage")
    else:
        (folder / "model.json").unlink()
    failed = nights.night()
    assert failed.code == 3
    commands = re.findall(r"'((?:rm|peerglass) [^']*)'", failed.err)
    assert commands, failed.err
    for one in commands:
        program, *arguments = shlex.split(one)
        if program == "rm":
            shutil.rmtree(arguments[-1])
        else:
            assert nights.peerglass(*arguments).code == 0
    assert (folder / "model.safetensors").read_bytes() == whole
    assert nights.night().code == 0


def test_a_champion_whose_run_is_gone_is_missing_data(nights: Nights) -> None:
    champion = nights.rows("nights")["version"][-1]
    shutil.rmtree(nights.folder / "runs" / champion.partition("/")[0])
    failed = nights.night()
    assert failed.code == 3
    assert f"The run of {champion} is not under" in failed.err
