"""Market regressions: beta, idiosyncratic volatility and skewness, and residual returns.

Shape suffixes: T sessions, N firms. ``r`` is the day's return and ``m`` the equal-weight mean of r over the
firms that traded that day, which is known at the close.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import (
    lag,
    residual_skewness,
    rolling_correlation,
    rolling_mean,
    rolling_regression,
    rolling_std,
)
from features.arrays import FloatArray
from features.library.characteristics.registry import characteristic
from features.library.characteristics.volatility import half
from features.library.registry import Compute
from features.panel.cleaned import as_known, not_yet_known
from features.panel.derived import cached, cached_per_panel, daily_return, market_return, row_mean
from features.panel.panel import Panel


def market_regression(panel: Panel, window: int) -> tuple[FloatArray, FloatArray]:
    """Regress a firm's returns on the market return over a rolling window, with an intercept.

    Parameters
    ----------
    panel : Panel
        The data.
    window : int
        Sessions, t included.

    Returns
    -------
    beta_TN : ndarray of shape (T, N)
        Slope; NaN if fewer than half of the window's returns are known or the market return does not vary.
    residual_TN : ndarray of shape (T, N)
        Standard error of the regression, ``sqrt(RSS / (n - 2))``, a fraction per day.
    """

    def regress() -> tuple[FloatArray, FloatArray]:
        return rolling_regression(daily_return(panel), market_return(panel), window, half(window))

    return cached(panel, (market_regression, window), regress)


def known_beta(panel: Panel, window: int) -> FloatArray:
    """Slope on the market's return, shape (T, N), each row without the wrong prices known at its close."""
    if not len(panel.wrong.session_K):
        return market_regression(panel, window)[0]

    def regress(return_SN: FloatArray, rows: slice) -> FloatArray:
        members_SN = True if panel.members_TN is None else panel.members_TN[rows]
        market_S1 = row_mean(np.where(members_SN, return_SN, np.nan))
        return rolling_regression(return_SN, market_S1, window, half(window))[0]

    def compute() -> FloatArray:
        return_TN, delivered_TN = as_known(panel, daily_return, hindsight=True), daily_return(panel)
        late_TN, beta_TN = not_yet_known(panel), regress(return_TN, slice(None))
        for t in np.flatnonzero(late_TN.any(axis=1)).tolist():
            rows = slice(max(t - window + 1, 0), t + 1)
            beta_TN[t] = regress(np.where(late_TN[t], delivered_TN[rows], return_TN[rows]), rows)[-1]
        return beta_TN

    return cached(panel, (known_beta, window), compute)


def _beta(window: int) -> Compute:
    return lambda panel: market_regression(panel, window)[0]


def _idiosyncratic_volatility(window: int) -> Compute:
    return lambda panel: market_regression(panel, window)[1]


for _window in (63, 252):
    characteristic(
        f"beta_{_window}",
        "volatility",
        warmup=_window,
        formula=f"slope of r on m over t-{_window - 1}..t",
        unit="pure number",
        nan_rule=f"fewer than {half(_window)} returns known; m does not vary",
        source="Lewellen and Nagel 2006, daily betas of a quarter and a year, here without lags of m",
    )(_beta(_window))

for _window in (21, 63):
    characteristic(
        f"idiosyncratic_volatility_{_window}",
        "volatility",
        warmup=_window,
        formula=f"sqrt(RSS / (n - 2)) of r on m over t-{_window - 1}..t",
        unit="fraction per day",
        nan_rule=f"fewer than {half(_window)} returns known; m does not vary",
        source="Ang, Hodrick, Xing and Zhang 2006, with the market as the one factor",
    )(_idiosyncratic_volatility(_window))


@characteristic(
    "downside_beta_252",
    "volatility",
    warmup=252,
    formula="slope of r on m over the sessions of t-251..t with m < 0",
    unit="pure number",
    nan_rule="fewer than 63 such returns known; m does not vary on them",
    source="Ang, Chen and Xing 2006, in the variant with threshold 0 instead of the mean of m",
)
def downside_beta(panel: Panel) -> FloatArray:
    """Compute the market beta on the days on which the market fell."""
    m_T1 = market_return(panel)
    return rolling_regression(daily_return(panel), np.where(m_T1 < 0, m_T1, np.nan), 252, 63)[0]


