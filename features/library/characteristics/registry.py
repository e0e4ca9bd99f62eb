"""The registry of characteristics: one number per firm and session, compared within the date.

Shape suffixes: T sessions, N firms, F characteristics.
"""

from __future__ import annotations

from features.library.registry import Registry

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
