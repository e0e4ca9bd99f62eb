"""Trailing volume and volatility of a market's firms, for the capacity of books.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from backtest.analysis.capacity import Liquidity
from backtest.costs.impact import volatility_per_root_volume
from features.arithmetic.rolling import lag, rolling_std
from features.panel.derived import daily_return, median_dollar_volume
from features.panel.panel import Panel

WINDOW = 21


def liquidity(panel: Panel) -> Liquidity | None:
    """Compute the liquidity that is known before each session; None if the prices have no volume.

    The volume is the median dollar volume, and the volatility the standard deviation of the returns, of the
    21 sessions before. NaN where fewer than 11 of them are known.
    """
    if panel.volume_TN is None:
        return None
    volume_TN = lag(median_dollar_volume(panel, WINDOW).astype(float), 1)
    volatility_TN = lag(rolling_std(daily_return(panel), WINDOW, (WINDOW + 1) // 2), 1)
    return Liquidity(volume_TN, volatility_per_root_volume(volatility_TN, volume_TN))


def liquidity_on(every: Liquidity, held: slice) -> Liquidity:
    """Liquidity of some sessions."""
    return Liquidity(every.dollar_volume_TN[held], every.volatility_per_root_volume_TN[held])
