"""Measuring a run: from its forecasts in the lake to an evaluation in its folder, and its ladder as text."""

from __future__ import annotations

import datetime as dt
import math
import time

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, FloatArray, plan_folds, to_panel
from pipelines.dataset.risk_free import describe_rate
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results.ending_scenarios import ending_table
from pipelines.results.ensembles import ensemble_table
from pipelines.results.evaluate import evaluate, forecasts_to_arrays
from pipelines.results.horizons import horizon_table
from pipelines.results.label_shares import label_share_table
from pipelines.run.completeness import (
    add_missing_column,
    common_dates,
    comparable_folds,
    describe_missing,
    missing_tasks,
    restrict_to_dates,
)
from pipelines.run.evaluations import (
    EvaluationRecord,
    StoredEvaluation,
    evaluation_code,
    evaluation_id,
    rates_digest,
    store_evaluation,
)
from pipelines.run.provenance import EvaluationMade, environment, record
from pipelines.run.record import Run
from pipelines.run.scores import read_scores
from pipelines.secrets import redact
from pipelines.train.quantiles import quantile_score_table
from pipelines.train.trials import trial_count

_LADDER_CELLS = (  # column, head, scale, digits, width
    ("valid_rank_ic", "valid rIC", 1, 4, 11),
    ("ic", "IC", 1, 4, 9),
    ("icir", "ICIR", 1, 2, 8),
    ("rank_ic", "rank IC", 1, 4, 9),
    ("ensemble_ic", "ens. IC", 1, 4, 9),
    ("ic_t", "t", 1, 1, 7),
    ("coverage_dates", "dates %", 100, 1, 9),
    ("coverage_firms", "firms %", 100, 1, 9),
    ("tied", "tied %", 100, 1, 8),
)


