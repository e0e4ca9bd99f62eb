"""Metrics of every date against scipy, pandas and loops over dates and firms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rank_correlations import one_date
from scipy.stats import spearmanr

from backtest.forecasts.daily import DailyMetrics, SortedPanel, daily_metrics, persistence
from features.information_coefficient import ic_by_date, rank_ic_by_date

NAN = np.nan
SERIES = ("pairs_T", "tied_T", "ic_T", "rank_ic_T", "hits_T", "top_T", "squared_error_T", "squared_label_T")


def example(seed: int, T: int = 12, N: int = 17) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts and labels with ties and gaps, dates without pairs, and dates without variation."""
    rng = np.random.default_rng(seed)
    forecast_TN, label_TN = np.round(rng.normal(size=(T, N)), 1), np.round(rng.normal(0, 0.02, (T, N)), 2)
    forecast_TN[rng.random((T, N)) < 0.2] = NAN
    label_TN[rng.random((T, N)) < 0.1] = NAN
    forecast_TN[0], label_TN[1], forecast_TN[2], forecast_TN[3, 2:] = 0.1, 0.1, NAN, NAN
    return forecast_TN, label_TN


def measured(forecast_TN: np.ndarray, label_TN: np.ndarray, quantiles: int = 5) -> DailyMetrics:
    """With 4 firms for the hits and 3 for the mean label."""
    forecast, label = SortedPanel("forecast", forecast_TN), SortedPanel("label", label_TN)
    return daily_metrics(forecast, label, quantiles=quantiles, hits=4, top=3)


def tied_mean(forecast: np.ndarray, value: np.ndarray, first: int, last: int) -> float:
    """Mean of the values at places first to last of the forecasts, over all orders of tied firms.

    A tie at places a..b is in the selection with the share of those places; its firms have equal chances.
    """
    total = Fraction(0)
    for level in set(forecast.tolist()):
        places = range(int((forecast < level).sum()), int((forecast <= level).sum()))
        inside = len(set(places) & set(range(first, last)))
        mean = sum((Fraction(v) for v in value[forecast == level].tolist()), Fraction(0)) / len(places)
        total += inside * mean
    return float(total / (last - first))


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), N=st.integers(1, 20), q=st.integers(2, 6))
def test_every_date_equals_loops(seed: int, N: int, q: int) -> None:
    forecast_TN, label_TN = example(seed, N=N)
    got = measured(forecast_TN, label_TN, q)
    for t, (forecast_N, label_N) in enumerate(zip(forecast_TN, label_TN, strict=True)):
        known_N = np.isfinite(forecast_N) & np.isfinite(label_N)
        f, y = forecast_N[known_N], label_N[known_N]
        n = len(f)
        want = {
            "pairs_T": n,
            "tied_T": sum(int((f == one).sum() > 1) for one in f),
            "ic_T": one_date(forecast_N, label_N, ranks=False),
            "rank_ic_T": one_date(forecast_N, label_N, ranks=True),
            "hits_T": tied_mean(f, y >= 0, n - 4, n) if n >= 4 else NAN,
            "top_T": tied_mean(f, y, n - 3, n) if n >= 3 else NAN,
            "squared_error_T": math.fsum((y - f) ** 2),
            "squared_label_T": math.fsum(y**2),
        }
        for name, value in want.items():
            assert getattr(got, name)[t] == pytest.approx(value, rel=1e-12, abs=1e-13, nan_ok=True), name
        bounds = [math.ceil(Fraction(i * n, q)) for i in range(q + 1)]
        means = [tied_mean(f, y, *bounds[i : i + 2]) for i in range(q)] if n >= q else [NAN] * q
        np.testing.assert_allclose(got.quantile_TQ[t], means, rtol=0, atol=1e-14)


