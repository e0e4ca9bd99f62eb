"""What is watched of the signals: their realised skill with its CUSUM, drift, and their behaviour.

Shape suffixes: T sessions, N firms, V validation sessions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.forecasts.daily import SortedPanel, daily_metrics
from backtest.inference.means import mean_test
from backtest.monitoring.behaviour import agreement_of, mean_dispersion, rank_turnover
from backtest.monitoring.cusum import Cusum, SkillReference, limit_for, lower_cusum, mean_delay, reference_of
from features.arrays import FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from features.panel.panel import to_panel
from pipelines.config.schema import Config
from pipelines.dataset.build import add_features
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.nightly.data import NightData, signal_history
from pipelines.nightly.monitor.drift import between, computed_once, drift, last_fold, raw_features
from pipelines.nightly.result import CHALLENGER, CHAMPION, ModelVersion, NightFinding, verdict
from pipelines.nightly.scoring import scoring_market
from pipelines.results.evaluate import ensemble, label_overlap
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import RecordedRun, list_records, open_run
from pipelines.settings import Settings
from pipelines.train.task import collect_arrays, to_tensors

HORIZON: Final = 250
"""Sessions over which the probability of a false alarm counts."""
_MIN_SESSIONS: Final = 5
"""Sessions that a mean, or a median to compare with, needs."""
_MIN_SLACK: Final = 0.05
"""Slack for a reference without skill: there is nothing to lose, and the CUSUM then detects losses."""

_KEY: Final = {"session": pl.Date, "role": pl.String, "version": pl.String}
_REALISED: Final = {**_KEY, "firms": pl.Int64, "ic": pl.Float64, "rank_ic": pl.Float64}
_CUSUM: Final = {
    **{"session": pl.Date, "version": pl.String},
    **dict.fromkeys(("rank_ic", "sum", "limit"), pl.Float64),
    "alarm": pl.Boolean,
}


@dataclass(frozen=True, slots=True, eq=False)
class Monitoring:
    """What the monitoring of a night found; tables by name, as the page and the metrics read them."""

    findings: list[NightFinding]
    tables: Mapping[str, pl.DataFrame]


def monitor(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> Monitoring:
    """Monitor the signals of a night, which are stored before, and of the nights before it."""
    signals = signal_history(config, data, champion, challenger).drop_nulls("signal")
    findings, tables = _skill(config, data, champion, signals, with_challenger=challenger is not None)
    of_features, drifted = drift(config, data, champion)
    limits = config.nightly.monitoring
    newest = signals["session"].unique().sort().tail(limits.sessions + 1)
    recent = signals.filter(pl.col("session").is_in(newest.implode()))
    tables |= drifted | {
        "dispersion": mean_dispersion(recent),
        "turnover": rank_turnover(recent),
        "agreement": agreement_of(recent),
    }
    findings += of_features
    findings += _ratio_finding(
        tables["dispersion"].select("session", "role", value="mean_dispersion"),
        "seed_dispersion",
        limits.dispersion,
        "mean seed dispersion",
        "The seeds disagree more than usual: look at the drift of the features, and train a new version "
        "if it stays.",
    )
    findings += _ratio_finding(
        tables["turnover"].select("session", "role", value="turnover"),
        "turnover",
        limits.turnover,
        "turnover of the signal",
        "The signal changes faster than usual, and costs rise with it: look for corrected prices and "
        "for features that jump.",
    )
    tonight = tables["agreement"].filter(pl.col("session") == data.session)["rank_correlation"].drop_nulls()
    if challenger is not None and len(tonight):
        value, limit = float(tonight[0]), limits.agreement
        base = f"The signals of champion and challenger have a rank correlation of {value:+.2f}"
        otherwise = (
            f" (limit {limit:+.2f}), so a promotion would change most of the book; compare both versions "
            "with 'peerglass compare' before it."
        )
        findings.append(verdict("agreement", base, otherwise, fine=value >= limit, value=value, limit=limit))
    return Monitoring(findings, tables)


def _ratio_finding(
    series: pl.DataFrame, check: str, limit: float, what: str, cure: str
) -> list[NightFinding]:
    """Compare the newest value of the champion with the median of those before; nothing without values."""
    own = series.filter(pl.col("role") == CHAMPION).sort("session")["value"]
    if own.is_empty():
        return []
    newest, before = float(own[-1]), own[:-1]
    base = f"The {what} is {newest:.3f}"
    if len(before) < _MIN_SESSIONS:
        sentence = f"{base}; {_MIN_SESSIONS} earlier sessions are needed to compare it with."
        return [NightFinding(check, "ok", sentence, value=newest)]
    usual = float(before.median())  # type: ignore[arg-type]  # a median of floats
    ratio = newest / usual if usual > 0 else (math.inf if newest > 0 else 1.0)
    base += f", {ratio:.1f} times its median of {usual:.3f} over {len(before)} sessions"
    otherwise = f" (limit {limit:g}). {cure}"
    return [verdict(check, base, otherwise, fine=ratio <= limit, value=ratio, limit=limit)]


def _skill(
    config: Config, data: NightData, champion: ModelVersion, signals: pl.DataFrame, *, with_challenger: bool
) -> tuple[list[NightFinding], dict[str, pl.DataFrame]]:
    """Measure past signals against the labels that are known at the night, and watch the champion's."""
    realised = realised_ic(config, data, signals)
    reference = backtest_reference(config, data, champion)
    findings = [
        _mean_finding(config, realised.filter(pl.col("role") == role), role, reference)
        for role in (CHAMPION, *([CHALLENGER] if with_challenger else []))
    ]
    finding, table = _watch(config, realised.filter(pl.col("role") == CHAMPION), reference)
    return [*findings, finding], {"realised_ic": realised, "cusum": table}


