"""The monitoring of nights on a small market: a run's test forecasts play the part of past signals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from nights import backtested, forecast_sessions, night_of, store_nights, store_signals
from scipy.stats import spearmanr

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.nightly.data import NightData
from pipelines.nightly.monitor.monitor import Monitoring, monitor
from pipelines.nightly.version import ModelVersion

CHALLENGER = ModelVersion("other-run", "ridge")


@pytest.fixture(scope="module")
def past(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]
) -> tuple[Config, ModelVersion, list[dt.date]]:
    """A trained config whose tests are past nights: config, champion and sessions."""
    settings = {**tiny_settings, "models": {"ridge": {}}, "nightly": {"monitoring": {"sessions": 10}}}
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
