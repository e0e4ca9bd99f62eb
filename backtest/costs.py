"""Costs of trading, of short positions and of leverage, and half-spreads estimated from daily prices.

Shape suffixes: T sessions, N firms; R rows: T sessions, or 1 for a rate that is constant over time.
"""

import math
from dataclasses import dataclass

import numpy as np

from features.arithmetic.rolling import corwin_schultz_spread, lag, roll_spread
from features.arrays import FloatArray, require_shape
from features.panel.periods import SESSIONS_PER_YEAR

Rate = float | FloatArray
"""A number, or an array of shape (T, N) or (1, N)."""


def require_rate(name: str, rate: Rate, *, may_be_unknown: bool = False) -> None:
    """Raise ValueError unless a rate, or every cell of it, is finite and at least 0.

    With ``may_be_unknown``, cells may be NaN.
    """
    rate_RN = np.asarray(rate)
    if rate_RN.ndim not in (0, 2):
        raise ValueError(
            f"{name} has shape {rate_RN.shape}; it must be a number, or have a row per session, or one row."
        )
    wrong_RN = ~(np.isfinite(rate_RN) & (rate_RN >= 0))
    if may_be_unknown and rate_RN.ndim:
        wrong_RN &= ~np.isnan(rate_RN)
    if wrong_RN.any():
        value = f"{rate_RN[wrong_RN][0]}" + (f" in {int(wrong_RN.sum()):,} cell(s)" if rate_RN.ndim else "")
        raise ValueError(f"{name} is {value}; it must be a finite number of basis points, at least 0.")


