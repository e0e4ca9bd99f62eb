"""Tied forecasts share equally: books and metrics must not depend on the order of the columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from book_weights import quantile_long_short, top_k_long_only
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backtest.accounts.accounting import run_book
from backtest.accounts.performance import sharpe
from backtest.costs import CostModel
from backtest.forecasts.daily import DailyMetrics, SortedPanel, daily_metrics
from backtest.forecasts.metrics import forecast_metrics, icir, quantile_returns
from features.arrays import FloatArray

NAN = np.nan
Build = Callable[[FloatArray, int], FloatArray]
BUILDS: tuple[Build, ...] = (quantile_long_short, top_k_long_only)
FREE = CostModel()
LEVELS = st.sampled_from([NAN, -2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])
tied_signals = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 12)), elements=LEVELS)


def daily(signal_TN: FloatArray, label_TN: FloatArray, **sizes: int) -> DailyMetrics:
    return daily_metrics(SortedPanel("signal", signal_TN), SortedPanel("label", label_TN), **sizes)


METRICS = (
    "n_dates",
    "ic",
    "icir",
    "ic_t",
    "rank_ic",
    "rank_ic_t",
    "precision_at_10",
    "literature_sr",
    "monotonicity",
    "quantile_returns",
    "tied",
)


def rating_market(T: int = 500, N: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Random walks, and a random rating with three levels on every session."""
    rng = np.random.default_rng(4)
    total_return_index_TN = np.cumprod(1 + rng.normal(0.0, 0.02, (T, N)), axis=0)
    return total_return_index_TN, rng.integers(0, 3, (T, N)).astype(np.float64)


@pytest.mark.parametrize("build", BUILDS)
def test_returns_of_a_three_level_rating_do_not_depend_on_column_order(build: Build) -> None:
    total_return_index_TN, rating_TN = rating_market()
    by_later_return_N = np.argsort(-total_return_index_TN[-1])
    earned = []
    for names_N in (np.arange(100), by_later_return_N, by_later_return_N[::-1]):
        target_TN = build(rating_TN[:, names_N], 5)
        traded_TN = np.ones(total_return_index_TN.shape, dtype=np.bool_)
        earned.append(
            sharpe(run_book(target_TN, total_return_index_TN[:, names_N], traded_TN, FREE, 1).return_net_T)
        )
    assert earned[1:] == pytest.approx([earned[0]] * 2, abs=1e-9)
    assert earned[0] != 0


def test_metrics_of_a_three_level_rating_do_not_depend_on_column_order() -> None:
    total_return_index_TN, rating_TN = rating_market()
    label_TN = total_return_index_TN[1:] / total_return_index_TN[:-1] - 1
    by_later_return_N = np.argsort(-total_return_index_TN[-1])
    one, other = (
        forecast_metrics(rating_TN[:-1, names_N], label_TN[:, names_N])
        for names_N in (by_later_return_N, by_later_return_N[::-1])
    )
    for name in METRICS:
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9), name
    assert one.tied == 1.0


def expected_selection(signal_N: np.ndarray, size: int, *, lowest: bool = False) -> list[Fraction]:
    """Probability that each firm is among the `size` highest, over all orders of tied firms."""
    firms = [n for n in range(len(signal_N)) if not np.isnan(signal_N[n])]
    sign = -1 if lowest else 1
    hits, orders = [0] * len(signal_N), 0
    for order in itertools.permutations(firms):
        orders += 1
        ranked = sorted(
            order, key=lambda n: -sign * signal_N[n]
        )  # a stable sort keeps tied firms in the drawn order
        for n in ranked[:size]:
            hits[n] += 1
    return [Fraction(hit, orders) for hit in hits]


