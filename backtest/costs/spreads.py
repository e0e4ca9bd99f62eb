"""Half-spreads estimated from daily prices, for markets without quotes.

An estimate of session t uses prices up to the close of t, so a trade at the close of t pays the estimate of
``t - 1`` or earlier if it has to be known before the order is sent. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import lag
from features.arithmetic.spreads import corwin_schultz_spread, roll_spread
from features.arrays import FloatArray, require_shape


def corwin_schultz(high_TN: FloatArray, low_TN: FloatArray, close_TN: FloatArray, window: int) -> FloatArray:
    """Estimate half-spreads from daily highs and lows (Corwin and Schultz 2012).

    Half of `features.arithmetic.spreads.corwin_schultz_spread`, with the adjustment for overnight gaps. The
    estimate of a pair of days is set to zero if it is negative. That biases the mean upwards if the spread is
    small relative to the volatility of a day: a firm with no spread and a volatility of 1% a day gets a
    half-spread of about 20 basis points.

    Parameters
    ----------
    high_TN, low_TN, close_TN : ndarray of shape (T, N)
        Prices in one unit, adjusted alike; NaN where unknown.
    window : int
        Sessions over which the estimates are averaged; 21 is a month, as in the paper.

    Returns
    -------
    ndarray of shape (T, N)
        Half-spread as a fraction of the price, at least 0, known at the close of t. NaN where unknown: fewer
        than half of the window's pairs of neighbouring sessions have prices.

    Raises
    ------
    ValueError
        If the shapes differ, the window is below 1 session, or a price is not above zero.
    """
    require_shape("low", low_TN, high_TN.shape)
    require_shape("close", close_TN, high_TN.shape)
    for name, price_TN in (("high", high_TN), ("low", low_TN), ("close", close_TN)):
        _require_prices(name, price_TN)
    return 0.5 * corwin_schultz_spread(high_TN, low_TN, close_TN, window)


def roll(close_TN: FloatArray, window: int) -> FloatArray:
    """Estimate half-spreads from the bounce of closing prices (Roll 1984).

    Half of `features.arithmetic.spreads.roll_spread` of ``close[t] / close[t-1] - 1``. Returns of a firm that
    reverse for any other reason count as spread, and a firm whose returns continue gets 0: use windows of a
    quarter or more.

    Parameters
    ----------
    close_TN : ndarray of shape (T, N)
        Closing prices, adjusted for splits and dividends; NaN where unknown.
    window : int
        Sessions of the autocovariance.

    Returns
    -------
    ndarray of shape (T, N)
        Half-spread as a fraction of the price, at least 0, known at the close of t. NaN where unknown: fewer
        than half of the window's pairs of neighbouring returns are known.

    Raises
    ------
    ValueError
        If the window is below 1 session, or a price is not above zero.
    """
    _require_prices("close", close_TN)
    return 0.5 * roll_spread(close_TN / lag(close_TN, 1) - 1.0, window)


def _require_prices(name: str, price_TN: FloatArray) -> None:
    """Raise ValueError unless every known price is a positive, finite number."""
    wrong_TN = (price_TN <= 0) | np.isinf(price_TN)
    if wrong_TN.any():
        t, firm = np.argwhere(wrong_TN)[0]
        msg = (
            f"The {name} of session {t} and firm {firm} is {price_TN[t, firm]}; prices must be above zero. "
            "Use NaN where a price is unknown."
        )
        raise ValueError(msg)
