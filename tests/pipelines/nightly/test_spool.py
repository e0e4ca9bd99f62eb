"""Nights on their way to a real tracking server, which is stopped in the middle and started again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import night_results
import polars as pl
import pytest
from command import Call, command
from live_versions import Versions
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun
from mlflow_server import mlflow_server

from pipelines.config.schema import Config
from pipelines.errors import TrackingError
from pipelines.files import write_text
from pipelines.nightly.result import NightFinding, NightResult, night_folder
from pipelines.nightly.spool import describe_synced, spool, spooled, sync
from pipelines.nightly.versions import Reason, set_alias
from pipelines.progress import Progress
from pipelines.tracking import store
from pipelines.tracking.store import log_artifacts

DAYS = tuple(dt.date(2026, 11, day) for day in (18, 19, 20))


@dataclass
class Server:
    """A tracking server that can be stopped and started; it keeps its data and its address."""

    folder: Path
    backend: str
    running: ExitStack
    uri: str = ""

    def start(self) -> None:
        port = int(self.uri.rpartition(":")[2]) if self.uri else None
        self.uri = self.running.enter_context(mlflow_server(self.folder, self.backend, port))

    def stop(self) -> None:
        self.running.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server on SQLite; whole nights also use PostgreSQL (`test_outages`)."""
    with ExitStack() as running:
        one = Server(tmp_path, f"sqlite:///{tmp_path}/server.db", running)
        one.start()
        yield one


def night(config: Config, versions: Versions, session: dt.date) -> NightResult:
    """The outcome of a night with a page and a table in its folder."""
    folder = night_folder(config, session)
    write_text(folder / "nightly.html", f"<p>{session}</p>")
    write_text(folder / "monitor" / "cusum.csv", "session,sum\n")
    tickers = ["A", "B", "C", "D", "E", "F", "G"]
    realised = pl.DataFrame(
        {"session": DAYS[:2], "role": ["champion"] * 2, "ic": [0.1, 0.2], "rank_ic": [0.3, 0.4]}
    )
    profits = pl.DataFrame(
        {
            "session": [dt.date(2026, 10, 30), *DAYS[:2]],
            "nav": [1000.0, 1010.0, 990.0],
            "gross": [1000.0, 1012.0, 995.0],
            "pnl": [5.0, 10.0, -20.0],
            "revision": [0.0, 0.0, 10.0],
        }
    )
    return NightResult(
        config="tiny",
        session=session,
        state="warned",
        folder=folder,
        champion=versions.old,
        challenger=None,
        signals=night_results.signals(tickers, versions.old),
        book=night_results.book(tickers),
        findings=(night_results.DRIFT, NightFinding("coverage", "ok", "All firms have a price.")),
        tables={"realised_ic": realised, "profits": profits},
        nights=pl.DataFrame(),
        promotions=pl.DataFrame(),
        seconds={"ingest": 1.5, "score": 2.5},
    )


def runs_of(server: Server) -> list[MlflowRun]:
    client = MlflowClient(tracking_uri=server.uri)
    experiment = client.get_experiment_by_name("tiny-nightly")
    assert experiment is not None
    runs: list[MlflowRun] = client.search_runs(
        [experiment.experiment_id], order_by=["tags.`peerglass.session`"]
    )
    return runs


@dataclass(frozen=True)
class Contents:
    """What the store says of a night."""

    run: dict[str, Any]
    values_of_metrics: dict[str, int]
    files: list[str]


def contents(server: Server) -> list[Contents]:
    client = MlflowClient(tracking_uri=server.uri)
    return [
        Contents(
            one.to_dictionary(),
            {key: len(client.get_metric_history(one.info.run_id, key)) for key in one.data.metrics},
            sorted(file.path for file in client.list_artifacts(one.info.run_id)),
        )
        for one in runs_of(server)
    ]


