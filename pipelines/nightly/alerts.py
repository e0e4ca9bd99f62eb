"""What a night tells people and machines: alerts, and metrics for Prometheus.

Metrics are in the text format 0.0.4 of the Prometheus documentation ("Exposition formats"), for the textfile
collector of node_exporter. The file is replaced atomically, so that a scrape never reads half of it.
"""

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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.config.nights import AlertsConfig
from pipelines.config.schema import Config
from pipelines.files import write_text
from pipelines.nightly.result import NightFinding, NightResult, peak_memory_bytes, read_warnings
from pipelines.secrets import redact

Kind = Literal["failure", "warning", "recovery"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One message: a title of one line, and the sentences under it, without secrets."""

    kind: Kind
    title: str
    text: str
    findings: tuple[NightFinding, ...] = ()

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
    last = result.nights.sort("session").tail(1)
    last_state = last["state"].item() if last.height else None
    last_keys = {one.key for text in last["warnings"] for one in read_warnings(text)}
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


def _lines(sentences: list[str]) -> str:
    return redact("\n".join(dict.fromkeys(sentences)))


class ChannelError(Exception):
    """An alert could not be delivered; the message says why, without the channel's address."""


def notify(url: str, alert: Alert, timeout: float) -> None:
    """Send an alert to an Apprise URL, without Apprise's messages, which may hold parts of the URL."""
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
    logging.getLogger("apprise").disabled = True
    channel = apprise.Apprise()
    if not channel.add(url):
        raise ChannelError("Apprise does not know this kind of URL, or it is incomplete")
    if not channel.notify(
        title=alert.title,
        body=alert.text,
        notify_type=kinds[alert.kind],
        body_format=apprise.NotifyFormat.TEXT,  # services that show HTML escape it
        timeout=timeout,
    ):
        raise ChannelError("the service did not take the message; try the URL with the command 'apprise'")


def run_command(command: Sequence[str], document: Mapping[str, Any], timeout: float) -> int:
    """Run a command with JSON on its standard input, without a shell; its exit code. Slow ones are killed."""
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


def send_alerts(config: Config, result: NightResult) -> list[NightFinding]:
    """Send the alert of a night to every channel that has not had it yet."""
    path, sent = result.folder / _RECORD, list[dict[str, Any]]()
    if path.is_file():
        sent = json.loads(path.read_text(encoding="utf-8"))
    alert = alert_of(result, failed_before=any(one["kind"] == "failure" for one in sent))
    if alert is None:
        return []
    done = {one["channel"] for one in sent if one["alert"] == alert.key and one["delivered"]}
    findings = []
    for channel, deliver in _channels(config.nightly.alerts, alert, result):
        if channel in done:
            continue
        problem, code = None, 0
        try:
            code = deliver() or 0
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
        said = f"was sent to {channel}" if problem is None else f"could not be sent to {channel}: {problem}"
        level: Literal["ok", "warn"] = "ok" if problem is None else "warn"
        findings.append(NightFinding("alerts", level, f"The {alert.kind} {said}.", channel))
    return findings


def _channels(
    settings: AlertsConfig, alert: Alert, result: NightResult
) -> Iterator[tuple[str, Callable[[], int | None]]]:
    """Name of each channel, without its address, and what delivers the alert."""
    seconds = settings.timeout_seconds
    for number, secret in enumerate(settings.urls, start=1):
        url = secret.get_secret_value()
        yield f"url {number} ({url.partition(':')[0]})", partial(notify, url, alert, seconds)
    if settings.command is not None:
        yield "command", partial(run_command, settings.command, alert.document(result), seconds)


IC_SESSIONS = 20  # sessions of the mean realised rank IC
Metric = tuple[str, str, Sequence[tuple[object, Mapping[str, str]]]]  # name, help, values with labels


def write_metrics(config: Config, result: NightResult) -> list[NightFinding]:
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
        return [NightFinding("metrics", "warn", sentence)]
    return []


def metrics_text(result: NightResult, now: dt.datetime) -> str:
    """Write the metrics of a night as text; a value that is not known has no line."""
    lines: list[str] = []
    for name, text, values in _metrics(result, now):
        known = [
            _line(f"peerglass_night_{name}", float(value), {"config": result.config, **labels})
            for value, labels in values
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        if known:
            lines += [f"# HELP peerglass_night_{name} {text}", f"# TYPE peerglass_night_{name} gauge", *known]
    return "\n".join(lines) + "\n"


def _metrics(result: NightResult, now: dt.datetime) -> Iterator[Metric]:
    well = result.nights.filter(pl.col("state") != "failed").sort("session")["created_at"].to_list()
    succeeded: list[dt.datetime] = [*well, *([] if result.state == "failed" else [now])]
    figures = {
        "last_run_timestamp_seconds": ("Time at which the newest night ended.", now.timestamp()),
        "last_success_timestamp_seconds": (
            "Time at which the last night ended that did not fail.",
            succeeded[-1].timestamp() if succeeded else None,
        ),
        "session_timestamp_seconds": (
            "Midnight UTC of the newest night's session.",
            dt.datetime.combine(result.session, dt.time(), dt.UTC).timestamp(),
        ),
        "signals": ("Signals of the champion.", result.signal_count),
        "trades": ("Orders of the book.", result.trade_count),
        "turnover_ratio": ("One-way turnover of the book.", result.turnover),
        "expected_cost_ratio": ("Expected cost of the orders over NAV.", result.expected_cost),
        **_monitored(result),
        "peak_memory_bytes": ("Peak resident memory of the process.", peak_memory_bytes()),
    }
    for name, (text, value) in figures.items():
        yield name, text, [(value, {})]
    states = [(float(state == result.state), {"state": state}) for state in ("done", "warned", "failed")]
    yield "state", "State of the newest night: 1 for the state that it is in.", states
    steps = [(seconds, {"step": step}) for step, seconds in result.seconds.items()]
    yield "step_seconds", "Wall-clock seconds by step.", steps
    warnings = Counter(finding.check for finding in result.findings if finding.level != "ok")
    checks = sorted({finding.check for finding in result.findings})
    yield "warnings", "Warnings and failures by check.", [(warnings[one], {"check": one}) for one in checks]


def _monitored(result: NightResult) -> dict[str, tuple[str, object]]:
    """The figures of the monitoring that are known."""
    tables = {name: frame for name, frame in result.tables.items() if not frame.is_empty()}
    found: dict[str, tuple[str, object]] = {}
    if "realised_ic" in tables:
        newest = tables["realised_ic"].filter(pl.col("role") == "champion").sort("session").tail(IC_SESSIONS)
        text = f"Mean realised rank IC of the champion over its last {IC_SESSIONS} sessions with labels."
        found["realised_rank_ic"] = (text, newest["rank_ic"].mean())
    if "cusum" in tables:
        row = tables["cusum"].sort("session").row(-1, named=True)
        found["cusum"] = ("CUSUM of the champion's realised rank IC.", row["sum"])
        found["cusum_limit"] = ("Limit of the CUSUM.", row["limit"])
    if "drift" in tables:
        psi, drifted = tables["drift"]["psi"].max(), tables["drift"]["drifted"].sum()
        found["psi_max"] = ("Largest population stability index of a feature.", psi)
        found["drifted_features"] = ("Features that have drifted.", drifted)
    return found


def _line(name: str, value: float, labels: Mapping[str, str]) -> str:
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    written = ",".join(f'{label}="{text.translate(escaped)}"' for label, text in labels.items())
    return f"{name}{{{written}}} {value:.17g}"
