"""What a night has to tell: a failure, a warning that the last night did not have, or a recovery."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.config.nightly import AlertsConfig
from pipelines.config.schema import Config
from pipelines.files import write_text
from pipelines.nightly.result import Finding, NightResult
from pipelines.nightly.tables import read_warnings
from pipelines.secrets import redact

Kind = Literal["failure", "warning", "recovery"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One message.

    Attributes
    ----------
    kind
        ``failure``, ``warning`` or ``recovery``.
    title, text
        One line, and the sentences under it, without secrets.
    findings
        The findings that it is about.
    """

    kind: Kind
    title: str
    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def key(self) -> str:
        """The same for two alerts about the same thing: digest of kind, title and checks."""
        about = repr((self.kind, self.title, sorted((f.check, f.subject or "") for f in self.findings)))
        return hashlib.sha256(about.encode()).hexdigest()[:16]

    def document(self, result: NightResult) -> dict[str, Any]:
        """The alert as JSON for a command."""
        return {
            "kind": self.kind,
            "title": self.title,
            "text": self.text,
            "config": result.config,
            "session": str(result.session),
            "state": result.state,
            "error": result.error,
            "findings": [
                {**asdict(finding), "sentence": redact(finding.sentence)} for finding in self.findings
            ],
            "page": str(result.folder / "nightly.html"),
        }


def alert_of(result: NightResult, *, failed_before: bool = False) -> Alert | None:
    """Return the alert of a night; None if there is nothing new.

    Parameters
    ----------
    result
        The night.
    failed_before
        Whether an earlier attempt at this session failed and was reported.
    """
    name = f"{result.config} {result.session}"
    serious = tuple(finding for finding in result.findings if finding.level != "ok")
    if result.state == "failed":
        sentences = [result.error or "The night failed.", *(finding.sentence for finding in serious)]
        return Alert("failure", f"{name}: the night failed", _lines(sentences), serious)
    last_state, last_keys = _last_night(result.nights)
    new = tuple(finding for finding in serious if finding.key not in last_keys)
    recovered = failed_before or last_state == "failed" or (last_state == "warned" and not serious)
    if recovered:
        why = "a failure" if failed_before or last_state == "failed" else "its warnings"
        now = [f"The night is {result.state} after {why}.", *(finding.sentence for finding in new)]
        return Alert("recovery", f"{name}: recovered from {why}", _lines(now), new)
    if new:
        count = f"{len(new)} new warning{'' if len(new) == 1 else 's'}"
        return Alert("warning", f"{name}: {count}", _lines([f.sentence for f in new]), new)
    return None


def _last_night(nights: pl.DataFrame) -> tuple[str | None, frozenset[tuple[str, str | None]]]:
    """State of the last night, and the keys of its warnings."""
    if nights.is_empty():
        return None, frozenset()
    row = nights.sort("session", descending=True).row(0, named=True)
    return str(row["state"]), frozenset(finding.key for finding in read_warnings(row["warnings"]))


def _lines(sentences: list[str]) -> str:
    return redact("\n".join(dict.fromkeys(sentences)))


class ChannelError(Exception):
    """An alert could not be delivered; the message says why, without the channel's address."""


def notify(url: str, alert: Alert, timeout: float) -> None:
    """Send an alert to an Apprise URL.

    Apprise's own messages are dropped, because they may hold parts of the URL.

    Raises
    ------
    ChannelError
        If Apprise is not installed, does not know the URL, or the service does not take the message in time.
    """
    try:
        import apprise
    except ImportError:
        raise ChannelError(
            "Apprise is not installed; install the extra with pip install '.[alerts]'"
        ) from None
    kinds = {
        "failure": apprise.NotifyType.FAILURE,
        "warning": apprise.NotifyType.WARNING,
        "recovery": apprise.NotifyType.SUCCESS,
    }
    with _silenced("apprise"):
        channel = apprise.Apprise()
        if not channel.add(url):
            raise ChannelError("Apprise does not know this kind of URL, or it is incomplete")
        taken = channel.notify(
            title=alert.title,
            body=alert.text,
            notify_type=kinds[alert.kind],
            body_format=apprise.NotifyFormat.TEXT,  # services that show HTML escape it
            timeout=timeout,
        )
    if not taken:
        raise ChannelError("the service did not take the message; try the URL with the command 'apprise'")


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Drop what a library logs."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def run_command(command: Sequence[str], document: Mapping[str, Any], timeout: float) -> int:
    """Run a command with JSON on its standard input, without a shell, and return its exit code.

    Its output goes to standard error of this process. A command that takes too long is killed with the
    processes that it started.

    Raises
    ------
    ChannelError
        If the command cannot be started, or takes longer than ``timeout`` seconds.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 (the user's own command, without a shell)
            list(command), stdin=subprocess.PIPE, stdout=2, start_new_session=True
        )
    except OSError as error:
        raise ChannelError(f"it cannot be started ({error.strerror})") from None
    try:
        process.communicate(json.dumps(document).encode() + b"\n", timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise ChannelError(f"it took longer than {timeout:g} s and was killed") from None
    return process.returncode


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