@settings(max_examples=40)
@given(signal_N=hnp.arrays(np.float64, st.integers(2, 6), elements=LEVELS), q=st.integers(2, 3))
def test_books_are_expectations_over_random_tie_breaking(signal_N: np.ndarray, q: int) -> None:
    count = int((~np.isnan(signal_N)).sum())
    assume(count >= q)
    m = count // q
    long = expected_selection(signal_N, m)
    short = expected_selection(signal_N, m, lowest=True)
    want = [float((a - b) / m) for a, b in zip(long, short, strict=True)]
    np.testing.assert_allclose(quantile_long_short(signal_N[None], q)[0], want, rtol=0, atol=1e-15)
    top = [float(share / q) for share in expected_selection(signal_N, q)]
    np.testing.assert_allclose(top_k_long_only(signal_N[None], q)[0], top, rtol=0, atol=1e-15)


@settings(max_examples=40)
@given(
    signal_N=hnp.arrays(np.float64, st.integers(3, 6), elements=LEVELS),
    seed=st.integers(0, 1000),
    q=st.integers(2, 4),
)
def test_metrics_are_expectations_over_random_tie_breaking(signal_N: np.ndarray, seed: int, q: int) -> None:
    label_N = np.random.default_rng(seed).normal(size=len(signal_N))
    firms = np.flatnonzero(~np.isnan(signal_N))
    assume(len(firms) >= q)
    means, hits = [], []
    for order in itertools.permutations(firms.tolist()):
        ranked = sorted(order, key=lambda n: signal_N[n])
        place = [index * q // len(ranked) for index in range(len(ranked))]
        means.append(
            [np.mean([label_N[n] for n, p in zip(ranked, place, strict=True) if p == i]) for i in range(q)]
        )
        hits.append(np.mean([label_N[n] >= 0 for n in ranked[-q:]]))
    np.testing.assert_allclose(
        quantile_returns(signal_N[None], label_N[None], q), np.mean(means, axis=0), rtol=0, atol=1e-12
    )
    assert daily(signal_N[None], label_N[None], hits=q).hits_T[0] == pytest.approx(np.mean(hits), abs=1e-12)


@settings(max_examples=100)
@given(signal_TN=tied_signals, seed=st.integers(0, 1000), size=st.integers(2, 4))
def test_permuted_columns_permute_weights(signal_TN: np.ndarray, seed: int, size: int) -> None:
    assume((~np.isnan(signal_TN)).sum(axis=1).max() >= size)
    names_N = np.random.default_rng(seed).permutation(signal_TN.shape[1])
    for build in BUILDS:
        np.testing.assert_array_equal(build(signal_TN[:, names_N], size), build(signal_TN, size)[:, names_N])


@settings(max_examples=100)
@given(signal_TN=tied_signals, size=st.integers(2, 4))
def test_monotone_transform_keeps_weights(signal_TN: np.ndarray, size: int) -> None:
    assume((~np.isnan(signal_TN)).sum(axis=1).max() >= size)
    for build in BUILDS:
        np.testing.assert_array_equal(build(np.exp(signal_TN) * 7 - 3, size), build(signal_TN, size))


@settings(max_examples=100)
@given(signal_TN=tied_signals, size=st.integers(2, 4))
def test_tied_signals_have_equal_weights_and_legs_sum_to_one(signal_TN: np.ndarray, size: int) -> None:
    counts_T = (~np.isnan(signal_TN)).sum(axis=1)
    assume(counts_T.max() >= size)
    spread_TN, top_TN = quantile_long_short(signal_TN, size), top_k_long_only(signal_TN, size)
    for t in np.flatnonzero(counts_T >= size):
        for level in np.unique(signal_TN[t][~np.isnan(signal_TN[t])]):
            assert len(set(spread_TN[t][signal_TN[t] == level])) == 1
            assert len(set(top_TN[t][signal_TN[t] == level])) == 1
        assert (top_TN[t][np.isnan(signal_TN[t])] == 0).all()
        assert top_TN[t].sum() == pytest.approx(1, abs=1e-12)
        assert spread_TN[t].sum() == pytest.approx(0, abs=1e-12)
        ranked = np.sort(signal_TN[t][~np.isnan(signal_TN[t])])
        m = len(ranked) // size
        if ranked[m - 1] < ranked[-m]:  # no firm is tied with both quantiles
            assert np.maximum(spread_TN[t], 0).sum() == pytest.approx(1, abs=1e-12)


def test_weights_without_ties_equal_a_plain_ranking() -> None:
    rng = np.random.default_rng(1)
    signal_TN = rng.normal(size=(40, 37))
    signal_TN[rng.random(signal_TN.shape) < 0.2] = NAN
    spread_TN, top_TN = np.zeros(signal_TN.shape), np.zeros(signal_TN.shape)
    for t, signal_N in enumerate(signal_TN):
        ranked = [n for n in np.argsort(-signal_N) if not np.isnan(signal_N[n])]
        m = len(ranked) // 5
        spread_TN[t, ranked[:m]] = 1.0 / m
        spread_TN[t, ranked[-m:]] = -1.0 / m
        top_TN[t, ranked[:7]] = 1.0 / 7
    np.testing.assert_array_equal(quantile_long_short(signal_TN, 5), spread_TN)
    np.testing.assert_array_equal(top_k_long_only(signal_TN, 7), top_TN)


def test_ties_by_hand() -> None:
    signal_TN = np.array([[3.0, 2, 2, 2, 1, 0, 0], [1, 1, 1, 1, NAN, NAN, NAN]])
    # seven firms: 2 per side; one of the three 2s is bought, and both 0s are sold
    np.testing.assert_allclose(
        quantile_long_short(signal_TN, 3),
        np.array([[1 / 2, 1 / 6, 1 / 6, 1 / 6, 0, -1 / 2, -1 / 2], [0.0] * 7]),
        atol=1e-15,
    )
    np.testing.assert_allclose(
        top_k_long_only(signal_TN, 3),
        [[1 / 3, 2 / 9, 2 / 9, 2 / 9, 0, 0, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0, 0, 0]],
        atol=1e-15,
    )
    label_TN = np.array([[0.1, 0.2, 0.3, 0.1, 9.0, 0.0, -0.4]])
    # ranks 0 to 6 fall into quantiles 0 0 0 | 1 1 | 2 2: one of the 2s is in the quantile of the 3
    np.testing.assert_allclose(
        quantile_returns(signal_TN[:1], label_TN, 3), [8.6 / 3, 0.2, (0.1 + 0.2) / 2], rtol=1e-12
    )
    two_TN = np.vstack([label_TN, 2 * label_TN])
    # the two highest: the 3 and a third of each 2: (0.1 + 0.2) / 2, then twice that
    ratio = (0.15 + 0.3) / 2 / (0.15 / 2) * 15.87
    assert icir(daily(np.vstack([signal_TN[:1]] * 2), two_TN, top=2).top_T) * 15.87 == pytest.approx(
        ratio, rel=1e-12
    )


def test_tied_share_counts_pairs_with_a_label() -> None:
    signal_TN = np.array([[3.0, 2, 2, 1], [1, 1, NAN, 1], [4, 3, 2, 2]])
    label_TN = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4], [0.3, 0.2, 0.1, NAN]])
    assert forecast_metrics(signal_TN, label_TN).tied == pytest.approx((2 + 3 + 0) / (4 + 3 + 3))


@settings(max_examples=60)
@given(signal_TN=tied_signals, seed=st.integers(0, 1000))
def test_a_long_short_selection_is_the_difference_of_its_sides(signal_TN: np.ndarray, seed: int) -> None:
    selector = SortedPanel("signal", signal_TN)
    size_T = np.random.default_rng(seed).integers(0, selector.count_T + 1)
    want_TN = (selector.highest(size_T) - selector.lowest(size_T)) / np.maximum(size_T, 1)[:, None]
    np.testing.assert_allclose(selector.long_short(size_T), want_TN, rtol=0, atol=1e-15)
    np.testing.assert_allclose(selector.highest(size_T).sum(axis=1), size_T, atol=1e-12)
