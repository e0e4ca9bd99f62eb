"""What trading and shorting cost."""

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
        Of the traded notional, on each side of a round trip.
    commission_bps : float
        Of the traded notional.
    borrow_bps_per_year : float
        Of the short market value, charged each session at 1/252.

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
                msg = f"{name} is {value}: give basis points of at least 0."
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
