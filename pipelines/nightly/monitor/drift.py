"""Drift of the features: the newest sessions against the champion's training sessions."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.monitoring.drift import Distribution, bin_shares, ks_distance, stability_index
from pipelines.config.schema import Config
from pipelines.nightly.data import NightData
from pipelines.nightly.finding import Finding
from pipelines.nightly.monitor.features import RawFeature, newest_values
from pipelines.nightly.monitor.training import training_distributions
from pipelines.nightly.version import ModelVersion

_NAMED: Final = 5

_SCHEMA: Final = {
    "feature": pl.String,
    "kind": pl.String,
    "psi": pl.Float64,
    "psi_limit": pl.Float64,
    "ks": pl.Float64,
    "ks_limit": pl.Float64,
    "missing": pl.Float64,
    "missing_in_training": pl.Float64,
    "missing_limit": pl.Float64,
    "drifted": pl.Boolean,
}


def drift(
    config: Config, data: NightData, champion: ModelVersion
) -> tuple[list[Finding], dict[str, pl.DataFrame]]:
    """Compare every raw feature of the newest sessions with the champion's training sessions.

    A limit is the larger of the setting and of what one in twenty stretches of the training exceeds, each as
    long as the newest sessions: a feature whose level changes with the market's regime has a wide limit of
    its own. A feature has drifted if both its stability index and its Kolmogorov-Smirnov distance are above
    their limits.
    """
    training = training_distributions(config, data, champion)
    trained = {RawFeature(row["feature"], row["kind"]): row for row in training.iter_rows(named=True)}
    newest = newest_values(config, data, list(trained), config.nightly.monitoring.sessions)
    rows = [_compare(config, trained[feature], values_M) for feature, values_M in newest]
    table = pl.DataFrame(rows, schema=_SCHEMA)
    findings = [_drift_finding(row) for row in table.filter("drifted").iter_rows(named=True)]
    findings += _missing_findings(table)
    return [*findings, _summary(config, table, training)], {"drift": table}


def _compare(config: Config, trained: dict[str, Any], values_M: np.ndarray) -> dict[str, Any]:
    """Compare one feature's newest values with its training."""
    limits = config.nightly.monitoring
    whole = Distribution(np.asarray(trained["points"], dtype=np.float64), trained["missing"])
    missing_limit = max(
        config.nightly.checks.max_missing, trained["missing"], trained["block_missing"] or 0.0
    )
    psi_limit = max(limits.psi, trained["block_psi"] or 0.0)
    ks_limit = max(limits.ks, trained["block_ks"] or 0.0)
    if len(values_M):
        psi = stability_index(np.asarray(trained["shares"]), bin_shares(values_M, whole.edges_E))
        own = Distribution.of(values_M)
        ks, missing = ks_distance(whole.points_Q, own.points_Q), own.missing
    else:
        psi, ks, missing = math.nan, math.nan, math.nan
    return {
        "feature": trained["feature"],
        "kind": trained["kind"],
        "psi": _known(psi),
        "psi_limit": psi_limit,
        "ks": _known(ks),
        "ks_limit": ks_limit,
        "missing": _known(missing),
        "missing_in_training": trained["missing"],
        "missing_limit": missing_limit,
        "drifted": psi > psi_limit and ks > ks_limit,
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _drift_finding(row: dict[str, Any]) -> Finding:
    sentence = (
        f"The {row['kind']} {row['feature']} has drifted from the champion's training: its stability index "
        f"is {row['psi']:.2f} (limit {row['psi_limit']:.2f}) and its Kolmogorov-Smirnov distance "
        f"{row['ks']:.2f} (limit {row['ks_limit']:.2f}). Look at its source; a new training learns the new "
        "distribution."
    )
    return Finding("feature_drift", "warn", sentence, _subject(row), row["psi"], row["psi_limit"])


def _subject(row: dict[str, Any]) -> str:
    """Name of a feature; a channel may have the name of a characteristic."""
    return f"channel {row['feature']}" if row["kind"] == "channel" else str(row["feature"])


def _missing_findings(table: pl.DataFrame) -> list[Finding]:
    """Report features that are missing more often than in training, or one line if there are none."""
    above = table.filter(pl.col("missing") > pl.col("missing_limit"))
    findings = []
    for row in above.iter_rows(named=True):
        sentence = (
            f"The {row['kind']} {row['feature']} is missing for {row['missing']:.0%} of the universe, "
            f"against {row['missing_in_training']:.0%} in training; check what it is computed from. "
            "The transform replaces missing values, so the model does not notice."
        )
        findings.append(
            Finding("missing", "warn", sentence, _subject(row), row["missing"], row["missing_limit"])
        )
    if findings or table["missing"].drop_nulls().is_empty():
        return findings
    worst = table.drop_nulls("missing").sort(pl.col("missing") - pl.col("missing_limit")).row(-1, named=True)
    sentence = (
        f"No feature is missing more often than allowed; {worst['feature']} comes closest with "
        f"{worst['missing']:.1%} (limit {worst['missing_limit']:.1%})."
    )
    return [Finding("missing", "ok", sentence, None, worst["missing"], worst["missing_limit"])]


def _summary(config: Config, table: pl.DataFrame, training: pl.DataFrame) -> Finding:
    """Say how many features have drifted; a warning if these are more than allowed."""
    limit = config.nightly.monitoring.drifted
    drifted = table.filter("drifted").sort("psi", descending=True)["feature"].to_list()
    share = len(drifted) / table.height
    first, last = training["train_from"][0], training["train_to"][0]
    base = (
        f"{len(drifted)} of {table.height} features have drifted on the last "
        f"{config.nightly.monitoring.sessions} sessions against the training ({first} to {last})"
    )
    more = f" and {len(drifted) - _NAMED} more" if len(drifted) > _NAMED else ""
    named = f": {', '.join(drifted[:_NAMED])}{more}" if drifted else ""
    if share <= limit:
        return Finding("drift", "ok", f"{base}{named}.", value=share, limit=limit)
    cure = (
        "Check the source for a change of units or coverage; if the market has changed, train a new version."
    )
    return Finding("drift", "warn", f"{base}{named}. {cure}", value=share, limit=limit)
