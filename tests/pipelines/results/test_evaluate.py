"""Ensembles, the ladder and the planted edges, compared with numbers computed by hand."""

from __future__ import annotations

import datetime as dt
import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from features.panel.panel import Panel, to_panel
from pipelines.dataset.build import Dataset
from pipelines.explain.attribution import planted_edges
from pipelines.explain.fitted import families_of
from pipelines.results.evaluate import ensemble, forecasts_to_arrays, seed_dispersion
from pipelines.results.forecast_tables import ensemble_table

DATES = [dt.date(2020, 1, 1) + dt.timedelta(days=day) for day in range(4)]
NAN = float("nan")


def market(tickers: tuple[str, ...]) -> Any:  # noqa: ANN401 (replaces a Panel: only these fields are read)
    dates_T = np.array(DATES, dtype="datetime64[D]")
    return SimpleNamespace(dates_T=dates_T, tickers_N=tickers, n_sessions=len(DATES), n_firms=len(tickers))


def test_an_ensemble_averages_standardised_forecasts_so_that_seeds_have_equal_weight() -> None:
    small = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    large = np.array([[300.0, 200.0, 100.0], [0.0, NAN, 2.0]])
    combined = ensemble({0: small, 1: large})
    np.testing.assert_allclose(combined[0], [0.0, 0.0, 0.0], atol=1e-12)  # opposite ranks cancel exactly
    np.testing.assert_allclose(combined[1, [0, 2]], [-0.5, 0.5])  # a constant date adds nothing
    assert np.isnan(combined[1, 1])  # a firm that one seed does not forecast has no ensemble


def test_one_seed_keeps_the_order_of_its_forecasts() -> None:
    forecast = np.random.default_rng(0).normal(size=(5, 9))
    combined = ensemble({3: forecast})
    np.testing.assert_array_equal(np.argsort(combined, axis=1), np.argsort(forecast, axis=1))
    np.testing.assert_allclose(combined.std(axis=1), 1.0)


@pytest.mark.parametrize("far", [1e9, 1e20, -1e200, 1e308])
@pytest.mark.parametrize("firms", [1, 7])
def test_forecasts_far_from_the_others_do_not_make_these_equal(far: float, firms: int) -> None:
    forecast = np.random.default_rng(1).normal(size=(3, 40))
    forecast[1, :firms] = far * (1 + np.arange(firms) / 100) / 2
    forecast[2, 5] = NAN
    combined = ensemble({0: forecast})
    np.testing.assert_array_equal(np.argsort(combined, axis=1), np.argsort(forecast, axis=1))
    np.testing.assert_array_equal(combined[[0, 2]], ensemble({0: forecast[[0, 2]]}))
    assert np.nanmax(np.abs(combined)) < 7
    both = ensemble({0: forecast, 1: forecast})
    np.testing.assert_allclose(both, combined, rtol=1e-14)


def test_seed_dispersion_is_the_standard_deviation_of_the_seeds_scores() -> None:
    one = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])  # scores -a, 0, a with a = sqrt(3/2); then 0
    other = np.array([[30.0, 20.0, 10.0], [0.0, NAN, 2.0]])  # a, 0, -a; then -1, NaN, 1
    dispersion = seed_dispersion({0: one, 7: other})
    a = math.sqrt(1.5)
    # the standard deviation of two numbers x and y is |x - y| / sqrt(2)
    np.testing.assert_allclose(dispersion[0], [2 * a / math.sqrt(2), 0.0, 2 * a / math.sqrt(2)], atol=1e-12)
    np.testing.assert_allclose(dispersion[1, [0, 2]], 1 / math.sqrt(2))
    assert np.isnan(dispersion[1, 1])
    assert np.isnan(seed_dispersion({0: one})).all(), "one seed has no dispersion"
    np.testing.assert_allclose(seed_dispersion({0: one, 1: 5 * one + 3, 2: one})[0], 0.0, atol=1e-12)


def test_the_table_of_ensembles_has_signal_and_dispersion_for_every_firm_and_date() -> None:
    rng = np.random.default_rng(0)
    seeds = {seed: rng.normal(size=(4, 3)) for seed in range(3)}
    seeds[1][2, 0] = NAN  # one seed has no forecast: no ensemble
    frame = ensemble_table({"net": seeds, "ridge": {0: seeds[0]}}, cast("Panel", market(("A", "B", "C"))))
    assert frame.columns == ["model", "date", "ticker", "signal", "seed_dispersion", "seeds"]
    net = frame.filter(pl.col("model") == "net")
    assert net.height == 11
    assert net["seeds"].unique().to_list() == [3]
    row = net.row(by_predicate=(pl.col("date") == DATES[3]) & (pl.col("ticker") == "B"), named=True)
    scores = [(one[3] - one[3].mean()) / one[3].std() for one in seeds.values()]
    assert math.isclose(row["signal"], np.mean(scores, axis=0)[1])
    assert math.isclose(row["seed_dispersion"], np.std(scores, axis=0, ddof=1)[1])
    alone = frame.filter(pl.col("model") == "ridge")
    assert alone["seed_dispersion"].null_count() == alone.height == 12


def test_forecasts_are_placed_by_session_and_firm_and_unknown_dates_are_dropped() -> None:
    frame = pl.DataFrame(
        {
            "model": ["ridge", "ridge", "zero", "ridge"],
            "seed": [0, 0, 0, 1],
            "date": [DATES[1], DATES[3], DATES[0], dt.date(2031, 1, 1)],
            "ticker": ["B", "A", "A", "A"],
            "forecast": [0.5, -0.25, 0.0, 9.0],
        }
    )
    arrays = forecasts_to_arrays(frame, cast("Panel", market(("A", "B"))))
    expected = np.full((4, 2), np.nan)
    expected[1, 1], expected[3, 0] = 0.5, -0.25
    np.testing.assert_array_equal(arrays["ridge"][0], expected)
    assert arrays["zero"][0][0, 0] == 0.0
    assert np.isnan(arrays["ridge"][1]).all()  # a date that the panel does not have


def test_to_panel_reads_dates_and_tickers_in_any_order() -> None:
    frame = pl.DataFrame({"date": [DATES[2], DATES[0]], "ticker": ["A", "B"], "mu": [1.0, 2.0]})
    mu_TN = to_panel(frame, "mu", cast("Panel", market(("A", "B"))))
    assert mu_TN[2, 0] == 1.0
    assert mu_TN[0, 1] == 2.0
    assert np.isfinite(mu_TN).sum() == 2


def test_planted_edges_are_those_that_are_valid_on_at_least_half_of_the_sessions() -> None:
    truth = pl.DataFrame(
        {
            "leader": ["A", "B", "C", "A"],
            "follower": ["B", "C", "A", "B"],
            "valid_from": [DATES[0], DATES[3], DATES[0], DATES[0]],
            "valid_to": [None, None, DATES[2], None],
            "lag": [1, 1, 1, 2],
        }
    )
    dataset = cast("Dataset", SimpleNamespace(panel=market(("A", "B", "C"))))
    planted = planted_edges(truth, dataset, np.arange(4))
    expected = np.zeros((3, 3), dtype=bool)
    expected[1, 0] = True  # A -> B on all four; its second lag is the same edge
    expected[0, 2] = True  # C -> A on two of four; valid_to is excluded
    np.testing.assert_array_equal(planted, expected)  # B -> C is valid on one of four


def test_families_hold_every_column_once() -> None:
    families = families_of(("return_1", "volatility_21", "return_5"))
    assert sorted(column for columns in families.values() for column in columns) == [0, 1, 2]
    assert families["reversal"] == [0, 2]
