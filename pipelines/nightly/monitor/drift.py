"""Drift of the features: the newest sessions against the champion's training sessions."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.monitoring.drift import Distribution, bin_shares, ks_distance, stability_index, stretches
from features.arrays import BoolArray, DateArray, Float32Array, IntArray
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.library.registry import Registry
from features.panel.delistings import DelistingRule
from features.panel.panel import Panel, build_panel
from pipelines.config.schema import Config
from pipelines.dataset.characteristics import INPUT_PREFIX, own_values
from pipelines.files import write_table
from pipelines.nightly.data import NightData
from pipelines.nightly.result import ModelVersion, NightFinding, some_of, verdict
from pipelines.run.record import RecordedRun, open_run

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
    """Compare every raw feature of the newest sessions with the champion's training sessions.

    A limit is the larger of the setting and of what one in twenty stretches of the training exceeds. A
    feature has drifted if both its stability index and its Kolmogorov-Smirnov distance are above their
    limits.
    """
    training = training_distributions(config, data, champion)
    trained = {RawFeature(row["feature"], row["kind"]): row for row in training.iter_rows(named=True)}
    newest = newest_values(config, data, list(trained), config.nightly.monitoring.sessions)
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
        base += f": {some_of(drifted)}"
    cure = (
        ". Check the source for a change of units or coverage; if the market has changed, train a new "
        "version."
    )
    return verdict("drift", base, cure, fine=share <= limit, value=share, limit=limit)


_REGISTRIES: Final[Mapping[str, Registry]] = {"characteristic": CHARACTERISTICS, "channel": CHANNELS}
_TOGETHER: Final = 8
"""Features that are computed at once; more share intermediate results but need more memory."""


@dataclass(frozen=True, slots=True)
class RawFeature:
    """A feature that a model was trained on: its name and kind (characteristic, channel or input)."""

    name: str
    kind: str


def raw_features(run: RecordedRun) -> list[RawFeature]:
    """Return the raw features that a run was trained on; indicators of missing values are left out."""
    assert run.identity is not None, "an opened run has recorded its identity"
    names: Mapping[str, Any] = run.identity.settings["features"]
    found = {kind: list[str]() for kind in ("characteristic", "channel", "input")}
    found["channel"] = names["channels"]
    for name in names["characteristics"]:
        if name in CHARACTERISTICS:
            found["characteristic"].append(name)
        elif name.startswith(INPUT_PREFIX):
            found["input"].append(name)
    return [RawFeature(name, kind) for kind, listed in found.items() for name in listed]


def raw_values(
    panel: Panel, tables: Mapping[str, pl.DataFrame], features: Sequence[RawFeature], hold_inputs: int
) -> Iterator[tuple[RawFeature, Float32Array]]:
    """Compute features of a panel one after the other, as float32 of shape (T, N); NaN means unknown.

    Features whose inputs the panel lacks are unknown everywhere. ``hold_inputs`` is the config's setting
    (`pipelines.dataset.characteristics.own_values`).
    """
    unknown_TN = np.full((panel.n_sessions, panel.n_firms), np.nan, dtype=np.float32)
    for kind, registry in _REGISTRIES.items():
        wanted = [feature.name for feature in features if feature.kind == kind]
        usable = set(registry.available(panel, wanted)[0])
        for start in range(0, len(wanted), _TOGETHER):
            some = wanted[start : start + _TOGETHER]
            given = [name for name in some if name in usable]
            values = dict.fromkeys(some, unknown_TN)
            if given:
                values |= zip(given, np.moveaxis(registry.compute(panel, given), 2, 0), strict=True)
            yield from ((RawFeature(name, kind), values_TN) for name, values_TN in values.items())
    inputs = tables.get("inputs")
    for feature in (one for one in features if one.kind == "input"):
        if inputs is None:
            yield feature, unknown_TN
        else:
            own = inputs.filter(pl.col("name") == feature.name.removeprefix(INPUT_PREFIX))
            yield feature, own_values(own, panel, hold_inputs).astype(np.float32)


def newest_values(
    config: Config, data: NightData, features: Sequence[RawFeature], sessions: int
) -> Iterator[tuple[RawFeature, Float32Array]]:
    """Compute features on the newest sessions only: of each, its values in the universe, shape (M,).

    The panel is built from the sessions that these features look back on; values agree with those of the
    whole panel to a relative 1e-9.
    """
    dates_T = data.market.panel.dates_T
    hold = config.features.hold_inputs
    windows = [
        (hold + 2 if hold else 1) if one.kind == "input" else _REGISTRIES[one.kind][one.name].window
        for one in features
    ]
    first = dates_T[max(len(dates_T) - sessions - max(windows, default=1), 0)].astype("datetime64[D]").item()
    panel = build_panel(
        data.tables["prices"].filter(pl.col("date") >= first),
        data.tables.get("securities"),
        data.tables.get("fundamentals"),
        gaps=data.tables.get("gaps"),
        group_by=config.features.group_by,
        delisting_rule=DelistingRule(unknown_return=config.label.unknown_delisting_return),
    )
    firms = np.searchsorted(np.asarray(data.market.panel.tickers_N), np.asarray(panel.tickers_N))
    inside_RN: BoolArray = data.market.universe_TN[-sessions:][:, firms]
    for feature, values_TN in raw_values(panel, data.tables, features, hold):
        yield feature, values_TN[-len(inside_RN) :][inside_RN]


_MAX_VALUES: Final = 400_000
"""Values per feature that are measured. Neighbouring sessions hold nearly the same values, so that every
k-th session has the same distribution."""

_TRAINING_SCHEMA: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(("feature", "kind"), pl.String),
    **dict.fromkeys(("points", "shares"), pl.List(pl.Float64)),
    **dict.fromkeys(("missing", "block_psi", "block_ks", "block_missing"), pl.Float64),
    "blocks": pl.Int64,
    **dict.fromkeys(("train_from", "train_to"), pl.Date),
}


def training_distributions(config: Config, data: NightData, version: ModelVersion) -> pl.DataFrame:
    """Return the distribution of every feature on the training sessions of a version, kept with its run.

    A stretch is a part of the training as long as the newest sessions that are compared with it; ``block_``
    columns are 95% quantiles over the stretches, null with fewer than 4.
    """
    run, block = open_run(version.run_id, Path(config.output)), config.nightly.monitoring.sessions
    panel, universe_TN = data.market.panel, data.market.universe_TN

    def measure() -> pl.DataFrame:
        fold = last_fold(run)
        dates_T = panel.dates_T.astype("datetime64[D]")
        sessions: IntArray = np.flatnonzero(between(dates_T, fold["train_from"], fold["train_to"]))
        stride = max(1, int(np.ceil(universe_TN[sessions].sum() / _MAX_VALUES)))
        length, hold = max(1, round(block / stride)), run.config.features.hold_inputs
        span = {name: fold[name] for name in ("train_from", "train_to")}
        rows = [
            {"feature": feature.name, "kind": feature.kind, **span}
            | stretches(values_TN, universe_TN, sessions[::stride], length)
            for feature, values_TN in raw_values(panel, data.tables, raw_features(run), hold)
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