def test_correlations_equal_those_of_early_stopping_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    forecast_TN, label_TN = rng.normal(size=(300, 401)), rng.standard_t(3, size=(300, 401)) * 0.02
    forecast_TN[rng.random(forecast_TN.shape) < 0.1] = NAN
    got = measured(forecast_TN, label_TN)
    np.testing.assert_array_equal(got.ic_T, ic_by_date(forecast_TN, label_TN))
    np.testing.assert_array_equal(got.rank_ic_T, rank_ic_by_date(forecast_TN, label_TN))
    known_TN = np.isfinite(forecast_TN)
    want = [spearmanr(forecast_TN[t, k], label_TN[t, k]).statistic for t, k in enumerate(known_TN)]
    np.testing.assert_allclose(got.rank_ic_T, want, rtol=0, atol=1e-14)


EDGE_VALUES = st.one_of(
    st.sampled_from([NAN, 0.0, -0.0, 5e-324, -5e-324, 1.7e308, -1.7e308, 1.0]),
    st.integers(0, 12).map(lambda k: 1.0 + k * 2.0**-52),  # neighbours that differ in their last bits
    st.integers(0, 12).map(lambda k: -1.0 - k * 2.0**-52),
    st.floats(allow_nan=False, allow_infinity=False),
)


@settings(max_examples=200)
@given(x_TN=hnp.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 90)), elements=EDGE_VALUES))
def test_the_order_is_a_stable_sort_to_the_last_bit(x_TN: np.ndarray) -> None:
    panel = SortedPanel("signal", x_TN)
    for t, x_N in enumerate(x_TN):
        n = int((~np.isnan(x_N)).sum())
        assert panel.count_T[t] == n
        np.testing.assert_array_equal(panel.order_TN[t, :n], np.argsort(x_N, kind="stable")[:n])


def test_a_constant_with_noise_in_its_last_bits_is_sorted() -> None:
    x_TN = 1.0 + np.random.default_rng(0).integers(0, 4000, (3, 3000)) * 2.0**-52
    panel = SortedPanel("signal", x_TN)
    np.testing.assert_array_equal(panel.order_TN, np.argsort(x_TN, axis=1, kind="stable"))


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-9, 0.5, 3.0, 1e12]))
def test_scaling_and_the_order_of_the_columns_change_nothing(seed: int, scale: float) -> None:
    forecast_TN, label_TN = example(seed)
    one = measured(forecast_TN, label_TN)
    columns = np.random.default_rng(seed).permutation(forecast_TN.shape[1])
    for other in (
        measured(forecast_TN * scale, label_TN),
        measured(forecast_TN[:, columns], label_TN[:, columns]),
    ):
        for name in ("pairs_T", "tied_T", "ic_T", "rank_ic_T", "hits_T", "top_T", "quantile_TQ"):
            np.testing.assert_allclose(
                getattr(other, name), getattr(one, name), rtol=0, atol=1e-12, err_msg=name
            )
    ranked = measured(np.exp(forecast_TN) - 7, label_TN)  # any increasing function keeps what ranks decide
    for name in ("rank_ic_T", "tied_T", "hits_T", "top_T", "quantile_TQ"):
        np.testing.assert_array_equal(getattr(ranked, name), getattr(one, name), err_msg=name)


def test_a_date_does_not_depend_on_other_dates() -> None:
    forecast_TN, label_TN = example(3, T=700, N=90)  # several blocks of dates
    one = measured(forecast_TN, label_TN)
    for t in (0, 1, 363, 364, 699):
        alone = measured(forecast_TN[t : t + 1], label_TN[t : t + 1])
        for name in (*SERIES, "quantile_TQ"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(one, name)[t], err_msg=name)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), lag=st.integers(1, 4), ties=st.booleans())
def test_rank_autocorrelation_equals_pandas(seed: int, lag: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    signal_TN = np.cumsum(rng.normal(size=(9, 11)), axis=0)
    signal_TN = np.round(signal_TN) if ties else signal_TN
    signal_TN[rng.random(signal_TN.shape) < 0.15] = NAN
    ranks = pd.DataFrame(signal_TN).rank(axis=1)
    want_T = ranks.corrwith(ranks.shift(lag), axis=1).to_numpy()[lag:]
    got_T = persistence(SortedPanel("signal", signal_TN), (lag,))[lag].rank_autocorrelation_T
    common_T = (np.isfinite(signal_TN[lag:]) & np.isfinite(signal_TN[:-lag])).sum(axis=1)
    np.testing.assert_allclose(got_T[common_T >= 3], want_T[common_T >= 3], rtol=0, atol=1e-12)
    assert np.isnan(got_T[common_T < 3]).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), lag=st.integers(1, 3), q=st.integers(2, 5), ties=st.booleans())
