"""Forecast metrics against scipy, statsmodels and loops over dates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from backtest.forecasts.daily import SortedPanel, daily_metrics
from backtest.forecasts.metrics import (
    forecast_metrics,
    icir,
    monotonicity,
    quantile_returns,
    r2_oos,
)
from backtest.inference.means import newey_west_t
from features.information_coefficient import ic_by_date, rank_ic_by_date

NAN = np.nan


def example(seed: int, T: int = 25, N: int = 18, *, ties: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts with ties and gaps, and returns that correlate with them."""
    rng = np.random.default_rng(seed)
    label_TN = rng.normal(0, 0.02, (T, N))
    forecast_TN = label_TN + rng.normal(0, 0.05, (T, N))
    if ties:
        forecast_TN = np.round(forecast_TN, 2)
        label_TN = np.round(label_TN, 3)
    forecast_TN[rng.random((T, N)) < 0.2] = NAN
    label_TN[rng.random((T, N)) < 0.1] = NAN
    return forecast_TN, label_TN


def pairs(forecast_N: np.ndarray, label_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    both_N = np.isfinite(forecast_N) & np.isfinite(label_N)
    return forecast_N[both_N], label_N[both_N]


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), N=st.integers(1, 12))
def test_daily_correlations_equal_scipy(seed: int, N: int) -> None:
    forecast_TN, label_TN = example(seed, 15, N)
    expected_T, rank_expected_T = [], []
    for t in range(15):
        f, y = pairs(forecast_TN[t], label_TN[t])
        if len(f) < 3 or len(set(y)) == 1:
            expected, rank_expected = NAN, NAN
        elif len(set(f)) == 1:
            expected, rank_expected = 0.0, 0.0
        else:
            expected, rank_expected = pearsonr(f, y).statistic, spearmanr(f, y).statistic
        expected_T.append(expected)
        rank_expected_T.append(rank_expected)
    np.testing.assert_allclose(ic_by_date(forecast_TN, label_TN), expected_T, atol=1e-12)
    np.testing.assert_allclose(rank_ic_by_date(forecast_TN, label_TN), rank_expected_T, atol=1e-12)


def test_default_lags_follow_newey_and_west_1994() -> None:
    assert forecast_metrics(*example(0)).lags == 2  # floor(4 * 0.25^(2/9))
    assert forecast_metrics(*example(0), horizon=11).lags == 10


def test_top_k_metrics_equal_loops() -> None:
    forecast_TN, label_TN = example(3, ties=False)  # tests/backtest/test_ties.py has ties
    share_T, top_T = [], []
    for f_N, y_N in zip(forecast_TN, label_TN, strict=True):
        f, y = pairs(f_N, y_N)
        ranked = sorted(range(len(f)), key=lambda n: (-f[n], n))
        if len(f) >= 10:
            share_T.append(sum(y[n] >= 0 for n in ranked[:10]) / 10)
        top_T.append(sum(y[n] for n in ranked[:5]) / 5)
    assert 0 < len(share_T) <= 25
    metrics = forecast_metrics(forecast_TN, label_TN)
    assert metrics.precision_at_10 == pytest.approx(np.mean(share_T), rel=1e-12)
    expected = np.mean(top_T) / np.std(top_T) * 15.87
    assert metrics.literature_sr == pytest.approx(expected, rel=1e-12)


