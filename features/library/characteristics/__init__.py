"""Characteristics of firms, by family. Importing the package registers all of them."""

from features.library.characteristics import (
    factors,
    liquidity,
    market,
    momentum,
    reversal,
    seasonality,
    statements,
    volatility,
)
from features.library.characteristics.registry import (
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
    "factors",
    "liquidity",
    "market",
    "momentum",
    "reversal",
    "seasonality",
    "statements",
    "volatility",
]
