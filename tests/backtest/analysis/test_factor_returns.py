"""Style scores and factor returns against loops, without look-ahead."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from random_markets import random_tables
from scipy.stats import norm, rankdata

from backtest.analysis.styles import STYLES, StyleScores, factor_returns, newest_universe, style_scores
from features.arrays import BoolArray
from features.library.characteristics import CHARACTERISTICS
from features.panel.panel import Panel, build_panel


def market(*, statements: bool = True) -> tuple[Panel, BoolArray]:
    tables = random_tables(3)
    fundamentals = tables["fundamentals"] if statements else None
    panel = build_panel(tables["prices"], tables["securities"], fundamentals)
    universe_TN = panel.traded_TN.copy()
    universe_TN[:300] = False
    return panel, universe_TN


def random_scores(T: int = 40, N: int = 30, K: int = 3) -> StyleScores:
    rng = np.random.default_rng(0)
    score_KTN = rng.normal(size=(K, T, N)).astype(np.float32)
    names = ("momentum", "reversal_1", "volatility")[:K]
    return StyleScores(names, score_KTN, np.ones((K, T), bool), rng.random((T, N)) < 0.8, ())


def test_scores_are_normal_ranks_of_the_characteristics_within_the_universe() -> None:
    panel, universe_TN = market()
    scores = style_scores(panel, universe_TN)
    assert scores.names == tuple(style.name for style in STYLES)
    assert scores.left_out == ()
    checked = 0
    for k, style in enumerate(STYLES):
        raw_TN = CHARACTERISTICS.compute(panel, [style.characteristic])[:, :, 0]
        for t in (500, 777, 999):
            in_N = universe_TN[t] & np.isfinite(raw_TN[t])
            assert scores.known_KT[k, t] == in_N.any()
            expected_N = np.zeros(panel.n_firms)
            if in_N.any():
                ranks = rankdata(style.sign * raw_TN[t, in_N])
                expected_N[in_N] = norm.ppf((ranks - 0.5) / in_N.sum())
                checked += int(in_N.sum())
            np.testing.assert_allclose(scores.score_KTN[k, t], expected_N, atol=1e-6)
    assert checked > 100


def test_styles_that_the_data_do_not_allow_are_left_out_and_named() -> None:
    panel, universe_TN = market(statements=False)
    scores = style_scores(panel, universe_TN)
    assert scores.names == ("momentum", "reversal_1", "reversal_5", "reversal_21", "volatility")
    assert scores.left_out == (
        "These data have no shares_outstanding: the style size is left out.",
        "These data have no book_equity and no shares_outstanding: the style value is left out.",
    )


def test_scores_do_not_look_ahead() -> None:
    tables = random_tables(3)
    whole, universe_TN = market()
    cut = build_panel(
        tables["prices"].filter(pl.col("date") <= pl.lit(whole.dates_T[700].item())),
        tables["securities"],
        tables["fundamentals"],
    )
    before = style_scores(cut, universe_TN[:701])
    after = style_scores(whole, universe_TN)
    assert (before.score_KTN != 0).any()
    np.testing.assert_array_equal(before.score_KTN, after.score_KTN[:, :701])


def test_the_universe_of_a_decision_stays_until_the_next_one() -> None:
    universe_TN = np.array([[0, 0], [1, 0], [0, 0], [0, 0], [1, 1], [0, 0]], dtype=bool)
    expected_TN = np.array([[0, 0], [1, 0], [1, 0], [1, 0], [1, 1], [1, 1]], dtype=bool)
    np.testing.assert_array_equal(newest_universe(universe_TN), expected_TN)


@pytest.mark.parametrize("delay", [0, 2])
def test_factor_returns_equal_regressions_session_by_session(delay: int) -> None:
    scores = random_scores(T=150)
    rng = np.random.default_rng(1)
    earned_TN = rng.normal(0, 0.02, (150, 30))
    earned_TN[rng.random((150, 30)) < 0.1] = np.nan
    ours = factor_returns(scores, earned_TN, delay)
    assert ours.names == ("market", "momentum", "reversal_1", "volatility")
    assert np.isnan(ours.return_TJ[: 1 + delay]).all()
    for t in range(1 + delay, 150):
        known = t - 1 - delay
        in_N = scores.universe_TN[known] & np.isfinite(earned_TN[t])
        x_NJ = sm.add_constant(scores.score_KTN[:, known, in_N].T.astype(float))
        np.testing.assert_allclose(
            ours.return_TJ[t], sm.OLS(earned_TN[t, in_N], x_NJ).fit().params, rtol=1e-8, atol=1e-12
        )


def test_a_planted_premium_is_found_in_the_session_after_the_score() -> None:
    scores = random_scores(T=60)
    earned_TN = np.zeros((60, 30))
    earned_TN[1:] = 0.01 + 0.02 * scores.score_KTN[1, :-1]
    returns = factor_returns(scores, earned_TN).return_TJ[1:]
    np.testing.assert_allclose(returns, np.tile([0.01, 0.0, 0.02, 0.0], (59, 1)), atol=1e-9)


def test_unknown_factors_are_nan_and_equal_scores_share_the_return() -> None:
    scores = random_scores(T=20)
    scores.known_KT[2, :10] = False
    scores.score_KTN[2, :10] = 0.0
    scores.universe_TN[15:] = False
    scores.universe_TN[15:, :7] = True  # fewer than 2 firms for each of 4 factors
    returns = factor_returns(scores, np.full((20, 30), 0.01)).return_TJ
    assert np.isnan(returns[1:11, 3]).all()
    np.testing.assert_allclose(returns[1:11, :3], np.tile([0.01, 0.0, 0.0], (10, 1)), atol=1e-9)
    np.testing.assert_allclose(returns[11:16], np.tile([0.01, 0.0, 0.0, 0.0], (5, 1)), atol=1e-9)
    assert np.isnan(returns[16:]).all()
    twins = random_scores(T=20)
    twins.score_KTN[2] = twins.score_KTN[1]
    earned_TN = np.vstack([np.zeros((1, 30)), 0.02 * twins.score_KTN[1, :-1]])
    np.testing.assert_allclose(factor_returns(twins, earned_TN).return_TJ[1:, 2:], 0.01, atol=1e-8)


def test_what_cannot_be_computed_is_refused() -> None:
    scores = random_scores()
    with pytest.raises(ValueError, match="shape of the returns"):
        factor_returns(scores, np.zeros((39, 30)))
    with pytest.raises(ValueError, match="delay is -1"):
        factor_returns(scores, np.zeros((40, 30)), -1)
