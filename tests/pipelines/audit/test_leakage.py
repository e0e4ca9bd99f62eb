"""No look-ahead: all data after t are replaced by noise, and all values up to t must stay the same.

Values are compared to the bit, for every registered channel, characteristic and model, so new ones are
covered as soon as they are registered. The last tests plant leaks and require that they are detected. Noise
and comparison are those of the audit.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from alpha_formulas import EXPRESSIONS

from backtest.look_ahead.noise import new_ticker, replace_future
from backtest.splits.folds import Fold
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.library.sets import alpha360, characteristics_of
from features.panel.panel import Panel
from features.panel.universe import universe
from models.batch import PanelTensors
from models.fitting.fit import restore
from models.registry import MODELS
from pipelines.audit.refit import difference, differences_until
from pipelines.config.schema import Config
from pipelines.dataset import market as market_module
from pipelines.dataset.build import Dataset, FeatureNames, build_dataset, session_features
from pipelines.dataset.folds import fit_inputs, plan_folds
from pipelines.lake.contracts import check
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun
from pipelines.train import walkforward
from pipelines.train.task import Outcome, collect_arrays, run_task, to_tensors

Tables = Mapping[str, pl.DataFrame]
Array = npt.NDArray[Any]
N_NOISES = 2  # sessions of which one is t for a model


def assert_same_bits(left: Array, right: Array, what: str) -> None:
    for diff in difference(left, right, what):
        where = (diff.session, diff.column)
        raise AssertionError(f"{diff.what} depends on future data: it differs first at {where}")


def assert_same_until(t: int, true: Dataset, noisy: Dataset) -> None:
    """Compare all arrays of two datasets for sessions up to ``t``, firm by firm."""
    diff = differences_until(t, true, noisy)
    assert not diff, f"{diff[0].what} depends on future data: it differs first at {diff[0].session}"


def fold_until(dataset: Dataset, config: Config, t: int) -> Fold:
    """The fold with ``t`` in its test; its training and validation labels are known before the test."""
    plan = config.folds.model_copy(update={"max_folds": None})
    folds = plan_folds(dataset, config.model_copy(update={"folds": plan}))
    return next(fold for fold in folds if fold.test[0] <= t <= fold.test[-1])


def forecasts_until(  # noqa: PLR0917 (what, on what, when, where)
    t: int, dataset: Dataset, config: Config, fold: Fold, model: str, folder: Path
) -> tuple[Array, Outcome]:
    """Forecasts of every session up to ``t``, by a model fitted as ``peerglass train`` does."""
    only = config.model_copy(update={"models": {model: config.models[model]}})
    run = RecordedRun("tiny", only, Identity.nothing(), folder)
    (task,) = list(walkforward.plan_tasks(run, dataset, [fold]))
    arrays = collect_arrays(dataset, config.features.window)
    outcome = run_task(task, arrays)
    data: PanelTensors = to_tensors(arrays, task.inputs, "cpu")
    dates = np.arange(dataset.first_session, t + 1)
    forecast_BN = restore(outcome.state).forecast(data, dates)
    at_test = np.isin(fold.test, dates)
    assert_same_bits(forecast_BN[np.isin(dates, fold.test)], outcome.test_BN[at_test], "the restored model")
    return forecast_BN, outcome


@pytest.fixture(scope="module")
def market(tiny_tables: Tables) -> dict[str, pl.DataFrame]:
    """The tiny market with coarse prices, so that some returns are zero and every feature has values."""
    coarse = [pl.max_horizontal(pl.col(name).round(1), 0.1) for name in ("open", "high", "low", "close")]
    return {**tiny_tables, "prices": tiny_tables["prices"].with_columns(coarse)}


@pytest.fixture(scope="module")
def true(market: Tables, tiny_config: Config) -> Dataset:
    return build_dataset(market, tiny_config)


@pytest.fixture(scope="module")
def every_config(tiny_config: Config) -> Config:
    """The tiny config with the features of all sets, with expressions, and an expression as a channel."""
    channels = (*CHANNELS, *alpha360(), "alpha_13")
    update = {"set": "all", "expressions": EXPRESSIONS, "channels": channels}
    return tiny_config.model_copy(update={"features": tiny_config.features.model_copy(update=update)})


@pytest.fixture(scope="module")
def every(market: Tables, every_config: Config) -> Dataset:
    return build_dataset(market, every_config)


@pytest.fixture(scope="module")
def noisy_after(market: Tables, true: Dataset, tiny_config: Config) -> Callable[[int, int], Dataset]:
    """The dataset with noise after session ``t``, by ``t`` and the noise's seed. All models share it."""

    @functools.cache
    def make(t: int, seed: int) -> Dataset:
        return build_dataset(replace_future(market, day_of(true, t), seed=seed), tiny_config)

    return make


