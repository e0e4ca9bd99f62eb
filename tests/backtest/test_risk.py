"""The risk model by characteristics: planted factors, predicted risk, references, and what is known when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from audit_markets import market as simulated_market
from skfolio.linear_model import CSLinearRegression
from skfolio.moments import EWCovariance

from backtest.analysis.styles import StyleScores
from backtest.books.decisions import book_targets, last_limit_uses
from backtest.books.ranked import neutralise
from backtest.books.rules.optimised import Optimised, WeightLimits
from backtest.books.rules.rank_weighted import RankWeighted
from backtest.risk import (
    MIN_GROUP,
    MIN_SESSIONS,
    OTHER,
    RISK_STYLES,
    CharacteristicRisk,
    characteristic_risk,
    newey_west,
    regression_weights,
    risk_model,
)
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.panel import Panel
from pipelines.dataset.market import build_market

T, N, K, G = 900, 160, 3, 4
GROUPS = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Planted:
    """A market whose styles, groups and specific volatilities are known."""

    scores: StyleScores
    group_TN: IntArray
    earned_TN: FloatArray
    weight_TN: FloatArray
    market_T: FloatArray
    style_TK: FloatArray

    @property
    def model(self) -> CharacteristicRisk:
        return risk_model(self.scores, self.group_TN, GROUPS, self.earned_TN, self.weight_TN)


def planted(seed: int = 0) -> Planted:
    """Scores that move slowly, correlated factors, and specific volatilities that differ by firm."""
    rng = np.random.default_rng(seed)
    score_KTN = np.empty((K, T, N), np.float32)
    score_KTN[:, 0] = rng.normal(size=(K, N))
    for t in range(1, T):
        score_KTN[:, t] = 0.99 * score_KTN[:, t - 1] + np.sqrt(1 - 0.99**2) * rng.normal(size=(K, N))
    group_TN = np.tile(rng.permutation(np.arange(N) % G), (T, 1))
    market_T, of_group_TG = 0.01 * rng.normal(size=T), 0.003 * rng.normal(size=(T, G))
    style_TK = rng.normal(size=(T, K)) @ np.array([[4, 2, 0], [0, 5, 0], [0, 0, 6]]) / 1000
    deviation_N = 0.015 * np.exp(0.3 * rng.normal(size=N))
    earned_TN = np.full((T, N), np.nan)
    for t in range(1, T):
        common_N = market_T[t] + of_group_TG[t, group_TN[t - 1]] + style_TK[t] @ score_KTN[:, t - 1]
        earned_TN[t] = common_N + deviation_N * rng.normal(size=N)
    universe_TN: BoolArray = np.ones((T, N), dtype=np.bool_)
    names = tuple(f"style_{k}" for k in range(K))
    scores = StyleScores(names, score_KTN, np.ones((K, T), dtype=np.bool_), universe_TN, ())
    weight_TN = regression_weights(np.tile(deviation_N, (T, 1)), universe_TN).astype(np.float64)
    return Planted(scores, group_TN, earned_TN, weight_TN, market_T, style_TK)


@pytest.fixture(scope="module")
def truth() -> Planted:
    return planted()


@pytest.fixture(scope="module")
def model(truth: Planted) -> CharacteristicRisk:
    return truth.model


def test_planted_factors_are_found(truth: Planted, model: CharacteristicRisk) -> None:
    assert model.names == ("market", "style_0", "style_1", "style_2", *GROUPS, OTHER)
    assert np.isnan(model.return_TJ[0]).all()
    assert np.isnan(model.return_TJ[:, -1]).all()  # no group is small
    assert np.corrcoef(model.return_TJ[1:, 0], truth.market_T[1:])[0, 1] > 0.98
    for k in range(K):
        assert np.corrcoef(model.return_TJ[1:, 1 + k], truth.style_TK[1:, k])[0, 1] > 0.95


def test_predicted_risk_of_200_random_books_is_realised(truth: Planted, model: CharacteristicRisk) -> None:
    rng, firms = np.random.default_rng(1), np.arange(N)
    weight_BN = np.zeros((200, N))
    for b in range(200):
        held = rng.choice(N, size=int(rng.integers(10, 80)), replace=False)
        weight_BN[b, held] = rng.normal(size=len(held)) if b % 2 else rng.random(len(held))
    weight_BN /= np.abs(weight_BN).sum(axis=1, keepdims=True)
    surprise = []
    for t in range(150, T - 1):
        loading_NJ, specific_N = model.loadings(t, firms), model.specific(t, firms)
        assert loading_NJ is not None
        variance_B = ((weight_BN @ loading_NJ) ** 2).sum(axis=1) + weight_BN**2 @ specific_N
        surprise.append(weight_BN @ truth.earned_TN[t + 1] / np.sqrt(variance_B))
    bias_B = np.std(surprise, axis=0)
    assert 0.95 < np.median(bias_B) < 1.05
    assert bias_B.min() > 0.9
    assert bias_B.max() < 1.1


def test_a_session_is_a_constrained_regression(truth: Planted, model: CharacteristicRisk) -> None:
    """Bordered normal equations with the constraint that groups' weighted returns sum to zero."""
    for t in (1, 64, 65, 300):
        x_NK, weight_N = truth.scores.score_KTN[:, t - 1].T, truth.weight_TN[t - 1]
        dummy_NG = np.eye(G)[truth.group_TN[t - 1]]
        x_NJ = np.column_stack([np.ones(N), x_NK, dummy_NG])
        constraint_J = np.concatenate([np.zeros(1 + K), weight_N @ dummy_NG])
        system = np.block(
            [
                [x_NJ.T @ (weight_N[:, None] * x_NJ), constraint_J[:, None]],
                [constraint_J[None], np.zeros((1, 1))],
            ]
        )
        solved = np.linalg.solve(system, np.append(x_NJ.T @ (weight_N * truth.earned_TN[t]), 0.0))
        np.testing.assert_allclose(model.return_TJ[t, : 1 + K + G], solved[:-1], rtol=1e-6, atol=1e-10)
    theirs = CSLinearRegression(fit_intercept=False).fit(
        x_NJ[None, :, 1:].astype(np.float64), truth.earned_TN[t][None], weight_N[None]
    )
    np.testing.assert_allclose(theirs.coef_[0, :K], model.return_TJ[t, 1 : 1 + K], rtol=1e-6)


