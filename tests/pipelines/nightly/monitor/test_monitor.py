"""The monitoring of nights on a small market: a run's test forecasts play the part of past signals."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from nights import backtested, forecast_sessions, night_of, store_nights, store_signals
from polars.testing import assert_frame_equal
from scipy.stats import ks_2samp, spearmanr

from backtest.monitoring import SkillReference, reference_of
from features.library.characteristics import CHARACTERISTICS
from features.library.sets import characteristics_of, default_channels
from pipelines.config.schema import Config
from pipelines.dataset.market import build_market
from pipelines.dataset.tables import open_lake
from pipelines.nightly.data import NightData, signal_history
from pipelines.nightly.monitor.monitor import (
    BacktestReference,
    Monitoring,
    RawFeature,
    _watch,
    backtest_reference,
    monitor,
    newest_values,
    realised_ic,
    watch_skill,
)
from pipelines.nightly.result import ModelVersion
from pipelines.run.record import open_run, read_scores

CHALLENGER = ModelVersion("other-run", "ridge")


@pytest.fixture(scope="module")
def past(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]
) -> tuple[Config, ModelVersion, list[dt.date]]:
    """A trained config whose tests are past nights: config, champion and sessions."""
    channels = [*default_channels("peerglass"), "CLOSE", "HIGH", "VOLUME"]
    settings = {
        **tiny_settings,
        "features": {**tiny_settings["features"], "channels": channels},
        "models": {"ridge": {}},
        "nightly": {"monitoring": {"sessions": 10}},
    }
    config, version = backtested(tmp_path_factory.mktemp("market"), settings)
    sessions = forecast_sessions(config, version)
    lake = open_lake(config)
    store_signals(lake, config, version, sessions)
    store_signals(lake, config, version, sessions, change=lambda signal: -signal, named=CHALLENGER)
    store_nights(lake, config, dict.fromkeys(sessions, version), challenger=CHALLENGER)
    return config, version, sessions


@pytest.fixture(scope="module")
def night(past: tuple[Config, ModelVersion, list[dt.date]]) -> NightData:
    """The data of the last night."""
    config, _, sessions = past
    return night_of(config, sessions[-1])


@pytest.fixture(scope="module")
def monitored(past: tuple[Config, ModelVersion, list[dt.date]], night: NightData) -> Monitoring:
    """The monitoring of the last night."""
    config, champion, _ = past
    return monitor(config, night, champion, CHALLENGER)


@pytest.mark.slow(3)
def test_realised_ics_are_those_of_the_forecasts_and_labels(
    past: tuple[Config, ModelVersion, list[dt.date]], monitored: Monitoring
) -> None:
    """Rank ICs equal scipy's on stored forecasts and labels, only where the label is known."""
    config, champion, sessions = past
    realised = monitored.tables["realised_ic"].filter(pl.col("role") == "champion")
    known = sessions[: -config.label.horizon - config.label.delay]
    assert realised["session"].to_list() == known
    rows = open_lake(config).read("forecasts", filters=pl.col("run_id") == champion.run_id)
    for session, value in realised.select("session", "rank_ic").tail(10).iter_rows():
        day = rows.filter(pl.col("date") == session).drop_nulls("label")
        expected = spearmanr(day["forecast"], day["label"]).statistic
        assert value == pytest.approx(expected, abs=1e-12)


def test_the_signals_of_renamed_firms_are_measured_under_their_new_names(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData, monitored: Monitoring
) -> None:
    """All firms were renamed on the last night: the prices have the new names, the signals the old ones."""
    config, champion, sessions = past
    panel = night.market.panel
    panel = replace(panel, tickers_N=tuple(f"NEW{ticker}" for ticker in panel.tickers_N))
    tickers = night.market.panel.tickers_N
    renames = pl.DataFrame({"ticker": tickers, "new_ticker": panel.tickers_N}).with_columns(
        from_date=pl.lit(sessions[-1])
    )
    later = replace(night, market=replace(night.market, panel=panel))
    later.__dict__["renames"] = renames
    history = signal_history(config, later, champion, CHALLENGER)
    known = pl.col("session") < sessions[-1]
    found = realised_ic(config, later, history).filter(known)
    assert_frame_equal(found, monitored.tables["realised_ic"].filter(known))


def test_the_challenger_is_measured_on_its_own_signals(monitored: Monitoring) -> None:
    """A challenger with the opposite signal has the opposite IC, and disagrees completely."""
    wide = monitored.tables["realised_ic"].pivot("role", index="session", values="rank_ic")
    assert wide.height > 10
    np.testing.assert_allclose(wide["champion"], -wide["challenger"], atol=1e-12)
    found = {finding.check: finding for finding in monitored.findings}
    assert found["agreement"].level == "warn"
    assert found["agreement"].value == pytest.approx(-1.0)


