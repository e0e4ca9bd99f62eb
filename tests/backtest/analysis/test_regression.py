"""Factor regressions against statsmodels, and the sentence that they give."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm

from backtest.analysis.regression import describe_regression, factor_regression
from backtest.analysis.styles import FactorReturns
from features.arrays import FloatArray

NAMES = ("market", "momentum", "reversal_1", "reversal_5")


def book_and_factors(
    betas: tuple[float, ...], alpha: float, noise: float, n: int = 600
) -> tuple[FloatArray, FactorReturns]:
    rng = np.random.default_rng(7)
    factor_TJ = rng.normal(0.0002, 0.01, (n, len(NAMES)))
    factor_TJ[:, 3] += 0.5 * factor_TJ[:, 2]
    error_T = rng.normal(0.0, noise, n)
    error_T[1:] += 0.3 * error_T[:-1]
    error_T -= error_T.mean()
    return alpha / 252 + factor_TJ @ np.array(betas) + error_T, FactorReturns(NAMES, factor_TJ)


def test_the_regression_equals_statsmodels() -> None:
    book_T, factors = book_and_factors((0.3, -0.4, 0.8, 0.0), 0.05, 0.004)
    book_T[:5] = np.nan
    factors.return_TJ[20, 1] = np.nan
    ours = factor_regression(book_T, factors)
    assert ours is not None
    keep_T = np.isfinite(book_T) & np.isfinite(factors.return_TJ).all(axis=1)
    x_TP = sm.add_constant(factors.return_TJ[keep_T])
    theirs = sm.OLS(book_T[keep_T], x_TP).fit(cov_type="HAC", cov_kwds={"maxlags": ours.lags})
    assert (ours.n, [term.name for term in ours.terms]) == (594, ["alpha", *NAMES])
    unit_P = np.array([252.0, 1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose([t.coefficient for t in ours.terms], theirs.params * unit_P, rtol=1e-9)
    np.testing.assert_allclose([t.error for t in ours.terms], theirs.bse * unit_P, rtol=1e-9)
    np.testing.assert_allclose([t.t for t in ours.terms], theirs.tvalues, rtol=1e-9)
    assert ours.r2 == pytest.approx(theirs.rsquared)
    for term, normal_p in zip(ours.terms, theirs.pvalues, strict=True):
        assert term.p_value >= normal_p  # critical values for many lags are larger
    assert sum(term.variance_share for term in ours.terms[1:]) == pytest.approx(theirs.rsquared)
    assert sum(term.per_year for term in ours.terms) == pytest.approx(book_T[keep_T].mean() * 252)
    assert ours.alpha.per_year == ours.alpha.coefficient


def test_a_book_that_is_reversal_is_called_reversal() -> None:
    book_T, factors = book_and_factors((0.0, 0.0, 1.0, 0.5), 0.0, 0.002)
    result = factor_regression(book_T, factors)
    assert result is not None
    sentence = describe_regression(result)
    assert sentence.startswith("Its returns are explained by reversal (R2 0.97, of which reversal 0.9")
    assert sentence.endswith("is not different from zero.")


def test_costs_leave_a_book_of_reversal_with_an_alpha_below_zero() -> None:
    book_T, factors = book_and_factors((0.0, 0.0, 1.0, 0.5), -0.3, 0.002)
    result = factor_regression(book_T, factors)
    assert result is not None
    sentence = describe_regression(result)
    assert sentence.startswith("Its returns are explained by reversal")
    assert "): alpha -30." in sentence
    assert sentence.endswith(f"% a year (t {result.alpha.t:.1f}) is below zero.")


def test_an_alpha_beyond_the_factors_is_named() -> None:
    with_factor = factor_regression(*book_and_factors((1.0, 0.0, 0.0, 0.0), 0.3, 0.002))
    alone = factor_regression(*book_and_factors((0.0, 0.0, 0.0, 0.0), 0.5, 0.005))
    noise = factor_regression(*book_and_factors((0.0, 0.0, 0.0, 0.0), 0.0, 0.005))
    assert with_factor is not None
    assert alone is not None
    assert noise is not None
    assert describe_regression(with_factor).startswith("It earns more than its factors: alpha +29.")
    assert "although its returns move with market (R2 0.96, of which market 0.96)" in describe_regression(
        with_factor
    )
    assert describe_regression(alone).startswith("It earns more than its factors: alpha +49.")
    assert "although" not in describe_regression(alone)
    assert describe_regression(noise).startswith("Its factors explain little of its returns (R2 0.0")
    assert describe_regression(noise).endswith("is not different from zero.")


def test_a_book_of_several_factors_is_called_that() -> None:
    result = factor_regression(*book_and_factors((0.6, 0.6, 0.6, 0.0), 0.0, 0.004))
    assert result is not None
    sentence = describe_regression(result)
    assert sentence.startswith("Its returns are explained by several factors (R2 0.8")
    for family in ("market 0.", "momentum 0.", "reversal 0."):
        assert family in sentence
    assert sentence.endswith("is not different from zero.")


def test_factors_that_are_mostly_unknown_are_left_out() -> None:
    book_T, factors = book_and_factors((0.3, -0.4, 0.8, 0.0), 0.05, 0.004)
    factors.return_TJ[:200, 1] = np.nan
    result = factor_regression(book_T, factors)
    assert result is not None
    assert [term.name for term in result.terms] == ["alpha", "market", "reversal_1", "reversal_5"]
    assert result.n == 600


def test_a_book_that_is_a_factor_exactly_has_no_t_and_no_alpha() -> None:
    _, factors = book_and_factors((0.0, 0.0, 0.0, 0.0), 0.0, 0.004)
    result = factor_regression(factors.return_TJ @ np.array([0.0, 0.0, 2.0, 0.0]), factors)
    assert result is not None
    assert math.isnan(result.alpha.t)
    assert math.isnan(result.alpha.p_value)
    assert result.terms[3].coefficient == pytest.approx(2.0)
    assert describe_regression(result).startswith("Its returns are explained by reversal (R2 1.00")
    assert "nan" not in describe_regression(result)
    assert describe_regression(result).endswith("is not different from zero.")


def test_a_book_without_variation_or_with_few_sessions_has_no_regression() -> None:
    book_T, factors = book_and_factors((0.3, -0.4, 0.8, 0.0), 0.05, 0.004)
    assert factor_regression(np.zeros(600), factors) is None
    assert factor_regression(np.full(600, math.nan), factors) is None
    few_T = np.full(600, math.nan)
    few_T[:10] = book_T[:10]
    assert factor_regression(few_T, factors) is None
    with pytest.raises(ValueError, match="shape of the book's return"):
        factor_regression(book_T[1:], factors)


def test_an_alpha_of_zero_is_rejected_as_often_as_the_level_says() -> None:
    rng, rejected, called = np.random.default_rng(250), 0, 0
    for _ in range(1000):
        factor_TJ = 0.01 * rng.standard_t(5, size=(250, len(NAMES)))
        book_T = factor_TJ[:, 2] + 0.005 * rng.standard_t(5, size=250)
        result = factor_regression(book_T, FactorReturns(NAMES, factor_TJ))
        assert result is not None
        rejected += result.alpha.p_value < 0.05
        called += describe_regression(result).startswith("Its returns are explained by reversal")
    assert 0.03 <= rejected / 1000 <= 0.07
    assert called / 1000 > 0.95
