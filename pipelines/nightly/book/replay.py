"""The account of a book from its first night to tonight: what it holds before tonight's order is traded.

Sessions after tonight have no prices yet. They are added with tonight's values, so that decisions of earlier
nights which are still to be traded (at a delay of 2 or more) are traded here as well, at tonight's prices.

Shape suffixes: T sessions from the first night to tonight, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from backtest.accounts.accounting import account_book
from backtest.accounts.execution import Execution
from backtest.accounts.flags import GONE, KNOWN, TRADABLE
from backtest.accounts.market import BookMarket
from backtest.costs.half_spread import HalfSpread
from backtest.costs.model import CostModel
from features.arrays import FloatArray
from features.panel.panel import Panel
from pipelines.config.backtest import BacktestConfig
from pipelines.results.book_orders import book_market
from pipelines.results.trading import book_costs, book_execution


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """What a book holds before tonight's order is traded.

    Attributes
    ----------
    weight_N
        Value of each position over NAV.
    open_N
        Rest of earlier orders that was not filled, over NAV: what is still to be bought; negative for sales.
        Orders stay open only if there is a participation cap.
    nav
        NAV; 1 is the capital before the first night.
    ruined
        Whether the account was closed because its NAV reached zero.
    """

    weight_N: FloatArray
    open_N: FloatArray
    nav: float
    ruined: bool


def replay(target_TN: FloatArray, settings: BacktestConfig, panel: Panel, first: int, delay: int) -> Holdings:
    """Account for the decisions of the earlier nights.

    Parameters
    ----------
    target_TN
        Target weights of the sessions from ``first`` to the last one of the panel, which is tonight. The
        decision of tonight is not read.
    settings
        Costs, capital and execution.
    panel
        Prices up to tonight.
    first
        Session of the first decision.
    delay
        Sessions between decision and trade, at least 1.

    Returns
    -------
    Holdings
        Before the trades of session ``tonight + delay``, at tonight's prices.
    """
    tonight = panel.n_sessions - 1
    # One more session, with unlimited volume and trade in every firm, trades what is left of all open orders.
    held = slice(first, tonight + delay + 1)
    known = len(target_TN)
    orders_TN = np.full((held.stop - held.start, panel.n_firms), np.nan)
    orders_TN[: known - 1] = target_TN[:-1]
    result = account_book(
        orders_TN,
        _continued(book_market(panel, slice(first, panel.n_sessions)), delay),
        _known_at_the_end(book_costs(settings, panel, held)),
        delay,
        execution=_unlimited_at_the_end(book_execution(settings, panel, held, delay)),
        keep_ledger=True,
    )
    last, before = len(orders_TN) - 1, len(orders_TN) - 2
    nav = float(result.nav_ledger_T[before])
    weight_N, open_N = np.zeros(panel.n_firms), np.zeros(panel.n_firms)
    if nav > 0:
        for session, field, out_N in ((before, "position", weight_N), (last, "trade", open_N)):
            rows = result.ledger.filter(result.ledger["session"] == session)
            out_N[rows["firm"].to_numpy()] = rows[field].to_numpy() / nav
    return Holdings(weight_N, open_N, nav, result.ruined_at is not None)


def _continued(market: BookMarket, sessions: int) -> BookMarket:
    """Add sessions with the last values; in the last of them every firm that still exists can be traded."""
    value_TN = np.concatenate([market.value_TN, np.repeat(market.value_TN[-1:], sessions, axis=0)])
    state_TN = np.concatenate([market.state_TN, np.repeat(market.state_TN[-1:], sessions, axis=0)])
    gone_N = (state_TN[-1] & GONE) > 0
    state_TN[-1] = np.where(gone_N, GONE, KNOWN | TRADABLE).astype(np.uint8)
    return BookMarket(value_TN, state_TN)


def _known_at_the_end(costs: CostModel) -> CostModel:
    """Make the last session free where costs differ by firm: unknown costs would keep orders from trading."""
    spread, impact = costs.half_spread, costs.impact
    if isinstance(spread.bps, np.ndarray):
        spread = HalfSpread(_with_last_row(spread.bps, 0.0))
    if impact is not None:
        rate_TN = _with_last_row(impact.volatility_per_root_volume_TN, 0.0)
        impact = replace(impact, volatility_per_root_volume_TN=rate_TN)
    return replace(costs, half_spread=spread, impact=impact)


def _with_last_row(x_TN: FloatArray, value: float) -> FloatArray:
    changed_TN = x_TN.copy()
    changed_TN[-1] = value
    return changed_TN


def _unlimited_at_the_end(execution: Execution) -> Execution:
    if execution.cap is None:
        return execution
    volume_TN = _with_last_row(execution.cap.dollar_volume_TN, np.inf)
    return replace(execution, cap=replace(execution.cap, dollar_volume_TN=volume_TN))
