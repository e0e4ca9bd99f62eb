"""``peerglass.backtest``: a frame is measured as the command measures a file, and counted as a trial."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml

import peerglass
from features.information_coefficient import ic_by_date
from peerglass.signals import Backtest
from pipelines.config.load import load_config
from pipelines.lake.lake import Lake
from pipelines.run.fetch import ingest_config
from pipelines.train.trials import read_trials


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**tiny_settings, "models": {"ridge": {}}}))
    ingest_config(load_config(folder / "tiny.yaml"), echo=lambda _: None)
    return folder


@pytest.fixture(scope="module")
def frame(project: Path) -> pl.DataFrame:
    """The true mean return, which is a signal that a market without it could not have, and noise."""
    truth = Lake(project / "lake").read("truth_mu").select("date", "ticker", "mu")
    days = truth["date"].unique().sort()[150:250]
    rows = truth.filter(pl.col("date").is_in(days.implode()))
    noise = np.random.default_rng(1).normal(size=rows.height)
    outside = pl.DataFrame(
        {"date": [dt.date(1990, 1, 1)], "ticker": ["NONE"], "truth": [1.0], "noise": [1.0]}
    )
    return pl.concat([rows.rename({"mu": "truth"}).with_columns(noise=noise), outside])


@pytest.fixture(scope="module")
def found(project: Path, frame: pl.DataFrame) -> Backtest:
    return peerglass.backtest(frame, project / "tiny.yaml")


def test_each_column_is_a_signal_with_tables_of_an_evaluation(found: Backtest, frame: pl.DataFrame) -> None:
    own = found.ladder.filter(pl.col("delay") == 0)
    assert own["model"].to_list() == ["truth", "noise"]
    assert set(found.ladder["delay"]) == {0, 1}, "the first delay that can be traded is added"
    truth, noise = own["ic"]
    assert set(found.tables["guard"]["signal"]) == {"truth", "noise"}
    assert truth > 0.04 > abs(noise)
    assert {"equity", "quantiles", "ic_series", "costs", "significance"} <= set(found.tables)
    assert found.left_out["truth"] >= 1
    assert found.used["truth"] > 1000
    assert found.used["truth"] + found.left_out["truth"] == frame.height


def test_the_ic_equals_a_loop_over_dates(found: Backtest, project: Path, frame: pl.DataFrame) -> None:
    """By hand: the correlation with the next session's total return, over the firms that were measured."""
    from features.panel.panel import to_panel
    from pipelines.dataset.market import build_market
    from pipelines.dataset.tables import input_versions, open_lake, read_tables

    config = load_config(project / "tiny.yaml")
    lake = open_lake(config)
    market = build_market(read_tables(lake, input_versions(lake)), config)
    signal_TN = np.where(market.universe_TN, to_panel(frame, "truth", market.panel), np.nan)
    by_hand = []
    for signal_N, label_N in zip(signal_TN, market.labels[0], strict=True):
        both = np.isfinite(signal_N) & np.isfinite(label_N)
        if both.sum() >= 3:
            by_hand.append(np.corrcoef(signal_N[both], label_N[both])[0, 1])
    assert len(by_hand) > 90
    ic = found.ladder.filter(pl.col("delay") == 0)["ic"][0]
    assert ic == pytest.approx(np.mean(by_hand), abs=1e-9)
    assert np.nanmean(ic_by_date(signal_TN, market.labels[0])) == pytest.approx(np.mean(by_hand), abs=1e-9)


def test_every_signal_is_a_trial_that_is_counted_once(
    found: Backtest, project: Path, frame: pl.DataFrame
) -> None:
    ledger = read_trials(project / "runs")
    assert found.trials == ledger.height == 4, "every book of every signal"
    assert set(ledger["model"]) == {"truth", "noise"}
    again = peerglass.backtest(frame.sample(fraction=1, shuffle=True, seed=3).to_pandas(), found.config)
    assert again.trials == 4, "the same values in another order, from pandas"
    assert again.polars["ladder"].equals(found.polars["ladder"])
    changed = frame.select("date", "ticker", truth=pl.col("truth") * 2)
    costly = peerglass.backtest(changed, project / "tiny.yaml", ["backtest.costs.half_spread_bps=50"])
    assert costly.trials == 6
    assert costly.tables["significance"]["effective_trials"][0] < 5.5, "the same ranks are the same trials"
    sharpe = "long_short.sharpe_net"
    assert costly.ladder[sharpe][0] < found.ladder[sharpe][0]
    assert costly.ladder["ic"][0] == pytest.approx(found.ladder["ic"][0], abs=1e-12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"drop": ["ticker"]}, "no column 'ticker'; it needs date, ticker"),
        ({"drop": ["truth", "noise"]}, "no column of a signal"),
        ({"with": pl.col("ticker").alias("word")}, "a column 'word' of type String"),
        ({"with": pl.col("date").cast(pl.String)}, "The frame has no dates: give a column date"),
        ({"with": pl.lit(np.inf).alias("noise")}, "'noise' has an infinite value"),
        ({"with": pl.lit("NONE").alias("ticker")}, "NONE appears more than once on"),
        ({"with": pl.lit(1.5).alias("noise"), "drop": ["truth"]}, "noise has the same value for all firms"),
        ({"with": pl.col("date").dt.offset_by("-30y")}, "rows of truth is a firm of the universe"),
    ],
)
def test_a_wrong_frame_is_refused(
    project: Path, frame: pl.DataFrame, change: Mapping[str, Any], sentence: str
) -> None:
    wrong = frame.with_columns(change.get("with", [])).drop(change.get("drop", []))
    before = read_trials(project / "runs").height
    with pytest.raises(peerglass.PeerglassError, match=sentence):
        peerglass.backtest(wrong, project / "tiny.yaml")
    assert read_trials(project / "runs").height == before


def test_a_constant_signal_is_left_out_with_a_note(project: Path, frame: pl.DataFrame) -> None:
    one = frame.with_columns(noise=pl.lit(1.5))
    found = peerglass.backtest(one, project / "tiny.yaml", [f"output={project / 'constant'}"])
    assert found.signals == ("truth",)
    assert found.notes[0].startswith("Not measured: noise (the same value for all firms")
    assert "Not measured: noise" in found._repr_html_()


def test_the_frame_of_pandas_has_dates(project: Path) -> None:
    rows = pd.DataFrame({"date": ["2014-01-02"], "ticker": ["A"], "signal": [1.0]})
    with pytest.raises(peerglass.PeerglassError, match="convert texts by str"):
        peerglass.backtest(rows, project / "tiny.yaml")


def test_a_date_with_a_time_zone_is_the_day_of_that_zone(
    project: Path, frame: pl.DataFrame, found: Backtest
) -> None:
    there = pl.col("date").cast(pl.Datetime("us")).dt.replace_time_zone("Europe/Berlin")
    again = peerglass.backtest(frame.with_columns(there).to_pandas(), project / "tiny.yaml")
    assert again.used == found.used
    assert again.ladder["ic"].to_list() == found.ladder["ic"].to_list()
