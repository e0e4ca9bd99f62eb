"""Characteristics of firms, by family; importing the package registers them all."""

from features.characteristics import (
    liquidity,
    market,
    momentum,
    reversal,
    seasonality,
    statements,
    volatility,
)
from features.characteristics.registry import (
    CHARACTERISTICS,
    available_characteristics,
    characteristic,
    compute_characteristics,
)

__all__ = [
    "CHARACTERISTICS",
    "available_characteristics",
    "characteristic",
    "compute_characteristics",
    "liquidity",
    "market",
    "momentum",
    "reversal",
    "seasonality",
    "statements",
    "volatility",
]
