"""What is watched of the signals: their realised skill with its CUSUM, drift, and their behaviour.

Shape suffixes: T sessions, N firms, V validation sessions.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.forecasts.daily import SortedPanel, daily_metrics
from backtest.inference.means import mean_test
from backtest.monitoring import (
    Cusum,
    Distribution,
    SkillReference,
    agreement_of,
    bin_shares,
    detector_limit,
    ks_distance,
    lower_cusum,
    mean_dispersion,
    rank_turnover,
    reference_of,
    stability_index,
    stretches,
    typical_delay,
)
from features.arithmetic.rolling import lag
from features.arrays import BoolArray, DateArray, Float32Array, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from features.library.sets import RELATIVE, channels_of, characteristics_of
from features.panel.derived import take_sessions
from features.panel.panel import Panel, to_panel
from pipelines.config.schema import Config
from pipelines.config.sections import FeaturesConfig
from pipelines.dataset.build import add_features
from pipelines.dataset.characteristics import INPUT_PREFIX, own_values
from pipelines.files import write_table
from pipelines.format import abbreviate
from pipelines.nightly.data import NightData, signal_history
from pipelines.nightly.result import ModelVersion, NightFinding, verdict
from pipelines.nightly.scoring import scoring_market, seed_forecasts
from pipelines.results.evaluate import ensemble, label_overlap
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import RecordedRun, list_records, open_run
from pipelines.settings import Settings
from pipelines.train.task import collect_arrays

HORIZON: Final = 250  # sessions over which the probability of a false alarm counts
_MIN_SESSIONS: Final = 5  # sessions that a mean, or a median to compare with, needs
_MIN_SLACK: Final = 0.05  # for a reference without skill, which has nothing to lose: the CUSUM detects losses
_REALISED: Final = {
    **{"session": pl.Date, "role": pl.String, "version": pl.String},
    **{"firms": pl.Int64, "ic": pl.Float64, "rank_ic": pl.Float64},
}
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
    own = series.filter(pl.col("role") == "champion").sort("session")["value"]
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
        for role in ("champion", *(["challenger"] if with_challenger else []))
    ]
    finding, table = _watch(config, realised.filter(pl.col("role") == "champion"), reference)
    return [*findings, finding], {"realised_ic": realised, "cusum": table}


def realised_ic(config: Config, data: NightData, signals: pl.DataFrame) -> pl.DataFrame:
    """Measure signals at the trained delay on every session whose label has ended by the night."""
    label, panel = config.label, data.market.panel
    known = panel.n_sessions - label.delay - label.horizon
    dates_T = panel.dates_T
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
    limit = detector_limit(slack, settings.cusum_false_alarms, sessions=HORIZON)
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
        delay = f", and finds a complete loss of skill after about {typical_delay(slack, limit):.0f} sessions"
        sentence = (
            f"The CUSUM of realised rank IC is {value:.1f}, below its limit of {limit:.1f}; it compares with "
            f"{expected}{delay if slack > _MIN_SLACK else ''}."
        )
        return NightFinding("cusum", "ok", sentence, value=value, limit=limit), table
    quiet = np.flatnonzero(~cusum.alarm_T)
    started = int(quiet[-1]) + 1 if len(quiet) else 0
    ended = np.flatnonzero(cusum.alarm_T[:started])
    after = int(ended[-1]) + 1 if len(ended) else 0  # a loss before an earlier alarm is not this one
    gain_T = np.cumsum((base.mean - realised["rank_ic"].to_numpy()[after:started]) / base.std - slack)
    low = after + int(np.argmin(np.append(0.0, gain_T)))  # the maximum-likelihood estimate of the change
    mean = float(realised["rank_ic"][low:].mean())  # type: ignore[arg-type]  # a mean of floats
    sentence = (
        f"The champion forecasts worse than its backtest since {table['session'][low]}: its mean rank IC is "
        f"{mean:+.4f} against {expected}, and the CUSUM reached its limit of {limit:.1f} on "
        f"{table['session'][started]}. Look for changes in the data first; then train a new version and "
        "promote it."
    )
    return NightFinding("cusum", "warn", sentence, value=value, limit=limit), table


def realised_overlap(config: Config, sessions: pl.Series) -> int:
    """Count the consecutive sessions of realised rank ICs whose labels overlap."""
    overlap = config.label.horizon
    if config.label.forecast_frequency != "daily":
        days: IntArray = sessions.to_physical().to_numpy().astype(np.int64)
        overlap = label_overlap(days * 5 // 7, overlap)  # calendar days -> sessions
    return overlap


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
    test = mean_test(rank_ic_T, overlap=realised_overlap(config, recent["session"]))
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
    """Distribution of daily rank IC in the newest backtest like the champion's, else on its validation."""
    output = Path(config.output)
    own = open_run(champion.run_id, output)
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
    """Daily rank IC of a version on its last fold's validation, on which it was selected: too high."""

    def measure() -> pl.DataFrame:
        fold = last_fold(run)
        dataset = add_features(scoring_market(run, data), data.tables, _with_names(run))
        dates_T = dataset.panel.dates_T
        inside_T = between(dates_T, fold["valid_from"], fold["valid_to"])
        sessions = np.flatnonzero(inside_T & dataset.universe_TN.any(axis=1))
        arrays = collect_arrays(dataset, run.config.features.window)
        forecasts = seed_forecasts(run, model, fold["fold"], arrays, sessions)
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