def test_quantiles_equal_array_split() -> None:
    forecast_TN, label_TN = example(4, ties=False)
    mean_TQ = []
    for f_N, y_N in zip(forecast_TN, label_TN, strict=True):
        f, y = pairs(f_N, y_N)
        order = np.argsort(f)
        quantile = np.array([place * 5 // len(f) for place in range(len(f))])
        mean_TQ.append([y[order[quantile == i]].mean() for i in range(5)])
        sizes = np.bincount(quantile)
        assert sizes.max() - sizes.min() <= 1
    np.testing.assert_allclose(
        quantile_returns(forecast_TN, label_TN, 5), np.mean(mean_TQ, axis=0), rtol=1e-12
    )


def test_quantiles_by_hand() -> None:
    forecast_TN = np.array([[4.0, 1, 3, 2], [1, 1, 1, 1], [2, NAN, 1, NAN], [NAN, NAN, 7, NAN]])
    label_TN = np.array([[0.4, 0.1, 0.2, 0.0], [9, 9, 9, 9], [0.6, 9, -0.2, 9], [9, 9, 9, 9]])
    # dates 0 to 2 are used: low (0.1 + 0.0)/2, 9 and -0.2, high (0.4 + 0.2)/2, 9 and 0.6
    np.testing.assert_allclose(quantile_returns(forecast_TN, label_TN, 2), [8.85 / 3, 9.9 / 3])


def test_monotonicity_is_spearman_of_quantile_number() -> None:
    assert monotonicity(np.array([-2.0, -1, 0, 3, 9])) == pytest.approx(1)
    assert monotonicity(np.array([9.0, 3, 0, -1, -2])) == pytest.approx(-1)
    means_Q = np.array([0.1, 0.3, 0.2, 0.2, 0.5])
    assert monotonicity(means_Q) == pytest.approx(spearmanr(range(5), means_Q).statistic)
    assert math.isnan(monotonicity(np.array([0.1, NAN, 0.2])))


def test_r2_against_a_zero_forecast() -> None:
    label_TN = np.array([[0.1, -0.2, NAN], [0.0, 0.3, 5.0]])
    forecast_TN = np.array([[0.2, -0.1, 7.0], [0.0, 0.3, NAN]])
    # errors 0.1, 0.1, 0, 0; squares of labels 0.01 + 0.04 + 0 + 0.09
    assert r2_oos(forecast_TN, label_TN) == pytest.approx(1 - 0.02 / 0.14)
    assert r2_oos(np.zeros((2, 3)), label_TN) == 0
    assert r2_oos(label_TN, label_TN) == 1


def test_summary_equals_its_parts() -> None:
    forecast_TN, label_TN = example(5)
    m = forecast_metrics(forecast_TN.astype(np.float32), label_TN)
    f32_TN = forecast_TN.astype(np.float32)
    ic_T = ic_by_date(f32_TN, label_TN)
    np.testing.assert_array_equal(m.ic_T, ic_T)
    assert m.ic == pytest.approx(ic_T.mean())
    assert m.icir == pytest.approx(ic_T.mean() / ic_T.std()) == icir(ic_T)
    assert m.ic_t == newey_west_t(ic_T, m.lags)
    assert m.rank_ic == pytest.approx(rank_ic_by_date(f32_TN, label_TN).mean())
    assert m.n_pairs == int((np.isfinite(forecast_TN) & np.isfinite(label_TN)).sum())
    assert m.quantile_returns == tuple(quantile_returns(f32_TN, label_TN))
    assert m.monotonicity == monotonicity(np.array(m.quantile_returns))
    assert m.r2_oos == r2_oos(f32_TN, label_TN)


def test_dates_without_values_change_nothing() -> None:
    forecast_TN, label_TN = example(6)
    without = forecast_metrics(forecast_TN, label_TN)
    hole_N = np.full((1, forecast_TN.shape[1]), NAN)
    seen_N = np.arange(forecast_TN.shape[1], dtype=np.float64)[None, :]
    with_holes = forecast_metrics(
        np.vstack([hole_N, forecast_TN, seen_N]), np.vstack([seen_N, label_TN, hole_N])
    )
    assert np.isnan(with_holes.ic_T[[0, -1]]).all()
    assert without.coverage_dates == 1
    assert with_holes.coverage_dates == pytest.approx(25 / 26)  # the date with labels but no forecast
    assert with_holes.coverage_firms == without.coverage_firms
    for name in ("n_dates", "n_pairs", "ic", "ic_t", "rank_ic", "icir", "precision_at_10", "literature_sr"):
        assert getattr(with_holes, name) == getattr(without, name), name
    assert with_holes.quantile_returns == without.quantile_returns


def test_constant_forecast_has_no_skill_and_perfect_one_full_skill() -> None:
    _, label_TN = example(7)
    constant = forecast_metrics(np.zeros_like(label_TN), label_TN)
    assert (constant.n_dates, constant.coverage_dates, constant.coverage_firms) == (25, 1.0, 1.0)
    assert (constant.ic, constant.rank_ic, constant.tied) == (0.0, 0.0, 1.0)
    for name in ("icir", "ic_t", "rank_icir", "rank_ic_t", "monotonicity"):
        assert math.isnan(getattr(constant, name)), name
    # all firms are equally likely to be selected, so the result is the mean over all firms
    known_TN = np.isfinite(label_TN)
    enough_T = known_TN.sum(axis=1) >= 10
    rising_T = (label_TN >= 0).sum(axis=1) / known_TN.sum(axis=1)
    assert constant.precision_at_10 == pytest.approx(rising_T[enough_T].mean())
    np.testing.assert_allclose(constant.quantile_returns, [np.nanmean(label_TN, axis=1).mean()] * 5)
    assert constant.r2_oos == 0
    perfect = forecast_metrics(label_TN, label_TN)
    assert perfect.ic == pytest.approx(1)
    assert perfect.rank_ic == pytest.approx(1)
    assert perfect.monotonicity == pytest.approx(1)
    assert perfect.r2_oos == 1


def test_invalid_inputs_raise() -> None:
    forecast_TN, label_TN = example(8)
    with pytest.raises(ValueError, match="No forecast has a label"):
        forecast_metrics(forecast_TN, np.full_like(label_TN, NAN))
    with pytest.raises(ValueError, match="shape of the label is"):
        forecast_metrics(forecast_TN, label_TN[:, 1:])
    with pytest.raises(ValueError, match="infinite at date 0, firm 0"):
        forecast_metrics(np.full_like(label_TN, np.inf), label_TN)
    with pytest.raises(ValueError, match="at least 1 firm"):
        daily_metrics(SortedPanel("forecast", forecast_TN), SortedPanel("label", label_TN), hits=0)
    with pytest.raises(ValueError, match="at least 2"):
        quantile_returns(forecast_TN, label_TN, 1)
