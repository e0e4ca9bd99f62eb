"""The optimised book against scipy's optimiser, its limits, and dates on which it cannot decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, NonlinearConstraint, linprog, minimize
from scipy.stats import norm, rankdata

from backtest.books.book import BookInputs, BookTargets, PastReturns
from backtest.books.rules.optimised import (
    Optimised,
    Program,
    WeightLimits,
    best_weights,
    factor_covariance,
)
from backtest.books.schedules import every_session
from features.arrays import FloatArray

NAN = np.nan
BEFORE = 120


def market(seed: int = 0, T: int = 12, N: int = 14) -> BookInputs:
    """Correlated returns, a persistent signal, three sectors and betas."""
    rng = np.random.default_rng(seed)
    common_SK = rng.normal(size=(BEFORE + T, 2))
    return_SN = 0.01 * (common_SK @ rng.normal(size=(2, N)) + rng.normal(size=(BEFORE + T, N)))
    return_SN[rng.random(return_SN.shape) < 0.03] = NAN
    signal_TN = rng.normal(size=(T, N)).cumsum(axis=0)
    signal_TN[rng.random((T, N)) < 0.03] = NAN
    return BookInputs(
        signal_TN,
        every_session(T, 3),
        group_TN=np.tile(np.arange(N) % 3, (T, 1)),
        beta_TN=rng.normal(1.0, 0.3, (T, N)),
        past=PastReturns(return_SN, BEFORE),
    )


def program(seed: int = 0, N: int = 8, last: bool = True) -> Program:
    rng = np.random.default_rng(seed)
    covariance = factor_covariance(rng.normal(0, 0.01, (200, N)), 1)
    last_N = rng.normal(0, 0.1, N)
    return Program(
        expected_M=rng.normal(0, 0.01, N),
        covariance=covariance,
        group_M=np.arange(N) % 2,
        beta_M=rng.normal(1.0, 0.3, N),
        last_M=last_N - last_N.mean() if last else None,
    )


def by_scipy(given: Program, limits: WeightLimits) -> FloatArray:
    """Solve the same program by SLSQP, in long and short weights and in increases and decreases."""
    assert given.group_M is not None
    assert given.beta_M is not None
    assert given.last_M is not None
    assert limits.max_volatility is not None
    N, one_N, zero_N = len(given.last_M), np.ones(len(given.last_M)), np.zeros(len(given.last_M))
    covariance_NN = given.covariance.matrix
    # x = (long, short, increase, decrease), and the weights are long - short
    weight_NX = np.hstack([np.eye(N), -np.eye(N), np.zeros((N, 2 * N))])
    rows = [
        (np.concatenate([one_N, one_N, zero_N, zero_N]), 0.0, limits.max_leverage),
        (np.concatenate([zero_N, zero_N, one_N, one_N]), 0.0, 2 * (limits.max_turnover or 0.0)),
        (one_N @ weight_NX, limits.min_net, limits.max_net),
    ]
    for exposure_N, limit in (
        ((given.group_M == 0) * one_N, limits.max_sector_net),
        ((given.group_M == 1) * one_N, limits.max_sector_net),
        (given.beta_M, limits.max_beta),
    ):
        assert limit is not None
        rows.append((exposure_N @ weight_NX, -limit, limit))
    move_NX = weight_NX + np.hstack([np.zeros((N, 2 * N)), -np.eye(N), np.eye(N)])
    low, high = [low for _, low, _ in rows], [high for _, _, high in rows]
    gain_X = 100 * given.expected_M @ weight_NX

    def variance_used(x: FloatArray) -> FloatArray:
        weight_N = weight_NX @ x
        return np.array([252 * weight_N @ covariance_NN @ weight_N])

    answer = minimize(  # type: ignore[call-overload]  # the stubs know no list of mixed constraints
        lambda x: float(-gain_X @ x),
        np.concatenate(
            [np.maximum(given.last_M, 0), np.maximum(-given.last_M, 0), zero_N + 1e-3, zero_N + 1e-3]
        ),
        jac=lambda x: -gain_X,
        bounds=[(0, limits.max_position)] * (2 * N) + [(0, 2)] * (2 * N),
        constraints=[
            LinearConstraint(move_NX, given.last_M, given.last_M),
            LinearConstraint(np.stack([row for row, _, _ in rows]), low, high),
            NonlinearConstraint(variance_used, 0, limits.max_volatility**2),
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert answer.success, answer.message
    weight_N: FloatArray = weight_NX @ answer.x
    return weight_N


@pytest.mark.parametrize("seed", range(6))
def test_the_answer_is_that_of_scipy(seed: int) -> None:
    given_program = program(seed)
    limits = WeightLimits(
        max_position=0.3,
        max_leverage=1.2,
        min_net=-0.05,
        max_net=0.05,
        max_volatility=0.06,
        max_turnover=0.4,
        max_sector_net=0.04,
        max_beta=0.02,
    )
    weight_N = best_weights(given_program, limits)
    expected_N = by_scipy(given_program, limits)
    earned, best = given_program.expected_M @ weight_N, given_program.expected_M @ expected_N
    assert earned == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(weight_N, expected_N, atol=1e-3)


def test_without_a_limit_on_risk_it_is_a_linear_program() -> None:
    given_program = program(3, N=10, last=False)
    limits = WeightLimits(
        long_only=True, max_position=0.15, max_leverage=1.0, min_net=1, max_net=1, max_volatility=None
    )
    answer = linprog(-given_program.expected_M, A_eq=np.ones((1, 10)), b_eq=[1.0], bounds=(0, 0.15))
    weight_N = best_weights(given_program, limits)
    np.testing.assert_allclose(weight_N, answer.x, atol=1e-6)  # type: ignore[arg-type]  # its stubs allow None


def test_expected_returns_are_volatility_times_normal_score() -> None:
    """With one binding limit, leverage, only the firm with the most extreme expected return is held."""
    inputs = market(T=1)
    limits = WeightLimits(max_position=1, max_leverage=1, min_net=-1, max_net=1, max_volatility=None)
    target_N = Optimised(limits=limits, covariance_sessions=BEFORE).targets(inputs).target_TN[0]
    assert inputs.past is not None
    known_N = ~np.isnan(inputs.signal_TN[0])
    score_N = norm.ppf((rankdata(inputs.signal_TN[0, known_N]) - 0.5) / known_N.sum())
    window_LN = inputs.past.return_SN[1 : BEFORE + 1, known_N]
    expected_N = np.nanstd(window_LN, axis=0, ddof=1) * score_N
    best = int(np.argmax(np.abs(expected_N)))
    want_N = np.zeros(known_N.sum())
    want_N[best] = np.sign(expected_N[best])
    np.testing.assert_allclose(target_N[known_N], want_N, atol=1e-6)


def decided(targets: BookTargets) -> FloatArray:
    return targets.target_TN[~np.isnan(targets.target_TN).any(axis=1)]


SOME_LIMITS = st.builds(
    WeightLimits,
    max_position=st.floats(0.05, 0.5),
    max_leverage=st.floats(0.3, 3.0),
    min_net=st.floats(-0.3, 0.0),
    max_net=st.floats(0.0, 0.3),
    max_volatility=st.floats(0.02, 0.3),
    max_turnover=st.floats(0.1, 0.8),
    max_sector_net=st.floats(0.0, 0.2),
    max_beta=st.floats(0.0, 0.2),
)


@pytest.mark.slow(3)
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), limits=SOME_LIMITS)
def test_no_book_exceeds_its_limits(seed: int, limits: WeightLimits) -> None:
    inputs = market(seed)
    assert limits.max_volatility is not None
    assert limits.max_turnover is not None
    assert limits.max_sector_net is not None
    assert limits.max_beta is not None
    targets = Optimised(limits=limits, covariance_sessions=100).targets(inputs)
    assert inputs.group_TN is not None
    assert inputs.beta_TN is not None
    assert inputs.past is not None
    rows = np.flatnonzero(~np.isnan(targets.target_TN).any(axis=1))
    assert len(rows) + len(targets.notes) == 4
    assert len(rows) >= 1
    edge, last_N = 2e-6, None
    for t in rows:
        target_N = targets.target_TN[t]
        assert np.abs(target_N).max() <= limits.max_position + edge
        assert np.abs(target_N).sum() <= limits.max_leverage + edge
        assert limits.min_net - edge <= target_N.sum() <= limits.max_net + edge
        assert (
            max(abs(target_N[inputs.group_TN[t] == code].sum()) for code in range(3))
            <= limits.max_sector_net + edge
        )
        assert abs(target_N @ inputs.beta_TN[t]) <= limits.max_beta + edge
        assert (target_N[np.isnan(inputs.signal_TN[t])] == 0).all()
        held_N = target_N != 0
        if held_N.any():
            window_LN = inputs.past.window(int(t), 100)[:, ~np.isnan(inputs.signal_TN[t])]
            covariance_NN = factor_covariance(window_LN, 20).matrix
            weight_N = target_N[~np.isnan(inputs.signal_TN[t])]
            assert np.sqrt(252 * weight_N @ covariance_NN @ weight_N) <= limits.max_volatility + edge
        if last_N is not None:
            assert np.abs(target_N - last_N).sum() / 2 <= limits.max_turnover + edge
        last_N = target_N


def test_a_date_that_cannot_be_met_keeps_the_last_book_and_says_why() -> None:
    inputs = market(1)
    signal_TN = inputs.signal_TN.copy()
    limits = WeightLimits(max_position=0.2, max_leverage=2, max_volatility=None, max_turnover=0.25)
    first_N = Optimised(limits=limits, covariance_sessions=100).targets(inputs).target_TN[0]
    largest = np.argsort(-np.abs(first_N))[:4]
    signal_TN[3, largest] = NAN  # 4 positions of 0.2 without a signal: a turnover of 0.4
    targets = Optimised(limits=limits, covariance_sessions=100).targets(replace(inputs, signal_TN=signal_TN))
    assert np.isnan(targets.target_TN[3]).all()
    assert [note.session for note in targets.notes] == [3]
    assert targets.notes[0].text == (
        "a turnover of 0.25 is not enough to come within the other limits (sales of firms that may no longer "
        "be held take 0.400); the last book is kept"
    )
    assert np.abs(targets.target_TN[6] - first_N).sum() / 2 <= 0.25 + 1e-6


def test_limits_that_exclude_each_other_leave_no_book() -> None:
    limits = WeightLimits(long_only=True, max_position=0.05, max_leverage=1, min_net=1, max_net=1)
    targets = Optimised(limits=limits, covariance_sessions=100).targets(market(2))
    assert np.isnan(targets.target_TN).all()
    assert {note.text for note in targets.notes} == {"no weights satisfy all limits; there is no book yet"}
    assert [note.session for note in targets.notes] == [0, 3, 6, 9]


def test_firms_without_a_past_are_not_held() -> None:
    inputs = market(4)
    assert inputs.past is not None
    return_SN = inputs.past.return_SN.copy()
    return_SN[:-20, 2] = NAN  # listed 20 sessions ago
    return_SN[:, 5] = 0.0  # a price that never moved
    targets = Optimised(covariance_sessions=100).targets(replace(inputs, past=PastReturns(return_SN, BEFORE)))
    assert (decided(targets)[:, [2, 5]] == 0).all()
    assert len(decided(targets)) == 4
    short = Optimised(covariance_sessions=100).targets(replace(inputs, past=PastReturns(return_SN[-12:], 0)))
    assert np.isnan(short.target_TN).all()
    assert "enough past returns" in short.notes[0].text


def test_the_covariance_has_the_variances_of_the_sample() -> None:
    rng = np.random.default_rng(0)
    return_LM = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 60)) + rng.normal(size=(300, 60))
    covariance = factor_covariance(return_LM, 3)
    sample_MM = np.cov(return_LM, rowvar=False)
    np.testing.assert_allclose(np.diag(covariance.matrix), np.diag(sample_MM), rtol=1e-9)
    np.testing.assert_allclose(covariance.volatility_M, return_LM.std(axis=0, ddof=1))
    off = ~np.eye(60, dtype=bool)
    assert np.corrcoef(covariance.matrix[off], sample_MM[off])[0, 1] > 0.99
    assert factor_covariance(return_LM[:, :8], 20).loading_MK.shape == (8, 1)


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        ({"max_position": 0.0}, r"max_position\s+Input should be greater than 0"),
        ({"max_beta": -0.1}, r"max_beta\s+Input should be greater than or equal to 0"),
        ({"min_net": 0.2}, "min_net must not be larger"),
        ({"long_only": True}, "a long_only book needs a net exposure above 0"),
    ],
)
def test_invalid_limits_raise(settings_given: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightLimits(**settings_given)  # type: ignore[arg-type]  # chosen by name