@dataclass(frozen=True, slots=True, eq=False)
class SquareRootImpact:
    """Cost of a trade: ``coefficient * volatility * sqrt(notional / dollar volume) * notional``.

    The price moves against an order by a multiple of its daily volatility times the square root of its share
    of the daily volume: Torre (1997, BARRA Market Impact Model Handbook). Almgren, Thum, Hauptmann and Li
    (2005, "Direct estimation of equity market impact") estimate an exponent of 0.6 for US stocks and do not
    reject the square root for large orders; Toth and others (2011, Physical Review X 1, 021006) find the
    square root with a coefficient of order 1 over many markets.

    Raises
    ------
    ValueError
        If the coefficient is negative, the capital is not positive, one of them is not finite, or a cell is
        negative.

    Examples
    --------
    >>> rate = volatility_per_root_volume(np.array([[0.02]]), np.array([[1e6]]))
    >>> SquareRootImpact(coefficient=1.0, capital=1e7, volatility_per_root_volume_TN=rate).capital
    10000000.0
    """

    coefficient: float
    """Multiple of the daily volatility that an order of one day's volume costs; 1 by convention."""
    capital: float
    """Value of the book before its first session, in the currency of the dollar volume. The notional of a
    trade is its size in units of the starting capital times this."""
    volatility_per_root_volume_TN: FloatArray
    """`volatility_per_root_volume`: daily volatility (a fraction) over the square root of the daily dollar
    volume. Row s is used by the trades of session s and must be known before them. NaN = unknown: the firm
    cannot be traded, because the cost of the trade is unknown."""

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

    The volatility is the trailing standard deviation of daily returns, a fraction, and the volume is
    trailing, daily and in currency. Known when both are. NaN where one is unknown or there is no volume.
    ValueError if the shapes differ.

    Examples
    --------
    >>> volatility_per_root_volume(np.array([[0.02]]), np.array([[1e6]]))
    array([[2.e-05]])
    """
    require_shape("the dollar volume", dollar_volume_TN, daily_volatility_TN.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_TN: FloatArray = daily_volatility_TN / np.sqrt(dollar_volume_TN)
    ratio_TN[~np.isfinite(ratio_TN)] = np.nan
    return ratio_TN


COST_KINDS = ("half_spread", "commission", "impact", "borrow", "financing")
"""Kinds of cost in the order of tables. The first three are paid by trades, the last two by positions."""


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """Terms of the costs of a book. A term that is left out is free.

    Raises
    ------
    ValueError
        If a rate is negative or not finite.

    Examples
    --------
    >>> CostModel(half_spread_bps=5.0, borrow_bps_per_year=50.0).half_spread_bps
    5.0
    """

    half_spread_bps: Rate = 0.0
    """Half of the bid-ask spread: a trade costs ``bps * 1e-4 * notional``, and a round trip pays it twice.
    Row s is used by the trades of session s and must be known before them: pass an estimate of the close of
    s-1. NaN = unknown: the firm cannot be traded, because the cost of the trade is unknown."""
    commission_bps: float = 0.0
    """Commission of a trade: ``bps * 1e-4 * notional``, and at least the minimum."""
    borrow_bps_per_year: Rate = 0.0
    """Fee of a short position: ``bps * 1e-4 / periods_per_year * short market value`` after the trades of the
    previous close. Row s applies to positions held after the trades of session s; their fee is charged at the
    close of s+1. No NaN."""
    financing_bps_per_year: float = 0.0
    """Interest: ``bps * 1e-4 / periods_per_year * max(long value - NAV, 0)``, both after the trades of the
    previous close. The proceeds of short sales do not pay for long positions, because the lender of the
    shares keeps them as collateral. So a book with 100% long and 100% short borrows no money, one with 150%
    long and 50% short half of its NAV, and a long-only book its negative cash."""
    impact: SquareRootImpact | None = None
    """Paid on the traded notional; the only term that depends on the capital."""
    commission_minimum: float = 0.0
    """Least commission of a trade of one firm in one session, as a fraction of the capital at the start."""
    periods_per_year: float = SESSIONS_PER_YEAR
    """Sessions in a year: what fees and interest per year are divided by."""

    def __post_init__(self) -> None:
        require_rate("half_spread_bps", self.half_spread_bps, may_be_unknown=True)
        require_rate("commission_bps", self.commission_bps)
        require_rate("commission_minimum", self.commission_minimum)
        require_rate("borrow_bps_per_year", self.borrow_bps_per_year)
        require_rate("financing_bps_per_year", self.financing_bps_per_year)

    def of_trades(self, size_N: FloatArray, session: int) -> FloatArray:
        """Compute half-spread, commission and impact of trades in one session, in units of the capital.

        ``size_N`` holds notionals over the capital at the start, at least 0. Terms that are unknown (NaN)
        count as free.

        >>> CostModel(half_spread_bps=5.0, commission_bps=1.0).of_trades(np.array([0.5]), 0)
        array([0.0003])
        """

        def row(rate: Rate) -> FloatArray | float:
            return np.nan_to_num(rate[min(session, len(rate) - 1)]) if isinstance(rate, np.ndarray) else rate

        fee_N = np.maximum(1e-4 * self.commission_bps * size_N, self.commission_minimum * (size_N > 0))
        cost_N: FloatArray = 1e-4 * row(self.half_spread_bps) * size_N + fee_N
        if self.impact is not None:
            rate = self.impact.coefficient * math.sqrt(self.impact.capital)
            cost_N = cost_N + rate * row(self.impact.volatility_per_root_volume_TN) * size_N**1.5
        return cost_N


def corwin_schultz(high_TN: FloatArray, low_TN: FloatArray, close_TN: FloatArray, window: int) -> FloatArray:
    """Estimate half-spreads from daily highs and lows (Corwin and Schultz 2012).

    Half of `features.arithmetic.rolling.corwin_schultz_spread`, with the adjustment for overnight gaps. The
    estimate of a pair of days is set to zero if it is negative. That biases the mean upwards if the spread is
    small relative to the volatility of a day: a firm with no spread and a volatility of 1% a day gets a
    half-spread of about 20 basis points.

    Prices of shape (T, N) are in one unit and adjusted alike. ``window`` counts the sessions averaged; 21 is
    a month, as in the paper. The half-spread is a fraction of the price, at least 0, known at the close of
    t; NaN where fewer than half of the window's pairs of neighbouring sessions have prices. ValueError if
    the shapes differ, the window is below 1 session, or a price is not above zero.

    Examples
    --------
    >>> high, low = np.full((5, 1), 10.1), np.full((5, 1), 9.9)
    >>> corwin_schultz(high, low, np.full((5, 1), 10.0), window=2)[-1].round(4)
    array([0.01])
    """
    require_shape("low", low_TN, high_TN.shape)
    require_shape("close", close_TN, high_TN.shape)
    for name, price_TN in (("high", high_TN), ("low", low_TN), ("close", close_TN)):
        _require_prices(name, price_TN)
    return 0.5 * corwin_schultz_spread(high_TN, low_TN, close_TN, window)


def roll(close_TN: FloatArray, window: int) -> FloatArray:
    """Estimate half-spreads from the bounce of closing prices (Roll 1984).

    Half of `features.arithmetic.rolling.roll_spread` of ``close[t] / close[t-1] - 1``. Returns of a firm that
    reverse for any other reason count as spread, and a firm whose returns continue gets 0: use windows of a
    quarter or more.

    Closes of shape (T, N) are adjusted for splits and dividends. The half-spread is a fraction of the price,
    at least 0, known at the close of t. NaN where fewer than half of the window's pairs of neighbouring
    returns are known. ValueError if the window is below 1 session, or a price is not above zero.

    Examples
    --------
    >>> roll(np.array([[10.0], [10.1]] * 5), window=8)[-1].round(4)
    array([0.01])
    """
    _require_prices("close", close_TN)
    return 0.5 * roll_spread(close_TN / lag(close_TN, 1) - 1.0, window)


def _require_prices(name: str, price_TN: FloatArray) -> None:
    """Raise ValueError unless every known price is a positive, finite number."""
    wrong_TN = (price_TN <= 0) | np.isinf(price_TN)
    if wrong_TN.any():
        t, firm = np.argwhere(wrong_TN)[0]
        raise ValueError(
            f"The {name} of session {t} and firm {firm} is {price_TN[t, firm]}; prices must be above zero. "
            "Use NaN where a price is unknown."
        )
