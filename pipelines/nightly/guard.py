"""The guard of a promotion: whether a version may become the champion, and every reason why not."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.inference.anytime import BURN_IN, confidence_sequence
from backtest.inference.inferiority import inferiority_test
from features.arrays import FloatArray
from features.information_coefficient import rank_ic_by_date
from features.panel.panel import to_panel
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.result import (
    FINISHED,
    ModelVersion,
    Promotion,
    follow,
    known_renames,
    read_nights,
    read_signals,
)
from pipelines.nightly.versions import champion, failed_checks, missing_seeds, open_version
from pipelines.results.evaluate import label_overlap
from pipelines.run.record import RecordedRun
from pipelines.tracking.store import audit_verdict

_TIGHTEST: Final = 60  # horizons after which the confidence sequence is narrowest


def judge_promotion(
    config: Config, lake: Lake, market: Market, version: ModelVersion, *, every_night: bool = False
) -> Promotion:
    """Judge a version: complete, audited, and not worse than the champion by more than the margin.

    The test (`backtest.inference.inferiority`) is one-sided, on paired daily rank ICs of shadow sessions,
    because a new version of the same model is hardly ever measurably better. It holds for one look: asked
    ``every_night``, a worse version would pass sooner or later. Its sessions are then always the first
    ``min_sessions``, so that a refusal stands. With ``nightly.promotion.proof`` all sessions count, and a
    confidence sequence (`backtest.inference.anytime`), which holds for all nights together, must exclude a
    larger loss.
    """
    evidence: dict[str, Any] = {"version": str(version)}
    try:
        run = open_version(version, Path(config.output))
    except (ConfigError, DataError) as error:
        return Promotion(passed=False, reasons=(str(error),), evidence=evidence)
    evidence["audit"], missing = audit_verdict(run), missing_seeds(run, version.model)
    reasons, current = list[str](), champion(lake, config.name)
    if missing is not None:
        reasons.append(f"{version} is incomplete: {missing}; run 'peerglass train {version.run_id}'.")
    if evidence["audit"] is None:
        reasons.append(f"{version} was never audited; run: peerglass audit {version.run_id}.")
    elif evidence["audit"] == "skipped":
        reasons.append(f"The audit of {version} examined nothing: it skipped every check (audit.skip).")
    elif evidence["audit"] == "fail":
        reasons.append(f"{version} failed its audit: {', '.join(failed_checks(run))}.")
    if current is not None and current != version:
        shadow, faults = _shadow(config, lake, market, version, run, current, every_night=every_night)
        evidence |= shadow
        reasons += faults
    return Promotion(passed=not reasons, reasons=tuple(reasons), evidence=evidence)


def _shadow(  # noqa: PLR0917  # the nights, then the two versions
    config: Config,
    lake: Lake,
    market: Market,
    version: ModelVersion,
    run: RecordedRun,
    current: ModelVersion,
    *,
    every_night: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Compare a version with the champion on the shadow sessions: evidence, and reasons against it."""
    settings = config.nightly.promotion
    try:
        of_champion = open_version(current, Path(config.output))
    except DataError:  # its folder is gone; its signals are those of nights after the challenger's training
        of_champion = run
    ics = shadow_ics(lake, config, market, {current: of_champion, version: run})
    if every_night and not settings.proof:
        ics = ics.head(settings.min_sessions)
    n = ics.height
    evidence: dict[str, Any] = {"champion": str(current), "sessions": n, "margin": settings.margin}
    if n < settings.min_sessions:
        return evidence, [
            f"{version} has {n} shadow sessions with a known label, and nightly.promotion.min_sessions is "
            f"{settings.min_sessions}; wait for more nights."
        ]
    sessions = market.panel.dates_T.searchsorted(ics["session"].to_numpy())
    overlap = max(label_overlap(np.asarray(sessions), config.label.horizon), 1)
    own_T, champion_T = ics[str(version)].to_numpy(), ics[str(current)].to_numpy()
    test = inferiority_test(own_T, champion_T, margin=settings.margin, overlap=overlap, level=settings.level)
    found = {name: getattr(test, name) for name in ("difference", "lower", "upper", "p_value")}
    if settings.proof:
        lower_T, upper_T = confidence_sequence(
            own_T - champion_T, overlap=overlap, level=2 * settings.level, tightest=_TIGHTEST * overlap
        )
        # the bounds hold on all nights together, so the narrowest of them do
        found |= {"lower": np.fmax.reduce(lower_T), "upper": np.fmin.reduce(upper_T), "p_value": math.nan}
    evidence |= {"first": str(ics["session"][0]), "last": str(ics["session"][-1]), "level": settings.level}
    evidence |= {"rank_ic": ics[str(version)].mean(), "rank_ic_champion": ics[str(current)].mean()}
    evidence |= {name: None if math.isnan(value) else float(value) for name, value in found.items()}
    if settings.proof:
        if found["lower"] > -settings.margin:
            return evidence, []
        bound = f"at least {found['lower']:+.4f}" if n >= BURN_IN * overlap else "not yet bounded"
        return evidence, [
            f"{version} is not proved to be as good as the champion {current}, less nightly.promotion.margin "
            f"({settings.margin:g}): over {n} shadow sessions the difference of their mean rank ICs is "
            f"{test.difference:+.4f}, and in the long run {bound}; it has bounds from "
            f"{BURN_IN * overlap} sessions on."
        ]
    if not test.is_worse:
        return evidence, []
    final = " Its first sessions decide, so that every later night says the same." if every_night else ""
    return evidence, [
        f"{version} is worse than the champion {current}: its mean rank IC over {n} shadow sessions is "
        f"{-test.difference:.4f} lower (p = {test.p_value:.3f}), and nightly.promotion.margin allows "
        f"{settings.margin:g}.{final}"
    ]


def night_signals(
    lake: Lake, config: Config, market: Market, runs: Mapping[ModelVersion, RecordedRun]
) -> dict[ModelVersion, FloatArray]:
    """Read signals that nights used, shape (T, N), from the session on that the versions' runs saw last."""
    arrays = {}
    renames = known_renames(lake, market.panel.dates_T[-1].item())
    nights = read_nights(lake, config.name).filter(pl.col("state").is_in(FINISHED))
    for version, run in runs.items():
        used = nights.filter(pl.any_horizontal(pl.col("version", "challenger") == str(version)))
        rows = follow(read_signals(lake, config.name, version=version), renames)
        unseen = rows.filter(pl.col("session") >= run.config.through)
        at_night = unseen.join(used, on="session", how="semi").rename({"session": "date"})
        arrays[version] = to_panel(at_night, "signal", market.panel)
    return arrays


def shadow_ics(
    lake: Lake, config: Config, market: Market, runs: Mapping[ModelVersion, RecordedRun]
) -> pl.DataFrame:
    """Daily rank ICs on what all versions forecast unseen: session, firms, and a column per version."""
    signals = night_signals(lake, config, market, runs)
    label_TN = market.labels[config.label.delay]
    known_TN = np.logical_and.reduce([np.isfinite(x_TN) for x_TN in (label_TN, *signals.values())])
    ics = {
        str(version): rank_ic_by_date(np.where(known_TN, signal_TN, np.nan), label_TN)
        for version, signal_TN in signals.items()
    }
    measured_T = np.logical_and.reduce([np.isfinite(ic_T) for ic_T in ics.values()])
    days, firms = market.panel.dates_T, known_TN.sum(axis=1)
    return pl.DataFrame({"session": days, "firms": firms, **ics}).filter(pl.Series(measured_T))
