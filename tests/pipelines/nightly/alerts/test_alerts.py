"""Alerts of a night: when, to whom, once, and what happens if a channel is dead."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import night_results
import pytest

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.nightly.alerts.events import alert_of
from pipelines.nightly.alerts.send import send_alerts
from pipelines.nightly.finding import Finding
from pipelines.nightly.result import NightResult

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"


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
    new = Finding("drift", "warn", "size has drifted.", "size")
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
    ("command", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], "exit code 7"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "longer than 0.5 s"),
        (["/no/such/command"], "cannot be started"),
    ],
)
def test_a_dead_command_is_a_finding_and_is_tried_again(
    command: list[str], why: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(tiny, command=command, timeout_seconds=0.5)
    for _ in range(2):
        (finding,) = send_alerts(settings, night_results.failed(tmp_path / "night"))
        assert finding.level == "warn"
        assert why in finding.sentence
    record = json.loads((tmp_path / "night" / "alerts.json").read_text())
    assert [one["delivered"] for one in record] == [False, False]
    assert record[0]["exit_code"] == (7 if "code 7" in why else 0)
