"""The costs of a book: one term of each kind, chosen independently.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

from backtest.costs.borrow import Borrow
from backtest.costs.commission import Commission
from backtest.costs.financing import Financing
from backtest.costs.half_spread import HalfSpread
from backtest.costs.impact import SquareRootImpact
from features.panel.periods import SESSIONS_PER_YEAR

COST_KINDS = ("half_spread", "commission", "impact", "borrow", "financing")
"""Kinds of cost in the order of tables. The first three are paid by trades, the last two by positions."""


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """Terms of the costs of a book. A term that is left out is free.

    Attributes
    ----------
    half_spread : HalfSpread
        Paid on the traded notional.
    commission : Commission
        Paid on the traded notional.
    impact : SquareRootImpact or None
        Paid on the traded notional; the only term that depends on the capital.
    borrow : Borrow
        Paid on short positions.
    financing : Financing
        Paid on borrowed money.
    periods_per_year : float
        Sessions in a year: what fees and interest per year are divided by.
    """

    half_spread: HalfSpread = HalfSpread()  # noqa: RUF009  # frozen
    commission: Commission = Commission()  # noqa: RUF009  # frozen
    impact: SquareRootImpact | None = None
    borrow: Borrow = Borrow()  # noqa: RUF009  # frozen
    financing: Financing = Financing()  # noqa: RUF009  # frozen
    periods_per_year: float = SESSIONS_PER_YEAR

    @classmethod
    def flat(
        cls,
        half_spread_bps: float = 0.0,
        commission_bps: float = 0.0,
        borrow_bps_per_year: float = 0.0,
        financing_bps_per_year: float = 0.0,
    ) -> CostModel:
        """Costs with the same rates for all firms and sessions, without impact."""
        return cls(
            half_spread=HalfSpread(half_spread_bps),
            commission=Commission(commission_bps),
            borrow=Borrow(borrow_bps_per_year),
            financing=Financing(financing_bps_per_year),
        )
