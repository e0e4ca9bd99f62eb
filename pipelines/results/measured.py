"""The tables of an evaluation that need nothing but forecasts and a market, and the record of an evaluation.

A run's forecasts and the signals of a user's file share them. What needs a run (folds, seeds, horizons,
quantiles) is added in :mod:`pipelines.results.backtest`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import polars as pl

from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.panel import Panel
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.results.comparisons import comparison_table, significance_table
from pipelines.results.ending_scenarios import ending_table
from pipelines.results.evaluate import Evaluation, ensemble
from pipelines.results.forecast_tables import forecast_tables
from pipelines.results.robustness.multiple_tests import multiple_test_table
from pipelines.run.evaluations import EvaluationRecord, evaluation_code, evaluation_id, file_digest
from pipelines.secrets import redact


def measured_tables(
    result: Evaluation,
    forecasts: Mapping[str, Mapping[int, FloatArray]],
    market: Market,
    config: Config,
    trials: int,
) -> dict[str, pl.DataFrame | None]:
    """Compute the tables of an evaluation by their names; None for a table that does not apply.

    Parameters
    ----------
    result
        Metrics and books of the forecasts.
    forecasts
        model -> seed -> array of shape (T, N).
    market
        Prices, universe and labels.
    config
        Models, books and label. Names of ``forecasts`` that are not in its ``models`` are signals, which are
        not compared with baselines.
    trials
        Number of trials that count by now.
    """
    sessions_T = market.panel.dates_T
    signals = ((model, ensemble(seeds)) for model, seeds in forecasts.items())
    trained = set(forecasts) <= set(config.models)
    behaviour = in_background(lambda: forecast_tables(signals, market, config))
    endings = ending_table(forecasts, market, config)
    return {
        "ladder": result.ladder,
        "ic_series": result.ic_series,
        "quantiles": result.quantiles,
        "equity": result.equity,
        "costs": result.costs,
        "book_notes": None if result.book_notes.is_empty() else result.book_notes,
        **behaviour.result(),
        "comparisons": comparison_table(result, config, sessions_T) if trained else None,
        "significance": significance_table(result, config, sessions_T, trials),
        "multiple_tests": multiple_test_table(result, config, sessions_T),
        "endings": endings,
        "flagged_rows": flagged_rows(market, result.equity),
    }


def flagged_rows(market: Market, equity: pl.DataFrame) -> pl.DataFrame | None:
    """Return the open quality flags on price rows of the sessions of the books; None if there are none.

    Parameters
    ----------
    market
        Its flags: date, ticker, rule, evidence, earns.
    equity
        ``date`` of the books' sessions.
    """
    if market.flags is None:
        return None
    first, last = equity["date"].min(), equity["date"].max()
    rows = market.flags.filter(pl.col("date").is_between(pl.lit(first), pl.lit(last)))
    return rows.sort("earns", "date", "ticker", "rule") if rows.height else None


def evaluation_record(
    config: Config, panel: Panel, measured_T: BoolArray | IntArray, trials: int, commit: str
) -> EvaluationRecord:
    """Make the record of an evaluation of complete forecasts.

    Parameters
    ----------
    config
        Books, costs and delays.
    panel
        Prices of the market.
    measured_T
        Sessions that were measured: a mask, or their indices in order.
    trials
        Number of trials that count by now.
    commit
        Git commit of the code.
    """
    rate = config.backtest.risk_free
    costs = config.backtest.costs
    printable = redact(rate) if isinstance(rate, str) else rate  # a path can hold a secret
    if costs.borrow_file is not None:
        costs = costs.model_copy(update={"borrow_file": redact(costs.borrow_file)})
    execution = config.backtest.execution
    if execution.price_limit_file is not None:
        execution = execution.model_copy(update={"price_limit_file": redact(execution.price_limit_file)})
    days = panel.dates_T[measured_T].astype("datetime64[D]")
    return EvaluationRecord(
        evaluation=evaluation_id(config),
        made_at=dt.datetime.now(dt.UTC),
        backtest=config.backtest.model_copy(
            update={"risk_free": printable, "costs": costs, "execution": execution}
        ),
        rates=file_digest(rate),
        borrow_fees=file_digest(config.backtest.costs.borrow_file),
        delays=config.label.delays,
        code=evaluation_code(),
        commit=commit,
        trials=trials,
        dates=len(days),
        first=days[0].item(),
        last=days[-1].item(),
        periods_per_year=panel.periods_per_year,
    )
