"""Capacity: what a book earns after impact, at growing amounts of capital.

Shape suffixes: T sessions, N firms, R rows of the ledger, V amounts of capital.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backtest.accounts.accounting import run_books
from backtest.accounts.market import BookMarket
from backtest.accounts.performance import book_metrics
from backtest.accounts.variants import Variant
from backtest.analysis.ledger import LedgerRows
from features.arrays import FloatArray

POINTS = 9
"""Amounts of capital, half a decade apart: four decades, up to where the cap binds."""

_SMALLEST = 1e-5  # share of the volume of nearly all orders at the smallest capital


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """A book at one amount of capital."""

    capital: float  # value before the first session, in the currency of the prices. Profits stay invested.
    # `sharpe_net`, `annual_return_net`: after all costs, impact included
    sharpe_net: float
    annual_return_net: float
    impact_bps_per_year: float  # mean cost of impact, in basis points of NAV per year
    # share of the daily dollar volume that 95% of the trades do not exceed: the trades of the ledger, scaled
    # to the capital
    participation_p95: float
    unfilled: float  # mean one-way turnover per session that was ordered and not traded


def capacity(
    variant: Variant, rows: LedgerRows, market: BookMarket, dollar_volume_TN: FloatArray, rate_T: FloatArray
) -> list[CapacityPoint]:
    """Run a book at several amounts of capital, with its impact and its participation cap.

    ``variant`` is the book at any capital; without impact and without a cap all amounts earn the same. The
    trades in ``rows``, its ledger, say which amounts the volumes allow. ``dollar_volume_TN`` is the trailing
    daily dollar volume; row s is known before the trades of session s, NaN is unknown. ``rate_T`` is the
    risk-free return of each session. The points go from the smallest to the largest capital; there are none
    for a book without a trade of known volume.
    """
    share = participation_per_capital(rows, dollar_volume_TN)
    if not share > 0:
        return []
    capitals = capital_grid(share)
    points = []
    for capital, book in zip(
        capitals, run_books([at_capital(variant, one) for one in capitals], market), strict=True
    ):
        if book.first_trade is None:
            continue
        found = book_metrics(book, rate_T)
        impact = found.costs_bps_per_year["impact"]
        results = (found.sharpe_net, found.annual_return_net, impact, share * capital, found.unfilled)
        points.append(CapacityPoint(capital, *results))
    return points


def participation_per_capital(rows: LedgerRows, dollar_volume_TN: FloatArray) -> float:
    """Share of the daily volume, per unit of capital, that 95% of the trades do not exceed.

    NaN without a trade of known volume.
    """
    traded_R = rows.trade_R != 0
    volume_R = dollar_volume_TN[rows.session_R[traded_R], rows.firm_R[traded_R]]
    known_R = volume_R > 0
    share_R = np.abs(rows.trade_R[traded_R][known_R]) / volume_R[known_R]
    return float(np.quantile(share_R, 0.95)) if len(share_R) else math.nan


def capital_grid(share: float) -> Sequence[float]:
    """Amounts of capital 1, 3, 10, 30, ..., from the first with ``share * capital`` of 0.001% or more."""
    first = math.ceil(2.0 * math.log10(_SMALLEST / share) - 1e-9)
    steps = range(first, first + POINTS)
    return [(1.0 if step % 2 == 0 else 3.0) * 10.0 ** (step // 2) for step in steps]


def at_capital(variant: Variant, capital: float) -> Variant:
    """Return the book with another amount of capital in its impact and its cap."""
    impact, cap = variant.costs.impact, variant.execution.cap
    impact = None if impact is None else replace(impact, capital=capital)
    cap = None if cap is None else replace(cap, capital=capital)
    return replace(
        variant, costs=replace(variant.costs, impact=impact), execution=replace(variant.execution, cap=cap)
    )
