"""What holds for every kind of book."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.books.book import Book, BookInputs, PastReturns
from backtest.books.registry import BOOKS
from backtest.books.rules.forecast_weights import ForecastWeights
from backtest.books.rules.optimised import Optimised, WeightLimits
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.rank_weighted import RankWeighted
from backtest.books.rules.top_k_drop import TopKDrop
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.books.schedules import every_session

T, N, BEFORE = 24, 15, 130
QUICK: tuple[Book, ...] = (
    QuantileLongShort(quantiles=3),
    QuantileLongShort(
        quantiles=3, neutral=("sector", "beta"), overlap=True, inverse_volatility=True, target_volatility=0.1
    ),
    TopKLongOnly(k=4),
    TopKLongOnly(k=4, overlap=True, inverse_volatility=True, target_volatility=0.15, max_leverage=1.0),
    TopKDrop(k=5, n_drop=2),
    RankWeighted(),
    RankWeighted(gross=1.5, neutral=("beta",), overlap=True, inverse_volatility=True),
    ForecastWeights(),
    ForecastWeights(side="long", overlap=True, target_volatility=0.15, max_leverage=1.0),
)
OPTIMISED = Optimised(
    limits=WeightLimits(max_position=0.3, max_turnover=0.5, max_sector_net=0.1, max_beta=0.1),
    covariance_sessions=60,
)
EVERY = pytest.mark.parametrize(
    "book", [*QUICK, OPTIMISED], ids=lambda book: f"{book.kind}-{len(book.needs)}"
)


def inputs(seed: int, every: int = 1) -> BookInputs:
    rng = np.random.default_rng(seed)
    signal_TN = rng.normal(size=(T, N)).round(1)  # some ties
    signal_TN[rng.random((T, N)) < 0.1] = np.nan
    signal_TN[7] = np.nan
    beta_TN = rng.normal(1.0, 0.3, (T, N))
    beta_TN[rng.random((T, N)) < 0.02] = np.nan
    return BookInputs(
        signal_TN,
        every_session(T, every),
        group_TN=rng.integers(0, 3, (T, N)),
        beta_TN=beta_TN,
        volatility_TN=rng.uniform(0.01, 0.03, (T, N)),
        past=PastReturns(rng.normal(0, 0.02, (BEFORE + T, N)), BEFORE),
        horizon=4,
    )


def test_every_kind_is_here() -> None:
    assert {book.kind for book in (*QUICK, OPTIMISED)} == set(BOOKS)
    assert all(kind == rule().kind for kind, rule in BOOKS.items())


@EVERY
def test_no_weight_without_a_signal_and_whole_rows(book: Book) -> None:
    data = inputs(0)
    target_TN = book.targets(data).target_TN
    decided_T = np.asarray(~np.isnan(target_TN).any(axis=1))
    assert decided_T.sum() >= 15
    assert np.isnan(target_TN[~decided_T]).all()
    assert not decided_T[7]
    assert (target_TN[decided_T][np.isnan(data.signal_TN[decided_T])] == 0).all()
    assert (np.abs(target_TN[decided_T]).sum(axis=1) > 0.3).all()
    if book.long_only:
        assert target_TN[decided_T].min() >= 0
    elif not isinstance(book, Optimised):
        np.testing.assert_allclose(target_TN[decided_T].sum(axis=1), 0, atol=1e-12)


@EVERY
def test_rows_depend_on_rows_up_to_theirs(book: Book) -> None:
    before, other, cut = inputs(1, every=2), inputs(2, every=2), 13
    assert before.past is not None
    assert other.past is not None

    def changed(name: str) -> Any:  # noqa: ANN401  # floats or integers
        return np.concatenate([getattr(before, name)[:cut], getattr(other, name)[cut:]])

    return_SN = np.concatenate([before.past.return_SN[: BEFORE + cut], other.past.return_SN[BEFORE + cut :]])
    after = BookInputs(
        changed("signal_TN"),
        before.schedule,
        changed("group_TN"),
        changed("beta_TN"),
        changed("volatility_TN"),
        PastReturns(return_SN, BEFORE),
        horizon=before.horizon,
    )
    got, want = book.targets(after), book.targets(before)
    np.testing.assert_array_equal(got.target_TN[:cut], want.target_TN[:cut])
    assert not np.array_equal(got.target_TN[cut:], want.target_TN[cut:], equal_nan=True)
    assert [note for note in got.notes if note.session < cut] == [
        note for note in want.notes if note.session < cut
    ]


@EVERY
def test_a_shorter_panel_gives_the_same_rows(book: Book) -> None:
    data = inputs(3)
    assert data.past is not None
    assert data.group_TN is not None
    assert data.beta_TN is not None
    assert data.volatility_TN is not None
    short = BookInputs(
        data.signal_TN[:11],
        every_session(11),
        data.group_TN[:11],
        data.beta_TN[:11],
        data.volatility_TN[:11],
        PastReturns(data.past.return_SN[: BEFORE + 11], BEFORE),
        horizon=data.horizon,
    )
    np.testing.assert_array_equal(book.targets(short).target_TN, book.targets(data).target_TN[:11])


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-6, 1e6))
def test_the_scale_of_a_signal_changes_no_bit(seed: int, scale: float) -> None:
    data = inputs(seed)
    scaled = replace(data, signal_TN=data.signal_TN * scale)
    for book in QUICK:
        ours, want = book.targets(scaled).target_TN, book.targets(data).target_TN
        if isinstance(book, ForecastWeights):  # sizes count here, so products are rounded
            np.testing.assert_allclose(ours, want, rtol=0, atol=1e-12)
        else:
            np.testing.assert_array_equal(ours, want)


def test_the_scale_of_a_signal_changes_no_bit_of_an_optimised_book() -> None:
    data = inputs(5, every=4)
    scaled = replace(data, signal_TN=data.signal_TN * 1e-4)
    np.testing.assert_array_equal(OPTIMISED.targets(scaled).target_TN, OPTIMISED.targets(data).target_TN)


@pytest.mark.parametrize("book", QUICK, ids=lambda book: f"{book.kind}-{len(book.needs)}")
def test_firms_that_are_listed_later_change_no_bit(book: Book) -> None:
    data, own_N = inputs(4), np.sort(np.random.default_rng(1).choice(2 * N, N, replace=False))

    def among_others(x_XN: Any, absent: float) -> Any:  # noqa: ANN401  # floats or integers
        out_XN = np.full((len(x_XN), 2 * N), absent, dtype=x_XN.dtype)
        out_XN[:, own_N] = x_XN
        return out_XN

    assert data.past is not None
    larger = BookInputs(
        among_others(data.signal_TN, np.nan),
        data.schedule,
        among_others(data.group_TN, -1),
        among_others(data.beta_TN, np.nan),
        among_others(data.volatility_TN, np.nan),
        PastReturns(among_others(data.past.return_SN, np.nan), BEFORE),
        horizon=data.horizon,
    )
    np.testing.assert_array_equal(book.targets(larger).target_TN[:, own_N], book.targets(data).target_TN)


@EVERY
def test_the_order_of_columns_has_no_effect(book: Book) -> None:
    data, names_N = inputs(6, every=3), np.random.default_rng(0).permutation(N)
    assert data.past is not None
    assert data.group_TN is not None
    assert data.beta_TN is not None
    assert data.volatility_TN is not None
    permuted = BookInputs(
        data.signal_TN[:, names_N],
        data.schedule,
        data.group_TN[:, names_N],
        data.beta_TN[:, names_N],
        data.volatility_TN[:, names_N],
        PastReturns(data.past.return_SN[:, names_N], BEFORE),
        horizon=data.horizon,
    )
    tolerance = 1e-5 if isinstance(book, Optimised) else 1e-12
    np.testing.assert_allclose(
        book.targets(permuted).target_TN, book.targets(data).target_TN[:, names_N], atol=tolerance
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), leverage=st.floats(0.5, 5.0), target=st.floats(0.05, 1.0))
def test_leverage_position_and_neutrality_hold(seed: int, leverage: float, target: float) -> None:
    data = inputs(seed)
    assert data.group_TN is not None
    assert data.beta_TN is not None
    book = RankWeighted(
        gross=2.0, neutral=("sector", "beta"), target_volatility=target, max_leverage=leverage
    )
    target_TN = book.targets(data).target_TN
    decided_T = ~np.isnan(target_TN).any(axis=1)
    assert decided_T.sum() >= 20
    assert np.abs(target_TN[decided_T]).sum(axis=1).max() <= leverage + 1e-12
    for code in range(3):
        sector_T = (target_TN * (data.group_TN == code)).sum(axis=1)[decided_T]
        assert np.abs(sector_T).max() < 1e-11
    assert np.abs((target_TN * np.nan_to_num(data.beta_TN)).sum(axis=1)[decided_T]).max() < 1e-11
    drop_TN = TopKDrop(k=5, n_drop=2).targets(data).target_TN[decided_T]
    assert np.nanmax(drop_TN) <= 0.2 + 1e-15
    both_T = ~np.isnan(drop_TN).any(axis=1)
    np.testing.assert_allclose(drop_TN[both_T].sum(axis=1), 1.0)
