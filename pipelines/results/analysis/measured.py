"""A book that was run and measured: what an evaluation hands to the analysis of books."""

from __future__ import annotations

from dataclasses import dataclass

from backtest.accounts.performance import BookMetrics
from backtest.accounts.result import BookResult
from features.arrays import FloatArray
from pipelines.results.book_orders import BookOrders


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBook:
    """One book of one model at one delay.

    Attributes
    ----------
    model
        Model or signal that the book trades.
    delay
        Delay of the label, the key of the tables.
    orders
        Target weights, sessions and execution delay.
    result
        Accounts, with the ledger.
    metrics
        Performance.
    excess_T
        Net return over the risk-free rate on the sessions of the book; NaN before the first trade and after
        ruin.
    rate_T
        Risk-free rate of the same sessions.
    """

    model: str
    delay: int
    orders: BookOrders
    result: BookResult
    metrics: BookMetrics
    excess_T: FloatArray
    rate_T: FloatArray
