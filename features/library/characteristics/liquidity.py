"""Liquidity, and size measured by the share price: trading volume, price impact and price level.

Shape suffixes: T sessions, N firms. ``dv`` is raw close times shares traded. Rolling statistics need at
least half of the window's sessions, else they are NaN.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic import rolling as spreads
from features.arithmetic.rolling import rolling_correlation, rolling_mean, rolling_std
from features.arrays import FloatArray
from features.library.characteristics.amounts import SPLIT_REACH, positive
from features.library.characteristics.registry import characteristic
from features.library.characteristics.volatility import half, sign
from features.library.registry import Compute
from features.panel.asof import SHARE_COUNT
from features.panel.derived import cached_per_panel, column, daily_return, dollar_volume
from features.panel.panel import Panel


@characteristic(
    "log_dollar_volume_21",
    "liquidity",
    needs=("close", "volume"),
    warmup=20,
    formula="ln(mean(dv[t-20..t]))",
    unit="log currency per day",
    nan_rule="fewer than 11 dv known; none above 0",
    source="Brennan, Chordia and Subrahmanyam 1998",
)
def log_dollar_volume(panel: Panel) -> FloatArray:
    """Compute the log of the mean dollar volume of 21 sessions."""
    return np.log(rolling_mean(dollar_volume(panel), 21, half(21)))


@cached_per_panel
def price_impact(panel: Panel) -> FloatArray:
    """Compute ``|r| / dv``; NaN without volume."""
    volume_TN = dollar_volume(panel)
    return np.abs(daily_return(panel)) / np.where(volume_TN > 0, volume_TN, np.nan)


def _amihud(window: int) -> Compute:
    return lambda panel: 1e6 * rolling_mean(price_impact(panel), window, half(window))


for _window in (21, 252):
    characteristic(
        f"amihud_{_window}",
        "liquidity",
        needs=("close", "volume"),
        warmup=_window,
        formula=f"1e6 mean(|r| / dv over t-{_window - 1}..t), sessions with dv > 0",
        unit="fraction per million of currency",
        nan_rule=f"fewer than {half(_window)} such sessions",
        source="Amihud 2002",
    )(_amihud(_window))


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
        formula=f"ln(mean(dv[t-{_short - 1}..t]) / mean(dv[t-{_long - 1}..t]))",
        unit="log ratio",
        nan_rule="half of either window unknown; no volume",
        source=_source,
    )(_volume_ratio(_short, _long))


def _zero_days(window: int) -> Compute:
    def compute(panel: Panel) -> FloatArray:
        return rolling_mean(1.0 - np.abs(sign(daily_return(panel))), window, half(window))

    return compute


for _window in (21, 252):
    characteristic(
        f"zero_return_days_{_window}",
        "liquidity",
        warmup=_window,
        formula=f"share of the known r[t-{_window - 1}..t] that are 0 (|r| < 1e-12)",
        unit="fraction",
        nan_rule=f"fewer than {half(_window)} returns known",
        source="Lesmond, Ogden and Trzcinka 1999",
    )(_zero_days(_window))


@characteristic(
    "dollar_volume_variation_63",
    "liquidity",
    needs=("close", "volume"),
    warmup=62,
    formula="std(dv) / mean(dv) over t-62..t",
    unit="pure number",
    nan_rule="fewer than 32 dv known; none above 0",
    source="Chordia, Subrahmanyam and Anshuman 2001",
)
def dollar_volume_variation(panel: Panel) -> FloatArray:
    """Compute the coefficient of variation of dollar volume."""
    volume_TN = dollar_volume(panel)
    return rolling_std(volume_TN, 63, half(63)) / rolling_mean(volume_TN, 63, half(63))


@characteristic(
    "signed_volume_21",
    "liquidity",
    needs=("close", "volume"),
    warmup=21,
    formula="sum(sign(r) dv) / sum(dv) over t-20..t; |r| < 1e-12 counts as 0",
    unit="fraction, -1 to 1",
    nan_rule="fewer than 11 sessions with r and dv known; no volume",
    source="Chordia and Subrahmanyam 2004, signed by the day's return",
)
def signed_volume(panel: Panel) -> FloatArray:
    """Compute the volume share of rising days minus that of falling days."""
    direction_TN = sign(daily_return(panel))
    volume_TN = np.where(np.isnan(direction_TN), np.nan, dollar_volume(panel))
    return rolling_mean(direction_TN * volume_TN, 21, half(21)) / rolling_mean(volume_TN, 21, half(21))


@characteristic(
    "return_volume_correlation_63",
    "liquidity",
    needs=("close", "volume"),
    warmup=82,
    formula="correlation of r with volume_surprise_1 over t-62..t",
    unit="pure number",
    nan_rule="fewer than 32 sessions with both known; no variation",
    source="Llorente, Michaely, Saar and Wang 2002",
)
def return_volume_correlation(panel: Panel) -> FloatArray:
    """Compute the correlation of return and volume surprise: positive if volume is high on rising days."""
    surprise_TN = _volume_ratio(1, 21)(panel)
    known_TN = np.where(np.isfinite(surprise_TN), surprise_TN, np.nan)
    return rolling_correlation(daily_return(panel), known_TN, 63, half(63))


@characteristic(
    "roll_spread_63",
    "liquidity",
    warmup=64,
    formula="2 sqrt(max(-cov(r[s], r[s-1]), 0)) over s = t-62..t, population covariance",
    unit="fraction of the price",
    nan_rule="fewer than 32 pairs known",
    source="Roll 1984",
)
def roll_spread(panel: Panel) -> FloatArray:
    """Compute the bid-ask spread implied by the autocovariance of returns; 0 if that is not negative."""
    return spreads.roll_spread(daily_return(panel), 63)


@characteristic(
    "corwin_schultz_21",
    "liquidity",
    needs=("close", "high", "low"),
    warmup=21,
    formula=(
        "mean(max(2 (exp(a) - 1) / (exp(a) + 1), 0)) over t-20..t, a = (sqrt(2b) - sqrt(b)) / k - sqrt(g / k)"
        ", k = 3 - 2 sqrt(2), b = sum of ln(high/low)^2 of s-1 and s, g = ln(high/low)^2 of both together; "
        "high and low of s are first shifted by the overnight gap to close[s-1]"
    ),
    unit="fraction of the price",
    nan_rule="fewer than 11 pairs of neighbouring sessions known",
    source="Corwin and Schultz 2012",
)
def corwin_schultz(panel: Panel) -> FloatArray:
    """Compute the bid-ask spread implied by the high-low ranges of one day and of two days."""
    high_TN, low_TN = column(panel, "high"), column(panel, "low")
    return spreads.corwin_schultz_spread(high_TN, low_TN, panel.close_TN, 21)


def _turnover(window: int) -> Compute:
    def compute(panel: Panel) -> FloatArray:
        shares_TN = positive(panel.statements[SHARE_COUNT])
        return rolling_mean(column(panel, "volume") / shares_TN, window, half(window))

    return compute


for _window in (21, 252):
    characteristic(
        f"turnover_{_window}",
        "liquidity",
        needs=("close", "volume", f"statements:{SHARE_COUNT}"),
        warmup=_window - 1,
        window=_window - 1 + SPLIT_REACH,
        formula=f"mean(volume / shares_outstanding over t-{_window - 1}..t), shares as known then",
        unit="fraction per day",
        nan_rule=f"fewer than {half(_window)} sessions known",
        source="Datar, Naik and Radcliffe 1998",
    )(_turnover(_window))


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
