"""The half-spread: what a trade loses against the middle of bid and ask.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

from backtest.costs.rates import Rate, require_rate


@dataclass(frozen=True, slots=True, eq=False)
class HalfSpread:
    """Cost of a trade: ``bps * 1e-4 * notional``. A round trip pays it twice.

    Attributes
    ----------
    bps : float or ndarray of shape (T, N) or (1, N)
        Half of the bid-ask spread in basis points of the traded notional. Row s is used by the trades of
        session s and must be known before them: pass an estimate of the close of s-1. NaN = unknown: the
        firm cannot be traded, because the cost of the trade is unknown.

    Raises
    ------
    ValueError
        If a value is negative or not finite.
    """

    bps: Rate = 0.0

    def __post_init__(self) -> None:
        require_rate("half_spread_bps", self.bps, may_be_unknown=True)
