"""The sample of explained forecasts, and standard errors over dates."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from models.explain.design import mean_over_sample, stratified_sample


def test_every_group_is_drawn_in_proportion_and_every_firm_alike() -> None:
    group_N = np.repeat([3, 1, 2], [10, 20, 30])
    drawn = [stratified_sample(group_N, 12, np.random.default_rng(seed)) for seed in range(3000)]
    for places in drawn:
        assert len(np.unique(places)) == 12
        np.testing.assert_array_equal(np.bincount(group_N[places], minlength=4)[1:], [4, 6, 2])
    rate_N = np.bincount(np.concatenate(drawn), minlength=60) / len(drawn)
    np.testing.assert_allclose(rate_N, 0.2, atol=0.04)
    np.testing.assert_array_equal(stratified_sample(group_N, 99, np.random.default_rng(0)), np.arange(60))


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
