"""Alerts of a night: when, to whom, once, and what happens if a channel is dead."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import night_results
import pytest

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.nightly.alerts import alert_of, send_alerts
from pipelines.nightly.result import NightFinding, NightResult

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def config(tiny: dict[str, Any], **alerts: object) -> Config:
    return check_config({**tiny, "nightly": {"alerts": alerts}}, origin="alerts")


@pytest.mark.parametrize(
    ("state", "last", "kind"),
    [
        ("done", [], None),
        ("done", ["done"], None),
        ("done", ["failed", "done"], "recovery"),
        ("done", ["warned"], "recovery"),
        ("warned", [], "warning"),
        ("warned", ["done", "warned"], "warning"),
        ("warned", ["warned"], None),
        ("warned", ["failed"], "recovery"),
        ("failed", ["done"], "failure"),
        ("failed", ["failed"], "failure"),
    ],
)
def test_a_night_tells_failures_new_warnings_and_recoveries(
    state: str, last: list[str], kind: str | None, tmp_path: Path
) -> None:
    make = {"done": night_results.done, "warned": night_results.night, "failed": night_results.failed}[state]
    alert = alert_of(replace(make(tmp_path), nights=night_results.nights(last)))
    assert (None if alert is None else alert.kind) == kind


def test_only_the_new_warning_is_told(tmp_path: Path) -> None:
    new = NightFinding("drift", "warn", "size has drifted.", "size")
    result = replace(
        night_results.night(tmp_path),
        findings=(night_results.DRIFT, new),
        nights=night_results.nights(["warned"]),
    )
    alert = alert_of(result)
    assert alert is not None
    assert (alert.kind, alert.findings, alert.text) == ("warning", (new,), new.sentence)


def test_a_command_gets_json_once(tiny: dict[str, Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    settings = config(tiny, command=[sys.executable, "-c", KEEP, str(kept)])
    result = night_results.failed(tmp_path / "night")
    (finding,) = send_alerts(settings, result)
    assert (finding.level, finding.subject) == ("ok", "command")
    assert send_alerts(settings, result) == []
    (line,) = kept.read_text().splitlines()
    told = json.loads(line)
    assert (told["kind"], told["session"], told["error"]) == (
        "failure",
        "2026-11-20",
        night_results.LOST.sentence,
    )
    assert told["findings"][0]["check"] == "coverage"


def test_a_retried_session_recovers_once(tiny: dict[str, Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    settings = config(tiny, command=[sys.executable, "-c", KEEP, str(kept)])
    nights = night_results.nights(["done"])
    failed: NightResult = replace(night_results.failed(tmp_path / "night"), nights=nights)
    send_alerts(settings, failed)
    done = replace(night_results.done(tmp_path / "night"), nights=nights)
    send_alerts(settings, done)
    assert send_alerts(settings, done) == []
    assert [json.loads(line)["kind"] for line in kept.read_text().splitlines()] == ["failure", "recovery"]


@pytest.mark.parametrize(
    ("command", "seconds", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], 60.0, "exit code 7"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], 0.5, "longer than 0.5 s"),
        (["/no/such/command"], 60.0, "cannot be started"),
    ],
)
def test_a_dead_command_is_a_finding_and_is_tried_again(
    command: list[str], seconds: float, why: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(tiny, command=command, timeout_seconds=seconds)
    for _ in range(2):
        (finding,) = send_alerts(settings, night_results.failed(tmp_path / "night"))
        assert finding.level == "warn"
        assert why in finding.sentence
    record = json.loads((tmp_path / "night" / "alerts.json").read_text())
    assert [one["delivered"] for one in record] == [False, False]
    assert record[0]["exit_code"] == (7 if "code 7" in why else 0)


class Inbox(BaseHTTPRequestHandler):
    """A service of Apprise's kind json:// that keeps what it gets; the path /broken answers with 500."""

    messages: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        broken = self.path.startswith("/broken")
        if not broken:
            self.messages.append(json.loads(body))
        self.send_response(500 if broken else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Say nothing."""


@pytest.fixture
def inbox() -> Iterator[str]:
    pytest.importorskip("apprise", reason="the extra alerts is not installed")
    Inbox.messages.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Inbox)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_apprise_delivers_once_and_a_dead_channel_is_tried_again(
    inbox: str, tiny: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = [f"json://user:hunter2222@{inbox}/", f"json://{inbox}/broken/sesame123", "nothing://x"]
    settings = config(tiny, urls=urls)
    assert "hunter2222" not in f"{settings!r}{settings.as_written()}{settings.without_secrets()}"
    result = replace(night_results.failed(tmp_path / "night"), error="The token hunter2222 is old.")
    first = send_alerts(settings, result)
    assert [finding.level for finding in first] == ["ok", "warn", "warn"]
    again = send_alerts(settings, result)
    assert [finding.subject for finding in again] == ["url 2 (json)", "url 3 (nothing)"]
    (message,) = Inbox.messages
    assert message["title"] == "desk 2026-11-20: the night failed"
    assert message["type"] == "failure"
    told = "".join(finding.sentence for finding in (*first, *again))
    record = (tmp_path / "night" / "alerts.json").read_text()
    shown = capfd.readouterr()
    for text in (told, record, shown.out, shown.err):
        assert "sesame123" not in text
        assert "hunter2222" not in text
        assert inbox not in text


def test_a_plugin_of_apprise_gets_title_and_text(tiny: dict[str, Any], tmp_path: Path) -> None:
    apprise = pytest.importorskip("apprise", reason="the extra alerts is not installed")
    got: list[tuple[str, str, str]] = []

    @apprise.decorators.notify(on="peerglasstest")  # type: ignore[untyped-decorator]  # apprise has no types
    def keep(body: str, title: str, notify_type: str, *args: object, **kwargs: object) -> None:
        got.append((title, body, str(getattr(notify_type, "value", notify_type))))

    settings = config(tiny, urls=["peerglasstest://" + "here"])
    nights = night_results.nights(["failed"])
    send_alerts(settings, replace(night_results.night(tmp_path), nights=nights))
    ((title, body, kind),) = got
    assert title == "desk 2026-11-20: recovered from a failure"
    assert night_results.DRIFT.sentence in body
    assert kind == "success"


def test_without_apprise_the_cure_is_named(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    (finding,) = send_alerts(config(tiny, urls=["json://127.0.0.1"]), night_results.failed(tmp_path))
    assert finding.level == "warn"
    assert "pip install '.[alerts]'" in finding.sentence


def test_a_channel_without_a_service_is_a_config_error(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"nightly\.alerts\.urls.*slack://") as caught:
        config(tiny, urls=["slack.com/sesame/token"])
    assert "sesame" not in str(caught.value)
