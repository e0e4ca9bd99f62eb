"""Metrics of a night in Prometheus' text format, for node_exporter's textfile collector.

The format is that of the Prometheus documentation, "Exposition formats", text-based format 0.0.4. The file is
replaced atomically, so that a scrape never reads half of it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.config.schema import Config
from pipelines.files import write_text
from pipelines.nightly.book.describe import total
from pipelines.nightly.result import Finding, NightResult
from pipelines.nightly.tables import peak_memory_bytes, signal_count, trade_count

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
    """Write the metrics of a night to ``nightly.alerts.metrics``; nothing if the config names no file.

    Returns
    -------
    list of Finding
        One warning of the check ``metrics`` if the file cannot be written, which never ends a night.
    """
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
    yield _one("signals", "Signals of the champion.", float(signal_count(result)))
    yield _one("trades", "Orders of the book.", float(trade_count(result)))
    yield _one("turnover_ratio", "One-way turnover of the book.", 0.5 * total(result.book["trade"].abs()))
    yield _one(
        "expected_cost_ratio", "Expected cost of the orders over NAV.", total(result.book["expected_cost"])
    )
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
