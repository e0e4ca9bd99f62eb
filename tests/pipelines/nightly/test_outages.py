"""Whole nights while something is gone: the source, the tracking server, the disk's space, the right time.

Also nights that another process plays.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from mlflow_server import mlflow_server, postgres_programs, postgres_server
from warm import PEERGLASS, Process
from yahoo_server import YahooServer, business_days, make_firm

from pipelines.config.load import load_config
from pipelines.lake.lake import Lake
from pipelines.nightly.book.next_book import next_book
from pipelines.nightly.night import play_nights
from pipelines.nightly.result import night_folder, read_signals
from pipelines.nightly.schedule import Clock
from pipelines.run.fetch import make_source
from pipelines.sources import yahoo_answers
from pipelines.sources.base import LiveSource


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The command line, in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capfd)


@pytest.fixture
def settings(tiny: dict[str, Any]) -> dict[str, Any]:
    """A night of seconds: ridge on a few characteristics, no audit and no attribution."""
    names = ["return_1", "return_5", "volatility_21"]
    return {
        **tiny,
        "features": {"window": 5, "channels": ["return"], "characteristics": names},
        "label": {"horizon": 1, "delay": 1},
        "folds": {"scheme": "rolling", "train": 120, "valid": 25, "test": 40, "embargo": 1},
        "models": {"ridge": {}},
        "audit": {"enabled": False},
        "nightly": {"attributed": 0, "retrain": {"when": "never"}, "checks": {"retry_minutes": 0}},
    }


def write_config(settings: dict[str, Any]) -> list[dt.date]:
    """Write the config and return the sessions of its market."""
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    source = make_source(load_config(Path("tiny.yaml")))
    assert not isinstance(source, LiveSource)
    return list(source.fetch().tables["prices"]["date"].unique().sort())


def states() -> dict[dt.date, str]:
    return dict(Lake("lake").read("nights").select("session", "state").iter_rows())


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The database of a tracking server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/backend.db"
        return
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (on Debian: apt install postgresql)")
    folder = tmp_path / "database"
    folder.mkdir()
    with postgres_server(folder, programs) as url:
        yield url


@pytest.mark.slow(14)
def test_a_tracking_server_that_stops_in_mid_night_delays_the_record_alone(
    peerglass: Call, settings: dict[str, Any], backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_config(settings)[-2:]
    server = tmp_path / "server"
    server.mkdir()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    running = mlflow_server(server, backend)
    url = running.__enter__()
    try:
        assert (
            peerglass("nightly", "tiny.yaml", "--date", str(first), "--set", f"tracking.uri={url}").code == 0
        )
        stopped: list[bool] = []

        def stop_and_decide(*given: Any, **named: Any) -> Any:  # noqa: ANN401 (the step's)
            stopped.append(True)
            running.__exit__(None, None, None)
            return next_book(*given, **named)

        monkeypatch.setattr("pipelines.nightly.play.decisions.next_book", stop_and_decide)
        night = peerglass("nightly", "tiny.yaml", "--date", str(second), "--set", f"tracking.uri={url}")
    finally:
        if not stopped:
            running.__exit__(None, None, None)
    assert stopped == [True]
    assert night.code == 6
    assert "signals and the book are done" in night.err
    assert states()[second] == "warned"
    assert Lake("lake").read("signals").filter(session=second).height > 10
    assert Lake("lake").read("books").filter(session=second).height > 3
    spool = Path("runs", "nights", "tiny", "spool")
    assert [path.stem for path in spool.glob("*.json")] == [str(second)]
    again = peerglass("nightly", "tiny.yaml", "--date", str(second), "--set", f"tracking.uri={url}")
    assert (again.code, again.out) == (0, f"tiny: the night of {second} is already done.\n")

    with mlflow_server(server, backend) as back:
        assert peerglass("track", "sync", "tiny.yaml", "--set", f"tracking.uri={back}").code == 0
        from mlflow import MlflowClient

        client = MlflowClient(back)
        (experiment,) = [one for one in client.search_experiments() if one.name == "tiny-nightly"]
        names = [run.info.run_name for run in client.search_runs([experiment.experiment_id])]
    assert sorted(names) == [str(first), str(second)]
    assert not list(spool.glob("*.json"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB in memory; skips where mounting is not allowed."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow(3)
@pytest.mark.parametrize("left", [24_000, 300_000])
def test_a_full_disk_ends_the_night_with_a_sentence_and_the_next_call_completes_it(
    peerglass: Call, settings: dict[str, Any], small_disk: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    monkeypatch.chdir(small_disk)
    features = {
        "folder": str(small_disk.parent / "features")
    }  # they are refused where 256 MiB would not stay free
    day = write_config({**settings, "feature_store": features})[-1]
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    Path("filler").write_bytes(b"0" * (free - left))
    full = peerglass("nightly", "tiny.yaml", "--date", str(day))
    assert full.code == 3, (full.out, full.err)
    assert "The disk is full" in full.err
    assert "Traceback" not in full.err
    Path("filler").unlink()
    completed = peerglass("nightly", "tiny.yaml", "--date", str(day))
    assert completed.code == 0, completed.err
    assert states()[day] in ("done", "warned")
    signals = Lake("lake").read("signals")
    assert signals.height > 10
    assert signals["revision"].unique().to_list() == [1]
    assert not list(small_disk.rglob("*.partial"))


@pytest.mark.slow(3)
def test_a_clock_set_back_by_two_days_changes_neither_order_nor_signals(
    peerglass: Call, settings: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = write_config(settings)[-2:]
    config = load_config(Path("tiny.yaml"))
    now = dt.datetime.now(dt.UTC)
    play_nights(config, first, echo=print, clock=Clock(now=lambda: now))
    play_nights(config, second, echo=print, clock=Clock(now=lambda: now - dt.timedelta(days=2)))
    nights = Lake("lake").read("nights").sort("session")
    assert nights["session"].to_list() == [first, second]
    assert nights["created_at"][1] < nights["created_at"][0]  # the clock names moments and decides nothing
    capfd.readouterr()
    play_nights(config, second, echo=print, clock=Clock(now=lambda: now - dt.timedelta(days=2)))
    assert capfd.readouterr().out.startswith(f"tiny: the night of {second} is already done.")
    assert peerglass("nightly", "tiny.yaml", "--date", str(second)).code == 0
    books = Lake("lake").read("books")
    assert books.select(pl.struct("session", "ticker").is_unique().all()).item()
    assert books["session"].unique().sort().to_list() == [first, second]


HELD_NIGHT = """
import sys, time
from pathlib import Path
from pipelines.nightly.play import decisions
decide = decisions.next_book
def wait_and_decide(*given):
    Path("held").touch()
    while not Path("go").exists():
        time.sleep(0.05)
    return decide(*given)
