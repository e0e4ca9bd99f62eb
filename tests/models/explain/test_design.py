"""The sample of explained forecasts, and standard errors over dates."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from models.explain.design import evenly_spaced, mean_over_sample, stratified_sample, take_turns


def test_every_group_is_drawn_in_proportion_and_every_firm_alike() -> None:
    group_N = np.repeat([3, 1, 2], [10, 20, 30])
    drawn = [stratified_sample(group_N, 12, np.random.default_rng(seed)) for seed in range(3000)]
    for places in drawn:
        assert len(np.unique(places)) == 12
        np.testing.assert_array_equal(np.bincount(group_N[places], minlength=4)[1:], [4, 6, 2])
    rate_N = np.bincount(np.concatenate(drawn), minlength=60) / len(drawn)
    np.testing.assert_allclose(rate_N, 0.2, atol=0.04)
    np.testing.assert_array_equal(stratified_sample(group_N, 99, np.random.default_rng(0)), np.arange(60))


@pytest.mark.parametrize("count", [1, 5, 12, 24, 500])
def test_as_many_dates_are_explained_as_are_asked_for_and_the_fits_share_them(count: int) -> None:
    tests = [np.arange(100, 160), np.arange(160, 200), np.arange(200, 300)]
    turns = take_turns(tests, 4, count)
    every = np.concatenate([dates for fold in turns for dates in fold])
    np.testing.assert_array_equal(np.sort(every), evenly_spaced(np.arange(100, 300), count))
    for test, fold in zip(tests, turns, strict=True):
        assert np.isin(np.concatenate(fold), test).all(), "a fold explains dates that it tests"
        sizes = [len(dates) for dates in fold]
        assert max(sizes) - min(sizes) <= 1, "seeds take turns"


def test_folds_that_test_the_same_dates_share_them() -> None:
    tests = [np.arange(10, 30), np.arange(20, 40), np.arange(10, 40)]
    turns = take_turns(tests, 2, 12)
    every = np.concatenate([dates for fold in turns for dates in fold])
    assert len(every) == len(np.unique(every)) == 12
    assert min(sum(map(len, fold)) for fold in turns) >= 3


def test_errors_are_those_of_clustered_dates() -> None:
    rng = np.random.default_rng(0)
    session_E = np.repeat(np.arange(15), rng.integers(1, 6, 15))
    value_E = rng.normal(size=15)[session_E] + rng.normal(size=len(session_E))
    mean, error = mean_over_sample(value_E, session_E)
    fitted = sm.OLS(value_E, np.ones(len(value_E))).fit(
        cov_type="cluster", cov_kwds={"groups": session_E, "use_correction": False}
    )
    assert mean == pytest.approx(value_E.mean())
    assert error == pytest.approx(fitted.bse[0] * np.sqrt(15 / 14))
    assert np.isnan(mean_over_sample(value_E[:1], session_E[:1])[1])
