"""The broker's commission."""

from __future__ import annotations

from dataclasses import dataclass

from backtest.costs.rates import require_rate


@dataclass(frozen=True, slots=True)
class Commission:
    """Cost of a trade: ``bps * 1e-4 * notional``, and at least the minimum.

    Attributes
    ----------
    bps : float
        Basis points of the traded notional.
    minimum : float
        Least commission of a trade of one firm in one session, as a fraction of the capital at the start.

    Raises
    ------
    ValueError
        If it is negative or not finite.
    """

    bps: float = 0.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        require_rate("commission_bps", self.bps)
        require_rate("minimum commission", self.minimum)