_NUMBERS: Final = ("psi", "psi_limit", "ks", "ks_limit", "missing", "missing_in_training", "missing_limit")
_SCHEMA: Final = {
    "feature": pl.String,
    "kind": pl.String,
    **dict.fromkeys(_NUMBERS, pl.Float64),
    "drifted": pl.Boolean,
}


def drift(
    config: Config, data: NightData, champion: ModelVersion
) -> tuple[list[NightFinding], dict[str, pl.DataFrame]]:
    """Compare features with the training; one whose PSI and KS are both above their limits has drifted."""
    training = training_distributions(config, data, champion)
    trained = {RawFeature(row["feature"], row["kind"]): row for row in training.iter_rows(named=True)}
    run = open_run(champion.run_id, Path(config.output))
    newest = newest_values(run.config, data, list(trained), config.nightly.monitoring.sessions)
    rows = [_compare(config, trained[feature], values_M) for feature, values_M in newest]
    table = pl.DataFrame(rows, schema=_SCHEMA, orient="row").with_columns(pl.col(_NUMBERS).fill_nan(None))
    findings = [*_findings(table), _summary(config, table, training)]
    return findings, {"drift": table}


def _compare(config: Config, trained: dict[str, Any], values_M: np.ndarray) -> tuple[object, ...]:
    """Compare one feature's newest values with its training: a row of the table."""
    limits, usual = config.nightly.monitoring, trained["missing"]
    whole = Distribution(np.asarray(trained["points"], dtype=np.float64), usual)
    missing_limit = max(config.nightly.checks.max_missing, usual, trained["block_missing"] or 0.0)
    psi_limit = max(limits.psi, trained["block_psi"] or 0.0)
    ks_limit = max(limits.ks, trained["block_ks"] or 0.0)
    psi = ks = missing = math.nan
    if len(values_M):
        psi = stability_index(np.asarray(trained["shares"]), bin_shares(values_M, whole.edges_E))
        own = Distribution.of(values_M)
        ks, missing = ks_distance(whole.points_Q, own.points_Q), own.missing
    numbers = (psi, psi_limit, ks, ks_limit, missing, usual, missing_limit)
    return (trained["feature"], trained["kind"], *numbers, psi > psi_limit and ks > ks_limit)


