"""Evaluate a run: from its forecasts in the lake to the tables of an evaluation in its folder."""

from __future__ import annotations

import time

import numpy as np
import polars as pl

from features.arrays import FloatArray
from features.panel.panel import to_panel
from pipelines.dataset.folds import describe_tested, path_of_tests, plan_folds
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results.comparisons import path_table
from pipelines.results.evaluate import forecasts_to_arrays
from pipelines.results.evaluation_tables import evaluate_trials, evaluation_record
from pipelines.results.forecast_tables import ensemble_table, horizon_table, quantile_score_table
from pipelines.results.recount import recount, trials_of
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
from pipelines.run.evaluations import StoredEvaluation, store_evaluation
from pipelines.run.provenance import EvaluationMade, environment
from pipelines.run.provenance import record as record_event
from pipelines.run.record import Run, read_scores

_COLUMNS = ["model", "fold", "seed", "date", "ticker", "forecast"]


def evaluate_run(run: Run, dataset: Market, lake: Lake, progress: Progress) -> StoredEvaluation:
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
        new = evaluation_record(config, dataset.panel, dates_T, trials, now.commit).model_copy(
            update={
                "missing": missing,
                "incomplete": describe_missing(missing, folds, config.seeds),
                "tested": describe_tested(dataset, config, plan),
            }
        )
        stored = store_evaluation(
            run, new, {name: frame for name, frame in tables.items() if frame is not None}
        )
        if stored.record == new:  # otherwise the same evaluation existed already
            seconds = round(time.monotonic() - started, 1)
            event = EvaluationMade(environment=now, evaluation=new.evaluation, trials=trials, seconds=seconds)
            record_event(run, event)
    return recount(run, stored)


def missing_tasks_of_run(run: Run, dataset: Market, lake: Lake) -> tuple[tuple[str, int, int], ...]:
    """List the tasks (model, fold, seed) of a run that currently have no forecasts."""
    folds = [fold.index for fold in plan_folds(dataset, run.config)]
    return missing_tasks(run.config.models, folds, run.config.seeds, committed_tasks(run.run_id, lake))


def load_truth(run: Run, dataset: Market, lake: Lake) -> FloatArray | None:
    """True conditional mean return of a simulated market, shape (T, N); None on real data."""
    if "truth_mu" not in run.versions:
        return None
    frame = lake.read("truth_mu", version=run.versions["truth_mu"])
    return to_panel(frame, "mu", dataset.panel)


def _forecasts(run: Run, lake: Lake) -> pl.DataFrame:
    frame = (
        lake.read("forecasts", filters=pl.col("run_id") == run.run_id, columns=_COLUMNS)
        if lake.exists("forecasts")
        else None
    )
    if frame is None or frame.is_empty():
        raise DataError(
            f"Run {run.run_id} has no forecasts in {lake.root}; run 'peerglass train' on its config."
        )
    return frame
