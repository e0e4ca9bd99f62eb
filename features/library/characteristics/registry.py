"""The registry of characteristics: one number per firm and session, compared within the date.

Shape suffixes: T sessions, N firms, F characteristics.
"""

from __future__ import annotations

from features.library.registry import Feature, Registry

CHARACTERISTICS = Registry(
    "characteristic",
    (
        "momentum",
        "reversal",
        "seasonality",
        "volatility",
        "liquidity",
        "size",
        "value",
        "quality",
        "growth",
    ),
)
characteristic = CHARACTERISTICS.register
available_characteristics = CHARACTERISTICS.available
compute_characteristics = CHARACTERISTICS.compute

__all__ = [
    "CHARACTERISTICS",
    "Feature",
    "available_characteristics",
    "characteristic",
    "compute_characteristics",
]
