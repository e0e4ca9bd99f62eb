"""Value, quality, growth and size from statements, as known at t.

Shape suffixes: T sessions, N firms. ``item[t]`` is the latest value known at t
(`features.asof.statements_as_of`); ``shares_outstanding`` is carried over splits, so that market equity is
that count times the raw close.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray
from features.characteristics.registry import characteristic
from features.panel import Panel
from features.registry import Compute
from features.rolling import lag


def _positive(x_TN: FloatArray) -> FloatArray:
    """Keep what can be a denominator."""
    return np.where(x_TN > 0, x_TN, np.nan)


def market_equity(panel: Panel) -> FloatArray:
    """Compute shares outstanding, splits included, times the raw close, in the price's currency."""
    return _positive(panel.statements["shares_outstanding"]) * panel.raw_close_TN


@characteristic(
    "log_market_equity",
    "size",
    needs=("close", "statements:shares_outstanding"),
    warmup=0,
    formula="ln(shares_outstanding[t] raw_close[t])",
    unit="log currency",
    source="Banz 1981",
)
def log_market_equity(panel: Panel) -> FloatArray:
    """Compute the log of the firm's market value."""
    return np.log(market_equity(panel))


@characteristic(
    "book_to_market",
    "value",
    needs=("close", "statements:shares_outstanding", "statements:book_equity"),
    warmup=0,
    formula="book_equity[t] / (shares_outstanding[t] raw_close[t])",
    unit="ratio",
    source="Fama and French 1992",
)
def book_to_market(panel: Panel) -> FloatArray:
    """Compare the book value of equity with its market value; negative books stay negative."""
    return panel.statements["book_equity"] / market_equity(panel)


def _profitability(item: str) -> Compute:
    return lambda panel: panel.statements[item] / _positive(panel.statements["total_assets"])


for _item, _name, _source in (
    ("gross_profit", "gross_profitability", "Novy-Marx 2013"),
    ("net_income", "return_on_assets", "Balakrishnan, Bartov and Faurel 2010; Hou, Xue and Zhang 2015"),
):
    characteristic(
        _name,
        "quality",
        needs=("close", f"statements:{_item}", "statements:total_assets"),
        warmup=0,
        formula=f"{_item}[t] / total_assets[t]; NaN unless assets > 0",
        unit="fraction a reporting period",
        source=_source,
    )(_profitability(_item))


@characteristic(
    "asset_growth",
    "growth",
    needs=("close", "statements:total_assets"),
    warmup=252,
    formula="total_assets[t] / total_assets[t-252] - 1; NaN unless both > 0",
    unit="fraction a year",
    source="Cooper, Gulen and Schill 2008",
)
def asset_growth(panel: Panel) -> FloatArray:
    """Compute the growth of the assets known now over those known 252 sessions ago."""
    assets_TN = _positive(panel.statements["total_assets"])
    return assets_TN / lag(assets_TN, 252) - 1.0
