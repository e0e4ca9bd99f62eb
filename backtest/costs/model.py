"""Costs of trading and of short positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

SESSIONS_PER_YEAR = 252


@dataclass(frozen=True, slots=True)
class CostModel:
    """Proportional costs, in basis points (1e-4).

    Attributes
    ----------
    half_spread_bps : float
        Half of the bid-ask spread, paid on the traded notional of every trade.
    commission_bps : float
        Commission, paid on the traded notional of every trade.
    borrow_bps_per_year : float
        Borrow fee on the short market value; each session is charged 1/252 of it.

    Raises
    ------
    ValueError
        If a rate is negative or not finite.
    """

    half_spread_bps: float
    commission_bps: float
    borrow_bps_per_year: float

    def __post_init__(self) -> None:
        for name in ("half_spread_bps", "commission_bps", "borrow_bps_per_year"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                msg = f"{name} is {value}; it must be a finite number of basis points, at least 0."
                raise ValueError(msg)

    @property
    def half_spread(self) -> float:
        """Half-spread as a fraction of the traded notional."""
        return self.half_spread_bps * 1e-4

    @property
    def commission(self) -> float:
        """Commission as a fraction of the traded notional."""
        return self.commission_bps * 1e-4

    @property
    def borrow_per_session(self) -> float:
        """Borrow fee of one session as a fraction of the short market value."""
        return self.borrow_bps_per_year * 1e-4 / SESSIONS_PER_YEAR
