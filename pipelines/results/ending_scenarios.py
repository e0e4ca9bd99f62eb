"""How each book's results change if delistings for unknown reasons pay less than the last price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from backtest.accounts.market import BookMarket
from backtest.accounts.performance import book_metrics
from backtest.accounts.result import BookResult
from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray
from features.panel.panel import Panel
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.dataset.risk_free import require_rates, risk_free_rates
from pipelines.results.book_orders import BookOrders, book_market, book_orders
from pipelines.results.evaluate import ensemble

UNKNOWN_RETURNS = {"0": 0.0, "30": -0.30, "55": -0.55}
"""Returns on the last price, by the suffix of the table's columns."""


def ending_table(
    forecasts: Mapping[str, Mapping[int, FloatArray]], dataset: Market, config: Config
) -> pl.DataFrame | None:
    """Evaluate every book at the trained delay with returns of 0, -30% and -55% for unknown delistings.

    Forecasts and weights stay the same; only the payouts change. Each side of a long-short book is also
    evaluated as a separate book that holds only the long or only the short weights.

    Parameters
    ----------
    forecasts
        model -> seed -> array of shape (T, N); the seed ensemble is traded.
    dataset
        The panel marks the delistings that have neither a recorded return nor a known reason.
    config
        Books, costs and delay.

    Returns
    -------
    polars.DataFrame or None
        Columns as in `pipelines.pages.contents.report.ReportData.endings`; None if no such delisting falls
        into the sessions of the books.
    """
    panel = dataset.panel
    if not panel.unknown_TN.any():
        return None
    indices = {suffix: panel.total_return_index_assuming(paid) for suffix, paid in UNKNOWN_RETURNS.items()}
    dates_T = panel.dates_T.astype("datetime64[D]")
    rate_T = risk_free_rates(config.backtest.risk_free, dates_T, panel.periods_per_year)
    rows: list[dict[str, Any]] = []
    for model, seeds in forecasts.items():
        signal_TN = ensemble(seeds)
        rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
        markets: dict[str, BookMarket] = {}
        for orders in book_orders(signal_TN, rows_T, dataset, config, config.label.delay):
            unknown_TN = panel.unknown_TN[orders.held]
            if not (unknown_TN[1:] & ~unknown_TN[:-1]).any():
                continue
            require_rates(config.backtest.risk_free, rate_T[orders.held], dates_T[orders.held])
            if not markets:  # books of one delay are held on the same sessions
                markets = {key: book_market(panel, orders.held, index) for key, index in indices.items()}
            for side, target_TN in _sides(orders):
                row = _results(orders, target_TN, panel, markets, rate_T)
                rows.append({"model": model, "book": orders.name, "side": side, **row})
    return pl.DataFrame(rows) if rows else None


def _sides(orders: BookOrders) -> Iterator[tuple[str, FloatArray]]:
    """Yield the book's weights, and the weights of each side if it has both."""
    yield "book", orders.target_TN
    if (orders.target_TN < 0).any() and (orders.target_TN > 0).any():  # false for NaN
        yield "long", np.maximum(orders.target_TN, 0.0)
        yield "short", np.minimum(orders.target_TN, 0.0)


def _results(
    orders: BookOrders,
    target_TN: FloatArray,
    panel: Panel,
    markets: Mapping[str, BookMarket],
    rate_T: FloatArray,
) -> dict[str, float]:
    """Count the positions that unknown delistings pay out, and measure the book under each return."""
    first = next(iter(markets))
    started = {
        suffix: in_background(
            partial(orders.run, panel, target_TN=target_TN, market=market, keep_ledger=suffix == first)
        )
        for suffix, market in markets.items()
    }
    row: dict[str, float] = {"paid_out": _paid_out(started[first].result(), panel.unknown_TN[orders.held])}
    for suffix, one in started.items():
        metrics = book_metrics(one.result(), rate_T[orders.held])
        row[f"sharpe_net_{suffix}"] = metrics.sharpe_net
        row[f"annual_return_net_{suffix}"] = metrics.annual_return_net
    return row


def _paid_out(result: BookResult, unknown_TN: BoolArray) -> int:
    """Count the positions that a delisting for an unknown reason turned into cash."""
    released = result.ledger.filter(pl.col("released") != 0)
    return int(unknown_TN[released["session"].to_numpy(), released["firm"].to_numpy()].sum())
