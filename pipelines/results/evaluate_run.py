"""Evaluate forecasts: the tables and the record of an evaluation, and that of a run in its folder."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from backtest.accounts.market import BookMarket
from backtest.accounts.performance import book_metrics
from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.panel import Panel, to_panel
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.dataset.folds import describe_tested, path_of_tests, plan_folds
from pipelines.dataset.market import Market
from pipelines.dataset.risk_free import require_rates, risk_free_rates
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results.book_analysis import BookAnalysis
from pipelines.results.books import book_market, book_orders
from pipelines.results.comparisons import (
    comparison_table,
    multiple_test_table,
    path_table,
    significance_table,
    yearly_table,
)
from pipelines.results.evaluate import NO_SCORES, ensemble, evaluate, forecasts_to_arrays
from pipelines.results.forecast_tables import (
    ensemble_table,
    forecast_tables,
    horizon_table,
    quantile_score_table,
)
from pipelines.results.recount import keep_returns, recount, trials_of
from pipelines.run.completeness import (
    add_missing_column,
    committed_tasks,
    common_dates,
    comparable_folds,
    describe_missing,
    missing_tasks,
    require_test,
    restrict_to_dates,
)
from pipelines.run.evaluations import (
    EvaluationRecord,
    StoredEvaluation,
    evaluation_code,
    evaluation_id,
    file_digest,
    store_evaluation,
)
from pipelines.run.provenance import EvaluationMade, environment
from pipelines.run.provenance import record as record_event
from pipelines.run.record import RecordedRun, read_scores
from pipelines.secrets import redact
from pipelines.train.trials import Scope, Trial, count_trials, record


def evaluate_run(run: RecordedRun, dataset: Market, lake: Lake, progress: Progress) -> StoredEvaluation:
    """Evaluate a run's forecasts with the backtest settings of its config, and store the evaluation.

    Every book of every model is recorded as a trial first. Models are compared on the dates that all of them
    forecast. Of combinatorial folds, all tables but ``paths`` show the first path of tests.
    """
    require_test(run.config, run.run_id)
    config, started = run.config, time.monotonic()
    with progress.stage("backtest"):
        forecasts = _forecasts(run, lake)
        plan = plan_folds(dataset, config)
        folds = [fold.index for fold in plan]
        missing = missing_tasks(config.models, folds, config.seeds, forecasts)
        complete = comparable_folds(folds, missing, forecasts)
        of_path = forecasts.join(path_of_tests(dataset, plan), on=["date", "fold"], how="semi")
        arrays = forecasts_to_arrays(of_path, dataset.panel)
        ordered = {model: arrays[model] for model in config.models if model in arrays}
        dates_T = common_dates(ordered)
        ordered = restrict_to_dates(ordered, dates_T)
        now = environment()
        measured, trials = evaluate_trials(
            ordered,
            dataset,
            config,
            read_scores(run).filter(pl.col("fold").is_in(complete)),
            run_id=run.run_id,
            output=run.folder.parent,
            tried=trials_of(run),
            truth_TN=load_truth(run, dataset, lake),
            sessions=np.unique(np.concatenate([fold.test for fold in plan])),
        )
        tables = {
            **measured,
            "ladder": add_missing_column(measured["ladder"], missing, folds, config.seeds),
            "horizons": horizon_table(run, lake, dataset, dates_T),
            "quantile_scores": quantile_score_table(run, complete),
            "paths": path_table(forecasts, plan, dataset, config),
        }
        run.write_table("ensembles", ensemble_table(ordered, dataset.panel))
        new = evaluation_record(config, dataset.panel, dates_T, trials, now.commit)
        incomplete, tested = (
            describe_missing(missing, folds, config.seeds),
            describe_tested(dataset, config, plan),
        )
        of_run = {"missing": missing, "incomplete": incomplete, "tested": tested}
        new = new.model_copy(update=of_run)
        stored = store_evaluation(run, new, tables)
        if stored.record == new:  # otherwise the same evaluation existed already
            seconds = round(time.monotonic() - started, 1)
            event = EvaluationMade(environment=now, evaluation=new.evaluation, trials=trials, seconds=seconds)
            record_event(run, event)
    return recount(run, stored)


def missing_tasks_of_run(run: RecordedRun, dataset: Market, lake: Lake) -> tuple[tuple[str, int, int], ...]:
    """List the tasks (model, fold, seed) of a run that currently have no forecasts."""
    folds = [fold.index for fold in plan_folds(dataset, run.config)]
    return missing_tasks(run.config.models, folds, run.config.seeds, committed_tasks(run.run_id, lake))


def load_truth(run: RecordedRun, dataset: Market, lake: Lake) -> FloatArray | None:
    """True conditional mean return of a simulated market, shape (T, N); None on real data."""
    if "truth_mu" not in run.versions:
        return None
    frame = lake.read("truth_mu", version=run.versions["truth_mu"])
    return to_panel(frame, "mu", dataset.panel)


def _forecasts(run: RecordedRun, lake: Lake) -> pl.DataFrame:
    columns = ["model", "fold", "seed", "date", "ticker", "forecast"]
    frame = lake.rows("forecasts", columns, pl.col("run_id") == run.run_id)
    if frame.is_empty():
        raise DataError(
            f"Run {run.run_id} has no forecasts in {lake.root}; run 'peerglass train' on its config."
        )
    return frame


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
    analysis, dates_T = BookAnalysis(market, config), market.panel.dates_T
    result = evaluate(
        forecasts, market, config, scores, truth_TN=truth_TN, sessions=sessions, on_book=analysis.add
    )
    keep_returns(output, result.equity, tried, config)
    signals = ((model, ensemble(seeds)) for model, seeds in forecasts.items())
    behaviour = in_background(lambda: forecast_tables(signals, market, config))
    endings = ending_table(forecasts, market, config)
    trained = set(forecasts) <= set(config.models)
    tables: dict[str, pl.DataFrame | None] = {
        **result.tables,
        **behaviour.result(),
        "comparisons": comparison_table(result, config, dates_T) if trained else None,
        "yearly": yearly_table(result, config, dates_T) if trained else None,
        "significance": significance_table(result, config, dates_T, trials),
        "multiple_tests": multiple_test_table(result, config, dates_T),
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
    backtest = config.backtest
    costs, execution = backtest.costs, backtest.execution
    shown = {  # a path can hold a secret
        "risk_free": _printable(backtest.risk_free),
        "costs": costs.model_copy(update={"borrow_file": _printable(costs.borrow_file)}),
        "execution": execution.model_copy(
            update={"price_limit_file": _printable(execution.price_limit_file)}
        ),
    }
    days = panel.dates_T[measured_T].astype("datetime64[D]")
    return EvaluationRecord(
        evaluation=evaluation_id(config),
        made_at=dt.datetime.now(dt.UTC),
        backtest=backtest.model_copy(update=shown),
        rates=file_digest(backtest.risk_free),
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
            unknown_TN, target_TN = panel.unknown_TN[orders.held], orders.target_TN
            if not (unknown_TN[1:] & ~unknown_TN[:-1]).any():
                continue
            require_rates(config.backtest.risk_free, rate_T[orders.held], dates_T[orders.held])
            if not markets:  # books of one delay are held on the same sessions
                markets = {key: book_market(panel, orders.held, index) for key, index in indices.items()}
            sides = {"book": target_TN}
            if (target_TN < 0).any() and (target_TN > 0).any():  # false for NaN
                sides |= {"long": np.maximum(target_TN, 0.0), "short": np.minimum(target_TN, 0.0)}
            for side, weight_TN in sides.items():
                started = {
                    suffix: in_background(
                        partial(
                            orders.run, panel, target_TN=weight_TN, market=market, keep_ledger=suffix == "0"
                        )
                    )
                    for suffix, market in markets.items()
                }
                books = {suffix: one.result() for suffix, one in started.items()}
                # positions that a delisting for an unknown reason turned into cash, under any return
                released = books["0"].ledger.filter(pl.col("released") != 0)
                paid_out = unknown_TN[released["session"].to_numpy(), released["firm"].to_numpy()].sum()
                row: dict[str, Any] = {"model": model, "book": orders.name, "side": side}
                row["paid_out"] = int(paid_out)
                for suffix, book in books.items():
                    metrics = book_metrics(book, rate_T[orders.held])
                    row[f"sharpe_net_{suffix}"] = metrics.sharpe_net
                    row[f"annual_return_net_{suffix}"] = metrics.annual_return_net
                rows.append(row)
    return table("endings").frame(rows) if rows else None
