"""The distribution of every feature on a version's training sessions, computed once per version.

It is stored next to the version (`pipelines.nightly.monitor.stored`).

Shape suffixes: T sessions, N firms, R training sessions, M values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from backtest.monitoring.drift import Distribution, bin_shares, ks_distance, stability_index
from features.arrays import BoolArray, Float32Array, IntArray
from pipelines.config.schema import Config
from pipelines.nightly.data import NightData
from pipelines.nightly.monitor.features import features_of, raw_values
from pipelines.nightly.monitor.stored import computed_once
from pipelines.nightly.version import ModelVersion
from pipelines.run.record import Run, open_run

MIN_BLOCKS: Final = 4
"""Stretches of the training that are needed to know how much a feature varies by itself."""
UNUSUAL: Final = 0.95
"""Quantile over the stretches. The largest would be that of one crisis, or of the first sessions, on which
features with a long window are unknown."""
_MAX_VALUES: Final = 400_000
"""Values per feature that are measured. Neighbouring sessions hold nearly the same values, so that every
k-th session has the same distribution."""

_SCHEMA: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "feature": pl.String,
    "kind": pl.String,
    "points": pl.List(pl.Float64),
    "missing": pl.Float64,
    "shares": pl.List(pl.Float64),
    "blocks": pl.Int64,
    "block_psi": pl.Float64,
    "block_ks": pl.Float64,
    "block_missing": pl.Float64,
    "train_from": pl.Date,
    "train_to": pl.Date,
}


def training_distributions(config: Config, data: NightData, version: ModelVersion) -> pl.DataFrame:
    """Return the distribution of every feature on the training sessions of a version.

    Computed from the data of the night that first asks, and then read from the run's folder. A stretch is a
    part of the training that is as long as the newest sessions that are compared with it.

    Parameters
    ----------
    config
        Output folder, and ``nightly.monitoring.sessions``.
    data
        The data of the night.
    version
        The version.

    Returns
    -------
    polars.DataFrame
        feature, kind, points (501 quantiles), missing, shares (of the bins, `backtest.monitoring.drift`),
        blocks (number of stretches), block_psi, block_ks and block_missing (their 95% quantiles, each stretch
        against the whole training; null with fewer than 4), train_from, train_to.
    """
    run, block = open_run(version.run_id, Path(config.output)), config.nightly.monitoring.sessions
    return computed_once(
        run, version.model, "training", lambda: _measure(run, data, block), about=f"-{block}"
    )


def _measure(run: Run, data: NightData, block: int) -> pl.DataFrame:
    folds = run.read_table("folds")
    assert folds is not None, "a trained run has stored its folds"
    fold = folds.sort("fold").row(-1, named=True)
    panel, universe_TN = data.market.panel, data.market.universe_TN
    dates_T = panel.dates_T.astype("datetime64[D]")
    inside_T = (dates_T >= np.datetime64(fold["train_from"])) & (dates_T <= np.datetime64(fold["train_to"]))
    sessions: IntArray = np.flatnonzero(inside_T)
    stride = max(1, int(np.ceil(universe_TN[sessions].sum() / _MAX_VALUES)))
    sessions = sessions[::stride]
    length = max(1, round(block / stride))
    rows = [
        {"feature": feature.name, "kind": feature.kind, "train_from": fold["train_from"]}
        | {"train_to": fold["train_to"]}
        | _distribution(values_TN, universe_TN, sessions, length)
        for feature, values_TN in raw_values(
            panel, data.tables, features_of(run), run.config.features.hold_inputs
        )
    ]
    return pl.DataFrame(rows, schema=_SCHEMA)


def _distribution(
    values_TN: Float32Array, universe_TN: BoolArray, sessions: IntArray, length: int
) -> dict[str, object]:
    """Measure one feature on some sessions, and how far its stretches are from all of them."""
    whole = Distribution.of(values_TN[sessions][universe_TN[sessions]])
    shares_B = bin_shares(values_TN[sessions][universe_TN[sessions]], whole.edges_E)
    psi, ks, missing = [], [], []
    for stop in range(len(sessions), length - 1, -length):
        part = sessions[stop - length : stop]
        x_M = values_TN[part][universe_TN[part]]
        if len(x_M):
            own = Distribution.of(x_M)
            psi.append(stability_index(shares_B, bin_shares(x_M, whole.edges_E)))
            ks.append(ks_distance(whole.points_Q, own.points_Q))
            missing.append(own.missing)
    known = len(psi) >= MIN_BLOCKS
    known_ks = [value for value in ks if not np.isnan(value)]
    return {
        "points": whole.points_Q.tolist(),
        "missing": whole.missing,
        "shares": shares_B.tolist(),
        "blocks": len(psi),
        "block_psi": float(np.quantile(psi, UNUSUAL)) if known else None,
        "block_ks": float(np.quantile(known_ks, UNUSUAL)) if known and known_ks else None,
        "block_missing": float(np.quantile(missing, UNUSUAL)) if known else None,
    }