def test_without_groups_the_market_is_the_constant(truth: Planted) -> None:
    alone = risk_model(truth.scores, np.full((T, N), -1), (), truth.earned_TN, np.ones((T, N)))
    assert alone.names == ("market", "style_0", "style_1", "style_2")
    x_NJ = np.column_stack([np.ones(N), truth.scores.score_KTN[:, 9].T])
    expected_J = np.linalg.lstsq(x_NJ, truth.earned_TN[10])[0]
    np.testing.assert_allclose(alone.return_TJ[10], expected_J, rtol=1e-6, atol=1e-9)
    loading_MJ = alone.loadings(500, np.array([3]))
    covariance_JJ = alone.factor_covariance(500)
    assert loading_MJ is not None
    assert covariance_JJ is not None
    x_J = np.append(1.0, truth.scores.score_KTN[:, 500, 3])
    assert (loading_MJ**2).sum() == pytest.approx(x_J @ covariance_JJ @ x_J)


def test_small_groups_and_unknown_ones_are_together(truth: Planted) -> None:
    group_TN = np.full((T, N), 0)
    group_TN[:, : MIN_GROUP - 1] = 1
    group_TN[:, MIN_GROUP - 1] = -1
    found = risk_model(truth.scores, group_TN, GROUPS[:2], truth.earned_TN, truth.weight_TN)
    assert found.names[-3:] == ("a", "b", OTHER)
    assert np.isnan(found.return_TJ[:, -2]).all()
    assert np.isfinite(found.return_TJ[1:, [-3, -1]]).all()
    other = found.exposures(5, np.arange(MIN_GROUP))[:, -1]
    np.testing.assert_array_equal(other, 1.0)


