"""Overlap, neutrality and volatility against loops, statsmodels and covariances."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.books.book import BookInputs, PastReturns
from backtest.books.ranked import (
    WINDOW,
    average_held,
    neutralise,
    scale_to_volatility,
    weigh_by_inverse_volatility,
)
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.rank_weighted import RankWeighted
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.books.schedules import every_session
from features.arrays import FloatArray

NAN = np.nan


@settings(max_examples=100)
@given(seed=st.integers(0, 1000), holding=st.integers(1, 12), step=st.integers(1, 5))
def test_overlap_averages_the_decisions_of_the_last_sessions(seed: int, holding: int, step: int) -> None:
    weight_DN = np.random.default_rng(seed).normal(size=(15, 4))
    session_D = np.arange(15) * step
    expected_DN = [
        np.mean([weight_DN[j] for j in range(d + 1) if session_D[d] - session_D[j] < holding], axis=0)
        for d in range(15)
    ]
    np.testing.assert_allclose(average_held(weight_DN, session_D, holding), expected_DN, atol=1e-15)
    if holding <= step:
        np.testing.assert_array_equal(average_held(weight_DN, session_D, holding), weight_DN)


def test_an_overlapping_book_is_the_average_of_tranches_that_rebalance_every_horizon() -> None:
    """Jegadeesh and Titman: K tranches, each rebalanced every K sessions, one at each session."""
    signal_TN = np.random.default_rng(0).normal(size=(40, 20))
    every = every_session(40)
    overlapping_TN = (
        QuantileLongShort(overlap=True).targets(BookInputs(signal_TN, every, horizon=5)).target_TN
    )
    single_TN = QuantileLongShort().targets(BookInputs(signal_TN, every)).target_TN
    tranches = [
        np.repeat(single_TN[first::5], 5, axis=0)[: 40 - first][4 - first : 36 - first] for first in range(5)
    ]
    np.testing.assert_allclose(overlapping_TN[4:36], np.mean(tranches, axis=0), atol=1e-15)


def test_a_firm_without_a_signal_leaves_an_overlapping_book() -> None:
    signal_TN = np.array([[1.0, 2, 3, 4], [1, 2, 3, NAN]])
    inputs = BookInputs(signal_TN, every_session(2), horizon=2)
    target_TN = TopKLongOnly(k=1, overlap=True).targets(inputs).target_TN
    np.testing.assert_array_equal(target_TN, [[0, 0, 0, 1], [0, 0, 0.5, 0]])


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), N=st.integers(6, 40), sectors=st.integers(1, 4))
def test_neutral_weights_are_residuals_of_a_regression(seed: int, N: int, sectors: int) -> None:
    rng = np.random.default_rng(seed)
    weight_N = rng.normal(size=N) * (rng.random(N) < 0.8)
    group_N, beta_N = rng.integers(0, sectors, N), rng.normal(1.0, 0.3, N)
    held_N = weight_N != 0
    dummies_NS = (group_N[:, None] == np.arange(sectors)).astype(float)
    dummies_NS = dummies_NS[:, dummies_NS[held_N].any(axis=0)]
    cases = (
        (None, beta_N, sm.add_constant(beta_N[:, None])),
        (group_N, None, dummies_NS),
        (group_N, beta_N, np.column_stack([dummies_NS, beta_N])),
    )
    for group, beta, exposures in cases:
        if held_N.sum() < exposures.shape[1] + 2:
            continue
        residual_M = sm.OLS(weight_N[held_N], exposures[held_N]).fit().resid
        expected_N = np.zeros(N)
        expected_N[held_N] = residual_M * np.abs(weight_N).sum() / np.abs(residual_M).sum()
        got_N = neutralise(
            weight_N[None], None if group is None else group[None], beta if beta is None else beta[None]
        )[0]
        np.testing.assert_allclose(got_N, expected_N, atol=1e-9)
        assert np.abs(exposures.T @ got_N).max() < 1e-9
        assert np.abs(got_N).sum() == pytest.approx(np.abs(weight_N).sum())


def test_a_sector_that_is_held_on_one_side_drops_out() -> None:
    weight_1N = np.array([[0.5, 0.5, -0.5, -0.5]])
    np.testing.assert_array_equal(neutralise(weight_1N, np.array([[0, 0, 1, 1]])), np.zeros((1, 4)))
    mixed_1N = neutralise(weight_1N, np.array([[0, 1, 1, 0]]))
    np.testing.assert_allclose(mixed_1N, weight_1N)


def test_a_firm_without_an_exposure_is_not_held() -> None:
    rng = np.random.default_rng(1)
    signal_TN, group_TN = rng.normal(size=(3, 30)), np.tile(np.arange(30) % 3, (3, 1))
    beta_TN = rng.normal(1, 0.2, (3, 30))
    group_TN[:, 4], beta_TN[:, 5] = -1, NAN
    book = RankWeighted(neutral=("sector", "beta"))
    target_TN = book.targets(BookInputs(signal_TN, every_session(3), group_TN, beta_TN)).target_TN
    assert (target_TN[:, [4, 5]] == 0).all()
    assert (target_TN[:, :4] != 0).all()
    for code in range(3):
        np.testing.assert_allclose((target_TN * (group_TN == code)).sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose((target_TN * np.nan_to_num(beta_TN)).sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(np.abs(target_TN).sum(axis=1), 2)


def test_inverse_volatility_keeps_the_sides() -> None:
    weight_DN = np.array([[0.5, 0.5, 0.0, -0.25, -0.75], [0.0] * 5])
    volatility_DN = np.array([[0.01, 0.03, NAN, 0.02, 0.02], [NAN] * 5])
    expected_DN = [[0.75, 0.25, 0, -0.25, -0.75], [0.0] * 5]
    np.testing.assert_allclose(weigh_by_inverse_volatility(weight_DN, volatility_DN), expected_DN)


def test_a_firm_that_hardly_moves_counts_as_a_quarter_of_the_median() -> None:
    weight_DN = np.array([[0.25, 0.25, 0.25, 0.25]])
    volatility_DN = np.array([[0.0001, 0.02, 0.02, 0.02]])  # the median is 0.02
    np.testing.assert_allclose(
        weigh_by_inverse_volatility(weight_DN, volatility_DN), [[4 / 7, 1 / 7, 1 / 7, 1 / 7]]
    )


def past(seed: int = 0, T: int = 200, N: int = 12) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 0.02, (T, N))


def test_a_scaled_book_has_the_target_volatility_by_its_covariance() -> None:
    return_SN, weight_DN = past(), np.random.default_rng(1).normal(size=(2, 12))
    scaled_DN, notes = scale_to_volatility(
        weight_DN, np.array([0, 40]), PastReturns(return_SN, 150), 0.1, 1e9
    )
    assert notes == ()
    for t, weight_N in zip((150, 190), scaled_DN, strict=True):
        covariance_NN = np.cov(return_SN[t - WINDOW + 1 : t + 1], rowvar=False)
        assert np.sqrt(252 * weight_N @ covariance_NN @ weight_N) == pytest.approx(0.1)
    capped_DN, _ = scale_to_volatility(weight_DN, np.array([0, 40]), PastReturns(return_SN, 150), 10.0, 3.0)
    np.testing.assert_allclose(np.abs(capped_DN).sum(axis=1), 3.0)


def test_a_book_without_a_past_makes_no_decision_and_says_so() -> None:
    book = QuantileLongShort(target_volatility=0.1)
    signal_TN = past(3, T=70)
    targets = book.targets(BookInputs(signal_TN, every_session(70), past=PastReturns(past(T=70), 0)))
    decided_T = ~np.isnan(targets.target_TN).any(axis=1)
    assert np.flatnonzero(~decided_T).tolist() == list(range(62))
    assert [note.session for note in targets.notes] == list(range(62))
    assert "62 past sessions are too few" in targets.notes[-1].text
    flat = book.targets(BookInputs(signal_TN, every_session(70), past=PastReturns(np.zeros((270, 12)), 200)))
    assert np.isnan(flat.target_TN).all()
    assert "no returns that vary" in flat.notes[0].text


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target_volatility", 0.0, "greater than 0"),
        ("max_leverage", -1.0, "greater than 0"),
    ],
)
def test_invalid_settings_raise(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopKLongOnly(k=5, **{field: value})  # type: ignore[arg-type]  # chosen by name
