"""The top-k drop book against qlib's algorithm as a loop over lists, and ties worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from book_weights import top_k_long_only, weights
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backtest.books.rules.top_k_drop import TopKDrop
from features.arrays import FloatArray

NAN = np.nan


def topk_dropout(signal_TN: FloatArray, k: int, n_drop: int) -> FloatArray:
    """The steps of qlib's TopkDropoutStrategy on lists of firms, after firms without a signal were sold."""
    held: list[int] = []
    target_TN = np.full(signal_TN.shape, NAN)
    for t, signal_N in enumerate(signal_TN):
        ranked = [int(n) for n in np.argsort(-signal_N) if not np.isnan(signal_N[n])]
        if len(ranked) < k:
            continue
        last = [n for n in ranked if n in held]
        today = [n for n in ranked if n not in held][: n_drop + k - len(last)]
        combined = [n for n in ranked if n in last + today]
        sell = [n for n in last if n in combined[-n_drop:]]
        buy = today[: len(sell) + k - len(last)]
        held = [n for n in last if n not in sell] + buy
        target_TN[t] = 0.0
        target_TN[t, held] = 1 / k
    return target_TN


@settings(max_examples=200)
@given(seed=st.integers(0, 10_000), T=st.integers(1, 20), N=st.integers(2, 20), data=st.data())
def test_without_ties_it_is_the_algorithm_of_qlib(seed: int, T: int, N: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    signal_TN = rng.normal(size=(T, N))
    signal_TN[rng.random((T, N)) < 0.2] = NAN
    k = data.draw(st.integers(1, N // 2))
    n_drop = data.draw(st.integers(1, k))
    signal_TN[(~np.isnan(signal_TN)).sum(axis=1) < k + n_drop] = NAN  # else qlib may run out of candidates
    expected_TN = topk_dropout(signal_TN, k, n_drop)
    assume(not np.isnan(expected_TN).all())
    np.testing.assert_array_equal(weights(TopKDrop(k=k, n_drop=n_drop), signal_TN), expected_TN)


def test_by_hand() -> None:
    signal_TN = np.array(
        [
            [5.0, 4, 3, 2, 1],  # the first two are bought
            [1.0, 2, 3, 4, 5],  # firm 0, the worst that is held, goes for firm 4
            [1.0, 6, 3, 4, 5],  # firms 1 and 4 are the best two: nothing is traded
            [9.0, NAN, 3, 4, 5],  # firm 1 has no signal and is sold; firm 4 stays; firm 0 is bought
        ]
    )
    held = [np.flatnonzero(row_N).tolist() for row_N in weights(TopKDrop(k=2, n_drop=1), signal_TN)]
    assert held == [[0, 1], [1, 4], [1, 4], [0, 4]]


def test_with_few_candidates_k_firms_stay() -> None:
    signal_TN = np.array([[3.0, 2, 1], [1, 2, 3], [3, 2, 1]])
    np.testing.assert_array_equal(weights(TopKDrop(k=3, n_drop=2), signal_TN), np.full((3, 3), 1 / 3))


def test_ties_share_and_do_not_trade_without_a_gain() -> None:
    signal_TN = np.array(
        [
            [3.0, 2, 2, 1],  # firms 1 and 2 share one position
            [2.0, 2, 2, 2],  # a firm that equals the held ones replaces none of them
            [0.0, 2, 2, 2],  # firm 0 is sold; what is free of firms 1, 2 and 3 (1/2, 1/2, 1) shares it
        ]
    )
    got_TN = 2 * weights(TopKDrop(k=2, n_drop=1), signal_TN)
    np.testing.assert_allclose(got_TN[0], [1, 1 / 2, 1 / 2, 0], atol=1e-15)
    np.testing.assert_allclose(got_TN[1], got_TN[0], atol=1e-15)
    np.testing.assert_allclose(got_TN[2], [0, 3 / 4, 3 / 4, 1 / 2], atol=1e-15)


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), N=st.integers(2, 12), data=st.data())
def test_with_ties_it_holds_k_firms_and_column_order_has_no_effect(
    seed: int, N: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    signal_TN = rng.integers(0, 4, (12, N)).astype(np.float64)
    k = data.draw(st.integers(1, N))
    book = TopKDrop(k=k, n_drop=data.draw(st.integers(1, k)))
    target_TN = weights(book, signal_TN)
    np.testing.assert_allclose(target_TN.sum(axis=1), 1.0, atol=1e-12)
    assert target_TN.min() >= 0
    assert target_TN.max() <= 1 / k + 1e-15
    names_N = rng.permutation(N)
    np.testing.assert_allclose(weights(book, signal_TN[:, names_N]), target_TN[:, names_N], atol=1e-12)


def test_it_turns_over_less_than_top_k() -> None:
    signal_TN = np.random.default_rng(0).normal(size=(60, 40))
    traded = [
        np.abs(np.diff(target_TN, axis=0)).sum(axis=1) / 2
        for target_TN in (weights(TopKDrop(k=10, n_drop=2), signal_TN), top_k_long_only(signal_TN, 10))
    ]
    assert traded[0].max() == pytest.approx(0.2)
    assert traded[1].mean() > 0.5


@pytest.mark.parametrize(("k", "n_drop"), [(0, 1), (5, 0), (5, 6)])
def test_invalid_sizes_raise(k: int, n_drop: int) -> None:
    with pytest.raises(ValueError, match=r"it must be from 1 to k|greater than or equal to 1"):
        TopKDrop(k=k, n_drop=n_drop)
