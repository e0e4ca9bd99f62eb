"""The tables of an evaluation that need nothing but forecasts and a market, and the record of an evaluation.

A run's forecasts and the signals of a user's file share them. What needs a run (folds, seeds, horizons,
quantiles) is added in :mod:`pipelines.results.evaluate_run`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from backtest.accounts.market import BookMarket
from backtest.accounts.performance import book_metrics
from backtest.accounts.result import BookResult
from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.panel import Panel
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.dataset.risk_free import require_rates, risk_free_rates
from pipelines.results.book_analysis import BookAnalysis
from pipelines.results.books import BookOrders, book_market, book_orders
from pipelines.results.comparisons import comparison_table, multiple_test_table, significance_table
from pipelines.results.evaluate import NO_SCORES, ensemble, evaluate
from pipelines.results.forecast_tables import forecast_tables
from pipelines.results.recount import keep_returns
from pipelines.run.evaluations import EvaluationRecord, evaluation_code, evaluation_id, file_digest
from pipelines.secrets import redact
from pipelines.train.trials import Scope, Trial, count_trials, record

Forecasts = Mapping[str, Mapping[int, FloatArray]]
"""Model or signal -> seed -> shape (T, N), known at the close of session t; NaN: none."""


def evaluate_trials(
    forecasts: Forecasts,
    market: Market,
    config: Config,
    scores: pl.DataFrame = NO_SCORES,
    *,
    run_id: str,
    output: Path,
    tried: Mapping[str, Trial],
    sessions: IntArray,
    truth_TN: FloatArray | None = None,
) -> tuple[dict[str, pl.DataFrame], int]:
    """Record every book as a trial, compute the tables of an evaluation, and keep the returns of the books.

    Names of ``forecasts`` that are not in the config's ``models`` are signals, which are not compared with
    baselines. The number is that of the trials that count by now.
    """
    record(output, run_id, (one for name in forecasts for one in tried[name].traded(config.backtest.books)))
    trials = count_trials(output, Scope.of(config)).trials
    analysis, sessions_T = BookAnalysis(market, config), market.panel.dates_T
    result = evaluate(
        forecasts, market, config, scores, truth_TN=truth_TN, sessions=sessions, on_book=analysis.add
    )
    keep_returns(output, result.equity, tried, config)
    signals = ((model, ensemble(seeds)) for model, seeds in forecasts.items())
    behaviour = in_background(lambda: forecast_tables(signals, market, config))
    endings = ending_table(forecasts, market, config)
    trained = set(forecasts) <= set(config.models)
    tables = {
        **result.tables,
        **behaviour.result(),
        "comparisons": comparison_table(result, config, sessions_T) if trained else None,
        "significance": significance_table(result, config, sessions_T, trials),
        "multiple_tests": multiple_test_table(result, config, sessions_T),
        "endings": endings,
        "flagged_rows": flagged_rows(market, result.equity),
        **analysis.tables(),
    }
    return {name: frame for name, frame in tables.items() if frame is not None}, trials


def flagged_rows(market: Market, equity: pl.DataFrame) -> pl.DataFrame | None:
    """Return the open quality flags on price rows of the sessions of the books; None if there are none."""
    if market.flags is None:
        return None
    first, last = equity["date"].min(), equity["date"].max()
    rows = market.flags.filter(pl.col("date").is_between(pl.lit(first), pl.lit(last)))
    return table("flagged_rows").frame(rows.sort("earns", "date", "ticker", "rule")) if rows.height else None


def evaluation_record(
    config: Config, panel: Panel, measured_T: BoolArray | IntArray, trials: int, commit: str
) -> EvaluationRecord:
    """Make the record of an evaluation of the sessions ``measured_T`` (a mask, or indices in order)."""
    rate = config.backtest.risk_free
    costs, execution = config.backtest.costs, config.backtest.execution
    shown = {  # a path can hold a secret
        "risk_free": _printable(rate),
        "costs": costs.model_copy(update={"borrow_file": _printable(costs.borrow_file)}),
        "execution": execution.model_copy(
            update={"price_limit_file": _printable(execution.price_limit_file)}
        ),
    }
    days = panel.dates_T[measured_T].astype("datetime64[D]")
    return EvaluationRecord(
        evaluation=evaluation_id(config),
        made_at=dt.datetime.now(dt.UTC),
        backtest=config.backtest.model_copy(update=shown),
        rates=file_digest(rate),
        borrow_fees=file_digest(costs.borrow_file),
        delays=config.label.delays,
        code=evaluation_code(),
        commit=commit,
        trials=trials,
        dates=len(days),
        first=days[0].item(),
        last=days[-1].item(),
        periods_per_year=panel.periods_per_year,
    )


def _printable(setting: float | str | None) -> float | str | None:
    return redact(setting) if isinstance(setting, str) else setting


UNKNOWN_RETURNS = {"0": 0.0, "30": -0.30, "55": -0.55}
"""Returns on the last price, by the suffix of the table's columns."""


def ending_table(forecasts: Forecasts, dataset: Market, config: Config) -> pl.DataFrame | None:
    """Evaluate every book at the trained delay with returns of 0, -30% and -55% for unknown delistings.

    Forecasts and weights stay the same; only the payouts change. Each side of a long-short book is also
    evaluated as a separate book that holds only the long or only the short weights.
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
    return table("endings").frame(rows) if rows else None


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
