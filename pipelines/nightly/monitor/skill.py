"""Realised skill: the IC of past signals as their labels become known, and its CUSUM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.forecasts.daily import SortedPanel, daily_metrics
from backtest.inference.means import mean_test
from backtest.monitoring.cusum import Cusum, SkillReference, limit_for, lower_cusum, mean_delay, reference_of
from features.arrays import FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from features.panel.panel import to_panel
from pipelines.config.schema import Config
from pipelines.dataset.build import add_features
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.nightly.data import NightData, signal_history
from pipelines.nightly.monitor.drift import computed_once, features_of
from pipelines.nightly.result import Finding, ModelVersion
from pipelines.nightly.scoring import scoring_market
from pipelines.nightly.tables import CHALLENGER, CHAMPION
from pipelines.results.evaluate import ensemble, label_overlap
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import Run, list_records, open_run
from pipelines.train.task import collect_arrays, to_tensors

HORIZON: Final = 250
"""Sessions over which the probability of a false alarm counts."""
_MIN_SESSIONS: Final = 5

_REALISED: Final = {
    "session": pl.Date,
    "role": pl.String,
    "version": pl.String,
    "firms": pl.Int64,
    "ic": pl.Float64,
    "rank_ic": pl.Float64,
}
_CUSUM: Final = {
    "session": pl.Date,
    "version": pl.String,
    "rank_ic": pl.Float64,
    "sum": pl.Float64,
    "limit": pl.Float64,
    "alarm": pl.Boolean,
}


def skill(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> tuple[list[Finding], dict[str, pl.DataFrame]]:
    """Measure past signals against the labels that are known at the night, and watch the champion's."""
    realised = realised_ic(config, data, signal_history(config, data, champion, challenger))
    reference = backtest_reference(config, data, champion)
    of_champion = realised.filter(pl.col("role") == CHAMPION)
    findings = [
        _mean_finding(config, part, role, reference)
        for role, part in (
            (CHAMPION, of_champion),
            (CHALLENGER, realised.filter(pl.col("role") == CHALLENGER)),
        )
        if role == CHAMPION or challenger is not None
    ]
    finding, table = _watch(config, of_champion, reference)
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
        measured = pl.DataFrame(
            {
                "session": dates_T[rows],
                "firms": daily.pairs_T,
                "ic": daily.ic_T,
                "rank_ic": daily.rank_ic_T,
            }
        ).with_columns(pl.lit(role).alias("role"))
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


_MIN_SLACK: Final = 0.05
"""Slack for a reference without skill: there is nothing to lose, and the CUSUM then detects losses."""


def _watch(
    config: Config, realised: pl.DataFrame, found: BacktestReference | None
) -> tuple[Finding, pl.DataFrame]:
    """Run the CUSUM of the champion, and say where it stands."""
    if found is None:
        sentence = (
            "There is nothing to compare realised rank ICs with: the champion's rank IC does not vary on its "
            "validation sessions. Train a model that makes forecasts."
        )
        return Finding("reference", "warn", sentence), pl.DataFrame(schema=_CUSUM)
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
    delay = mean_delay(slack, limit, shift=base.mean / base.std)
    if not table.height:
        return Finding(
            "cusum", "ok", f"No label of a night is known yet; expected is {expected}.", limit=limit
        ), table
    value = float(cusum.sum_T[-1])
    if not cusum.alarm_T[-1]:
        sentence = (
            f"The CUSUM of realised rank IC is {value:.1f}, below its limit of {limit:.1f}; it compares with "
            f"{expected}, and finds a complete loss of skill after {delay:.0f} sessions on average."
        )
        return Finding("cusum", "ok", sentence, value=value, limit=limit), table
    started = _alarm_start(cusum)
    since, low = table["session"][started], _low_start(cusum, started)
    mean = float(realised["rank_ic"][low:].mean())  # type: ignore[arg-type]  # a mean of floats
    sentence = (
        f"The champion forecasts worse than its backtest since {table['session'][low]}: its mean rank IC is "
        f"{mean:+.4f} against {expected}, and the CUSUM reached its limit of {limit:.1f} on {since}. Look "
        "for changes in the data first; then train a new version and promote it."
    )
    return Finding("cusum", "warn", sentence, value=value, limit=limit), table


def _alarm_start(cusum: Cusum) -> int:
    """First session of the alarm that stands at the end."""
    quiet = np.flatnonzero(~cusum.alarm_T)
    return int(quiet[-1]) + 1 if len(quiet) else 0


def _low_start(cusum: Cusum, alarm: int) -> int:
    """First session of the climb that led to an alarm: the maximum-likelihood estimate of the change."""
    zero = np.flatnonzero(cusum.sum_T[:alarm] == 0.0)
    return int(zero[-1]) + 1 if len(zero) else 0


def _mean_finding(
    config: Config, realised: pl.DataFrame, role: str, found: BacktestReference | None
) -> Finding:
    """Compare the mean realised rank IC of the last sessions with the backtest's."""
    recent = realised.tail(config.nightly.monitoring.sessions)
    rank_ic_T = recent["rank_ic"].to_numpy()
    if len(rank_ic_T) < _MIN_SESSIONS:
        sentence = (
            f"The labels of {len(rank_ic_T)} sessions of the {role} are known; {_MIN_SESSIONS} are needed "
            "for a mean."
        )
        return Finding("realised_ic", "ok", sentence, subject=role)
    overlap = _overlap(config, recent)
    test = mean_test(rank_ic_T, overlap=overlap)
    band = f"95% interval {test.lower:+.4f} to {test.upper:+.4f}"
    limit = None if found is None else found.reference.mean
    base = f"The mean rank IC of the {role} on {test.n} sessions is {test.mean:+.4f} ({band})"
    if limit is None or math.isnan(test.upper) or test.upper >= limit:
        against = "" if limit is None else f"; its backtest had {limit:+.4f}"
        return Finding("realised_ic", "ok", f"{base}{against}.", subject=role, value=test.mean, limit=limit)
    sentence = (
        f"{base}, below the {limit:+.4f} of its backtest. A smaller IC than in a backtest is usual; if it "
        "stays, train a new version."
    )
    return Finding("realised_ic", "warn", sentence, subject=role, value=test.mean, limit=limit)