@characteristic(
    "market_correlation_252",
    "volatility",
    warmup=252,
    formula="correlation of r with m over t-251..t",
    unit="pure number",
    nan_rule="fewer than 126 returns known, or no variation",
    source="Asness, Frazzini, Gormsen and Pedersen 2020, here of daily returns",
)
def market_correlation(panel: Panel) -> FloatArray:
    """Compute the correlation of a firm's returns with the market's."""
    return rolling_correlation(daily_return(panel), market_return(panel), 252, 126)


def _residual_skewness(panel: Panel) -> tuple[FloatArray, FloatArray]:
    def regress() -> tuple[FloatArray, FloatArray]:
        return residual_skewness(daily_return(panel), market_return(panel), 252, 126)

    return cached(panel, (residual_skewness, 252), regress)


@characteristic(
    "idiosyncratic_skewness_252",
    "volatility",
    warmup=252,
    formula="E[e^3] / E[e^2]^1.5, e the residuals of r on m over t-251..t",
    unit="pure number",
    nan_rule="fewer than 126 returns known, or no variation",
    source="Boyer, Mitton and Vorkink 2010, with the market as the one factor",
)
def idiosyncratic_skewness(panel: Panel) -> FloatArray:
    """Compute the skewness of the residuals of a year's market regression."""
    return _residual_skewness(panel)[0]


@characteristic(
    "coskewness_252",
    "volatility",
    warmup=252,
    formula="E[e d^2] / (E[e^2]^0.5 E[d^2]), e the residuals of r on m over t-251..t, d = m - mean(m)",
    unit="pure number",
    nan_rule="fewer than 126 returns known, or no variation",
    source="Harvey and Siddique 2000",
)
def coskewness(panel: Panel) -> FloatArray:
    """Compute the coskewness of the regression residuals with squared market returns."""
    return _residual_skewness(panel)[1]


@cached_per_panel
def market_component(panel: Panel) -> FloatArray:
    """Compute ``beta_63[t-1] m[t]``: the part of the day's return explained by the market."""
    return lag(market_regression(panel, 63)[0], 1) * market_return(panel)


@characteristic(
    "residual_return_1",
    "reversal",
    warmup=64,
    formula="r[t] - beta_63[t-1] m[t]",
    unit="fraction",
    source="Blitz, Huij, Lansdorp and Verbeek 2013, with the market as the one factor",
)
@cached_per_panel
def residual_return(panel: Panel) -> FloatArray:
    """Compute the day's return minus its market component."""
    return daily_return(panel) - market_component(panel)


def _residual_mean(window: int) -> Compute:
    return lambda panel: rolling_mean(residual_return(panel), window, half(window))


for _window in (5, 21):
    characteristic(
        f"residual_return_{_window}",
        "reversal",
        warmup=63 + _window,
        formula=f"mean(e[t-{_window - 1}..t]), e = residual_return_1",
        unit="fraction per day",
        nan_rule=f"fewer than {half(_window)} known",
        source="Blitz, Huij, Lansdorp and Verbeek 2013",
    )(_residual_mean(_window))


@characteristic(
    "residual_momentum_252_21",
    "momentum",
    warmup=315,
    formula="mean(e) / std(e) over t-251..t-21, e = residual_return_1",
    unit="pure number",
    nan_rule="fewer than 116 known, or no variation",
    source="Blitz, Huij and Martens 2011, with the market as the one factor and days instead of months",
)
def residual_momentum(panel: Panel) -> FloatArray:
    """Compute mean / standard deviation of the residual returns of the last year without the last month."""
    e_TN = residual_return(panel)
    return lag(rolling_mean(e_TN, 231, half(231)) / rolling_std(e_TN, 231, half(231)), 21)


characteristic(
    "market_component_1",
    "reversal",
    warmup=64,
    formula="beta_63[t-1] m[t]",
    unit="fraction",
    source="the fitted part of Blitz, Huij, Lansdorp and Verbeek 2013, with the market as the one factor",
)(market_component)
