"""Regressions of followers on leaders against statsmodels, and on planted leads."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from models.explain.network import adjusted_returns, lead_lag

RNG = np.random.default_rng(0)


def test_slopes_and_errors_are_those_of_statsmodels() -> None:
    returns, following = RNG.standard_t(4, size=(2, 150, 4))
    following[:20, 1] = np.nan
    result = lead_lag(returns, following, np.array([0, 3]), np.array([1, 2]))
    for e, (j, i, rows) in enumerate(((0, 1, slice(20, None)), (3, 2, slice(None)))):
        fitted = sm.OLS(following[rows, i], sm.add_constant(returns[rows][:, [j, i]])).fit(
            cov_type="HC3", use_t=True
        )
        assert result.slope_E[e] == pytest.approx(fitted.params[1])
        assert result.error_E[e] == pytest.approx(fitted.bse[1])
        assert result.p_E[e] == pytest.approx(fitted.pvalues[1])
    assert result.sessions_E.tolist() == [130, 150]
    few = lead_lag(returns[:50], following[:50], np.array([0]), np.array([1]))
    assert np.isnan(few.slope_E[0])
    assert np.isnan(few.q_E[0])


def test_a_planted_lead_is_found_and_the_others_are_not() -> None:
    returns = RNG.normal(size=(400, 30))
    following = RNG.normal(size=(400, 30))
    following[:, 7] += 0.3 * returns[:, 2]
    pairs = np.argwhere(~np.eye(30, dtype=bool))
    result = lead_lag(returns, following, pairs[:, 1], pairs[:, 0])
    found = pairs[result.q_E < 0.05]
    assert [7, 2] in found.tolist()
    assert len(found) <= 3
    assert (result.p_E < 0.05).mean() == pytest.approx(0.05, abs=0.02)


def test_at_60_sessions_5_per_cent_of_edges_without_a_lead_are_significant() -> None:
    edges = np.arange(3000)
    returns = np.random.default_rng(1).standard_t(4, size=(61, 6000))
    result = lead_lag(returns[:-1], returns[1:], edges, edges + 3000)
    assert 0.035 <= (result.p_E < 0.05).mean() <= 0.065
    one_day = np.zeros((60, 2))
    one_day[:, 1], one_day[7, 0] = returns[:60, 1], 0.1
    assert np.isnan(lead_lag(one_day, one_day, np.array([0]), np.array([1])).p_E[0]), "one session decides"


def test_returns_are_adjusted_for_the_other_firms_of_the_group() -> None:
    returns = np.array([[0.01, 0.03, 0.05, 0.02, np.nan]])
    universe, group = np.ones((1, 5), dtype=bool), np.array([[0, 0, 1, -1, 0]])
    result = adjusted_returns(returns, universe, group)
    np.testing.assert_allclose(result[0, :4], [-0.02, 0.02, 0.05 - 0.02, 0.02 - 0.03])
    assert np.isnan(result[0, 4])
    assert np.isnan(adjusted_returns(returns, ~universe, group)).all()