def realised_ic(config: Config, data: NightData, signals: pl.DataFrame) -> pl.DataFrame:
    """Measure signals on every session whose label has ended by the night.

    The label is that of the dataset, at the trained delay: it ends ``delay + horizon`` sessions after the
    session, and the firms are those with a signal, which is the universe.
    """
    label, panel = config.label, data.market.panel
    known = panel.n_sessions - label.delay - label.horizon
    dates_T = panel.dates_T.astype("datetime64[D]")
    parts = [pl.DataFrame(schema=_REALISED)]
    for (role,), part in signals.drop_nulls("signal").partition_by("role", as_dict=True).items():
        rows = np.flatnonzero(np.isin(dates_T, part["session"].unique().to_numpy().astype("datetime64[D]")))
        rows = rows[rows < known]
        if not len(rows):
            continue
        signal_TN = to_panel(part.rename({"session": "date"}), "signal", panel)
        label_RN = np.where(data.market.universe_TN[rows], data.market.labels[label.delay][rows], np.nan)
        daily = daily_metrics(SortedPanel("signal", signal_TN[rows]), SortedPanel("label", label_RN))
        versions = part.select("session", "version").unique()
        figures = {"firms": daily.pairs_T, "ic": daily.ic_T, "rank_ic": daily.rank_ic_T}
        measured = pl.DataFrame({"session": dates_T[rows], **figures}).with_columns(role=pl.lit(role))
        measured = measured.filter(pl.col("rank_ic").is_not_nan())
        parts.append(measured.join(versions, on="session", how="left").select(*_REALISED))
    return pl.concat(parts).sort("role", "session")


def watch_skill(
    config: Config, rank_ic_T: np.ndarray, replaced_T: np.ndarray, reference: BacktestReference
) -> tuple[Cusum, float, float]:
    """Run the CUSUM of a champion's realised rank ICs with the settings of a config."""
    settings, base = config.nightly.monitoring, reference.reference
    slack = max(base.mean / base.std / 2.0, _MIN_SLACK)
    limit = limit_for(slack, settings.cusum_false_alarms, sessions=HORIZON, n=base.n)
    return lower_cusum(rank_ic_T, base, slack=slack, limit=limit, replaced_T=replaced_T), slack, limit


