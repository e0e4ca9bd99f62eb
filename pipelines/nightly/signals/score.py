"""Score a session with a stored model version: the seed ensemble of its forecasts, as in an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from features.arrays import FloatArray
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, add_features
from pipelines.dataset.market import build_market
from pipelines.errors import DataError
from pipelines.nightly.data import NightData
from pipelines.nightly.version import ModelVersion
from pipelines.results.evaluate import ensemble, seed_dispersion
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import Run, open_run
from pipelines.train.task import collect_arrays, to_tensors


def score(version: ModelVersion, config: Config, data: NightData, fold: int = 0) -> pl.DataFrame:
    """Forecast the session of a night with a stored model version.

    Parameters
    ----------
    version
        The model version; its run is looked for in the config's output folder.
    config
        Names the config of the signals, and the output folder.
    data
        Data of the night.
    fold
        Fold of the run whose checkpoints are used; live runs have only fold 0.

    Returns
    -------
    polars.DataFrame
        One row per firm with a price on the session, sorted by ticker: config, session, ticker, version,
        signal (mean over seeds of the forecasts standardised within the session; null outside the universe),
        rank (of the signal in the universe, from 0 for the lowest to 1; ties get their average),
        seed_dispersion (standard deviation of the standardised forecasts over seeds; null for one seed),
        in_universe, data_versions.

    Raises
    ------
    ConfigError
        If there is no such run.
    DataError
        If a checkpoint is missing or damaged, or the data lack a feature that the model needs.
    """
    run = open_run(version.run_id, Path(config.output))
    dataset = scoring_dataset(run, data)
    panel, t = dataset.panel, dataset.panel.n_sessions - 1
    forecasts = session_forecasts(run, version.model, fold, dataset)
    signal_N, dispersion_N = ensemble(forecasts)[0], seed_dispersion(forecasts)[0]
    listed_N = ~np.isnan(panel.close_TN[t])
    frame = pl.DataFrame(
        {
            "ticker": np.asarray(panel.tickers_N)[listed_N],
            "signal": signal_N[listed_N],
            "seed_dispersion": dispersion_N[listed_N],
            "in_universe": dataset.universe_TN[t][listed_N],
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


def session_forecasts(run: Run, model: str, fold: int, dataset: Dataset) -> dict[int, FloatArray]:
    """Forecast the last session of a dataset with every seed: seed -> array of shape (1, N), NaN for none."""
    arrays = collect_arrays(dataset, run.config.features.window)
    last = np.array([dataset.panel.n_sessions - 1], dtype=np.int64)
    forecasts = {}
    with _one_thread():
        for seed in run.config.seeds:
            fitted, inputs = load_checkpoint(run.checkpoint(model, fold, seed))
            tensors = to_tensors(arrays, inputs, "cpu")
            forecasts[seed] = fitted.forecast(tensors, last).astype(np.float64)
    return forecasts


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """Names of the features that a run was trained on, as it recorded them.

    Attributes
    ----------
    channels, characteristics
        In the order of the model's inputs. Characteristics contain the user's inputs and the indicators of
        missing values.
    """

    channels: tuple[str, ...]
    characteristics: tuple[str, ...]


def features_of(run: Run) -> FeatureNames:
    """Return the names of the features that a run was trained on."""
    assert run.identity is not None, "an opened run has recorded its identity"
    recorded: dict[str, Any] = run.identity.settings["features"]
    return FeatureNames(tuple(recorded["channels"]), tuple(recorded["characteristics"]))


def scoring_dataset(run: Run, data: NightData) -> Dataset:
    """Build the inputs of a run's models on the data of a night.

    Raises
    ------
    DataError
        If the data lack a feature that the run was trained on.
    """
    same = run.config.universe == data.config.universe and run.config.label == data.config.label
    same &= run.config.features.group_by == data.config.features.group_by
    market = data.market if same else build_market(data.tables, run.config)
    dataset = add_features(market, data.tables, run.config)
    required = features_of(run)
    for kind, needed, given in (
        ("channel", required.channels, dataset.channel_names),
        ("characteristic", required.characteristics, dataset.characteristic_names),
    ):
        missing = [name for name in needed if name not in given]
        if missing:
            raise DataError(
                f"{run.run_id} was trained on the {kind} {missing[0]!r}, which the data of {data.session} do "
                "not give; ingest what it is computed from, or train a new version."
            )
    return _select(dataset, required)


def _select(dataset: Dataset, names: FeatureNames) -> Dataset:
    """Select the named features in their order; newer data may give more of them."""
    if (dataset.channel_names, dataset.characteristic_names) == (names.channels, names.characteristics):
        return dataset
    channels = [dataset.channel_names.index(name) for name in names.channels]
    characteristics = [dataset.characteristic_names.index(name) for name in names.characteristics]
    return replace(
        dataset,
        channels_TNC=np.ascontiguousarray(dataset.channels_TNC[:, :, channels]),
        characteristics_TNF=np.ascontiguousarray(dataset.characteristics_TNF[:, :, characteristics]),
        channel_names=names.channels,
        characteristic_names=names.characteristics,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread, as training does, so that forecasts are repeated to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
