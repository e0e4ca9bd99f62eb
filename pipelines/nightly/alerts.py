"""What a night tells people and machines: alerts, and metrics for Prometheus.

Metrics are in the text format 0.0.4 of the Prometheus documentation ("Exposition formats"), for the textfile
collector of node_exporter. The file is replaced atomically, so that a scrape never reads half of it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import math
import os
import signal
import subprocess
from collections import Counter
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
from pipelines.nightly.result import Finding, NightResult, peak_memory_bytes, read_warnings
from pipelines.secrets import redact

Kind = Literal["failure", "warning", "recovery"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One message: a title of one line, and the sentences under it, without secrets."""

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
    """Return the alert of a night; None if there is nothing new."""
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
    """Send the alert of a night to every channel that has not had it yet."""
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


IC_SESSIONS = 20
"""Sessions of the mean realised rank IC."""
STATES = ("done", "warned", "failed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric: labels -> value."""

    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge: its name, its help text, and a value for each set of labels."""

    name: str
    help: str
    samples: tuple[Sample, ...]


def write_metrics(config: Config, result: NightResult) -> list[Finding]:
    """Write the metrics of a night to ``nightly.alerts.metrics``; nothing if the config names no file."""
    if config.nightly.alerts.metrics is None:
        return []
    path = Path(config.nightly.alerts.metrics)
    try:
        # the partial file does not end with .prom, so the collector never reads it
        write_text(path, metrics_text(result, dt.datetime.now(dt.UTC)))
    except OSError as error:
        sentence = (
            f"The metrics could not be written to {path} ({error.strerror}); check nightly.alerts.metrics."
        )
        return [Finding("metrics", "warn", sentence)]
    return []


def metrics_text(result: NightResult, now: dt.datetime) -> str:
    """Write the metrics of a night as text; a value that is not known has no line."""
    lines: list[str] = []
    for metric in _metrics(result, now):
        known = [sample for sample in metric.samples if math.isfinite(sample.value)]
        if known:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
            lines += [_line(metric.name, sample, result.config) for sample in known]
    return "\n".join(lines) + "\n"


def _metrics(result: NightResult, now: dt.datetime) -> Iterator[Metric]:
    yield _one("last_run_timestamp_seconds", "Time at which the newest night ended.", now.timestamp())
    success = _last_success(result, now)
    if success is not None:
        yield _one(
            "last_success_timestamp_seconds", "Time at which the last night ended that did not fail.", success
        )
    midnight = dt.datetime.combine(result.session, dt.time(), dt.UTC)
    yield _one(
        "session_timestamp_seconds", "Midnight UTC of the newest night's session.", midnight.timestamp()
    )
    yield Metric(
        "peerglass_night_state",
        "State of the newest night: 1 for the state that it is in.",
        tuple(Sample(float(state == result.state), {"state": state}) for state in STATES),
    )
    yield _one("signals", "Signals of the champion.", float(result.signal_count))
    yield _one("trades", "Orders of the book.", float(result.trade_count))
    yield _one("turnover_ratio", "One-way turnover of the book.", result.turnover)
    yield _one("expected_cost_ratio", "Expected cost of the orders over NAV.", result.expected_cost)
    yield from _monitored(result)
    yield _one("peak_memory_bytes", "Peak resident memory of the process.", float(peak_memory_bytes()))
    yield Metric(
        "peerglass_night_step_seconds",
        "Wall-clock seconds by step.",
        tuple(Sample(float(seconds), {"step": step}) for step, seconds in result.seconds.items()),
    )
    warnings = Counter(finding.check for finding in result.findings if finding.level != "ok")
    yield Metric(
        "peerglass_night_warnings",
        "Warnings and failures by check.",
        tuple(
            Sample(float(warnings[check]), {"check": check})
            for check in sorted({finding.check for finding in result.findings})
        ),
    )


def _monitored(result: NightResult) -> Iterator[Metric]:
    """The figures of the monitoring that are known."""
    tables = {name: frame for name, frame in result.tables.items() if not frame.is_empty()}
    if "realised_ic" in tables:
        newest = tables["realised_ic"].filter(pl.col("role") == "champion").sort("session").tail(IC_SESSIONS)
        help_text = f"Mean realised rank IC of the champion over its last {IC_SESSIONS} sessions with labels."
        yield _one("realised_rank_ic", help_text, newest["rank_ic"].mean())
    if "cusum" in tables:
        row = tables["cusum"].sort("session").row(-1, named=True)
        yield _one("cusum", "CUSUM of the champion's realised rank IC.", row["sum"])
        yield _one("cusum_limit", "Limit of the CUSUM.", row["limit"])
    if "drift" in tables:
        drift = tables["drift"]
        yield _one("psi_max", "Largest population stability index of a feature.", drift["psi"].max())
        yield _one("drifted_features", "Features that have drifted.", drift["drifted"].sum())


def _one(name: str, text: str, value: object) -> Metric:
    """A metric with one value; None is a value that is not known."""
    known = float(value) if isinstance(value, int | float) else math.nan
    return Metric(f"peerglass_night_{name}", text, (Sample(known, {}),))


def _last_success(result: NightResult, now: dt.datetime) -> float | None:
    if result.state != "failed":
        return now.timestamp()
    done = result.nights.filter(pl.col("state") != "failed")
    if done.is_empty():
        return None
    ended: dt.datetime = done.sort("session", descending=True)["created_at"][0]
    return ended.timestamp()


def _line(name: str, sample: Sample, config: str) -> str:
    labels = {"config": config, **sample.labels}
    written = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{written}}} {sample.value:.17g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