def _findings(table: pl.DataFrame) -> Iterator[NightFinding]:
    """Name the features that have drifted, and those that are missing more often than in training."""

    def warning(check: str, row: dict[str, Any], sentence: str, value: str, limit: str) -> NightFinding:
        kind = "channel " if row["kind"] == "channel" else ""  # it may have the name of a characteristic
        said = f"The {row['kind']} {row['feature']} {sentence}"
        return NightFinding(check, "warn", said, f"{kind}{row['feature']}", row[value], row[limit])

    for row in table.filter("drifted").iter_rows(named=True):
        sentence = (
            f"has drifted from the champion's training: its stability index is {row['psi']:.2f} (limit "
            f"{row['psi_limit']:.2f}) and its Kolmogorov-Smirnov distance {row['ks']:.2f} (limit "
            f"{row['ks_limit']:.2f}). Look at its source; a new training learns the new distribution."
        )
        yield warning("feature_drift", row, sentence, "psi", "psi_limit")
    above = table.filter(pl.col("missing") > pl.col("missing_limit"))
    for row in above.iter_rows(named=True):
        sentence = (
            f"is missing for {row['missing']:.0%} of the universe, against {row['missing_in_training']:.0%} "
            "in training; check what it is computed from. The transform replaces missing values, so the "
            "model does not notice."
        )
        yield warning("missing", row, sentence, "missing", "missing_limit")
    known = table.drop_nulls("missing").sort(pl.col("missing") - pl.col("missing_limit"))
    if above.is_empty() and known.height:
        worst = known.row(-1, named=True)
        sentence = (
            f"No feature is missing more often than allowed; {worst['feature']} comes closest with "
            f"{worst['missing']:.1%} (limit {worst['missing_limit']:.1%})."
        )
        yield NightFinding("missing", "ok", sentence, None, worst["missing"], worst["missing_limit"])


def _summary(config: Config, table: pl.DataFrame, training: pl.DataFrame) -> NightFinding:
    """Say how many features have drifted; a warning if these are more than allowed."""
    limit = config.nightly.monitoring.drifted
    drifted = table.filter("drifted").sort("psi", descending=True)["feature"].to_list()
    share = len(drifted) / table.height
    first, last = training["train_from"][0], training["train_to"][0]
    base = (
        f"{len(drifted)} of {table.height} features have drifted on the last "
        f"{config.nightly.monitoring.sessions} sessions against the training ({first} to {last})"
    )
    if drifted:
        base += f": {abbreviate(drifted, 5)}"
    cure = (
        ". Check the source for a change of units or coverage; if the market has changed, train a new "
        "version."
    )
    return verdict("drift", base, cure, fine=share <= limit, value=share, limit=limit)


_REGISTRIES: Final = {"characteristic": characteristics_of, "channel": channels_of}
_TOGETHER: Final = 8  # features computed at once; more share intermediate results but need more memory


@dataclass(frozen=True, slots=True)
class RawFeature:
    """A feature that a model was trained on: its name and kind (characteristic, channel or input)."""

    name: str
    kind: str


def raw_features(run: RecordedRun) -> list[RawFeature]:
    """Return the raw features that a run was trained on; indicators of missing values are left out."""
    names: Mapping[str, Any] = run.identity.settings["features"]
    found = {kind: list[str]() for kind in ("characteristic", "channel", "input")}
    found["channel"] = names["channels"]
    registry = characteristics_of(names.get("expressions"))
    for name in names["characteristics"]:
        if name in registry:
            found["characteristic"].append(name)
        elif name.startswith(INPUT_PREFIX):
            found["input"].append(name)
    return [RawFeature(name, kind) for kind, listed in found.items() for name in listed]


def raw_values(
    panel: Panel, tables: Mapping[str, pl.DataFrame], features: Sequence[RawFeature], settings: FeaturesConfig
) -> Iterator[tuple[RawFeature, Float32Array]]:
    """Compute features of a panel one after the other, as float32 of shape (T, N); NaN means unknown.

    A channel that a window gives relative to its last session is the value of the session before, over that
    of the channel that divides it.
    """
    unknown_TN = np.full((panel.n_sessions, panel.n_firms), np.nan, dtype=np.float32)
    for kind, registry_of in _REGISTRIES.items():
        registry = registry_of(settings.expressions)
        wanted = [feature.name for feature in features if feature.kind == kind]
        usable = set(registry.available(panel, wanted)[0])
        for start in range(0, len(wanted), _TOGETHER):
            some = wanted[start : start + _TOGETHER]
            relative = {name: RELATIVE[name] for name in some if kind == "channel" and name in RELATIVE}
            given = [name for name in dict.fromkeys((*some, *relative.values())) if name in usable]
            values = dict.fromkeys(given, unknown_TN)
            if given:
                values |= zip(given, np.moveaxis(registry.compute(panel, given), 2, 0), strict=True)
            for name in some:
                values_TN = values.get(name, unknown_TN)
                if name in relative:
                    base_TN = values.get(relative[name], unknown_TN)
                    with np.errstate(divide="ignore", invalid="ignore"):
                        values_TN = (lag(values_TN.astype(np.float64), 1) / base_TN).astype(np.float32)
                yield RawFeature(name, kind), values_TN
    inputs = tables.get("inputs")
    for feature in (one for one in features if one.kind == "input"):
        if inputs is None:
            yield feature, unknown_TN
        else:
            own = inputs.filter(pl.col("name") == feature.name.removeprefix(INPUT_PREFIX))
            yield feature, own_values(own, panel, settings.hold_inputs).astype(np.float32)