def test_turnover_equals_sets_and_shares_of_ties(seed: int, lag: int, q: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    signal_TN = np.cumsum(rng.normal(size=(8, 14)), axis=0)
    signal_TN = np.round(signal_TN) if ties else signal_TN
    signal_TN[rng.random(signal_TN.shape) < 0.2] = NAN
    signal_TN[2, 1:] = NAN  # fewer firms than quantiles

    def members(signal_N: np.ndarray, first: int, last: int) -> np.ndarray:
        """Each firm's chance to be at the places first to last, over all orders of tied firms."""
        chance_N = np.zeros(len(signal_N))
        for n in np.flatnonzero(np.isfinite(signal_N)):
            places = range(int((signal_N < signal_N[n]).sum()), int((signal_N <= signal_N[n]).sum()))
            chance_N[n] = len(set(places) & set(range(first, last))) / len(places)
        return chance_N

    got = persistence(SortedPanel("signal", signal_TN), (lag,), quantiles=q)[lag]
    for i in range(8 - lag):
        then_N, now_N = signal_TN[i], signal_TN[i + lag]
        known = [int(np.isfinite(x_N).sum()) for x_N in (then_N, now_N)]
        if min(known) < q:
            assert np.isnan(got.bottom_turnover_T[i])
            assert np.isnan(got.top_turnover_T[i])
            continue
        bounds = [(math.ceil(n / q), math.ceil((q - 1) * n / q), n) for n in known]
        low = [members(x_N, 0, b[0]) for x_N, b in zip((then_N, now_N), bounds, strict=True)]
        high = [members(x_N, b[1], b[2]) for x_N, b in zip((then_N, now_N), bounds, strict=True)]
        for (before_N, after_N), value in ((low, got.bottom_turnover_T[i]), (high, got.top_turnover_T[i])):
            assert value == pytest.approx(np.maximum(after_N - before_N, 0).sum() / after_N.sum(), abs=1e-12)


def test_persistence_by_hand() -> None:
    signal_TN = np.array([[1.0, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 9, NAN]])
    got = persistence(SortedPanel("signal", signal_TN), (1, 9), quantiles=3)
    np.testing.assert_allclose(got[1].rank_autocorrelation_T[:2], [1, -1])
    # top thirds: {e, f}, {e, f}, {a, b}, {e} (5 firms: sizes 2, 2, 1); bottom thirds: {a, b}, ..., {c, d}
    np.testing.assert_allclose(got[1].top_turnover_T, [0, 1, 1])
    np.testing.assert_allclose(got[1].bottom_turnover_T, [0, 1, 1])
    assert got[9].rank_autocorrelation_T.shape == got[9].top_turnover_T.shape == (0,)
    constant = persistence(SortedPanel("signal", np.ones((3, 6))), (1,), quantiles=3)[1]
    assert np.isnan(constant.rank_autocorrelation_T).all()
    np.testing.assert_array_equal(constant.top_turnover_T, [0, 0])


def test_invalid_inputs_raise() -> None:
    panel = SortedPanel("signal", np.ones((3, 6)))
    with pytest.raises(ValueError, match=r"shape of the label is \(3, 5\)"):
        daily_metrics(panel, SortedPanel("label", np.ones((3, 5))))
    with pytest.raises(ValueError, match="q is 1; there must be at least 2"):
        persistence(panel, (1,), quantiles=1)
    with pytest.raises(ValueError, match="A lag is 0"):
        persistence(panel, (5, 0))
    with pytest.raises(ValueError, match="k is 0"):
        daily_metrics(panel, panel, top=0)
    with pytest.raises(ValueError, match="The signal is infinite at date 0, firm 0"):
        SortedPanel("signal", np.full((1, 2), np.inf))
    with pytest.raises(ValueError, match="must have one row per date"):
        SortedPanel("signal", np.ones(3))
