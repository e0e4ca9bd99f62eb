"""What moved tonight's signals: Shapley values of days, feature families and peers, in the signal's unit.

Legend: P players, N firms with a signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from models.explain.groups import GroupAttribution, GroupGameConfig, explain_groups, mean_over_seeds
from models.explain.players import PlayerConfig
from pipelines.config.schema import Config
from pipelines.device import one_thread
from pipelines.explain.fitted import families_of, value_table
from pipelines.nightly.data import NightData
from pipelines.nightly.result import ModelVersion
from pipelines.nightly.scoring import scoring_features, session_arrays
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import open_run
from pipelines.train.task import to_tensors

PERMUTATIONS = 2
"""Antithetic permutations over all seeds, and at least one per seed. They cost most of the time, and the page
shows only the largest values, each beside its error in the table of attributions."""
DAY_STARTS = (1, 2, 6)
"""First day of each block of days, counted backwards from the session: fewer than in a report, for speed."""

SCHEMA = {
    "version": pl.String,
    "ticker": pl.String,
    "kind": pl.String,
    "player": pl.String,
    "value": pl.Float64,
    "error": pl.Float64,
    "base": pl.Float64,
    "signal": pl.Float64,
}
"""Columns of the table of attributions; see `attribute`."""


def attribute(
    version: ModelVersion, config: Config, data: NightData, tickers: Sequence[str], fold: int = 0
) -> pl.DataFrame:
    """Attribute tonight's signals of some firms to groups of inputs.

    The signal of a firm is the mean over seeds of ``(f - m) / s``, with the mean m and the standard deviation
    s of the seed's forecasts over the firms. The Shapley values of f (`models.explain.groups`) are divided by
    s, with m and s of the complete model, and averaged over seeds. So a firm's values add up from its signal
    without any player to its signal.

    Parameters
    ----------
    version
        The model version; its run is looked for in the config's output folder.
    config
        Names the output folder.
    data
        Data of the night.
    tickers
        Firms to explain; those without a signal are left out. All firms of the session are played in any
        case, because they are peers of each other, so a firm more costs nothing.
    fold
        Fold of the run whose checkpoints are used; live runs have only fold 0.

    Returns
    -------
    polars.DataFrame
        Per firm and player, in the order of the players: version, ticker, kind (``days``, ``family`` or
        ``peers``), player, value and its Monte Carlo standard error, base (the signal without any player)
        and signal. A baseline has families only. Empty if no firm has a signal.

    Raises
    ------
    ConfigError
        If there is no such run.
    DataError
        If a checkpoint is missing or damaged, or the data lack a feature that the model needs.
    """
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
