"""Capacity: what a book earns after impact, at growing amounts of capital.

Shape suffixes: T sessions, N firms, R rows of the ledger, V amounts of capital.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backtest.accounts.batch import run_books
from backtest.accounts.execution import ParticipationCap
from backtest.accounts.lanes import Variant
from backtest.accounts.market import BookMarket
from backtest.accounts.performance import annual_return, risk_free_cost, sharpe
from backtest.analysis.rows import LedgerRows
from backtest.costs.impact import SquareRootImpact
from backtest.costs.model import SESSIONS_PER_YEAR
from features.arrays import FloatArray

COEFFICIENT = 1.0
"""Impact coefficient of a book whose costs have no impact."""

MAX_PARTICIPATION = 0.1
"""Share of the daily dollar volume that a book without a cap trades at most."""

POINTS = 9
"""Amounts of capital, half a decade apart: four decades, up to where the cap binds."""

_SMALLEST = 1e-5  # share of the volume of nearly all orders at the smallest capital


@dataclass(frozen=True, slots=True, eq=False)
class Liquidity:
    """What impact and participation are measured by; row s is known before the trades of session s.

    Attributes
    ----------
    dollar_volume_TN : ndarray of shape (T, N)
        Trailing daily dollar volume; NaN is unknown, and the firm cannot be traded.
    volatility_per_root_volume_TN : ndarray of shape (T, N)
        `backtest.costs.impact.volatility_per_root_volume` of the trailing volatility and that volume.
    """

    dollar_volume_TN: FloatArray
    volatility_per_root_volume_TN: FloatArray


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """A book at one amount of capital.

    Attributes
    ----------
    capital : float
        Value before the first session, in the currency of the prices. Profits stay invested.
    sharpe_net, annual_return_net : float
        After all costs, impact included.
    impact_bps_per_year : float
        Mean cost of impact, in basis points of NAV per year.
    participation_p95 : float
        Share of the daily dollar volume that 95% of the orders do not exceed, before the cap.
    unfilled : float
        Mean one-way turnover per session that was ordered and not traded.
    """

    capital: float
    sharpe_net: float
    annual_return_net: float
    impact_bps_per_year: float
    participation_p95: float
    unfilled: float


def capacity(
    variant: Variant,
    rows: LedgerRows,
    market: BookMarket,
    liquidity: Liquidity,
    rate_T: FloatArray,
) -> list[CapacityPoint]:
    """Run a book with square-root impact and a participation cap at several amounts of capital.

    Parameters
    ----------
    variant : Variant
        The book. Its own impact coefficient and cap are used if it has them, else `COEFFICIENT` and
        `MAX_PARTICIPATION`.
    rows : LedgerRows
        Of the same book; its trades say which amounts of capital the volumes allow.
    market : BookMarket
        Of the book's sessions.
    liquidity : Liquidity
        Of the book's sessions.
    rate_T : ndarray of shape (T,)
        Risk-free return of each session.

    Returns
    -------
    list of CapacityPoint
        From the smallest to the largest capital; empty for a book without a trade of known volume.
    """
    share = participation_per_capital(rows, liquidity.dollar_volume_TN)
    if not share > 0:
        return []
    capitals = capital_grid(share)
    batch = run_books([at_capital(variant, liquidity, capital) for capital in capitals], market)
    points = []
    for v, capital in enumerate(capitals):
        span = slice(int(batch.first_trade_V[v]), int(batch.ruined_V[v]) + 1)
        return_T, free_T = batch.return_net_VT[v], risk_free_cost(batch.cash_VT[v], rate_T)
        if not len(return_T[span]):
            continue
        impact = float(batch.costs_VT["impact"][v][span].mean())
        points.append(
            CapacityPoint(
                capital=capital,
                sharpe_net=sharpe((return_T - free_T)[span]),
                annual_return_net=annual_return(return_T[span]),
                impact_bps_per_year=impact * 1e4 * SESSIONS_PER_YEAR,
                participation_p95=share * capital,
                unfilled=float(batch.unfilled_VT[v][span].mean()),
            )
        )
    return points


def participation_per_capital(
    rows: LedgerRows, dollar_volume_TN: FloatArray, quantile: float = 0.95
) -> float:
    """Share of the daily volume, per unit of capital, that this quantile of the trades does not exceed.

    NaN without a trade of known volume.
    """
    traded_R = rows.trade_R != 0
    volume_R = dollar_volume_TN[rows.session_R[traded_R], rows.firm_R[traded_R]]
    known_R = volume_R > 0
    share_R = np.abs(rows.trade_R[traded_R][known_R]) / volume_R[known_R]
    return float(np.quantile(share_R, quantile)) if len(share_R) else math.nan


def capital_grid(share: float) -> Sequence[float]:
    """Amounts of capital 1, 3, 10, 30, ..., from the first with ``share * capital`` of 0.001% or more."""
    first = math.ceil(2.0 * math.log10(_SMALLEST / share) - 1e-9)
    steps = range(first, first + POINTS)
    return [(1.0 if step % 2 == 0 else 3.0) * 10.0 ** (step // 2) for step in steps]


def at_capital(variant: Variant, liquidity: Liquidity, capital: float) -> Variant:
    """Give a book an amount of capital: impact and a cap, with its own coefficient and share if any."""
    impact, cap = variant.costs.impact, variant.execution.cap
    coefficient = COEFFICIENT if impact is None else impact.coefficient
    fraction = MAX_PARTICIPATION if cap is None else cap.fraction
    paid = SquareRootImpact(coefficient, capital, liquidity.volatility_per_root_volume_TN)
    limit = ParticipationCap(fraction, capital, liquidity.dollar_volume_TN)
    return replace(
        variant,
        costs=replace(variant.costs, impact=paid),
        execution=replace(variant.execution, cap=limit),
    )
