"""The behaviour of the signals: seed dispersion, turnover, and agreement of champion and challenger.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from backtest.monitoring.behaviour import agreement_of, mean_dispersion, rank_turnover
from pipelines.config.schema import Config
from pipelines.nightly.data import NightData, signal_history
from pipelines.nightly.monitor.drift import drift
from pipelines.nightly.monitor.skill import skill
from pipelines.nightly.result import Finding, ModelVersion
from pipelines.nightly.tables import CHAMPION

_MIN_SESSIONS: Final = 5
"""Sessions that are needed for a median to compare with."""


def behaviour(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> tuple[list[Finding], dict[str, pl.DataFrame]]:
    """Compare the signals of the night with those of the nights before, and with the challenger's."""
    signals = signal_history(config, data, champion, challenger).drop_nulls("signal")
    limits = config.nightly.monitoring
    recent = signals.filter(pl.col("session").is_in(_newest(signals, limits.sessions + 1).implode()))
    dispersion, turnover, agreement = mean_dispersion(recent), rank_turnover(recent), agreement_of(recent)
    findings = [
        _ratio_finding(
            dispersion.select("session", "role", value="mean_dispersion"),
            "seed_dispersion",
            limits.dispersion,
            "mean seed dispersion",
            "The seeds disagree more than usual: look at the drift of the features, and train a new version "
            "if it stays.",
        ),
        _ratio_finding(
            turnover.select("session", "role", value="turnover"),
            "turnover",
            limits.turnover,
            "turnover of the signal",
            "The signal changes faster than usual, and costs rise with it: look for corrected prices and "
            "for features that jump.",
        ),
    ]
    if challenger is not None:
        findings.append(_agreement_finding(agreement, data, limits.agreement))
    tables = {"dispersion": dispersion, "turnover": turnover, "agreement": agreement}
    return [finding for finding in findings if finding is not None], tables


def _newest(signals: pl.DataFrame, sessions: int) -> pl.Series:
    return signals["session"].unique().sort().tail(sessions)


def _ratio_finding(series: pl.DataFrame, check: str, limit: float, what: str, cure: str) -> Finding | None:
    """Compare the newest value of the champion with the median of those before; None without values."""
    own = series.filter(pl.col("role") == CHAMPION).sort("session")["value"]
    if own.is_empty():
        return None
    newest, before = float(own[-1]), own[:-1]
    if len(before) < _MIN_SESSIONS:
        sentence = (
            f"The {what} is {newest:.3f}; {_MIN_SESSIONS} earlier sessions are needed to compare it with."
        )
        return Finding(check, "ok", sentence, value=newest)
    usual = float(before.median())  # type: ignore[arg-type]  # a median of floats
    ratio = newest / usual if usual > 0 else (math.inf if newest > 0 else 1.0)
    base = (
        f"The {what} is {newest:.3f}, {ratio:.1f} times its median of {usual:.3f} over {len(before)} sessions"
    )
    if ratio <= limit:
        return Finding(check, "ok", f"{base}.", value=ratio, limit=limit)
    return Finding(check, "warn", f"{base} (limit {limit:g}). {cure}", value=ratio, limit=limit)


def _agreement_finding(agreement: pl.DataFrame, data: NightData, limit: float) -> Finding | None:
    tonight = agreement.filter(pl.col("session") == data.session)["rank_correlation"].drop_nulls()
    if tonight.is_empty():
        return None
    value = float(tonight[0])
    base = f"The signals of champion and challenger have a rank correlation of {value:+.2f}"
    if value >= limit:
        return Finding("agreement", "ok", f"{base}.", value=value, limit=limit)
    sentence = (
        f"{base} (limit {limit:+.2f}), so a promotion would change most of the book; compare both versions "
        "with 'peerglass compare' before it."
    )
    return Finding("agreement", "warn", sentence, value=value, limit=limit)


@dataclass(frozen=True, slots=True, eq=False)
class Monitoring:
    """What the monitoring of a night found; tables by name, as the page and the metrics read them."""

    findings: tuple[Finding, ...]
    tables: Mapping[str, pl.DataFrame]


def monitor(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> Monitoring:
    """Monitor the signals of a night, which are stored before, and of the nights before it."""
    parts = (
        skill(config, data, champion, challenger),
        drift(config, data, champion),
        behaviour(config, data, champion, challenger),
    )
    tables: dict[str, pl.DataFrame] = {}
    for _, part in parts:
        tables |= part
    return Monitoring(tuple(finding for found, _ in parts for finding in found), tables)
