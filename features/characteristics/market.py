"""A firm against the market: beta, what is left of volatility without it, and the return beyond it.

Shape suffixes: T sessions, N firms. ``r`` is the day's return, ``m`` the equal-weight mean of r over the
firms that traded that day, which is known at its close.
"""

from __future__ import annotations

from features.arrays import FloatArray
from features.characteristics.registry import characteristic
from features.characteristics.volatility import half
from features.derived import daily_return, market_return, remember
from features.panel import Panel
from features.rolling import lag, rolling_regression


def market_regression(panel: Panel, window: int) -> tuple[FloatArray, FloatArray]:
    """Regress a firm's returns on the market's over a rolling window, with an intercept.

    Parameters
    ----------
    panel : Panel
        The data.
    window : int
        Sessions, t included.

    Returns
    -------
    beta_TN : ndarray of shape (T, N)
        Slope; NaN below half of the window's returns or where the market did not move.
    residual_TN : ndarray of shape (T, N)
        Standard error of the regression, ``sqrt(RSS / (n - 2))``, a fraction a day.
    """

    def regress() -> tuple[FloatArray, FloatArray]:
        return rolling_regression(daily_return(panel), market_return(panel), window, half(window))

    return remember(panel, (market_regression, window), regress)


@characteristic(
    "beta_63",
    "volatility",
    warmup=63,
    formula="slope of r on m over t-62..t",
    unit="pure number",
    source="Fama and MacBeth 1973",
)
def beta(panel: Panel) -> FloatArray:
    """Compute the market beta over 63 sessions."""
    return market_regression(panel, 63)[0]


@characteristic(
    "idiosyncratic_volatility_63",
    "volatility",
    warmup=63,
    formula="sqrt(RSS / (n - 2)) of r on m over t-62..t",
    unit="fraction a day",
    source="Ang, Hodrick, Xing and Zhang 2006",
)
def idiosyncratic_volatility(panel: Panel) -> FloatArray:
    """Compute the residual deviation of the market regression over 63 sessions."""
    return market_regression(panel, 63)[1]


def market_component(panel: Panel) -> FloatArray:
    """Compute ``beta_63[t-1] m[t]``: what yesterday's beta and today's market explain of the day's return."""
    return lag(market_regression(panel, 63)[0], 1) * market_return(panel)


@characteristic(
    "residual_return_1",
    "reversal",
    warmup=64,
    formula="r[t] - beta_63[t-1] m[t]",
    unit="fraction",
    source="Blitz, Huij, Lansdorp and Verbeek 2013",
)
def residual_return(panel: Panel) -> FloatArray:
    """Compute the day's return beyond its market component."""
    return daily_return(panel) - market_component(panel)


characteristic(
    "market_component_1",
    "reversal",
    warmup=64,
    formula="beta_63[t-1] m[t]",
    unit="fraction",
    source="Lo and MacKinlay 1990; Blitz, Huij, Lansdorp and Verbeek 2013",
)(market_component)