def test_the_covariance_of_factors_is_a_plain_sum(truth: Planted, model: CharacteristicRisk) -> None:
    rng = np.random.default_rng(3)
    return_TJ = rng.normal(size=(120, 3))
    theirs = EWCovariance(half_life=30, assume_centered=True).fit(return_TJ).covariance_
    np.testing.assert_allclose(newey_west(return_TJ, 30, 0), theirs, rtol=1e-9)
    return_TJ[:40, 2] = np.nan
    return_TJ[77, 0] = np.nan

    def weighted(i: int, j: int, half_life: float) -> float:
        total, last = 0.0, len(return_TJ) - 1
        for t in range(len(return_TJ)):
            for lag in (-2, -1, 0, 1, 2):
                if 0 <= t - lag <= last and not np.isnan([return_TJ[t, i], return_TJ[t - lag, j]]).any():
                    weight = 0.5 ** ((last - t + (last - t + lag)) / 2 / half_life)
                    total += weight * (1 - abs(lag) / 3) * return_TJ[t, i] * return_TJ[t - lag, j]
        known = [
            sum(0.5 ** ((last - t) / half_life) for t in range(last + 1) if not np.isnan(return_TJ[t, n]))
            for n in (i, j)
        ]
        return float(total / np.sqrt(known[0] * known[1]))

    found_JJ = newey_west(return_TJ, 30, 2)
    expected_JJ = [[weighted(i, j, 30) for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(found_JJ, expected_JJ, rtol=1e-9)
    assert np.linalg.eigvalsh(found_JJ).min() > 0
    assert model.factor_covariance(MIN_SESSIONS - 1) is None
    covariance_JJ = model.factor_covariance(700)
    assert covariance_JJ is not None
    slow_JJ, fast_JJ = (newey_west(model.return_TJ[:701], half_life, 2) for half_life in (504, 84))
    for i, j in ((0, 0), (1, 2), (0, 5)):
        correlation = slow_JJ[i, j] / np.sqrt(slow_JJ[i, i] * slow_JJ[j, j])
        assert covariance_JJ[i, j] == pytest.approx(correlation * np.sqrt(fast_JJ[i, i] * fast_JJ[j, j]))


def test_specific_variances_are_weighted_squares_of_residuals(
    truth: Planted, model: CharacteristicRisk
) -> None:
    earned_TN = truth.earned_TN.copy()
    earned_TN[200:210, 7] = np.nan  # a halt: the estimate is kept
    earned_TN[:, 8] = np.nan  # a firm that has not been listed yet: the mean of the universe
    found = replace(truth, earned_TN=earned_TN).model
    last = 260
    own_N, effective_N = np.full(N, np.nan), np.zeros(N)
    for n in range(N):
        total = weight = square = 0.0
        for t in range(1, last + 1):
            common = found.return_TJ[t, 0] + found.return_TJ[t, 1 + K + truth.group_TN[t - 1, n]]
            common += found.return_TJ[t, 1 : 1 + K] @ truth.scores.score_KTN[:, t - 1, n]
            if np.isfinite(earned_TN[t, n]):
                decay = 0.5 ** (1 / 84)
                total = decay * total + (earned_TN[t, n] - common) ** 2
                weight, square = decay * weight + 1, decay**2 * square + 1
        if weight:
            own_N[n], effective_N[n] = total / weight, weight**2 / square
    share_N = effective_N / (effective_N + 21)
    expected_N = share_N * np.nan_to_num(own_N) + (1 - share_N) * np.nanmean(own_N)
    np.testing.assert_allclose(found.specific(last, np.arange(N)), expected_N, rtol=1e-5)
    assert found.specific(last, np.array([8]))[0] == pytest.approx(np.nanmean(own_N), rel=1e-5)
    assert np.isnan(model.specific(0, np.arange(N))).all()


def test_weights_are_inverse_variances_near_the_median() -> None:
    volatility_TN = np.array([[1.0, 2.0, 4.0, 100.0, np.nan, 0.5]])
    universe_TN = np.array([[True, True, True, True, True, False]])
    weight_TN = regression_weights(volatility_TN, universe_TN)
    median = np.median([1.0, 4.0, 16.0, 1e4])
    np.testing.assert_allclose(weight_TN, [[9.0, median / 4, median / 16, 1 / 9, 1.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("cut", [200, 257, 301])
def test_nothing_that_is_known_later_changes_a_forecast(
    truth: Planted, model: CharacteristicRisk, cut: int
) -> None:
    """The data until ``cut`` alone, and other data after it, give the same to the bit."""
    s = truth.scores
    until = StyleScores(s.names, s.score_KTN[:, :cut], s.known_KT[:, :cut], s.universe_TN[:cut], ())
    short = risk_model(until, truth.group_TN[:cut], GROUPS, truth.earned_TN[:cut], truth.weight_TN[:cut])
    rng, score_KTN, earned_TN = np.random.default_rng(9), s.score_KTN.copy(), truth.earned_TN.copy()
    score_KTN[:, cut:] = rng.normal(size=(K, T - cut, N))
    earned_TN[cut:] = rng.normal(size=(T - cut, N))
    other = risk_model(replace(s, score_KTN=score_KTN), truth.group_TN, GROUPS, earned_TN, truth.weight_TN)
    firms = np.arange(N)
    for changed in (short, other):
        np.testing.assert_array_equal(changed.return_TJ[:cut], model.return_TJ[:cut])
        np.testing.assert_array_equal(changed.specific_TN[:cut], model.specific_TN[:cut])
        np.testing.assert_array_equal(changed.loadings(cut - 1, firms), model.loadings(cut - 1, firms))
    assert not np.array_equal(other.return_TJ[cut], model.return_TJ[cut])


@pytest.fixture(scope="module")
def panel(tiny_settings: Mapping[str, Any]) -> Panel:
    config, tables = simulated_market(tiny_settings, 5, {"firms": 60, "sessions": 420})
    universe = config.universe.model_copy(update={"membership": None})
    return build_market(tables, config.model_copy(update={"universe": universe})).panel


def signal(panel: Panel, held: slice) -> FloatArray:
    signal_TN = np.full(panel.close_TN.shape, np.nan)
    assert panel.universe_TN is not None
    noise_TN = np.random.default_rng(0).normal(size=signal_TN.shape)
    signal_TN[held] = np.where(panel.universe_TN[held], noise_TN[held], np.nan)
    return signal_TN


def test_the_model_of_a_panel_has_its_styles_and_groups(panel: Panel) -> None:
    found = characteristic_risk(panel)
    assert found is characteristic_risk(panel)
    assert found.scores.names == tuple(style.name for style in RISK_STYLES)
    assert set(found.groups_G) == {*panel.groups_S, OTHER}
    assert np.isfinite(found.return_TJ[260:, 0]).all()
    moved_T = np.nanmean(panel.total_return_index_TN[260:] / panel.total_return_index_TN[259:-1] - 1, axis=1)
    assert np.corrcoef(found.return_TJ[260:, 0], moved_T)[0, 1] > 0.95


def test_an_optimised_book_is_within_the_risk_of_the_model(panel: Panel) -> None:
    held = slice(380, 386)
    limits = WeightLimits(max_position=0.1, max_volatility=0.04, max_turnover=None)
    book = Optimised(limits=limits, risk_factors="characteristics", rebalance_every=1)
    assert book.needs == {"returns", "risk"}
    assert "characteristics" not in str(Optimised().model_dump())
    targets = book_targets(book, signal(panel, held), panel, held, 1)
    assert targets.notes == ()
    found, firms = characteristic_risk(panel), np.arange(panel.n_firms)
    for row, weight_N in enumerate(targets.target_TN):
        x_NJ, covariance_JJ = (
            found.exposures(held.start + row, firms),
            found.factor_covariance(held.start + row),
        )
        assert covariance_JJ is not None
        exposure_J = weight_N @ x_NJ
        variance = exposure_J @ covariance_JJ @ exposure_J + weight_N**2 @ found.specific(
            held.start + row, firms
        )
        assert np.sqrt(252 * variance) == pytest.approx(0.04, rel=1e-4)
    (use,) = (
        use
        for use in last_limit_uses(book, signal(panel, held), panel, held, targets.target_TN)
        if use.name == "max_volatility"
    )
    assert use.state == "binds"
    early = slice(30, 33)
    noted = book_targets(
        book.model_copy(update={"covariance_sessions": 20}), signal(panel, early), panel, early, 1
    )
    assert noted.notes[0].text.startswith(
        "the risk model knows too few sessions of factor returns; there is no"
    )


def test_a_book_is_neutral_to_the_styles(panel: Panel) -> None:
    held = slice(380, 386)
    found = characteristic_risk(panel)
    exposures = {}
    for neutral in ((), ("sector", "beta", "styles")):
        book = RankWeighted(neutral=neutral)
        target_TN = book_targets(book, signal(panel, held), panel, held, 1).target_TN
        exposures[neutral] = [
            target_TN[row] @ found.exposures(held.start + row, np.arange(panel.n_firms)) for row in range(6)
        ]
        np.testing.assert_allclose(np.abs(target_TN).sum(axis=1), 2.0)
        uses = {
            use.name: use.value for use in last_limit_uses(book, signal(panel, held), panel, held, target_TN)
        }
    styles = slice(1, 1 + len(RISK_STYLES))
    assert np.abs(np.array(exposures[()])[:, styles]).max() > 0.05
    np.testing.assert_allclose(np.array(exposures["sector", "beta", "styles"])[:, styles], 0, atol=1e-6)
    assert set(uses) == {"neutral sector", "neutral beta", "neutral styles"}
    assert max(uses.values()) < 1e-6


def test_neutrality_to_styles_is_a_regression() -> None:
    rng = np.random.default_rng(0)
    weight_DN, beta_DN = rng.normal(size=(2, 30)), rng.normal(1, 0.3, (2, 30))
    group_DN, style_DNK = rng.integers(0, 3, (2, 30)), rng.normal(size=(2, 30, 2)).astype(np.float32)
    found_DN = neutralise(weight_DN, group_DN, beta_DN, style_DNK)
    for d in range(2):
        x_NJ = np.column_stack([np.eye(3)[group_DN[d]], beta_DN[d], style_DNK[d]])
        left_N = weight_DN[d] - x_NJ @ np.linalg.lstsq(x_NJ, weight_DN[d])[0]
        np.testing.assert_allclose(
            found_DN[d], left_N * np.abs(weight_DN[d]).sum() / np.abs(left_N).sum(), rtol=1e-9
        )