def evaluate_run(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> StoredEvaluation:
    """Measure a run's forecasts by the backtest settings of its config and keep the tables as an evaluation.

    Models are compared on the dates that all of them forecast.
    """
    config, started = run.config, time.monotonic()
    with progress.stage("backtest"):
        forecasts = _forecasts(run, lake)
        plan = plan_folds(dataset, config)
        folds = [fold.index for fold in plan]
        missing = missing_tasks(config.models, folds, config.seeds, forecasts)
        complete = comparable_folds(folds, missing, forecasts)
        arrays = forecasts_to_arrays(forecasts, dataset.panel)
        ordered = {model: arrays[model] for model in config.models if model in arrays}
        dates_T = common_dates(ordered)
        ordered = restrict_to_dates(ordered, dates_T)
        scores = read_scores(run).filter(pl.col("fold").is_in(complete))
        result = evaluate(
            ordered,
            dataset,
            config,
            scores,
            truth_TN=load_truth(run, dataset, lake),
            sessions=np.unique(np.concatenate([fold.test for fold in plan])),
        )
        tables = {
            "ladder": add_missing_column(result.ladder, missing, folds, config.seeds),
            "ic_series": result.ic_series,
            "quantiles": result.quantiles,
            "equity": result.equity,
            "costs": result.costs,
            "horizons": horizon_table(run, lake, dataset, dates_T),
            "quantile_scores": quantile_score_table(run, complete),
            "label_shares": label_share_table(config, ordered, dataset, scores),
            "endings": ending_table(ordered, dataset, config),
        }
        run.write_table("ensembles", ensemble_table(ordered, dataset.panel))
        measured = dataset.panel.dates_T[dates_T].astype("datetime64[D]")
        now, trials = environment(), trial_count(run.folder.parent)
        wanted = EvaluationRecord(
            evaluation=evaluation_id(config),
            made_at=dt.datetime.now(dt.UTC),
            backtest=config.backtest.model_copy(update={"risk_free": _printable(config.backtest.risk_free)}),
            rates=rates_digest(config.backtest.risk_free),
            delays=config.label.delays,
            code=evaluation_code(),
            commit=now.commit,
            trials=trials,
            missing=missing,
            incomplete=describe_missing(missing, folds, config.seeds),
            dates=len(measured),
            first=measured[0].item(),
            last=measured[-1].item(),
        )
        stored = store_evaluation(
            run, wanted, {name: table for name, table in tables.items() if table is not None}
        )
        if stored.record == wanted:  # not the one that was there already
            seconds = round(time.monotonic() - started, 1)
            event = EvaluationMade(
                environment=now, evaluation=wanted.evaluation, trials=trials, seconds=seconds
            )
            record(run, event)
    return stored


def _printable(rate: float | str) -> float | str:
    """Mask a secret in the path of a file of rates."""
    return redact(rate) if isinstance(rate, str) else rate


def describe_evaluation(evaluation: StoredEvaluation, config: Config) -> str:
    """Print an evaluation for a terminal: its settings, the ladder, and what is missing."""
    record = evaluation.record
    head = f"evaluation {record.evaluation}: {record.assumptions}"
    parts = [head, describe_ladder(evaluation.table("ladder"), config)]
    if record.incomplete is not None:
        parts.append(
            f"The run is incomplete. Missing: {record.incomplete}. Models are compared on the {record.dates} "
            f"dates that all of them forecast ({record.first} to {record.last}); 'peerglass train' on the "
            "run's config trains what is missing."
        )
    return "\n".join(parts)


def missing_tasks_of_run(run: Run, dataset: Dataset, lake: Lake) -> tuple[tuple[str, int, int], ...]:
    """Give the tasks (model, fold, seed) of a run that have no forecasts now."""
    folds = [fold.index for fold in plan_folds(dataset, run.config)]
    return missing_tasks(run.config.models, folds, run.config.seeds, _forecasts(run, lake))


def load_truth(run: Run, dataset: Dataset, lake: Lake) -> FloatArray | None:
    """Conditional mean of the simulated market over the panel, or None on real data."""
    if "truth_mu" not in run.versions:
        return None
    frame = lake.read("truth_mu", version=run.versions["truth_mu"])
    return to_panel(frame, "mu", dataset.panel)


def describe_ladder(ladder: pl.DataFrame, config: Config) -> str:
    """Print the ladder for a terminal: one line a model, one block a delay."""
    lines = []
    for delay in config.label.delays:
        rows = ladder.filter(pl.col("delay") == delay)
        trained = "trained for" if delay == config.label.delay else "the same forecasts at"
        lines.append(f"test, {trained} delay {delay}, horizon {config.label.horizon} sessions")
        shown = [(f"{book}.sharpe_net", f"{book} net") for book in config.backtest.books]
        ratios = ((f"{book}.information_ratio", f"{book} IR") for book in config.backtest.books)
        shown += [(column, head) for column, head in ratios if rows[column].drop_nulls().len()]
        width = max([22, *(len(model) + 2 for model in rows["model"])])
        heads = "".join(f"{head:>{cell}}" for _, head, _, _, cell in _LADDER_CELLS)
        lines.append(f"  {'model':<{width}}{heads}{''.join(f'{head:>18}' for _, head in shown)}")
        for row in rows.iter_rows(named=True):
            cells = "".join(
                f"{_number(row[key], digits, scale):>{cell}}" for key, _, scale, digits, cell in _LADDER_CELLS
            )
            of_books = "".join(f"{_number(row[column], 2):>18}" for column, _ in shown)
            lines.append(f"  {row['model']:<{width}}{cells}{of_books}")
        if rows["truth_ic"].drop_nulls().len():
            truth = rows.row(0, named=True)
            lines.append(
                f"  {'(the truth itself)':<{width + 11}}"
                f"{truth['truth_ic']:>9.4f}{'':>8}{truth['truth_rank_ic']:>9.4f}"
            )
    rate = describe_rate(config.backtest.risk_free)
    lines += [
        f"net: annualised Sharpe after costs over {rate}, paid on net exposure;",
        "IR: information ratio after costs against the equal-weighted universe before costs;",
        "IC: mean of single seeds; ens.: seed ensemble; dates %, firms %: share forecast, of the dates and",
        "of the universe's firms on these dates; tied %: share of forecasts that equal another of the date",
    ]
    return "\n".join(lines)


def _number(value: float | None, digits: int, scale: int = 1) -> str:
    if value is None or math.isnan(value):
        return "-"
    value *= scale
    return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.0e}"  # wider would run into its neighbour


def _forecasts(run: Run, lake: Lake) -> pl.DataFrame:
    frame = (
        lake.read("forecasts", filters=pl.col("run_id") == run.run_id) if lake.exists("forecasts") else None
    )
    if frame is None or frame.is_empty():
        raise DataError(
            f"Run {run.run_id} has no forecasts in {lake.root}; run 'peerglass train' on its config."
        )
    return frame
