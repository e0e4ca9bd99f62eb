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
from features.library.characteristics.registry import CHARACTERISTICS, characteristic

__all__ = [
    "CHARACTERISTICS",
    "characteristic",
    "factors",
    "liquidity",
    "market",
    "momentum",
    "reversal",
    "seasonality",
    "statements",
    "volatility",
]
