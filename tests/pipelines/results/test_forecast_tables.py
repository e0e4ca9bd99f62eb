"""Decay, quantile spread, persistence and exposures against loops, and what they may read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.stats import pearsonr, spearmanr

from backtest.inference.means import mean_test
from features.library.characteristics import CHARACTERISTICS
from features.panel.holding import forward_returns
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.results.evaluate import evaluate
from pipelines.results.forecast_tables import DELAYS, HORIZONS, forecast_tables

FIRST, LAST = 100, 250  # of about 320 sessions
HORIZON, WIDEST = 2, 3  # of the label, and the longest delay of the config
NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})


@pytest.fixture(scope="module")
def config(tiny_settings: Mapping[str, Any]) -> Config:
    label = {"horizon": HORIZON, "delay": 0, "extra_delays": [WIDEST]}
    return check_config({**tiny_settings, "label": label}, origin="tiny")


@pytest.fixture(scope="module")
def market(tiny_tables: dict[str, pl.DataFrame], config: Config) -> Market:
    return build_market(tiny_tables, config)


@pytest.fixture(scope="module")
def signal_TN(market: Market) -> np.ndarray:  # noqa: N802  # a shape suffix
    """Known outside the universe too, on the sessions FIRST to LAST, with gaps."""
    rng = np.random.default_rng(0)
    out_TN = np.full(market.universe_TN.shape, np.nan)
    size = out_TN[FIRST : LAST + 1].shape
    out_TN[FIRST : LAST + 1] = np.cumsum(rng.normal(size=size), axis=0)
    out_TN[FIRST : LAST + 1][rng.random(size) < 0.1] = np.nan
    return out_TN


@pytest.fixture(scope="module")
def tables(market: Market, config: Config, signal_TN: np.ndarray) -> dict[str, pl.DataFrame]:
    return forecast_tables({"walk": signal_TN}.items(), market, config)


def test_the_decay_equals_loops_over_dates(
    tables: dict[str, pl.DataFrame], market: Market, signal_TN: np.ndarray
) -> None:
    decay = tables["ic_decay"]
    spans = list(decay.select("horizon", "delay").iter_rows())
    fits = [horizon for horizon in HORIZONS if horizon != 63]  # 151 dates hold two labels over 63 sessions
    want_spans = {(h, WIDEST) for h in fits} | {(HORIZON, d) for d in (*DELAYS, WIDEST)}
    assert len(spans) == len(want_spans)
    assert set(spans) == want_spans
    limit = LAST + WIDEST + HORIZON
    for row in decay.iter_rows(named=True):
        label_TN = forward_returns(market.panel, row["delay"], row["horizon"])
        ics, rank_ics = [], []
        for t in range(FIRST, LAST + 1):
            if t + row["delay"] + row["horizon"] > limit:
                continue
            known_N = market.universe_TN[t] & np.isfinite(signal_TN[t]) & np.isfinite(label_TN[t])
            ics.append(pearsonr(signal_TN[t, known_N], label_TN[t, known_N]).statistic)
            rank_ics.append(spearmanr(signal_TN[t, known_N], label_TN[t, known_N]).statistic)
        for name, series in (("ic", ics), ("rank_ic", rank_ics)):
            test = mean_test(np.array(series), overlap=row["horizon"])
            assert row[name] == pytest.approx(test.mean, abs=1e-12)
            assert row[f"{name}_t"] == pytest.approx(test.t, rel=1e-9)
            assert row["dates"] == test.n > 100


def test_the_decay_and_the_spread_agree_with_the_ladder(
    tables: dict[str, pl.DataFrame], market: Market, config: Config, signal_TN: np.ndarray
) -> None:
    inside_TN = np.where(market.universe_TN, signal_TN, np.nan)
    result = evaluate(
        {"walk": {0: inside_TN}},
        market,
        config,
        NO_SCORES,
        truth_TN=None,
        sessions=np.arange(FIRST, LAST + 1),
    )
    own = tables["ic_decay"].filter(pl.col("horizon") == HORIZON)
    spread = tables["quantile_spread"]
    assert spread["delay"].to_list() == [0, WIDEST]
    for row in result["ladder"].iter_rows(named=True):
        here = own.row(by_predicate=pl.col("delay") == row["delay"], named=True)
        assert here["ic"] == pytest.approx(row["ensemble_ic"], abs=1e-12)
        assert here["rank_ic"] == pytest.approx(row["ensemble_rank_ic"], abs=1e-12)
        means = (
            result["quantiles"].filter(pl.col("delay") == row["delay"]).sort("quantile")["mean_return_bps"]
        )
        one = spread.row(by_predicate=pl.col("delay") == row["delay"], named=True)
        assert one["spread_bps"] == pytest.approx(means[-1] - means[0], abs=1e-9)
        assert one["lower_bps"] < one["spread_bps"] < one["upper_bps"]
        assert np.sign(one["t"]) == np.sign(one["spread_bps"])
        assert one["quantiles"] == len(means) == 5


def test_the_series_by_quantile_average_to_the_spread(
    tables: dict[str, pl.DataFrame], market: Market, signal_TN: np.ndarray
) -> None:
    series, spread = tables["quantile_series"], tables["quantile_spread"]
    assert series["delay"].unique().to_list() == [WIDEST]
    assert series["date"].n_unique() == LAST - FIRST + 1
    assert series.height == 5 * series["date"].n_unique()
    means = (
        series.group_by("quantile").agg(pl.col("mean_return_bps").mean()).sort("quantile")["mean_return_bps"]
    )
    expected = spread.row(by_predicate=pl.col("delay") == WIDEST, named=True)["spread_bps"]
    assert means[-1] - means[0] == pytest.approx(expected, abs=1e-9)
    label_TN = forward_returns(market.panel, WIDEST, HORIZON)
    for t in (FIRST, LAST):
        known_N = market.universe_TN[t] & np.isfinite(signal_TN[t]) & np.isfinite(label_TN[t])
        day = series.filter(pl.col("date") == market.panel.dates_T[t].astype("datetime64[D]").item())
        order_N = np.argsort(signal_TN[t, known_N])
        fifth = int(known_N.sum()) // 5
        top = label_TN[t, known_N][order_N[-fifth:]].mean()
        assert day.sort("quantile")["mean_return_bps"][-1] == pytest.approx(1e4 * top, abs=1e-9)


def test_no_table_reads_a_session_that_the_ladder_does_not(
    tables: dict[str, pl.DataFrame], market: Market, config: Config, signal_TN: np.ndarray
) -> None:
    def with_index(first: int) -> Market:
        index_TN = market.panel.total_return_index_TN.copy()
        index_TN[first:] *= np.random.default_rng(1).uniform(0.5, 2.0, index_TN[first:].shape)
        return dataclasses.replace(
            market, panel=dataclasses.replace(market.panel, total_return_index_TN=index_TN)
        )

    beyond = LAST + WIDEST + HORIZON + 1
    same = forecast_tables({"walk": signal_TN}.items(), with_index(beyond), config)
    for name, table in tables.items():
        assert table.equals(same[name]), name
    other = forecast_tables({"walk": signal_TN}.items(), with_index(beyond - 1), config)
    assert not other["ic_decay"].equals(tables["ic_decay"])
    assert not other["quantile_spread"].equals(tables["quantile_spread"])


def test_firms_outside_the_universe_change_nothing(
    tables: dict[str, pl.DataFrame], market: Market, config: Config, signal_TN: np.ndarray
) -> None:
    outside_TN = ~market.universe_TN & np.isfinite(signal_TN)
    assert outside_TN.any()
    changed = forecast_tables({"walk": np.where(outside_TN, 1e6, signal_TN)}.items(), market, config)
    for name, table in tables.items():
        assert table.equals(changed[name]), name


def test_models_keep_their_order_and_a_scaled_signal_keeps_its_figures(
    tables: dict[str, pl.DataFrame], market: Market, config: Config, signal_TN: np.ndarray
) -> None:
    late_TN = signal_TN.copy()
    late_TN[: FIRST + 40] = np.nan  # other dates than the other models
    both = forecast_tables(
        {"walk": signal_TN, "late": late_TN, "half": signal_TN / 2}.items(), market, config
    )
    for name, table in both.items():
        assert table["model"].unique(maintain_order=True).to_list() == ["walk", "late", "half"], name
        alone = tables[name].drop("model")
        for model in ("walk", "half"):
            assert_frame_equal(table.filter(pl.col("model") == model).drop("model"), alone, rel_tol=1e-9)
    dates = both["ic_decay"].filter((pl.col("horizon") == HORIZON) & (pl.col("delay") == 0))["dates"]
    assert dates.to_list() == [151, 111, 151]


def test_persistence_equals_pandas(
    tables: dict[str, pl.DataFrame], market: Market, signal_TN: np.ndarray
) -> None:
    inside_TN = np.where(market.universe_TN, signal_TN, np.nan)[FIRST : LAST + 1]
    ranks = pd.DataFrame(inside_TN).rank(axis=1)
    table = tables["persistence"]
    assert table["lag"].to_list() == [1, 5, 21]
    for row in table.iter_rows(named=True):
        want = ranks.corrwith(ranks.shift(row["lag"]), axis=1)[row["lag"] :].mean()
        assert row["rank_autocorrelation"] == pytest.approx(want, abs=1e-12)
    for name in ("top_turnover", "bottom_turnover"):
        assert 0 < table[name][0] < table[name][1] < table[name][2] <= 1


def test_a_signal_that_is_a_style_is_named_by_its_exposure(market: Market, config: Config) -> None:
    sessions = np.arange(FIRST, LAST + 1)
    raw_TN = CHARACTERISTICS.compute(market.panel, ["return_5"])[:, :, 0]
    signal_TN = np.full(market.universe_TN.shape, np.nan)
    signal_TN[sessions] = np.where(market.universe_TN, -raw_TN, np.nan)[sessions]
    table = forecast_tables({"s": signal_TN}.items(), market, config)["signal_exposures"]
    styles = table.filter(pl.col("kind") == "style")
    mean = dict(styles.select("key", "mean").iter_rows())
    assert mean["reversal_5"] == pytest.approx(1)
    assert styles.filter(pl.col("t").is_null())["key"].to_list() == ["reversal_5"]
    assert 0.2 < mean["reversal_1"] < 0.9
    # momentum and beta need 252 sessions, which no measured date has
    assert set(mean) == {"size", "value", "reversal_1", "reversal_5", "reversal_21", "volatility"}
    assert max(abs(mean[key]) for key in ("size", "value")) < 0.3
    volatility_TN = CHARACTERISTICS.compute(market.panel, ["volatility_63"])[:, :, 0]
    by_date = [
        spearmanr(signal_TN[t], volatility_TN[t], nan_policy="omit").statistic
        for t in sessions
        if (np.isfinite(signal_TN[t]) & np.isfinite(volatility_TN[t])).sum() >= 3
    ]
    row = styles.row(by_predicate=pl.col("key") == "volatility", named=True)
    assert row["mean"] == pytest.approx(np.mean(by_date), abs=1e-12)
    assert row["t"] == pytest.approx(mean_test(np.array(by_date)).t, rel=1e-9)


def test_sector_exposures_are_mean_scores(
    tables: dict[str, pl.DataFrame], market: Market, signal_TN: np.ndarray
) -> None:
    sectors = tables["signal_exposures"].filter(pl.col("kind") == "sector")
    assert set(sectors["key"]) <= {*market.panel.groups_S, "unknown"}
    assert sectors.height >= 2
    for row in sectors.iter_rows(named=True):
        code = market.panel.groups_S.index(row["key"])
        means = []
        for t in range(FIRST, LAST + 1):
            known_N = market.universe_TN[t] & np.isfinite(signal_TN[t])
            score_N = (signal_TN[t] - signal_TN[t, known_N].mean()) / signal_TN[t, known_N].std()
            inside_N = known_N & (market.panel.group_TN[t] == code)
            if inside_N.any():
                means.append(score_N[inside_N].mean())
        assert row["mean"] == pytest.approx(np.mean(means), abs=1e-12)
        assert row["t"] == pytest.approx(mean_test(np.array(means)).t, rel=1e-9)


def test_sparse_forecasts_have_fewer_overlaps_and_few_dates_few_horizons(
    market: Market, config: Config, signal_TN: np.ndarray
) -> None:
    weekly_TN = np.full_like(signal_TN, np.nan)
    weekly_TN[FIRST : LAST + 1 : 5] = signal_TN[FIRST : LAST + 1 : 5]
    few_TN = np.full_like(signal_TN, np.nan)
    few_TN[FIRST : FIRST + 9] = signal_TN[FIRST : FIRST + 9]
    decay = forecast_tables({"weekly": weekly_TN, "few": few_TN}.items(), market, config)["ic_decay"]
    weekly = decay.filter(pl.col("model") == "weekly")
    assert weekly.filter(pl.col("horizon") == 21)["dates"].to_list() == [
        27
    ]  # of 31 weeks; the labels of 4 end too late
    few = decay.filter((pl.col("model") == "few") & (pl.col("delay") == WIDEST))
    assert few["horizon"].to_list() == [1, 2]  # 9 dates, 4 labels over 2 sessions; 3 would need 12 dates
    persistence = forecast_tables({"few": few_TN}.items(), market, config)["persistence"]
    assert persistence["lag"].to_list() == [1, 5]
