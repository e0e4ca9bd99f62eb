"""Interest on money that is borrowed to hold more than the capital can pay for."""

from __future__ import annotations

from dataclasses import dataclass

from backtest.costs.rates import require_rate


@dataclass(frozen=True, slots=True)
class Financing:
    """Cost of a session: ``bps_per_year * 1e-4 / periods_per_year * max(long value - NAV, 0)``.

    Both values are those after the trades of the previous close. The proceeds of short sales do not pay for
    long positions, because the lender of the shares keeps them as collateral. So a book with 100% long and
    100% short borrows no money, one with 150% long and 50% short borrows half of its NAV, and for a long-only
    book the borrowed amount is its negative cash.

    Attributes
    ----------
    bps_per_year : float
        Interest in basis points per year.

    Raises
    ------
    ValueError
        If it is negative or not finite.
    """

    bps_per_year: float = 0.0

    def __post_init__(self) -> None:
        require_rate("financing_bps_per_year", self.bps_per_year)