def _watch(
    config: Config, realised: pl.DataFrame, found: BacktestReference | None
) -> tuple[NightFinding, pl.DataFrame]:
    """Run the CUSUM of the champion, and say where it stands."""
    if found is None:
        sentence = (
            "There is nothing to compare realised rank ICs with: the champion's rank IC does not vary on its "
            "validation sessions. Train a model that makes forecasts."
        )
        return NightFinding("reference", "warn", sentence), pl.DataFrame(schema=_CUSUM)
    versions = realised["version"]
    replaced_T = (versions != versions.shift(1)).fill_null(value=False).to_numpy()
    cusum, slack, limit = watch_skill(config, realised["rank_ic"].to_numpy(), replaced_T, found)
    table = realised.select("session", "version", "rank_ic").with_columns(
        pl.Series("sum", cusum.sum_T, dtype=pl.Float64),
        pl.lit(limit).alias("limit"),
        pl.Series("alarm", cusum.alarm_T, dtype=pl.Boolean),
    )
    base = found.reference
    expected = f"the rank IC of {base.mean:+.4f} (daily deviation {base.std:.4f}) in {found.origin}"
    if not table.height:
        sentence = f"No label of a night is known yet; expected is {expected}."
        return NightFinding("cusum", "ok", sentence, limit=limit), table
    value = float(cusum.sum_T[-1])
    if not cusum.alarm_T[-1]:
        delay = mean_delay(slack, limit, shift=base.mean / base.std)
        sentence = (
            f"The CUSUM of realised rank IC is {value:.1f}, below its limit of {limit:.1f}; it compares with "
            f"{expected}, and finds a complete loss of skill after {delay:.0f} sessions on average."
        )
        return NightFinding("cusum", "ok", sentence, value=value, limit=limit), table
    quiet = np.flatnonzero(~cusum.alarm_T)
    started = int(quiet[-1]) + 1 if len(quiet) else 0
    zero = np.flatnonzero(cusum.sum_T[:started] == 0.0)
    low = int(zero[-1]) + 1 if len(zero) else 0  # the maximum-likelihood estimate of the change
    mean = float(realised["rank_ic"][low:].mean())  # type: ignore[arg-type]  # a mean of floats
    sentence = (
        f"The champion forecasts worse than its backtest since {table['session'][low]}: its mean rank IC is "
        f"{mean:+.4f} against {expected}, and the CUSUM reached its limit of {limit:.1f} on "
        f"{table['session'][started]}. Look for changes in the data first; then train a new version and "
        "promote it."
    )
    return NightFinding("cusum", "warn", sentence, value=value, limit=limit), table


