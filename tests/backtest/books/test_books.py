"""Books against a loop over firms, and dates without a decision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from book_weights import quantile_long_short, top_k_long_only
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from features.arrays import FloatArray

NAN = np.nan
signals = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 12)),
    elements=st.sampled_from([NAN, -2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0]),  # few distinct values, so many ties
)


def selected(signal_N: np.ndarray, size: int) -> np.ndarray:
    """Share of each firm in the `size` highest: tied firms split the ranks that higher firms leave."""
    share_N = np.zeros(len(signal_N))
    for n, value in enumerate(signal_N):
        above = sum(other > value for other in signal_N)
        equals = sum(other == value for other in signal_N)
        if equals:  # none: NaN
            share_N[n] = min(1.0, max(0.0, (size - above) / equals))
    return share_N


@settings(max_examples=150)
@given(signal_TN=signals, q=st.integers(2, 5))
def test_long_short_equals_a_loop_over_firms(signal_TN: np.ndarray, q: int) -> None:
    if (~np.isnan(signal_TN)).sum(axis=1).max() < q:
        with pytest.raises(ValueError, match=f"needs {q} signals"):
            quantile_long_short(signal_TN, q)
        return
    expected_TN = np.full(signal_TN.shape, NAN)
    for t, signal_N in enumerate(signal_TN):
        m = int((~np.isnan(signal_N)).sum()) // q
        if m:
            expected_TN[t] = (selected(signal_N, m) - selected(-signal_N, m)) / m
    target_TN = quantile_long_short(signal_TN, q)
    np.testing.assert_allclose(target_TN, expected_TN, rtol=0, atol=1e-15)


@settings(max_examples=150)
@given(signal_TN=signals, k=st.integers(1, 5))
def test_top_k_equals_a_loop_over_firms(signal_TN: np.ndarray, k: int) -> None:
    if (~np.isnan(signal_TN)).sum(axis=1).max() < k:
        with pytest.raises(ValueError, match="lower its size"):
            top_k_long_only(signal_TN, k)
        return
    expected_TN = np.full(signal_TN.shape, NAN)
    for t, signal_N in enumerate(signal_TN):
        if (~np.isnan(signal_N)).sum() >= k:
            expected_TN[t] = selected(signal_N, k) / k
    np.testing.assert_allclose(top_k_long_only(signal_TN, k), expected_TN, rtol=1e-15)


def test_books_by_hand() -> None:
    signal_TN = np.array([[0.1, 0.4, NAN, 0.4, -0.3], [NAN] * 5, [1.0, 2.0, 3.0, 4.0, NAN]])
    np.testing.assert_array_equal(
        quantile_long_short(signal_TN, 2), [[-0.5, 0.5, 0, 0.5, -0.5], [NAN] * 5, [-0.5, -0.5, 0.5, 0.5, 0]]
    )
    np.testing.assert_array_equal(
        top_k_long_only(signal_TN, 1), [[0, 0.5, 0, 0.5, 0], [NAN] * 5, [0, 0, 0, 1, 0]]
    )


def test_rebalancing_counts_from_the_first_possible_decision() -> None:
    signal_TN = np.arange(32.0).reshape(8, 4)
    signal_TN[0] = NAN
    signal_TN[4] = NAN  # a session without signals does not count
    target_TN = top_k_long_only(signal_TN, 2, rebalance_every=3)
    assert np.flatnonzero(~np.isnan(target_TN).any(axis=1)).tolist() == [1, 5]


def test_decisions_do_not_depend_on_later_signals() -> None:
    rng = np.random.default_rng(0)
    signal_TN = rng.normal(size=(30, 11))
    for build in (quantile_long_short, top_k_long_only):
        before_TN = build(signal_TN, 3, 2)
        changed_TN = signal_TN.copy()
        changed_TN[17:] = rng.normal(size=(13, 11))
        np.testing.assert_array_equal(build(changed_TN, 3, 2)[:17], before_TN[:17])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: quantile_long_short(s, 1), "greater than or equal to 2"),
        (lambda s: top_k_long_only(s, 0), "greater than or equal to 1"),
        (lambda s: top_k_long_only(s, 1, rebalance_every=0), "rebalance_every is 0"),
        (lambda s: top_k_long_only(np.where(s > 4, np.inf, s), 1), "infinite at date 1, firm 2"),
        (lambda s: top_k_long_only(s[0], 1), "one row per date"),
    ],
)
def test_invalid_settings_raise(call: Callable[[FloatArray], FloatArray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(np.arange(6.0).reshape(2, 3))
