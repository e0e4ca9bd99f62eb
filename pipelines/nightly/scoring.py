"""Signals of a session from a stored model version: the seed ensemble of its forecasts, and what moved them.

Legend: P players, N firms with a signal.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from features.arrays import FloatArray, IntArray
from features.panel.derived import cached
from models.explain.groups import GroupAttribution, GroupGameConfig, explain_groups, mean_over_seeds
from models.explain.players import PlayerConfig
from pipelines.config.schema import Config
from pipelines.dataset.build import FeatureNames, SessionFeatures, session_features
from pipelines.dataset.market import Market, build_market
from pipelines.device import one_thread
from pipelines.errors import DataError
from pipelines.explain.fitted import families_of, value_table
from pipelines.nightly.data import NightData
from pipelines.nightly.result import ModelVersion
from pipelines.nightly.versions import folder_of
from pipelines.results.evaluate import ensemble, seed_dispersion
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import RecordedRun, open_run
from pipelines.train.task import Arrays, to_tensors


def score(version: ModelVersion, config: Config, data: NightData, fold: int = 0) -> pl.DataFrame:
    """Forecast a session: signal and rank (0 to 1) of every priced firm, null outside the universe."""
    run = open_run(str(folder_of(version, Path(config.output))))
    features = scoring_features(run, data)
    arrays, last = session_arrays(features, run.config.features.window), len(features.universe_WN) - 1
    with one_thread():
        forecasts = seed_forecasts(run, version.model, fold, arrays, np.array([last]))
    inside_N = features.universe_WN[-1] & data.market.universe_TN[-1]
    signal_N, dispersion_N = (
        np.where(inside_N, one_1N[0], np.nan) for one_1N in (ensemble(forecasts), seed_dispersion(forecasts))
    )
    listed_N = data.market.panel.traded_TN[-1]
    frame = pl.DataFrame(
        {
            "ticker": np.asarray(features.tickers_N)[listed_N],
            "signal": signal_N[listed_N],
            "seed_dispersion": dispersion_N[listed_N],
            "in_universe": inside_N[listed_N],
        },
        schema_overrides={"ticker": pl.String},
    ).with_columns(pl.col("signal", "seed_dispersion").fill_nan(None))
    others = pl.col("signal").count() - 1
    place = (pl.col("signal").rank("average") - 1) / pl.when(others > 0).then(others)
    return frame.select(
        pl.lit(config.name).alias("config"),
        pl.lit(data.session).alias("session"),
        "ticker",
        pl.lit(str(version)).alias("version"),
        "signal",
        pl.when(pl.col("signal").is_not_null()).then(place.fill_null(0.5)).alias("rank"),
        "seed_dispersion",
        "in_universe",
        pl.lit(data.data_versions).alias("data_versions"),
    ).sort("ticker")


def seed_forecasts(
    run: RecordedRun, model: str, fold: int, arrays: Arrays, sessions: IntArray
) -> dict[int, FloatArray]:
    """Forecast sessions with every seed: seed -> array (sessions, N), NaN outside the universe."""
    forecasts = {}
    for seed in run.config.seeds:
        fitted, inputs = load_checkpoint(run.checkpoint(model, fold, seed))
        forecasts[seed] = fitted.forecast(to_tensors(arrays, inputs, "cpu"), sessions).astype(np.float64)
    return forecasts


def session_arrays(features: SessionFeatures, window: int) -> Arrays:
    """Arrays of the sessions of one window, of which only the last can be forecast."""
    W, N = features.universe_WN.shape
    characteristics_WNF = np.zeros((W, *features.characteristics_NF.shape), dtype=np.float32)
    characteristics_WNF[-1] = features.characteristics_NF
    return Arrays(
        channels_TNC=features.channels_WNC,
        characteristics_TNF=characteristics_WNF,
        universe_TN=features.universe_WN,
        group_TN=features.group_WN.astype(np.int64),
        groups=features.groups_S,
        target_TN=np.full((W, N), np.nan, dtype=np.float32),
        label_TN=np.full((W, N), np.nan),
        path_TNK=None,
        characteristic_names=features.names.characteristics,
        tickers=features.tickers_N,
        window=window,
    )


def scoring_market(run: RecordedRun, data: NightData) -> Market:
    """Return the market of a night with the universe of a run, which is rebuilt if the night has another."""

    def settings(config: Config) -> tuple[object, ...]:
        return config.universe, config.label.forecast_frequency, config.features.group_by

    same = settings(run.config) == settings(data.config)
    return data.market if same else build_market(data.tables, run.config, data.market.panel.newest_tickers)


def scoring_features(run: RecordedRun, data: NightData) -> SessionFeatures:
    """Compute the inputs of a run's models at the session of a night, once per run."""

    def compute() -> SessionFeatures:
        recorded: dict[str, Any] = run.identity.settings["features"]
        names = FeatureNames(tuple(recorded["channels"]), tuple(recorded["characteristics"]))
        return session_features(scoring_market(run, data), data.tables, run.config, names)

    try:
        return cached(data.market.panel, (scoring_features, run.run_id), compute)
    except DataError as error:
        raise DataError(
            f"{run.run_id} cannot score {data.session}: {error} Ingest what is missing, or train a new "
            "version."
        ) from None