def test_every_figure_has_a_finding_and_a_table(monitored: Monitoring) -> None:
    """No part is silently left out."""
    tables = {"realised_ic", "cusum", "drift", "agreement", "dispersion", "turnover"}
    assert set(monitored.tables) == tables
    assert all(frame.height for frame in monitored.tables.values())
    checks = {finding.check for finding in monitored.findings}
    assert checks >= {"realised_ic", "cusum", "drift", "missing", "seed_dispersion", "turnover", "agreement"}
    for finding in monitored.findings:
        assert finding.sentence.endswith(".")


def test_the_cusum_compares_with_the_backtest(
    past: tuple[Config, ModelVersion, list[dt.date]], monitored: Monitoring
) -> None:
    """The reference is the run's own evaluation; its signals raise no alarm."""
    _, champion, _ = past
    (finding,) = [finding for finding in monitored.findings if finding.check == "cusum"]
    assert champion.run_id in finding.sentence
    assert finding.level == "ok"
    assert not monitored.tables["cusum"]["alarm"].any()


def test_a_version_stores_what_is_computed_once(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData, monitored: Monitoring
) -> None:
    """The distributions of the training are read back, and give the same table."""
    config, champion, _ = past
    folder = Path(config.output) / champion.run_id / "monitoring" / champion.model
    stored = folder / "training-10.parquet"
    written = stored.stat().st_mtime_ns
    again = monitor(config, night, champion, None)
    assert stored.stat().st_mtime_ns == written
    assert_frame_equal(again.tables["drift"], monitored.tables["drift"])
    assert "agreement" not in {finding.check for finding in again.findings}


def test_drift_compares_the_newest_sessions_with_the_training(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData, monitored: Monitoring
) -> None:
    """The index of one feature equals a computation from the whole panel's raw values."""
    config, champion, _ = past
    folds = open_run(champion.run_id, Path(config.output)).read_table("folds")
    assert folds is not None
    fold = folds.sort("fold").row(-1, named=True)
    panel, universe_TN = night.market.panel, night.market.universe_TN
    values_TN = CHARACTERISTICS.compute(panel, ["return_1"])[:, :, 0]
    dates_T = panel.dates_T.astype("datetime64[D]")
    train_T = (dates_T >= np.datetime64(fold["train_from"])) & (dates_T <= np.datetime64(fold["train_to"]))
    trained, newest = values_TN[train_T][universe_TN[train_T]], values_TN[-10:][universe_TN[-10:]]
    edges = np.quantile(trained, np.linspace(0.1, 0.9, 9), method="closest_observation")
    shares = [
        np.bincount(np.searchsorted(edges, part), minlength=10) / len(part) for part in (trained, newest)
    ]
    expected = float(np.sum((shares[1] - shares[0]) * np.log(shares[1] / shares[0])))
    row = monitored.tables["drift"].row(by_predicate=pl.col("feature") == "return_1", named=True)
    assert row["psi"] == pytest.approx(expected, abs=0.02)
    assert row["ks"] == pytest.approx(ks_2samp(trained, newest).statistic, abs=0.01)
    assert row["missing"] == 0.0


def test_the_newest_values_of_a_formula_are_those_of_the_whole_panel(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData
) -> None:
    """Levels of adjusted prices depend on the first session, and ranks on the universe of a session."""
    formulas = {"level": "rank(log(volume))", "trend": "mean(rank(close), 5)"}
    features = past[0].features.model_copy(update={"expressions": formulas})
    config = past[0].model_copy(update={"features": features})
    panel, inside_TN = night.market.panel, night.market.universe_TN[-10:]
    every = characteristics_of(formulas)
    raw = [RawFeature(name, "characteristic") for name in formulas]
    for feature, values_M in newest_values(config, night, raw, 10):
        whole_TN = every.compute(panel, [feature.name])[-10:, :, 0]
        np.testing.assert_array_equal(values_M, whole_TN[inside_TN])


def test_channels_relative_to_the_last_session_are_compared_by_the_session_before(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData, monitored: Monitoring
) -> None:
    """The values are ratios of the panel's own prices, whatever its first session is."""
    panel, inside_TN = night.market.panel, night.market.universe_TN[-10:]
    assert panel.high_TN is not None
    assert panel.volume_TN is not None
    close_TN = panel.close_TN
    volume_TN = panel.raw_close_TN * panel.volume_TN / close_TN
    by_hand = {
        "CLOSE": close_TN[-11:-1] / close_TN[-10:],
        "HIGH": panel.high_TN[-11:-1] / close_TN[-10:],
        "VOLUME": volume_TN[-11:-1] / volume_TN[-10:],
    }
    for feature, values_M in newest_values(
        past[0], night, [RawFeature(one, "channel") for one in by_hand], 10
    ):
        np.testing.assert_allclose(values_M, by_hand[feature.name][inside_TN], rtol=1e-5)
    drift = monitored.tables["drift"].filter(pl.col("kind") == "channel")
    of_window = drift.filter(pl.col("feature").is_in(list(by_hand)))
    assert of_window.height == len(by_hand)
    assert of_window["psi"].is_finite().all()