@pytest.mark.parametrize("without", [(), ("volume",), ("open", "high", "low"), ("sector",)])
@pytest.mark.parametrize("tables", [("prices",), ("prices", "securities"), ("prices", "fundamentals")])
def test_noise_satisfies_contracts_and_adds_no_column(
    tables: tuple[str, ...], without: tuple[str, ...], market: Tables
) -> None:
    changed = {
        name: market[name].with_columns(
            pl.lit(None, dtype=market[name].schema[column]).alias(column)
            for column in without
            if column in market[name].columns
        )
        for name in tables
    }
    day = market["prices"]["date"].unique().sort()[200]
    noisy = replace_future(changed, day, seed=1)
    assert set(noisy) == set(tables)
    for name, frame in noisy.items():
        assert check(name, frame).rejected.is_empty(), name
        assert not frame.equals(changed[name])
        for column in without:
            assert column not in frame.columns or frame[column].null_count() == frame.height
    assert new_ticker(changed) in noisy["prices"]["ticker"].to_list()


def day_of(dataset: Dataset, t: int) -> dt.date:
    day: dt.date = dataset.panel.dates_T[t].astype("datetime64[D]").item()
    return day


def sessions_to_try() -> list[int]:
    rng = np.random.default_rng(20_261)
    return sorted(int(t) for t in rng.integers(40, 310, 12))


def test_all_registered_features_are_covered(true: Dataset, every: Dataset) -> None:
    registry = characteristics_of(EXPRESSIONS)
    assert every.characteristic_names == tuple(registry)
    silent = [
        name
        for name, feature in registry.items()
        if name not in CHARACTERISTICS and np.isnan(feature.compute(every.panel)).all()
    ]
    assert not silent
    assert np.isfinite(every.channels_TNC).any(axis=(0, 1)).all()
    assert set(true.channel_names) == set(CHANNELS), "the tiny market must allow every channel"
    assert set(true.characteristic_names) == set(CHARACTERISTICS), "and every characteristic"
    assert true.panel.statements
    assert true.panel.groups_S
    raw_TNF = CHARACTERISTICS.compute(true.panel)
    silent = [name for f, name in enumerate(CHARACTERISTICS) if np.isnan(raw_TNF[:, :, f]).all()]
    too_long = [name for name, entry in CHARACTERISTICS.items() if entry.warmup >= true.panel.n_sessions]
    # tests/features/library/test_characteristics.py covers these on a longer market
    assert silent == too_long, "a characteristic that is never known cannot be tested"
    assert np.isfinite(true.channels_TNC).any(axis=(0, 1)).all()


@pytest.mark.parametrize("t", sessions_to_try())
def test_features_and_universe_up_to_t_do_not_depend_on_later_data(
    t: int, every: Dataset, market: Tables, every_config: Config
) -> None:
    noisy = build_dataset(replace_future(market, day_of(every, t), seed=t), every_config)
    assert not np.array_equal(every.channels_TNC[t + 1 :, 0], noisy.channels_TNC[t + 1 :, 0], equal_nan=True)
    assert_same_until(t, every, noisy)


