"""Send the alert of a night, and remember in the night's folder what was sent.

Alerts are delivered at least once: a delivery is recorded right after it, so only a kill between the two
repeats it. A channel that does not work is a finding and never ends the night.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.config.nightly.alerts import AlertsConfig
from pipelines.config.schema import Config
from pipelines.files import write_text
from pipelines.nightly.alerts.channels import ChannelError, notify, run_command
from pipelines.nightly.alerts.events import Alert, alert_of
from pipelines.nightly.finding import Finding
from pipelines.nightly.result import NightResult

_RECORD = "alerts.json"
Delivery = Callable[[], int]


def send_alerts(config: Config, result: NightResult) -> list[Finding]:
    """Send the alert of a night to every channel that has not had it yet.

    Parameters
    ----------
    config
        Channels.
    result
        The night.

    Returns
    -------
    list of Finding
        One finding of the check ``alerts`` per channel: delivered, or why not. Empty if there is nothing to
        tell.
    """
    path = result.folder / _RECORD
    sent = _read(path)
    alert = alert_of(result, failed_before=_failed_before(sent))
    if alert is None:
        return []
    done = {one["channel"] for one in sent if one["alert"] == alert.key and one["delivered"]}
    findings = []
    for channel, deliver in _channels(config.nightly.alerts, alert, result):
        if channel in done:
            continue
        problem, code = None, 0
        try:
            code = deliver()
        except ChannelError as error:
            problem = str(error)
        if code:
            problem = f"it ended with exit code {code}"
        entry = {
            "alert": alert.key,
            "kind": alert.kind,
            "channel": channel,
            "delivered": problem is None,
            "exit_code": code,
            "problem": problem,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }
        sent.append(entry)
        write_text(path, json.dumps(sent, indent=1))
        findings.append(_finding(alert, channel, problem))
    return findings


def _channels(settings: AlertsConfig, alert: Alert, result: NightResult) -> Iterator[tuple[str, Delivery]]:
    """Name of each channel, without its address, and what delivers the alert."""
    for number, secret in enumerate(settings.urls, start=1):
        url = secret.get_secret_value()
        yield (
            f"url {number} ({url.partition(':')[0]})",
            partial(_notified, url, alert, settings.timeout_seconds),
        )
    if settings.command is not None:
        document = alert.document(result)
        yield "command", partial(run_command, settings.command, document, settings.timeout_seconds)


def _notified(url: str, alert: Alert, timeout: float) -> int:
    notify(url, alert, timeout)
    return 0


def _finding(alert: Alert, channel: str, problem: str | None) -> Finding:
    if problem is None:
        return Finding("alerts", "ok", f"The {alert.kind} was sent to {channel}.", subject=channel)
    return Finding("alerts", "warn", f"The {alert.kind} could not be sent to {channel}: {problem}.", channel)


def _failed_before(sent: list[dict[str, Any]]) -> bool:
    """Whether a failure of this session was told; a later attempt that succeeds is a recovery."""
    return any(one["kind"] == "failure" for one in sent)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        sent: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return sent
