"""Alpha and betas of a book against factors, with Newey-West errors, and what they say in a sentence.

``y_t = alpha + sum_k beta_k f_tk + e_t``. Alpha is what the book earns that its factors do not.

Shape suffixes: T sessions, J factors, P regressors (the constant and the factors), M periods of sessions.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from backtest.analysis.styles import FAMILIES, FactorReturns
from backtest.inference.means import LEVEL, fixed_b_p_value, mean_test_lags
from features.arrays import FloatArray, IntArray, require_shape
from features.panel.periods import SESSIONS_PER_YEAR

ALPHA = "alpha"
EXPLAINED = 0.5
"""Share of the variance from which a book is said to be explained."""

MIN_KNOWN = 0.8
"""Share of the book's sessions on which a factor must be known to be used."""


@dataclass(frozen=True, slots=True)
class Term:
    """A regressor of a factor regression."""

    name: str  # ``alpha`` or a factor
    coefficient: float  # alpha per year, or a beta
    error: float  # Newey-West standard error, in the unit of the coefficient
    # `t`, `p_value`: ``coefficient / error`` and its two-sided p-value; NaN if the factors leave no residual
    t: float
    p_value: float
    variance_share: float  # ``beta cov(f, y) / var(y)``; these add up to R2. NaN for alpha.
    # ``beta mean(f)`` times the periods per year: what the factor earned. With alpha these add up to the
    # book's mean return per year.
    per_year: float


@dataclass(frozen=True, slots=True)
class FactorRegression:
    """Result of `factor_regression`."""

    terms: tuple[Term, ...]  # alpha, then the factors
    r2: float  # share of the variance that the factors explain
    n: int  # sessions used
    lags: int  # Newey-West lags

    @property
    def alpha(self) -> Term:
        """The constant, per year."""
        return self.terms[0]


def factor_regression(
    return_T: FloatArray, factors: FactorReturns, periods_per_year: float = SESSIONS_PER_YEAR
) -> FactorRegression | None:
    """Regress a book's excess returns on factor returns, with Newey-West errors.

    The covariance of the estimates is ``(X'X)^-1 S (X'X)^-1`` with
    ``S = G_0 + sum_{l=1..L} (1 - l / (L+1)) (G_l + G_l')`` and ``G_l = sum_t e_t e_{t-l} x_t x_{t-l}'``
    (Newey and West 1987), L of `backtest.inference.means.mean_test_lags`, and p-values for that many lags as
    in `backtest.inference.means.mean_test`.

    ``return_T`` is the excess return of the book over the risk-free rate; NaN sessions are dropped. A factor
    that is unknown on more than a fifth of the book's sessions is left out; sessions on which another one is
    unknown are dropped. None if no more than twice as many sessions as regressors are left, or the book does
    not vary. ValueError if the numbers of sessions differ.

    Examples
    --------
    >>> from backtest.analysis.styles import FactorReturns
    >>> market = np.random.default_rng(0).normal(0.0, 0.01, (250, 1))
    >>> found = factor_regression(0.5 * market[:, 0] + 0.001, FactorReturns(("market",), market))
    >>> round(found.terms[1].coefficient, 3)
    0.5
    """
    require_shape("the book's return", return_T, (len(factors.return_TJ),))
    held_T = np.isfinite(return_T)
    if not held_T.any():
        return None
    used_J = np.isfinite(factors.return_TJ[held_T]).mean(axis=0) >= MIN_KNOWN
    names = [name for name, used in zip(factors.names, used_J, strict=True) if used]
    known_T = held_T & np.isfinite(factors.return_TJ[:, used_J]).all(axis=1)
    y_T, f_TJ = return_T[known_T], factors.return_TJ[known_T][:, used_J]
    n, deviation = len(y_T), float(y_T.std()) if known_T.any() else 0.0
    if n <= 2 * (len(names) + 1) or not deviation > 1e-12:
        return None
    x_TP = np.column_stack([np.ones(n), f_TJ])
    inverse_PP = np.linalg.pinv(x_TP.T @ x_TP, rcond=1e-12, hermitian=True)
    beta_P = inverse_PP @ (x_TP.T @ y_T)
    lags = mean_test_lags(n)
    error_P = np.sqrt(
        np.diag(inverse_PP @ long_run(x_TP * (y_T - x_TP @ beta_P)[:, None], lags) @ inverse_PP)
    )
    share_J = beta_P[1:] * ((f_TJ - f_TJ.mean(axis=0)).T @ (y_T - y_T.mean())) / (n * deviation**2)
    per_year_P = beta_P * x_TP.mean(axis=0) * periods_per_year
    exact_P = 1e-10 * deviation * np.sqrt(np.diag(inverse_PP))  # errors of a book without a residual
    terms = []
    for p, name in enumerate((ALPHA, *names)):
        unit = periods_per_year if p == 0 else 1.0
        t = float(beta_P[p] / error_P[p]) if exact_P[p] < error_P[p] else math.nan
        share = float(share_J[p - 1]) if p else math.nan
        coefficient, error = float(beta_P[p]) * unit, float(error_P[p]) * unit
        p_value = fixed_b_p_value(t, n, lags)
        terms.append(Term(name, coefficient, error, t, p_value, share, float(per_year_P[p])))
    return FactorRegression(tuple(terms), float(share_J.sum()), n, lags)