@pytest.mark.parametrize("t", sessions_to_try()[::4])
def test_features_and_universe_equal_those_of_a_panel_that_ends_at_t(
    t: int, every: Dataset, market: Tables, every_config: Config
) -> None:
    day = day_of(every, t)
    until = {
        "prices": market["prices"].filter(pl.col("date") <= day),
        "fundamentals": market["fundamentals"].filter(pl.col("known_at") <= day),
        "securities": market["securities"].filter(pl.col("valid_from") <= day),
    }
    assert_same_until(t, every, build_dataset(until, every_config))


def test_features_of_a_night_are_those_of_the_whole_history(
    every: Dataset, market: Tables, every_config: Config
) -> None:
    names = FeatureNames(channels=every.channel_names, characteristics=every.characteristic_names)
    night = session_features(every, market, every_config, names)
    np.testing.assert_array_equal(night.characteristics_NF, every.characteristics_TNF[-1])
    np.testing.assert_array_equal(night.channels_WNC[-1], every.channels_TNC[-1])


@pytest.mark.slow(10)
@pytest.mark.parametrize(
    ("seed", "model"),
    [(at % N_NOISES, name) for at, (name, entry) in enumerate(MODELS.items()) if entry.kind != "ensemble"],
)
def test_forecasts_up_to_t_do_not_depend_on_later_data(  # noqa: PLR0917 (fixtures)
    seed: int,
    model: str,
    true: Dataset,
    noisy_after: Callable[[int, int], Dataset],
    tiny_config: Config,
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(seed)
    t = int(rng.integers(210, 300))
    before = compare_forecasts(t, true, noisy_after(t, seed), tiny_config, model, tmp_path)
    assert np.isfinite(before).any(axis=1).all(), "every session up to t must have been forecast"
    if model != "zero":
        assert np.nanstd(before, axis=1).min() > 0, "a constant forecast proves nothing"


def compare_forecasts(  # noqa: PLR0917 (what, on what, when, where)
    t: int, true: Dataset, noisy: Dataset, config: Config, model: str, folder: Path
) -> Array:
    """Fit the model on both datasets and require the same scaler, weights and forecasts."""
    fold, same = fold_until(true, config, t), fold_until(noisy, config, t)
    for segment in ("train", "valid", "test"):
        assert_same_bits(getattr(fold, segment), getattr(same, segment), segment)
    left_BN, left = forecasts_until(t, true, config, fold, model, folder)
    right_BN, right = forecasts_until(t, noisy, config, same, model, folder)
    for name, tensor in left.state.tensors.items():
        assert_same_bits(tensor, right.state.tensors[name], f"{model}: {name}")
    columns = [noisy.panel.tickers_N.index(ticker) for ticker in true.panel.tickers_N]
    assert_same_bits(left_BN, np.ascontiguousarray(right_BN[:, columns]), f"{model}: the forecasts")
    return left_BN


@pytest.mark.slow(3)
@pytest.mark.parametrize("model", [name for name, entry in MODELS.items() if entry.kind == "neural"])
def test_training_steps_do_not_depend_on_later_listings(
    model: str,
    true: Dataset,
    noisy_after: Callable[[int, int], Dataset],
    tiny_config: Config,
    tmp_path: Path,
) -> None:
    config = tiny_config.model_copy(update={"fit": {"epochs": 1, "batch_dates": 120}})
    compare_forecasts(240, true, noisy_after(240, 5), config, model, tmp_path)


def test_forecasts_from_relative_windows_do_not_depend_on_later_data(
    market: Tables, tiny_config: Config, tmp_path: Path
) -> None:
    features = {"set": "alpha360", "window": 10, "channels": None, "characteristics": None}
    given = tiny_config.model_copy(update={"features": tiny_config.features.model_copy(update=features)})
    whole = build_dataset(market, given)
    assert whole.channel_names == tuple(alpha360())
    noisy = build_dataset(replace_future(market, day_of(whole, 240), seed=3), given)
    before = compare_forecasts(240, whole, noisy, given, "gru", tmp_path)
    assert np.nanstd(before, axis=1).min() > 0


# Planted leaks, which prove that the comparison can fail.


def centred_mean(panel: Panel) -> Array:
    value_TN = np.nan_to_num(panel.close_TN)
    return (np.roll(value_TN, 1, axis=0) + value_TN + np.roll(value_TN, -1, axis=0)) / 3.0


def full_sample_maximum(panel: Panel) -> Array:
    return np.asarray(panel.close_TN / np.nanmax(panel.close_TN, axis=0))


def backward_adjusted(panel: Panel) -> Array:
    return np.asarray(panel.close_TN / panel.close_TN[-1])


@pytest.mark.parametrize("leak", [centred_mean, full_sample_maximum, backward_adjusted])
@pytest.mark.parametrize("registry", ["channel", "characteristic"])
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_planted_look_ahead_feature_is_detected(
    leak: Callable[[Panel], Array],
    registry: str,
    market: Tables,
    tiny_config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries: dict[str, Any] = CHANNELS if registry == "channel" else CHARACTERISTICS
    name = next(reversed(entries))
    monkeypatch.setitem(entries, name, dataclasses.replace(entries[name], compute=leak))
    leaky = build_dataset(market, tiny_config)
    t = 200
    noisy = build_dataset(replace_future(market, day_of(leaky, t), seed=2), tiny_config)
    with pytest.raises(AssertionError, match=f"{registry} {name} depends on future data"):
        assert_same_until(t, leaky, noisy)


def test_planted_survivorship_in_the_universe_is_detected(
    market: Tables, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def survivors(panel: Panel, *rest: Any) -> Array:  # noqa: ANN401 (passed on)
        next_TN = np.roll(panel.close_TN, -1, axis=0)
        return np.asarray(universe(panel, *rest) & ~np.isnan(next_TN))

    monkeypatch.setattr(market_module, "universe", survivors)
    leaky = build_dataset(market, tiny_config)
    t = 200
    noisy = build_dataset(replace_future(market, day_of(leaky, t), seed=t), tiny_config)
    with pytest.raises(AssertionError, match="the universe depends on future data"):
        assert_same_until(t, leaky, noisy)


@pytest.mark.slow(3)
@pytest.mark.parametrize("model", ["ridge", "temporal_peer"])
@pytest.mark.parametrize("leak", ["scaler", "groups", "purge"])
def test_planted_fit_beyond_training_sessions_is_detected(  # noqa: PLR0917 (fixtures)
    leak: str,
    model: str,
    true: Dataset,
    noisy_after: Callable[[int, int], Dataset],
    tiny_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = 240
    everything = np.arange(true.panel.n_sessions)

    def fitted_on_all(dataset: Dataset, fold: Fold) -> Any:  # noqa: ANN401 (FoldInputs, patched)
        wide = fit_inputs(dataset, dataclasses.replace(fold, train=everything))
        own = fit_inputs(dataset, fold)
        return (
            dataclasses.replace(own, scaler=wide.scaler)
            if leak == "scaler"
            else dataclasses.replace(own, groups=wide.groups)
        )

    if leak == "purge":
        last = fold_until(true, tiny_config, t)
        unpurged = dataclasses.replace(last, train=np.arange(last.train[0], t + 1))
        monkeypatch.setattr(f"{__name__}.fold_until", lambda *_: unpurged)
    else:
        monkeypatch.setattr(walkforward, "fit_inputs", fitted_on_all)
    noisy = noisy_after(t, 1)
    if model == "ridge" and leak != "purge":  # ridge uses neither channels nor groups
        compare_forecasts(t, true, noisy, tiny_config, model, tmp_path)
        return
    with pytest.raises(AssertionError, match=rf"{model}: "):
        compare_forecasts(t, true, noisy, tiny_config, model, tmp_path)
