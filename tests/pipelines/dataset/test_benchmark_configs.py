"""The benchmarks: development configs cannot show a test, and the CSI 300 is as published."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from places import DATA, ROOT

from backtest.splits.calendar import CalendarPlan, calendar_folds
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.folds import plan_folds
from pipelines.dataset.market import build_market
from pipelines.dataset.tables import input_versions, open_lake, read_market_tables
from pipelines.ingest.ingest import ingest
from pipelines.sources.files.source import FilesSource
from pipelines.sources.settings import FilesSourceConfig

FIRST_TEST = {"csi300": "2017-01-03", "nasdaq_decade": "2014-01-01", "sp500_decade": "2014-01-01"}
"""First day that development may not see: that of the test, or the end of the development years."""


def benchmark(name: str, *overrides: str) -> Config:
    return load_config(ROOT / f"configs/benchmarks/{name}.yaml", overrides)


@pytest.mark.parametrize("name", FIRST_TEST)
def test_development_is_the_benchmark_on_data_that_end_before_its_test(name: str) -> None:
    whole, chosen_on = benchmark(name), benchmark(f"{name}_development")
    assert isinstance(chosen_on.source, FilesSourceConfig)
    assert chosen_on.source.end is not None
    assert chosen_on.source.end < dt.date.fromisoformat(FIRST_TEST[name])
    assert chosen_on.lake != whole.lake, "a lake of all years would show the test"
    assert chosen_on.hypothesis == f"{name}_development"

    def settings(config: Config) -> dict[str, Any]:
        out = config.model_dump(mode="json", exclude={"name", "hypothesis", "lake", "folds"})
        del out["source"]["end"]
        return out

    assert settings(chosen_on) == settings(whole)


@pytest.mark.parametrize("name", FIRST_TEST)
def test_the_headline_can_be_traded(name: str) -> None:
    assert benchmark(name).label.delay == 1


@pytest.mark.parametrize("name", ["nasdaq_decade", "sp500_decade"])
def test_a_decade_tests_every_year_from_2010_on(name: str) -> None:
    for config, years in (
        (benchmark(name), range(2010, 2018)),
        (benchmark(f"{name}_development"), range(2010, 2014)),
    ):
        source, plan, label = config.source, config.folds, config.label
        assert isinstance(source, FilesSourceConfig)
        assert isinstance(plan, CalendarPlan)
        assert source.start is not None
        assert source.end is not None
        days = np.arange(np.datetime64(source.start), np.datetime64(source.end) + np.timedelta64(1, "D"))
        sessions = days[np.is_busday(days)]
        first = config.universe.min_history - 1
        folds = calendar_folds(sessions, plan, label.max_delay, label.horizon, first)
        assert [fold.name for fold in folds] == [str(year) for year in years]


@pytest.mark.slow(8)
@pytest.mark.skipif(not (DATA / "csi300_prices.parquet").exists(), reason="the CSI 300 data are not here")
def test_the_csi_300_has_the_dates_and_labels_of_the_published_protocol(tmp_path: Path) -> None:
    config = benchmark(
        "csi300", f"lake={tmp_path / 'lake'}", "source.start=2014-01-02", "folds.train_from=2014-01-02"
    )
    assert isinstance(config.source, FilesSourceConfig)
    lake = open_lake(config)
    ingest(FilesSource(config.source), lake)
    market = build_market(read_market_tables(lake, input_versions(lake)), config)
    (fold,) = plan_folds(market, config)
    days_T = market.panel.dates_T.astype("datetime64[D]")
    assert (str(days_T[fold.test[0]]), str(days_T[fold.test[-1]])) == ("2017-01-03", "2020-07-31")
    assert len(fold.test) == 871
    assert (str(days_T[fold.valid[0]])[:4], str(days_T[fold.valid[-1]])[:4]) == ("2015", "2016")

    # the label of one firm, by hand: what is earned from the next close to the one after it
    ticker, rows = "SH600000", pl.read_parquet(DATA / "csi300_prices.parquet")
    own = rows.filter(pl.col("ticker") == ticker, pl.col("date") >= dt.date(2014, 1, 2)).sort("date")
    earned = pl.col("close") * pl.col("split_ratio").fill_null(1.0) / pl.col("close").shift(1) - 1
    second = pl.Series(days_T).shift(-2)  # a suspended session has no row, or no volume
    by_hand = (
        own.select(
            "date", label=earned.shift(-2), second=pl.col("date").shift(-2), bought=pl.col("volume").shift(-1)
        )
        .join(pl.DataFrame({"date": days_T, "second": second}), on=["date", "second"])
        .filter(pl.col("bought") > 0)
    )
    firm = list(market.panel.tickers_N).index(ticker)
    label_TN = market.labels[1]
    sessions = np.intersect1d(
        np.concatenate([fold.train, fold.valid]), np.flatnonzero(np.isfinite(label_TN[:, firm]))
    )
    ours = pl.DataFrame({"date": days_T[sessions], "ours": label_TN[sessions, firm]})
    both = ours.join(by_hand, on="date").drop_nulls()
    assert both.height > 500
    assert both["ours"].to_numpy() == pytest.approx(both["label"].to_numpy(), abs=1e-6)
    members = market.universe_TN[np.concatenate([fold.train, fold.valid])].sum(axis=1)
    assert members.min() > 200
    assert members.max() <= 300