def _mean_finding(
    config: Config, realised: pl.DataFrame, role: str, found: BacktestReference | None
) -> NightFinding:
    """Compare the mean realised rank IC of the last sessions with the backtest's."""
    recent = realised.tail(config.nightly.monitoring.sessions)
    rank_ic_T = recent["rank_ic"].to_numpy()
    if len(rank_ic_T) < _MIN_SESSIONS:
        sentence = (
            f"The labels of {len(rank_ic_T)} sessions of the {role} are known; {_MIN_SESSIONS} are needed "
            "for a mean."
        )
        return NightFinding("realised_ic", "ok", sentence, subject=role)
    overlap = config.label.horizon
    if config.label.forecast_frequency != "daily":
        days: IntArray = recent["session"].to_physical().to_numpy().astype(np.int64)
        overlap = label_overlap(days * 5 // 7, overlap)  # calendar days -> sessions
    test = mean_test(rank_ic_T, overlap=overlap)
    limit = None if found is None else found.reference.mean
    base = (
        f"The mean rank IC of the {role} on {test.n} sessions is {test.mean:+.4f} (95% interval "
        f"{test.lower:+.4f} to {test.upper:+.4f})"
    )
    fine = limit is None or math.isnan(test.upper) or test.upper >= limit
    if fine and limit is not None:
        base += f"; its backtest had {limit:+.4f}"
    otherwise = (
        f", below the {limit:+.4f} of its backtest. A smaller IC than in a backtest is usual; if it "
        "stays, train a new version."
    )
    return verdict("realised_ic", base, otherwise, fine=fine, value=test.mean, limit=limit, subject=role)


@dataclass(frozen=True, slots=True)
class BacktestReference:
    """The distribution of daily rank IC in a backtest, and where it is from, as it stands in sentences."""

    reference: SkillReference
    origin: str


def backtest_reference(config: Config, data: NightData, champion: ModelVersion) -> BacktestReference | None:
    """Return the distribution of daily rank IC in the newest complete walk-forward run like the champion's.

    Only sessions before the night's are used. Without such a run, it is the distribution on the champion's
    validation sessions. None if the rank IC does not vary.
    """
    output = Path(config.output)
    own = open_run(champion.run_id, output)
    assert own.identity is not None, "an opened run has recorded its identity"
    mine = _compared(own.identity.settings, champion.model)
    for folder, record in list_records(output):
        settings = record["identity"]["settings"]
        untested = settings["folds"]["scheme"] in ("live", "combinatorial")
        if untested or _compared(settings, champion.model) != mine:
            continue
        run = open_run(str(folder), output)
        if run.config.name != config.name:
            continue
        rank_ic_T = _rank_ics(run, champion.model, config.label.delay, data)
        reference = None if rank_ic_T is None else reference_of(rank_ic_T, config.label.horizon)
        if reference is not None:
            return BacktestReference(reference, f"the backtest {run.run_id} ({reference.n} sessions)")
    rank_ic_V = validation_ics(own, champion.model, data)["rank_ic"].to_numpy()
    reference = reference_of(rank_ic_V, config.label.horizon)
    if reference is None:
        return None
    return BacktestReference(
        reference,
        f"its {reference.n} validation sessions, which it was selected on, so that this is too high "
        "('peerglass run CONFIG' makes a backtest to compare with)",
    )


def _compared(settings: Mapping[str, Any], model: str) -> Settings:
    """The parts of a run's identity that must be the champion's, so that its ICs are what these should be."""
    label = {key: value for key, value in settings["label"].items() if key != "max_delay"}  # only purges
    same = {part: settings[part] for part in ("universe", "features", "seeds")}
    return {**same, "label": label, "model": settings["models"].get(model)}


def _rank_ics(run: RecordedRun, model: str, delay: int, data: NightData) -> FloatArray | None:
    """Return the daily rank ICs of a run's newest complete evaluation; None if it has none."""
    own = (pl.col("model") == model) & (pl.col("delay") == delay) & (pl.col("date") < data.session)
    for evaluation in list_evaluations(run):
        if evaluation.record.incomplete is None:
            rank_ic_T = evaluation.table("ic_series").filter(own)["rank_ic"].drop_nulls().to_numpy()
            if np.isfinite(rank_ic_T).sum() > 1:
                return rank_ic_T
    return None


def validation_ics(run: RecordedRun, model: str, data: NightData) -> pl.DataFrame:
    """Return the daily rank IC of a version's seed ensemble on the validation sessions of its last fold.

    The model was selected on these sessions, so the mean is too high. Computed once per version.
    """

    def measure() -> pl.DataFrame:
        fold = last_fold(run)
        dataset = add_features(scoring_market(run, data), data.tables, _with_names(run))
        dates_T = dataset.panel.dates_T.astype("datetime64[D]")
        inside_T = between(dates_T, fold["valid_from"], fold["valid_to"])
        sessions = np.flatnonzero(inside_T & dataset.universe_TN.any(axis=1))
        arrays = collect_arrays(dataset, run.config.features.window)
        forecasts = {}
        for seed in run.config.seeds:
            fitted, inputs = load_checkpoint(run.checkpoint(model, fold["fold"], seed))
            tensors = to_tensors(arrays, inputs, "cpu")
            forecasts[seed] = fitted.forecast(tensors, sessions).astype(np.float64)
        rank_ic_V = rank_ic_by_date(ensemble(forecasts), arrays.label_TN[sessions])
        frame = pl.DataFrame({"session": dates_T[sessions], "rank_ic": rank_ic_V})
        return frame.filter(pl.col("rank_ic").is_not_nan())

    return computed_once(run, model, "validation", measure)


def _with_names(run: RecordedRun) -> Config:
    """Return a run's config with the features that it was trained on; newer data may give more."""
    names = {
        f"{kind}s": tuple(
            one.name.removeprefix(INPUT_PREFIX) for one in raw_features(run) if one.kind == kind
        )
        for kind in ("channel", "characteristic", "input")
    }
    return run.config.model_copy(update={"features": run.config.features.model_copy(update=names)})
