"""Tests of means and pairs against statsmodels, scipy and a hand-worked example, and their calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import t as student
from scipy.stats import ttest_rel

from backtest.inference.means import (
    diebold_mariano,
    mean_test,
    mean_test_lags,
    newey_west_error,
    newey_west_t,
    paired_test,
)

NAN = math.nan


def hac(x_T: np.ndarray, lags: int) -> tuple[float, float]:
    """Error and t-statistic of statsmodels."""
    fit = sm.OLS(x_T, np.ones(len(x_T))).fit(
        cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False}
    )
    return float(fit.bse[0]), float(fit.tvalues[0])


@pytest.mark.parametrize("lags", [0, 1, 5, 20])
def test_newey_west_is_statsmodels_hac(lags: int) -> None:
    rng = np.random.default_rng(lags)
    x_T = np.convolve(rng.normal(0.05, 1, 260), np.ones(5) / 5, mode="valid")  # autocorrelated
    error, t = hac(x_T, lags)
    with_holes_T = np.insert(x_T, [3, 100, len(x_T)], NAN)
    assert newey_west_error(with_holes_T, lags) == pytest.approx(error, rel=1e-10)
    assert newey_west_t(with_holes_T, lags) == pytest.approx(t, rel=1e-10)


def test_default_lags_follow_newey_and_west_1994() -> None:
    x_T = np.random.default_rng(0).normal(size=100)
    assert newey_west_t(x_T) == newey_west_t(x_T, 4)
    assert math.isnan(newey_west_t(np.array([1.0])))
    assert math.isnan(newey_west_t(np.ones(9)))


@pytest.mark.parametrize("overlap", [1, 5, 21])
def test_a_mean_and_its_error_are_statsmodels_with_the_lags_that_are_reported(overlap: int) -> None:
    rng = np.random.default_rng(overlap)
    a_T, b_T = rng.normal(0.04, 0.1, 400), rng.normal(0.03, 0.1, 400)
    a_T[7] = b_T[200] = NAN
    difference_T = np.delete(a_T - b_T, [7, 200])
    test = paired_test(a_T, b_T, overlap=overlap)
    error, t = hac(difference_T, test.lags)
    assert test.lags == {1: 26, 5: 26, 21: 60}[overlap]  # 1.3 * sqrt(398) = 25.9; 3 * 20
    assert (test.n, test.mean) == (398, difference_T.mean())
    assert test.error == pytest.approx(error, rel=1e-10)
    assert test.t == pytest.approx(t, rel=1e-10)
    assert (test.lower < 0 < test.upper) == (test.p_value > 0.05)
    wider = paired_test(a_T, b_T, overlap=overlap, level=0.01)
    assert wider.lower < test.lower < test.mean < test.upper < wider.upper
    assert wider.p_value == test.p_value


@pytest.mark.parametrize("lags_of_1000", [19, 49, 99, 199])
def test_critical_values_are_those_of_kiefer_and_vogelsang(lags_of_1000: int) -> None:
    """Their Table 1, Bartlett kernel, 97.5%: 1.9600 + 2.9694 b + 0.4160 b^2 - 0.5324 b^3."""
    x_T = np.random.default_rng(1).normal(size=1000)
    overlap = lags_of_1000 // 3 + 2
    test = mean_test(x_T, overlap=overlap)
    b = (test.lags + 1) / 1000
    published = 1.9600 + 2.9694 * b + 0.4160 * b**2 - 0.5324 * b**3
    assert test.lags >= 41
    assert (test.upper - test.mean) / test.error == pytest.approx(published, rel=0.015)


def test_an_interval_at_the_p_value_ends_at_zero() -> None:
    test = mean_test(np.random.default_rng(3).normal(0.1, 1, 300))
    assert test.mean > 0
    assert mean_test(np.random.default_rng(3).normal(0.1, 1, 300), level=test.p_value).lower == pytest.approx(
        0, abs=1e-12
    )


def test_series_without_variation_have_no_test() -> None:
    same = paired_test(np.array([0.1, 0.2, 0.3]), np.array([0.1, 0.2, 0.3]))
    assert (same.mean, same.lower, same.upper) == (0, 0, 0)
    assert math.isnan(same.t)
    assert math.isnan(same.p_value)
    shifted = paired_test(np.linspace(0, 1, 50) + 0.1, np.linspace(0, 1, 50))
    assert math.isnan(shifted.p_value), "rounding is no variation"
    nothing = mean_test(np.array([NAN, NAN]))
    assert nothing.n == 0
    assert math.isnan(nothing.mean)
    for few in (np.array([0.236, NAN]), np.array([0.236, 0.1]), np.array([0.236, 0.236])):
        test = mean_test(few)
        assert test.mean == np.nanmean(few)
        assert np.isnan([test.t, test.p_value, test.lower, test.upper]).all(), "no interval of two values"


def test_what_cannot_be_tested_is_refused() -> None:
    x_T = np.arange(5.0)
    with pytest.raises(ValueError, match="level is 5; it must be between 0 and 1"):
        mean_test(x_T, level=5)
    with pytest.raises(ValueError, match="overlap is 0; it must be at least 1"):
        mean_test(x_T, overlap=0)
    with pytest.raises(ValueError, match="shape of the second series"):
        paired_test(x_T, x_T[:4])
    with pytest.raises(ValueError, match="infinite"):
        mean_test(np.array([1.0, math.inf]))
    with pytest.raises(ValueError, match="horizon is 0"):
        diebold_mariano(x_T, x_T, horizon=0)
    with pytest.raises(ValueError, match="shape of the second loss"):
        diebold_mariano(x_T, x_T[:4])


def test_diebold_mariano_by_hand() -> None:
    # d = 1 2 3 2 1 0: mean 1.5, sum e^2 = 5.5, sum e_t e_{t-1} = 1.75, V = (5.5 + 2 * 1.75) / 36 = 1/4,
    # mean / sqrt(V) = 3, correction (6 + 1 - 4 + 2/6) / 6 = 5/9, so t = 3 sqrt(5/9) = sqrt(5)
    loss_b_T = np.array([4.0, 0.0, 1.0, 5.0, 2.0, 3.0])
    result = diebold_mariano(loss_b_T + np.array([1, 2, 3, 2, 1, 0]), loss_b_T, horizon=2)
    assert (result.n, result.mean) == (6, 1.5)
    assert result.t == pytest.approx(math.sqrt(5), rel=1e-12)
    assert result.p_value == pytest.approx(2 * student.sf(math.sqrt(5), 5), rel=1e-12)
    # d = 1 2 -1 4: sum e^2 = 13, sum e_t e_{t-1} = -7.75, so V is negative for h = 2
    negative = diebold_mariano(np.array([3.0, 5, 4, 8]), np.array([2.0, 3, 5, 4]), horizon=2)
    assert negative.mean == 1.5
    assert math.isnan(negative.t)
    assert math.isnan(diebold_mariano(loss_b_T, loss_b_T).t)


def test_diebold_mariano_at_one_step_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(2)
    a_T, b_T = rng.chisquare(3, 80), rng.chisquare(3, 80)
    expected = ttest_rel(a_T, b_T)
    result = diebold_mariano(np.append(a_T, NAN), np.append(b_T, 1.0))
    assert result.t == pytest.approx(expected.statistic, rel=1e-12)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-12)


def noise_pairs(seed: int, pairs: int, n: int, overlap: int) -> tuple[np.ndarray, np.ndarray]:
    """Daily ICs of two models without skill that share half of their variance, overlapping as labels do."""
    rng = np.random.default_rng(seed)
    shared, a, b = 0.1 * rng.normal(size=(3, pairs, n + overlap - 1))
    window = np.lib.stride_tricks.sliding_window_view
    return (
        window(shared + a, overlap, axis=1).mean(axis=2),
        window(shared + b, overlap, axis=1).mean(axis=2),
    )


@pytest.mark.parametrize(("n", "overlap"), [(250, 1), (500, 5), (1000, 1)])
def test_2000_pairs_of_noise_are_told_apart_in_5_per_cent(n: int, overlap: int) -> None:
    a_PT, b_PT = noise_pairs(0, 2000, n, overlap)
    tests = [paired_test(a_T, b_T, overlap=overlap) for a_T, b_T in zip(a_PT, b_PT, strict=True)]
    rejected = np.mean([test.p_value < 0.05 for test in tests])
    covered = np.mean([test.lower <= 0 <= test.upper for test in tests])
    assert 0.03 <= rejected <= 0.07
    assert covered == pytest.approx(1 - rejected)


@pytest.mark.parametrize(("n", "overlap"), [(250, 1), (500, 5)])
def test_diebold_mariano_rejects_2000_pairs_of_equal_losses_in_5_per_cent(n: int, overlap: int) -> None:
    a_PT, b_PT = noise_pairs(1, 2000, n, overlap)
    results = [diebold_mariano(1 - a, 1 - b, horizon=overlap) for a, b in zip(a_PT, b_PT, strict=True)]
    assert 0.03 <= np.mean([result.p_value < 0.05 for result in results]) <= 0.07


def test_few_lags_and_normal_critical_values_reject_overlapping_noise_twice_as_often() -> None:
    """The reason why `mean_test` has lags and critical values of its own."""
    a_PT, b_PT = noise_pairs(0, 500, 500, 5)
    usual = np.mean([abs(newey_west_t(a - b, 5)) > 1.96 for a, b in zip(a_PT, b_PT, strict=True)])
    assert usual > 0.07
    assert mean_test_lags(500, 5) == 30
    assert mean_test_lags(3, 9) == 2
    assert mean_test_lags(0) == 0