@pytest.mark.slow(13)
def test_nights_wait_for_a_server_that_stops_and_arrive_once(
    server: Server,
    versions: Versions,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = versions.config.model_copy(
        update={"tracking": versions.config.tracking.model_copy(update={"uri": server.uri})}
    )
    lake, progress = versions.lake, Progress()
    set_alias(lake, "tiny", "champion", versions.old, Reason("first", "ann@desk"))
    first = night(config, versions, DAYS[0])
    spool(config, first)
    assert sync(config, lake, progress).nights == (DAYS[0],)
    assert spooled(config, print) == []
    (run,) = runs_of(server)
    assert (run.info.run_name, run.info.status) == ("2026-11-18", "FINISHED")
    assert (run.data.tags["state"], run.data.tags["champion"]) == ("warned", str(versions.old))
    shown = {key: run.data.metrics[key] for key in ("signals", "seconds.score", "findings.warn", "seconds")}
    assert shown == {"signals": 7, "seconds.score": 2.5, "findings.warn": 1, "seconds": 4}
    trades = first.book.filter(pl.col("trade") != 0)
    assert run.data.metrics["trades"] == trades.height > 0
    assert run.data.metrics["turnover"] == pytest.approx(trades["trade"].abs().sum() / 2)
    assert run.data.metrics["realised.champion.rank_ic"] == 0.4
    earned = {name: run.data.metrics[f"account.{name}"] for name in ("nav", "pnl", "pnl_month", "return")}
    assert earned == {"nav": 990.0, "pnl": -20.0, "pnl_month": 0.0, "return": pytest.approx(-20 / 1010)}
    note = run.data.tags["mlflow.note.content"]
    assert f"`{versions.old}` gave 7 signals." in note
    assert f"has {trades.height} trades" in note
    assert "P&L -20, NAV 990." in note
    assert f"- {night_results.DRIFT.sentence}" in note
    assert run.data.tags["mlflow.user"]
    assert run.data.tags["mlflow.source.name"]
    client = MlflowClient(tracking_uri=server.uri)
    assert client.get_registered_model("tiny.ridge").aliases == {"champion": "1"}
    files = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert {"nightly.html", "monitor"} <= files

    # the server stops while the second of the nights is sent
    paths = [spool(config, night(config, versions, day)) for day in DAYS[1:]]
    records = {path: path.read_text() for path in paths}

    def stop_and_upload(client: MlflowClient, mlflow_run: str, files: Mapping[str, Path]) -> None:
        server.stop()
        log_artifacts(client, mlflow_run, files)

    with monkeypatch.context() as patched:
        patched.setattr(store, "log_artifacts", stop_and_upload)
        with pytest.raises(TrackingError):
            sync(config, lake, progress)
    peerglass: Call = command(monkeypatch, capfd)
    gone = peerglass("track", "sync", str(versions.file), "--set", f"tracking.uri={server.uri}")
    assert gone.code == 6
    assert "cannot be used" in gone.err
    assert {path: path.read_text() for path in paths} == records, "the records wait unchanged"

    server.start()
    answer = peerglass("track", "sync", str(versions.file), "--set", f"tracking.uri={server.uri}")
    assert answer.code == 0, answer.err
    assert answer.out == (
        f"tiny: 2 nights sent (2026-11-19 to 2026-11-20); versions with an alias: {versions.old}.\n"
    )
    assert spooled(config, print) == []
    assert [one.info.run_name for one in runs_of(server)] == [str(day) for day in DAYS]

    # a process that is killed between sending and removing sends again
    before = contents(server)
    assert {number for one in before for number in one.values_of_metrics.values()} == {1}
    for path, text in records.items():
        path.write_text(text)
    assert sync(config, lake, progress).nights == DAYS[1:]
    assert contents(server) == before


@pytest.mark.slow(3)
def test_a_night_that_failed_and_was_repeated_is_one_run(versions: Versions) -> None:
    config, client = versions.config, MlflowClient(tracking_uri=versions.config.tracking.uri)
    good = night(config, versions, DAYS[0])
    failed = replace(good, state="failed", error="The source did not answer.", champion=None)
    seen = []
    for result in (failed, good):
        spool(config, result)
        spool(config, result)  # a second attempt replaces the record
        sync(config, versions.lake, Progress())
        experiment = client.get_experiment_by_name("tiny-nightly")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        seen.append((run.info.status, run.data.tags["state"], run.data.tags.get("peerglass.error")))
    assert seen == [("FAILED", "failed", "The source did not answer."), ("FINISHED", "warned", None)]


def test_nothing_to_send_is_said(versions: Versions) -> None:
    synced = sync(versions.config, versions.lake, Progress())
    assert describe_synced(synced, versions.config) == "tiny: 0 nights sent; versions with an alias: none."


@pytest.mark.parametrize("damage", [b'{"config": 1}', b"", b"\xff\xfe\x00", b"another night's"])
def test_a_damaged_record_is_set_aside_and_the_others_are_sent(
    versions: Versions, damage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    config = versions.config
    paths = [spool(config, night(config, versions, day)) for day in DAYS]
    paths[1].write_bytes(paths[0].read_bytes() if damage.startswith(b"another") else damage)
    capfd.readouterr()
    assert sync(config, versions.lake, Progress()).nights == (DAYS[0], DAYS[2])
    said = capfd.readouterr().err
    assert "record of the night of 2026-11-19 is damaged" in said
    assert [path.name for path in paths[0].parent.iterdir()] == ["2026-11-19.json.damaged"]
    assert sync(config, versions.lake, Progress()).nights == ()
    assert "damaged" not in capfd.readouterr().err
