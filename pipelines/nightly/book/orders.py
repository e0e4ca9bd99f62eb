"""What the orders of a night are expected to cost, how long they take, and which of them cannot be traded.

All rates are those of the session of the trade, known at tonight's close. Shape suffix: N firms.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.market import GONE, KNOWN, TRADABLE
from backtest.books.book import Book
from backtest.books.rules.optimised import Optimised
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.panel import Panel
from pipelines.config.backtest import BacktestConfig
from pipelines.lake.lake import Lake
from pipelines.results.books import book_costs, book_execution, book_market

_BPS = 1e-4
_ROUNDING = 1e-9  # an order that takes 2 + 1e-12 sessions takes 2
CAN_TRADE = ""
"""Reason of a firm that can be traded."""
NO_PRICE, DELISTED, NOT_IN_THE_DATA = "no price", "delisted", "not in the data"
"""Obstacles; the last one is that of a held firm that the source does not deliver any more."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderEstimates:
    """Expected costs of whole orders over NAV, sessions until they are filled, and what stands in the way.

    Where a firm cannot be traded, the cost is NaN and the sessions are -1; without an order these are 0.
    """

    cost_N: FloatArray
    sessions_N: npt.NDArray[np.int64]
    obstacle_N: npt.NDArray[np.str_]

    @property
    def tradable_N(self) -> BoolArray:  # noqa: N802  # a shape suffix
        """Whether each firm can be traded."""
        tradable_N: BoolArray = self.obstacle_N == CAN_TRADE
        return tradable_N


def estimate_orders(
    trade_N: FloatArray,
    nav: float,
    settings: BacktestConfig,
    panel: Panel,
    delay: int,
    *,
    quarantined: frozenset[str] = frozenset(),
) -> OrderEstimates:
    """Estimate what orders cost and how long they take.

    A session fills at most ``cap * dollar volume``. A fill of size s, in units of the capital before the
    first night, costs ``(half-spread + commission) * s``, the commission at least its minimum, and
    ``coefficient * rate * sqrt(capital) * s^1.5``: the terms of `backtest.costs`. Volume, volatility and
    half-spread of all sessions are those that are known tonight, and prices are tonight's.
    """
    following = slice(panel.n_sessions, panel.n_sessions + 1)
    costs = book_costs(settings, panel, following)
    cap = book_execution(settings, panel, following, delay).cap
    size_N = np.abs(trade_N) * nav
    room_N = np.full(panel.n_firms, np.inf)
    if cap is not None:
        room_N = cap.fraction / cap.capital * cap.dollar_volume_TN[0]
    spread_N = np.broadcast_to(costs.half_spread_bps, (1, panel.n_firms))[0] * _BPS
    rate_N = np.zeros(panel.n_firms)
    if costs.impact is not None:
        rate_N = costs.impact.volatility_per_root_volume_TN[0]
        rate_N = rate_N * costs.impact.coefficient * math.sqrt(costs.impact.capital)
    unknown = {"no half-spread": np.isnan(spread_N), "no volume": np.isnan(rate_N) | ~(room_N > 0)}
    obstacle_N = _obstacles(panel, quarantined, unknown)
    can_N = obstacle_N == CAN_TRADE

    fill_N = np.minimum(np.where(can_N, room_N, np.inf), size_N)  # of every session but the last
    with np.errstate(invalid="ignore"):
        sessions_N = np.ceil(np.where(size_N > 0, size_N / fill_N, 0.0) - _ROUNDING).astype(np.int64)
    whole_N = np.maximum(sessions_N - 1, 0)
    last_N = np.maximum(size_N - whole_N * fill_N, 0.0)
    impact_N = rate_N * (whole_N * fill_N**1.5 + last_N**1.5)
    commission_N = np.maximum(costs.commission_bps * _BPS * size_N, costs.commission_minimum * sessions_N)
    cost_N = spread_N * size_N + commission_N + impact_N
    cost_N = cost_N / nav if nav > 0 else np.zeros_like(cost_N)
    return OrderEstimates(np.where(can_N, cost_N, np.nan), np.where(can_N, sessions_N, -1), obstacle_N)


def _obstacles(
    panel: Panel, quarantined: frozenset[str], unknown: dict[str, BoolArray]
) -> npt.NDArray[np.str_]:
    """Why each firm cannot be traded; the first reason that applies."""
    state_N = book_market(panel, slice(panel.n_sessions - 1, panel.n_sessions)).state_TN[0]
    tradable_N = (state_N & TRADABLE) > 0
    obstacle_N = np.full(panel.n_firms, CAN_TRADE, dtype="<U32")
    for reason, unknown_N in unknown.items():
        obstacle_N[unknown_N] = reason
    obstacle_N[~tradable_N] = NO_PRICE
    obstacle_N[~tradable_N & panel.traded_TN[-1]] = "suspended"
    obstacle_N[~tradable_N & ((state_N & KNOWN) == 0)] = "price unknown"
    obstacle_N[~tradable_N & np.isin(panel.tickers_N, list(quarantined))] = "price in quarantine"
    obstacle_N[(state_N & GONE) > 0] = DELISTED
    return obstacle_N


def quarantined_tickers(lake: Lake, session: dt.date) -> frozenset[str]:
    """Return the tickers whose price row of a session is in quarantine and not resolved."""
    held = (pl.col("table") == "prices") & pl.col("resolved_at").is_null()
    rows = map(json.loads, lake.rows("quarantine", filters=held)["row"])
    return frozenset(str(row.get("ticker")) for row in rows if str(row.get("date"))[:10] == str(session))


_TOLERANCE = 1e-6
"""Distance from a limit, in weight, below which it binds; the solver's own tolerance is about 1e-8."""


def bounds(
    book: Book, weight_N: FloatArray, estimates: OrderEstimates, group_N: IntArray
) -> npt.NDArray[np.object_]:
    """Name the limit that binds each firm; None where there is none."""
    bound_N = np.full(len(weight_N), None, dtype=object)
    if isinstance(book, Optimised):
        most = book.limits.max_sector_net or 0.0
        for group in np.unique(group_N[(weight_N != 0) & (group_N >= 0)]) if most else ():
            net = float(weight_N[group_N == group].sum())
            if abs(net) >= most - _TOLERANCE:
                bound_N[(group_N == group) & (np.sign(weight_N) == np.sign(net))] = "sector limit"
        bound_N[np.abs(weight_N) >= book.limits.max_position - _TOLERANCE] = "position limit"
    bound_N[estimates.sessions_N > 1] = "participation cap"
    stuck_N = ~estimates.tradable_N
    bound_N[stuck_N] = estimates.obstacle_N[stuck_N]
    return bound_N