def newest_values(
    config: Config, data: NightData, features: Sequence[RawFeature], sessions: int
) -> Iterator[tuple[RawFeature, Float32Array]]:
    """Compute features on the newest sessions only: of each, its values in the universe, shape (M,)."""
    hold = config.features.hold_inputs
    registries = {kind: of(config.features.expressions) for kind, of in _REGISTRIES.items()}
    windows = [
        (hold + 2 if hold else 1) if one.kind == "input" else registries[one.kind][one.name].window
        for one in features
    ]
    whole = data.market.panel
    panel = take_sessions(whole, max(whole.n_sessions - sessions - max(windows, default=1), 0))
    inside_RN: BoolArray = data.market.universe_TN[-sessions:]
    for feature, values_TN in raw_values(panel, data.tables, features, config.features):
        yield feature, values_TN[-len(inside_RN) :][inside_RN]


_MAX_VALUES: Final = 400_000  # values measured per feature: every k-th session has the same distribution
_TRAINING_SCHEMA: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(("feature", "kind"), pl.String),
    **dict.fromkeys(("points", "shares"), pl.List(pl.Float64)),
    **dict.fromkeys(("missing", "block_psi", "block_ks", "block_missing"), pl.Float64),
    **dict.fromkeys(("train_from", "train_to"), pl.Date),
}


def training_distributions(config: Config, data: NightData, version: ModelVersion) -> pl.DataFrame:
    """Return every feature's distribution in training; ``block_``: 95% quantiles over stretches, or null."""
    run, block = open_run(version.run_id, Path(config.output)), config.nightly.monitoring.sessions
    panel, universe_TN = data.market.panel, data.market.universe_TN

    def measure() -> pl.DataFrame:
        fold = last_fold(run)
        dates_T = panel.dates_T
        sessions: IntArray = np.flatnonzero(between(dates_T, fold["train_from"], fold["train_to"]))
        stride = max(1, int(np.ceil(universe_TN[sessions].sum() / _MAX_VALUES)))
        length = max(1, round(block / stride))
        span = {name: fold[name] for name in ("train_from", "train_to")}
        rows = [
            {"feature": feature.name, "kind": feature.kind, **span}
            | stretches(values_TN, universe_TN, sessions[::stride], length)
            for feature, values_TN in raw_values(panel, data.tables, raw_features(run), run.config.features)
        ]
        return pl.DataFrame(rows, schema=_TRAINING_SCHEMA)

    return computed_once(run, version.model, f"training-{block}", measure)


def last_fold(run: RecordedRun) -> dict[str, Any]:
    """Return the first and last days of the segments of a run's newest fold."""
    folds = run.read_table("folds")
    assert folds is not None, "a trained run has stored its folds"
    return folds.sort("fold").row(-1, named=True)


def between(dates_T: DateArray, first: dt.date, last: dt.date) -> BoolArray:
    """Which sessions lie between two days, both included."""
    return (dates_T >= np.datetime64(first)) & (dates_T <= np.datetime64(last))


def computed_once(
    run: RecordedRun, model: str, name: str, compute: Callable[[], pl.DataFrame]
) -> pl.DataFrame:
    """Return a stored table of a version, or compute and store it."""
    path = run.folder / "monitoring" / model / f"{name}.parquet"
    if path.is_file():
        return pl.read_parquet(path)
    frame = compute()
    write_table(path, frame)
    return frame