def long_run(x_TP: FloatArray, lags: int) -> FloatArray:
    """Newey-West sum of autocovariances, ``G_0 + sum_l (1 - l / (L+1)) (G_l + G_l')``, not divided by n."""
    total_PP: FloatArray = x_TP.T @ x_TP
    for lag in range(1, lags + 1):
        cross_PP = x_TP[lag:].T @ x_TP[:-lag]
        total_PP = total_PP + (1.0 - lag / (lags + 1.0)) * (cross_PP + cross_PP.T)
    return total_PP


def period_returns(return_T: FloatArray, free_T: FloatArray, period_T: IntArray, count: int) -> FloatArray:
    """Compound the returns of sessions within periods, over the risk-free return, shape (M,).

    ``prod(1 + r_t) - 1 - sum(free_t)`` over the sessions of a period. ``free_T`` is what is deducted from
    the return of each session, ``period_T`` the index of its period, from 0 to ``count - 1``; sessions with
    -1 are left out. NaN for periods without a session, or with an unknown return.

    Examples
    --------
    >>> period_returns(np.array([0.1, 0.2, 0.3]), np.array([0.0, 0.02, 0.0]), np.array([0, 0, -1]), 2)
    array([0.3, nan])
    """
    used_T = period_T >= 0
    growth_M, sessions_M = np.ones(count), np.bincount(period_T[used_T], minlength=count)
    np.multiply.at(growth_M, period_T[used_T], 1.0 + return_T[used_T])
    free_M = np.bincount(period_T[used_T], weights=free_T[used_T], minlength=count)
    return np.where(sessions_M > 0, growth_M - 1.0 - free_M, np.nan)


def describe_regression(result: FactorRegression) -> str:
    """Say in one sentence whether a book is more than its factors, and which factors it is.

    A family of factors (the three reversals are one; a published factor is its own) explains a book if it has
    at least half of its variance, several do if they have it together. An alpha counts if it is positive and
    its two-sided p-value is below the level of all tests.
    """
    alpha = result.alpha
    shares: dict[str, float] = defaultdict(float)
    for term in result.terms[1:]:
        shares[FAMILIES.get(term.name, term.name)] += term.variance_share
    families = sorted((name for name in shares if shares[name] >= 0.1), key=lambda name: -shares[name])
    mostly = bool(families) and shares[families[0]] >= EXPLAINED
    named = families[:1] if mostly else families[:3]
    parts = ", ".join(f"{name} {min(shares[name], result.r2):.2f}" for name in named)
    fit = f"R2 {result.r2:.2f}" + (f", of which {parts}" if parts else "")
    numbers = f"alpha {alpha.coefficient:+.1%} a year"
    numbers += "" if math.isnan(alpha.t) else f" (t {alpha.t:.1f})"
    if alpha.p_value < LEVEL and alpha.coefficient > 0:
        moves = f", although its returns move with {families[0]}" if mostly else ""
        return f"It earns more than its factors: {numbers}{moves} ({fit})."
    left = "below zero" if alpha.p_value < LEVEL else "not different from zero"
    if mostly or result.r2 >= EXPLAINED:
        return (
            f"Its returns are explained by {families[0] if mostly else 'several factors'} ({fit}): "
            f"{numbers} is {left}."
        )
    return f"Its factors explain little of its returns ({fit}), and {numbers} is {left}."
