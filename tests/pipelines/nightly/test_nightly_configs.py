"""The two configs of nightly jobs: they are valid, and the data that they name can be delivered."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from places import ROOT
from yahoo_server import YahooServer, business_days, make_firm

from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.nightly.night import play_nights
from pipelines.nightly.schedule import next_night
from pipelines.run.fetch import make_source
from pipelines.sources import yahoo_answers
from pipelines.sources.base import read_tickers
from pipelines.sources.simulated.source import SimulatedSource


def load(name: str, folder: Path, settings: Mapping[str, Any]) -> Config:
    """Read a config of the project, with all its files in another folder."""
    places = {"lake": folder / "lake", "output": folder / "runs"}
    return load_config(ROOT / f"configs/{name}.yaml", [f"{k}={v}" for k, v in {**places, **settings}.items()])


def test_the_demo_can_be_played_on_any_weekday_from_the_middle_of_2026(tmp_path: Path) -> None:
    config = load("nightly_demo", tmp_path, {})
    source = make_source(config)
    assert isinstance(source, SimulatedSource)
    sessions = source.fetch().tables["prices"]["date"].unique().sort()
    assert (sessions[0], sessions[-1]) == (dt.date(2024, 1, 1), dt.date(2028, 12, 29))
    assert config.folds.scheme == "rolling"
    assert next_night(config, open_lake(config), None) == dt.date(2026, 6, 1)
    first_night = sessions.index_of(dt.date(2026, 6, 1))
    assert first_night is not None
    assert first_night > config.folds.train + config.folds.valid + config.universe.min_history
    assert config.nightly.model in config.models
    assert config.nightly.book in config.backtest.books


def test_another_model_of_the_night_leaves_its_other_settings(tmp_path: Path) -> None:
    plain, changed = (load("nightly_yahoo", tmp_path, one) for one in ({}, {"nightly.model": "ridge"}))
    assert changed.nightly.model == "ridge"
    assert changed.nightly == plain.nightly.model_copy(update={"model": "ridge"})
    assert changed.nightly.book == "long_only"


@pytest.mark.slow(8)
def test_the_nightly_job_on_yahoo_plays_two_nights_with_the_real_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "source.statements": "false",
        "universe.min_history": 20,
        "features.characteristics": "[return_1, return_5, volatility_5]",
        "folds.train": 40,
        "folds.valid": 10,
        "nightly.model": "ridge",  # the job's own model needs years of prices
        "audit.enabled": "false",
        "tracking.uri": f"sqlite:///{tmp_path}/mlflow.db",
        "tracking.artifacts": tmp_path / "artifacts",
    }
    config = load("nightly_yahoo", tmp_path, small)
    assert config.source.kind == "yfinance"
    tickers = read_tickers(config.source.tickers)
    days = business_days(dt.date(2024, 1, 2), 90)
    server = YahooServer(
        [make_firm(ticker.replace(".", "-"), days, seed) for seed, ticker in enumerate(tickers)],
        dt.datetime.now(dt.UTC),
    )
    with server.running():
        monkeypatch.setattr(yahoo_answers, "ADDRESS", server.address)
        for day in days[-2:]:
            play_nights(config, day, echo=lambda _: None)
            lake = open_lake(config)
            last = lake.read("prices").group_by("ticker").agg(pl.col("date").max())
            assert dict(last.iter_rows()) == dict.fromkeys(tickers, day)
            signals = lake.read("signals", filters=pl.col("session") == day)
            assert sorted(signals["ticker"]) == sorted(tickers)
            assert signals["signal"].is_finite().all()
    nights = lake.read("nights").sort("session")
    assert nights["session"].to_list() == days[-2:]
    assert nights["version"].n_unique() == 1, "the second night trains nothing"
    book = lake.read("books")
    assert set(book["book"]) == {"long_only"}
    assert (book["weight"] >= 0.0).all()
    first, second = (book.filter(pl.col("session") == day) for day in days[-2:])
    assert first["weight"].sum() == pytest.approx(1.0)
    # the first night's orders are filled at the second close, and their costs are paid from the NAV
    assert second["weight"].sum() == pytest.approx(1.0 / (1.0 - float(first["expected_cost"].sum())))
    assert (second["trade"] == 0.0).all(), "the book rebalances every five sessions"