PERMUTATIONS = 2  # antithetic, at least one per seed: most of the time, and the page shows the errors too
DAY_STARTS = (1, 2, 6)  # first day of each block of days, counted backwards; fewer than in reports, for speed
SCHEMA = {  # columns of the table of attributions (`attribute`)
    **dict.fromkeys(("version", "ticker", "kind", "player"), pl.String),
    **dict.fromkeys(("value", "error", "base", "signal"), pl.Float64),
}


def attribute(
    version: ModelVersion, config: Config, data: NightData, tickers: Sequence[str], fold: int = 0
) -> pl.DataFrame:
    """Shapley values of firms' signals, standardised as these are (by seed), and their errors."""
    run = open_run(version.run_id, Path(config.output))
    features = scoring_features(run, data)
    if not features.universe_WN[-1].any():
        return pl.DataFrame(schema=SCHEMA)
    arrays, last = session_arrays(features, run.config.features.window), len(features.universe_WN) - 1
    families = families_of(features.names.characteristics)
    permutations = max(1, PERMUTATIONS // len(run.config.seeds))
    games = []
    with one_thread():
        for seed in run.config.seeds:
            fitted, inputs = load_checkpoint(run.checkpoint(version.model, fold, seed))
            options = GroupGameConfig(
                permutations=permutations,
                players=PlayerConfig(day_starts=DAY_STARTS),
                seed=run.config.explain.seed + seed,
            )
            tensors = to_tensors(arrays, inputs, "cpu")
            games.append(explain_groups(fitted, tensors, np.array([last]), families, options))
    return _rows(version, games, features.tickers_N, tickers)


def ends(signals: pl.DataFrame, version: ModelVersion, count: int) -> list[str]:
    """Tickers of the ``count`` highest and the ``count`` lowest signals of a version."""
    own = signals.filter((pl.col("version") == str(version)) & pl.col("signal").is_not_null())
    ordered = own.sort("signal", "ticker")["ticker"]
    return pl.concat([ordered.head(count), ordered.tail(count)]).unique(maintain_order=True).to_list()


def _rows(
    version: ModelVersion, games: Sequence[GroupAttribution], tickers_N: Sequence[str], wanted: Sequence[str]
) -> pl.DataFrame:
    """Average the games of the seeds in units of the signal, and list the wanted firms."""
    standardised = []
    for game in games:
        mean, spread = float(game.forecast_E.mean()), float(game.forecast_E.std())
        moved = replace(game, base_E=game.base_E - mean, forecast_E=game.forecast_E - mean)
        standardised.append((moved, spread if spread > 0 else 1.0))  # equal forecasts have the signal 0
    found = mean_over_seeds(*zip(*standardised, strict=True))
    frame = value_table(found, tickers_N).rename({"forecast": "signal"})
    return frame.filter(pl.col("ticker").is_in(list(wanted))).select(
        pl.lit(str(version)).alias("version"), *list(SCHEMA)[1:]
    )