decisions.next_book = wait_and_decide
from pipelines.cli.main import main
main()
"""


@pytest.mark.slow(8)
def test_of_two_processes_one_plays_the_night_and_the_other_leaves_or_waits(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    day = str(write_config(settings)[-1])
    held = Process(HELD_NIGHT, ["nightly", "tiny.yaml", "--date", day])
    try:
        until = time.monotonic() + 600
        while not Path("held").exists():
            assert held.poll() is None, held.communicate()
            assert time.monotonic() < until
            time.sleep(0.1)
        second = peerglass("nightly", "tiny.yaml", "--date", day)
        assert second.code == 3
        assert "is being written by" in second.err
        assert str(held.pid) in second.err
        assert not Lake("lake").exists("nights"), "the second one has left no trace"
        waiting = Process(PEERGLASS, ["nightly", "tiny.yaml", "--date", day, "--wait"])
        while "is being written by" not in (line := waiting.stderr.readline()):
            assert line, "the third process waits"
    finally:
        Path("go").touch()
        out, err = held.communicate()
    assert held.returncode == 0, err
    assert f"night of {day}: done" in out
    out, err = waiting.communicate()
    assert (waiting.returncode, out) == (0, f"tiny: the night of {day} is already done.\n"), err
    assert Lake("lake").read("nights")["session"].cast(pl.String).to_list() == [day]
    signals = Lake("lake").read("signals")
    assert signals.height > 10
    assert signals["revision"].unique().to_list() == [1]


@pytest.mark.slow(11)
def test_a_process_whose_clock_is_two_days_slow_plays_the_next_night(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    faketime = shutil.which("faketime")
    if faketime is None:
        pytest.skip("faketime is not installed (on Debian: apt install faketime)")
    first, second = write_config(settings)[-2:]
    assert peerglass("nightly", "tiny.yaml", "--date", str(first)).code == 0
    for said in (f"tiny, night of {second}: done", f"tiny: the night of {second} is already done."):
        command = [faketime, "-f", "-2d", sys.executable, "-c", PEERGLASS]
        slow = subprocess.run(
            [*command, "nightly", "tiny.yaml", "--date", str(second)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert slow.returncode == 0, slow.stderr
        assert slow.stdout.startswith(said)
    nights = Lake("lake").read("nights").sort("session")
    assert nights["session"].to_list() == [first, second]
    slowness = nights["created_at"][0] - nights["created_at"][1]
    assert dt.timedelta(days=1.9) < slowness < dt.timedelta(days=2)
    signals = Lake("lake").read("signals")
    assert dict(signals.group_by("session").len().iter_rows()).keys() == {first, second}
    assert signals["revision"].unique().to_list() == [1]


@pytest.mark.slow(4)
def test_yahoo_that_refuses_ends_the_night_with_what_is_missing_and_the_next_call_plays_it(
    peerglass: Call, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers, days = [f"FIRM{i:02d}" for i in range(12)], business_days(dt.date(2024, 4, 1), 60)
    yahoo = {"kind": "yfinance", "tickers": tickers, "start": days[0], "retries": 0, "statements": False}
    settings |= {
        "source": yahoo,
        "quality": {"calendar": "XNYS"},
        "universe": {"min_history": 10},
        "features": {"window": 3, "channels": ["return"], "characteristics": ["return_1", "return_5"]},
        "folds": {"scheme": "rolling", "train": 25, "valid": 8, "test": 5, "embargo": 1},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    firms = [make_firm(ticker, days, seed) for seed, ticker in enumerate(tickers)]
    first, second = days[-2:]
    with YahooServer(firms, dt.datetime(2024, 12, 1, tzinfo=dt.UTC)).running() as server:
        monkeypatch.setattr(yahoo_answers, "ADDRESS", server.address)
        played = peerglass("nightly", "tiny.yaml", "--date", str(first))
        assert played.code == 0, played.err
        before = {table: Lake("lake").read(table) for table in ("signals", "books", "nights", "prices")}
        for kind in ("throttle", "html"):  # 429, and a page instead of JSON
            server.add_fault(kind)
            refused = peerglass("nightly", "tiny.yaml", "--date", str(second))
            assert refused.code == 3
            assert "refused 12 of 12 tickers" in refused.err
            assert "missing: FIRM00, FIRM01, FIRM02, FIRM03, FIRM04 and 7 more" in refused.err
            assert "Nothing was decided; the next call continues from here." in refused.err
            assert "Traceback" not in refused.err
            for table, rows in before.items():
                assert Lake("lake").read(table).equals(rows), (kind, table)
            assert not list(Path("runs").rglob("*.partial"))
            assert "refused 12 of 12 tickers" in Path("runs/nights/tiny/nightly.html").read_text()
            server.clear_faults()
        again = peerglass("nightly", "tiny.yaml", "--date", str(second))
    assert again.code == 0, again.err
    assert states().keys() == {first, second}
    assert Lake("lake").read("prices")["date"].max() == second
    assert Lake("lake").read("signals").filter(session=second, in_universe=True).height == 12


def test_a_missing_file_of_fills_is_named_before_anything_is_trained(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    settings["nightly"]["account"] = {"fills": "fills.csv"}
    days = write_config(settings)
    missing = peerglass("nightly", "tiny.yaml", "--date", str(days[300]))
    assert (missing.code, "no file of fills at" in missing.err) == (3, True), missing.err
    assert not list(Path("runs").glob("tiny-*"))
    assert states() == {days[300]: "failed"}
    Path("fills.csv").write_text("session,ticker,shares,price\n")
    assert peerglass("nightly", "tiny.yaml", "--date", str(days[300])).code == 0
    assert states() == {days[300]: "done"}
    assert list(Path("runs").glob("tiny-*"))


@pytest.mark.slow(5)
def test_a_night_trades_on_its_own_data_though_its_session_was_scored_before_on_others(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    first, second = write_config(settings)[-2:]
    assert peerglass("nightly", "tiny.yaml", "--date", str(first)).code == 0
    assert peerglass("ingest", "tiny.yaml").code == 0
    lake, preliminary = Lake("lake"), pl.col("open", "high", "low", "close") * 1.2
    prices = lake.read("prices", filters=pl.col("date") == second)
    lake.upsert("prices", prices.with_columns(preliminary).head(prices.height // 2))
    assert "Revision 1" in peerglass("signals", "tiny.yaml", "--date", str(second)).out
    assert peerglass("nightly", "tiny.yaml", "--date", str(second)).code == 0
    row = lake.read("nights", filters=pl.col("session") == second).row(0, named=True)
    rows = lake.read("signals", filters=pl.col("session") == second)
    early, own = (rows.filter(revision=number).sort("ticker") for number in (1, 2))
    assert not early["signal"].equals(own["signal"])
    assert own["data_versions"].unique().to_list() == [row["data_versions"]]
    config = load_config(Path("tiny.yaml"))
    told = pl.read_parquet(night_folder(config, second) / "signals.parquet")
    assert told.equals(own)
    assert read_signals(lake, "tiny").filter(session=second).equals(own), "on later nights as well"


@pytest.mark.slow(6)
def test_a_night_trades_by_its_own_config_though_its_session_was_scored_before_by_another(
    peerglass: Call, settings: dict[str, Any]
) -> None:
    first, second = write_config(settings)[-2:]
    assert peerglass("nightly", "tiny.yaml", "--date", str(first)).code == 0
    assert peerglass("ingest", "tiny.yaml").code == 0
    lake, config = Lake("lake"), load_config(Path("tiny.yaml"))
    close = lake.read("prices", filters=pl.col("date") == second)["close"].sort()
    dear = f"universe.min_price={close[len(close) // 2]}"
    half = ("signals", "tiny.yaml", "--date", str(second), "--set", dear)
    for _ in range(2):
        assert "Revision 1 " in peerglass(*half).out
    assert peerglass("nightly", "tiny.yaml", "--date", str(second)).code == 0
    assert "Revision 3 " in peerglass(*half).out, "the night's is not given for that of another universe"
    rows = lake.read("signals", filters=pl.col("session") == second)
    assert rows["data_versions"].n_unique() == 1
    counts = dict(rows.group_by("revision").agg(pl.col("signal").count()).iter_rows())
    assert counts[1] == counts[3] < counts[2]
    own = rows.filter(revision=2).sort("ticker")
    assert pl.read_parquet(night_folder(config, second) / "signals.parquet").equals(own)
    assert read_signals(lake, "tiny").filter(session=second).equals(own), "on later nights as well"
    assert "is already done" in peerglass("nightly", "tiny.yaml").out