def test_a_change_of_units_drifts_and_a_lost_column_is_missing(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData, monitored: Monitoring
) -> None:
    """A vendor delivers volume in thousands, and no open any more: the features of both are named."""
    config, champion, sessions = past
    newest = pl.col("date") >= sessions[-32]  # so that all 21 sessions of a mean are changed
    prices = night.tables["prices"].with_columns(
        volume=pl.when(newest).then(pl.col("volume") / 1000).otherwise("volume"),
        open=pl.when(~newest).then("open"),
    )
    tables = {**night.tables, "prices": prices}
    changed = replace(night, tables=tables, market=build_market(tables, config))
    found = monitor(config, changed, champion, None)
    psi, psi_before = (
        dict(one.tables["drift"].filter(pl.col("kind") == "characteristic").select("feature", "psi").rows())
        for one in (found, monitored)
    )
    for name in ("log_dollar_volume_21", "amihud_21"):
        assert psi[name] > 3 * psi_before[name]
    assert psi["return_1"] == psi_before["return_1"]
    subjects = {finding.subject for finding in found.findings if finding.check == "feature_drift"}
    assert {"log_dollar_volume_21", "amihud_21"} <= subjects
    missing = {finding.subject for finding in found.findings if finding.check == "missing"}
    assert {"overnight_return", "channel overnight_return"} <= missing
    assert "log_dollar_volume_21" not in missing


def test_without_a_backtest_the_validation_is_the_reference(
    past: tuple[Config, ModelVersion, list[dt.date]], night: NightData
) -> None:
    """A config of another name has no backtest of its own, and the finding says that this is optimistic."""
    config, champion, _ = past
    other = config.model_copy(update={"name": "other"})
    found = backtest_reference(other, night, champion)
    assert found is not None
    assert "selected on" in found.origin
    scores = read_scores(open_run(champion.run_id, Path(config.output)))
    last = scores.filter(pl.col("fold") == scores["fold"].max())["valid_rank_ic"].item()
    assert found.reference.mean == pytest.approx(last, abs=1e-6)  # one seed: its own score


def test_the_reference_allows_for_labels_that_overlap() -> None:
    """Sums of five independent values: the long-run deviation of their mean is that of one value."""
    rng = np.random.default_rng(0)
    x_T = np.convolve(rng.normal(size=40_004), np.ones(5) / 5, mode="valid")
    found = reference_of(x_T, 5)
    assert found is not None
    assert x_T.std() == pytest.approx(1 / np.sqrt(5), rel=0.05)
    assert found.std == pytest.approx(1.0, rel=0.25)


def test_a_champion_that_stops_working_raises_an_alarm(
    past: tuple[Config, ModelVersion, list[dt.date]],
) -> None:
    """Skill of 0.08 ends: the alarm comes, and a promotion ends it."""
    config, _, _ = past
    rng = np.random.default_rng(3)
    backtest = BacktestReference(SkillReference(0.08, 0.1, 1000), "the backtest")
    rank_ic_T = 0.1 * rng.normal(size=120) + np.where(np.arange(120) < 60, 0.08, 0.0)
    replaced_T = np.zeros(120, dtype=bool)
    cusum, slack, limit = watch_skill(config, rank_ic_T, replaced_T, backtest)
    assert slack == pytest.approx(0.4)
    assert math.expm1(0.8 * limit) == pytest.approx(250 / 0.05)
    first = int(np.flatnonzero(cusum.alarm_T)[0])
    assert 60 < first < 100
    replaced_T[first + 1] = True
    ended, _, _ = watch_skill(config, rank_ic_T, replaced_T, backtest)
    assert ended.alarm_T[first]
    assert not ended.alarm_T[first + 1]


def test_an_alarm_says_since_when_and_a_loss_of_an_earlier_model_is_not_counted(
    past: tuple[Config, ModelVersion, list[dt.date]],
) -> None:
    """Skill of 0.08 ends on session 60, a new version on session 110 has it, and it ends on session 140."""
    config, _, _ = past
    t = np.arange(180)
    skill_T = np.where((t >= 60) & (t < 110) | (t >= 140), 0.0, 0.08)
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=int(one)) for one in t]
    realised = pl.DataFrame(
        {
            "session": days,
            "version": np.where(t < 110, "old/ridge", "new/ridge"),
            "rank_ic": skill_T + 0.1 * np.random.default_rng(5).normal(size=180),
        }
    )
    backtest = BacktestReference(SkillReference(0.08, 0.1, 1000), "the backtest")
    for stop, ended in ((109, 60), (180, 140)):
        finding, table = _watch(config, realised[:stop], backtest)
        assert finding.level == "warn"
        assert table["alarm"][-1]
        since = dt.date.fromisoformat(finding.sentence.split(" since ")[1][:10])
        assert abs((since - days[ended]).days) <= 6
        mean = realised[:stop].filter(pl.col("session") >= since)["rank_ic"].to_numpy().mean()
        assert f"its mean rank IC is {mean:+.4f}" in finding.sentence