def _overlap(config: Config, realised: pl.DataFrame) -> int:
    """Number of consecutive sessions whose labels overlap."""
    days: IntArray = realised["session"].to_physical().to_numpy().astype(np.int64)
    if config.label.forecast_frequency == "daily":
        return config.label.horizon
    return label_overlap(days * 5 // 7, config.label.horizon)  # calendar days -> sessions


_SAME: Final = ("universe", "features", "label", "seeds")
"""Parts of a run's identity that must agree, so that its ICs are what the champion's should be."""
_PURGE: Final = "max_delay"
"""Part of the label's settings that changes the purge but not what is forecast."""


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
    for folder, record in list_records(output):
        settings = record["identity"]["settings"]
        if not _is_backtest(settings, own, champion.model):
            continue
        run = open_run(str(folder), output)
        if run.config.name != config.name:
            continue
        rank_ic_T = _rank_ics(run, champion.model, config.label.delay, data)
        if rank_ic_T is not None:
            reference = reference_of(rank_ic_T, config.label.horizon)
            if reference is not None:
                n = reference.n
                return BacktestReference(reference, f"the backtest {run.run_id} ({n} sessions)")
    rank_ic_V = validation_ics(own, champion.model, data)["rank_ic"].to_numpy()
    reference = reference_of(rank_ic_V, config.label.horizon)
    if reference is None:
        return None
    return BacktestReference(
        reference,
        f"its {reference.n} validation sessions, which it was selected on, so that this is too high "
        "('peerglass run CONFIG' makes a backtest to compare with)",
    )


def _is_backtest(settings: dict[str, Any], own: Run, model: str) -> bool:
    """Whether a run's settings are those of the champion but for the folds, which have tests."""
    assert own.identity is not None, "an opened run has recorded its identity"
    mine = own.identity.settings
    if settings["folds"]["scheme"] in ("live", "combinatorial") or model not in settings["models"]:
        return False
    same = all(_without_purge(settings[part]) == _without_purge(mine[part]) for part in _SAME)
    return same and bool(settings["models"][model] == mine["models"][model])


def _without_purge(part: Any) -> Any:  # noqa: ANN401 (settings hold anything)
    return {k: v for k, v in part.items() if k != _PURGE} if isinstance(part, dict) else part


def _rank_ics(run: Run, model: str, delay: int, data: NightData) -> FloatArray | None:
    """Return the daily rank ICs of a run's newest complete evaluation; None if it has none."""
    for evaluation in list_evaluations(run):
        if evaluation.record.incomplete is not None:
            continue
        series = evaluation.table("ic_series").filter(
            (pl.col("model") == model) & (pl.col("delay") == delay) & (pl.col("date") < data.session)
        )
        rank_ic_T = series["rank_ic"].drop_nulls().to_numpy()
        if np.isfinite(rank_ic_T).sum() > 1:
            return rank_ic_T
    return None


def validation_ics(run: Run, model: str, data: NightData) -> pl.DataFrame:
    """Return the daily rank IC of a version's seed ensemble on the validation sessions of its last fold.

    The model was selected on these sessions, so the mean is too high. Computed once per version.
    """
    return computed_once(run, model, "validation", lambda: _measure_validation(run, model, data))


def _measure_validation(run: Run, model: str, data: NightData) -> pl.DataFrame:
    folds = run.read_table("folds")
    assert folds is not None, "a trained run has stored its folds"
    fold = folds.sort("fold").row(-1, named=True)
    dataset = add_features(scoring_market(run, data), data.tables, _with_names(run))
    dates_T = dataset.panel.dates_T.astype("datetime64[D]")
    inside_T = (dates_T >= np.datetime64(fold["valid_from"])) & (dates_T <= np.datetime64(fold["valid_to"]))
    sessions = np.flatnonzero(inside_T & dataset.universe_TN.any(axis=1))
    arrays = collect_arrays(dataset, run.config.features.window)
    forecasts = {}
    for seed in run.config.seeds:
        fitted, inputs = load_checkpoint(run.checkpoint(model, fold["fold"], seed))
        tensors = to_tensors(arrays, inputs, "cpu")
        forecasts[seed] = fitted.forecast(tensors, sessions).astype(np.float64)
    rank_ic_V = rank_ic_by_date(ensemble(forecasts), arrays.label_TN[sessions])
    return pl.DataFrame({"session": dates_T[sessions], "rank_ic": rank_ic_V}).filter(
        pl.col("rank_ic").is_not_nan()
    )


def _with_names(run: Run) -> Config:
    """Return a run's config with the features that it was trained on; newer data may give more."""
    features = features_of(run)
    names = {
        kind: tuple(one.name.removeprefix(INPUT_PREFIX) for one in features if one.kind == kind)
        for kind in ("channel", "characteristic", "input")
    }
    changes = {
        "channels": names["channel"],
        "characteristics": names["characteristic"],
        "inputs": names["input"],
    }
    named = run.config.features.model_copy(update=changes)
    return run.config.model_copy(update={"features": named})
