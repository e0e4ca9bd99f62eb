"""The fee for borrowing shares that are sold short.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

from backtest.costs.rates import Rate, require_rate


@dataclass(frozen=True, slots=True, eq=False)
class Borrow:
    """Cost of a session: ``bps_per_year * 1e-4 / periods_per_year * short market value``.

    The market value is that after the trades of the previous close.

    Attributes
    ----------
    bps_per_year : float or ndarray of shape (T, N) or (1, N)
        Fee in basis points per year. Row s applies to positions held after the trades of session s; their
        fee is charged at the close of s+1. No NaN.

    Raises
    ------
    ValueError
        If a value is negative or not finite.
    """

    bps_per_year: Rate = 0.0

    def __post_init__(self) -> None:
        require_rate("borrow_bps_per_year", self.bps_per_year)
