"""Market impact: the square-root law.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from features.arrays import FloatArray, require_shape


@dataclass(frozen=True, slots=True, eq=False)
class SquareRootImpact:
    """Cost of a trade: ``coefficient * volatility * sqrt(notional / dollar volume) * notional``.

    The price moves against an order by a multiple of its daily volatility times the square root of its share
    of the daily volume: Torre (1997, BARRA Market Impact Model Handbook). Almgren, Thum, Hauptmann and Li
    (2005, "Direct estimation of equity market impact") estimate an exponent of 0.6 for US stocks and do not
    reject the square root for large orders; Toth and others (2011, Physical Review X 1, 021006) find the
    square root with a coefficient of order 1 over many markets.

    Attributes
    ----------
    coefficient : float
        Multiple of the daily volatility that an order of one day's volume costs; 1 by convention.
    capital : float
        Value of the book before its first session, in the currency of the dollar volume. The notional of a
        trade is its size in units of the starting capital times this.
    volatility_per_root_volume_TN : ndarray of shape (T, N)
        `volatility_per_root_volume`: daily volatility (a fraction) over the square root of the daily dollar
        volume. Row s is used by the trades of session s and must be known before them. NaN = unknown: the
        firm cannot be traded, because the cost of the trade is unknown.

    Raises
    ------
    ValueError
        If the coefficient is negative, the capital is not positive, one of them is not finite, or a cell is
        negative.
    """

    coefficient: float
    capital: float
    volatility_per_root_volume_TN: FloatArray

    def __post_init__(self) -> None:
        if not math.isfinite(self.coefficient) or self.coefficient < 0:
            msg = f"The impact coefficient is {self.coefficient}; it must be a finite number, at least 0."
            raise ValueError(msg)
        require_capital(self.capital)
        if np.any(self.volatility_per_root_volume_TN < 0):
            msg = "Volatility over the root of volume has a negative cell; use NaN where it is unknown."
            raise ValueError(msg)


def require_capital(capital: float) -> None:
    """Raise ValueError unless the capital is finite and above 0."""
    if not math.isfinite(capital) or capital <= 0:
        msg = f"The capital is {capital}; it must be a finite amount of the price's currency, above 0."
        raise ValueError(msg)


def volatility_per_root_volume(daily_volatility_TN: FloatArray, dollar_volume_TN: FloatArray) -> FloatArray:
    """Compute ``volatility / sqrt(dollar volume)``: impact over the square root of the notional.

    Parameters
    ----------
    daily_volatility_TN : ndarray of shape (T, N)
        Trailing standard deviation of daily returns, a fraction; NaN = unknown.
    dollar_volume_TN : ndarray of shape (T, N)
        Trailing daily dollar volume in currency; NaN = unknown.

    Returns
    -------
    ndarray of shape (T, N)
        Known when both inputs are. NaN where one is unknown or there is no volume.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    require_shape("the dollar volume", dollar_volume_TN, daily_volatility_TN.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_TN: FloatArray = daily_volatility_TN / np.sqrt(dollar_volume_TN)
    ratio_TN[~np.isfinite(ratio_TN)] = np.nan
    return ratio_TN
