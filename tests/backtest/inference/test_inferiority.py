"""The one-sided test that a model is worse: against statsmodels, its size, and its edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import t as student

from backtest.inference.inferiority import inferiority_test
from backtest.inference.means import mean_test_lags

ZERO_T = np.zeros(40)


def test_the_p_value_is_that_of_statsmodels_errors_and_a_student_distribution() -> None:
    rng = np.random.default_rng(1)
    a_T, b_T = rng.normal(-0.02, 0.1, 40), rng.normal(0.0, 0.1, 40)
    found = inferiority_test(a_T, b_T, margin=0.01, overlap=5)
    lags = mean_test_lags(40, 5)
    fit = sm.OLS(a_T - b_T + 0.01, np.ones(40)).fit(
        cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False}
    )
    b = (lags + 1) / 40
    t, freedom = fit.tvalues[0] * math.sqrt(1 - b + b**2 / 3), 1.5 / b
    assert found.p_value == pytest.approx(student.cdf(t, freedom), rel=1e-9)
    assert found.difference == pytest.approx(float((a_T - b_T).mean()))
    assert found.n == 40


def test_the_decision_is_that_of_the_upper_bound() -> None:
    rng = np.random.default_rng(2)
    decisions = set()
    for _ in range(50):
        difference_T = rng.normal(-0.03, 0.1, 40)
        found = inferiority_test(difference_T, ZERO_T, margin=0.01)
        assert found.is_worse == (found.p_value < 0.05) == (found.upper < -0.01)
        decisions.add(found.is_worse)
    assert decisions == {True, False}


@pytest.mark.parametrize("overlap", [1, 5])
def test_equal_models_are_called_worse_at_about_the_level(overlap: int) -> None:
    rng = np.random.default_rng(3)
    kernel = np.ones(overlap) / math.sqrt(overlap)
    draws = [np.convolve(rng.standard_normal(30 + overlap - 1), kernel, "valid") for _ in range(1500)]
    rejected = np.mean([inferiority_test(one, np.zeros(30), overlap=overlap).is_worse for one in draws])
    assert 0.03 < rejected < 0.08


def test_a_margin_tolerates_a_difference_and_a_larger_one_is_found() -> None:
    rng = np.random.default_rng(4)
    difference_T = rng.normal(-0.05, 0.02, 40)
    assert inferiority_test(difference_T, ZERO_T).is_worse
    assert not inferiority_test(difference_T, ZERO_T, margin=0.06).is_worse
    assert not inferiority_test(-difference_T, ZERO_T).is_worse


def test_a_constant_difference_needs_no_error() -> None:
    worse = inferiority_test(ZERO_T - 0.1, ZERO_T, margin=0.05)
    assert (worse.is_worse, math.isnan(worse.p_value)) == (True, True)
    assert not inferiority_test(ZERO_T, ZERO_T).is_worse
    assert not inferiority_test(np.array([-1.0]), np.array([0.0])).is_worse, "one session is no evidence"
    assert not inferiority_test(np.array([-1.0, -2.0]), np.zeros(2)).is_worse, "and neither are two"
    assert not inferiority_test(np.full(3, np.nan), np.zeros(3)).is_worse


@pytest.mark.parametrize(("margin", "level"), [(-0.1, 0.05), (math.nan, 0.05), (0.0, 0.5), (0.0, 0.0)])
def test_wrong_settings_are_refused(margin: float, level: float) -> None:
    with pytest.raises(ValueError, match=r"margin is|level is"):
        inferiority_test(ZERO_T, ZERO_T, margin=margin, level=level)
