"""Liquidity, and size from prices: how much trades, how far it moves the price, how dear a share is.

Shape suffixes: T sessions, N firms. ``dv`` is raw close times shares traded. Rolling statistics need at
least half of the window's sessions, else NaN.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray
from features.characteristics.registry import characteristic
from features.characteristics.volatility import half
from features.derived import daily_return, dollar_volume
from features.panel import Panel
from features.registry import Compute
from features.rolling import rolling_mean


@characteristic(
    "log_dollar_volume_21",
    "liquidity",
    needs=("close", "volume"),
    warmup=20,
    formula="ln(mean(dv[t-20..t]))",
    unit="log currency a day",
    source="Brennan, Chordia and Subrahmanyam 1998",
)
def log_dollar_volume(panel: Panel) -> FloatArray:
    """Compute the log of the mean dollar volume of 21 sessions."""
    return np.log(rolling_mean(dollar_volume(panel), 21, half(21)))


@characteristic(
    "amihud_21",
    "liquidity",
    needs=("close", "volume"),
    warmup=21,
    formula="1e6 mean(|r| / dv over t-20..t), sessions with dv > 0",
    unit="fraction per million of currency",
    source="Amihud 2002",
)
def amihud(panel: Panel) -> FloatArray:
    """Compute the price impact of a million of dollar volume over 21 sessions."""
    volume_TN = dollar_volume(panel)
    impact_TN = np.abs(daily_return(panel)) / np.where(volume_TN > 0, volume_TN, np.nan)
    return 1e6 * rolling_mean(impact_TN, 21, half(21))


def _volume_ratio(short: int, long: int) -> Compute:
    def compute(panel: Panel) -> FloatArray:
        volume_TN = dollar_volume(panel)
        return np.log(rolling_mean(volume_TN, short, half(short)) / rolling_mean(volume_TN, long, half(long)))

    return compute


for _name, _short, _long, _source in (
    ("volume_surprise_1", 1, 21, "Gervais, Kaniel and Mingelgrin 2001"),
    ("volume_surprise_5", 5, 21, "Gervais, Kaniel and Mingelgrin 2001"),
    ("volume_trend_5_63", 5, 63, "Gervais, Kaniel and Mingelgrin 2001; Lee and Swaminathan 2000"),
    ("volume_trend_21_126", 21, 126, "Lee and Swaminathan 2000"),
):
    characteristic(
        _name,
        "liquidity",
        needs=("close", "volume"),
        warmup=_long - 1,
        formula=f"ln(mean(dv[t-{_short - 1}..t]) / mean(dv[t-{_long - 1}..t])); NaN at no volume",
        unit="log ratio",
        source=_source,
    )(_volume_ratio(_short, _long))


@characteristic(
    "zero_return_days_21",
    "liquidity",
    warmup=21,
    formula="share of the known r[t-20..t] that are exactly 0",
    unit="fraction",
    source="Lesmond, Ogden and Trzcinka 1999",
)
def zero_return_days(panel: Panel) -> FloatArray:
    """Compute the share of sessions on which the price did not move."""
    r_TN = daily_return(panel)
    zero_TN = np.where(np.isnan(r_TN), np.nan, (np.abs(r_TN) < 1e-12).astype(np.float64))
    return rolling_mean(zero_TN, 21, half(21))


@characteristic(
    "log_price",
    "size",
    warmup=0,
    formula="ln(raw close[t])",
    unit="log currency",
    source="Miller and Scholes 1982",
)
def log_price(panel: Panel) -> FloatArray:
    """Compute the log of the quoted price."""
    return np.log(panel.raw_close_TN)
