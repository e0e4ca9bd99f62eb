"""Descriptions and durations of runs on MLflow's pages, computed from what a run's folder records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from pipelines.run.evaluations import StoredEvaluation
from pipelines.run.provenance import (
    AuditMade,
    EvaluationMade,
    Event,
    ExplanationMade,
    TaskDone,
    TrainingEnded,
    TrainingStarted,
)
from pipelines.run.record import Run

_STAGES = ((AuditMade, "audit"), (EvaluationMade, "evaluation"), (ExplanationMade, "explanation"))


def describe_run(run: Run, evaluations: Sequence[StoredEvaluation]) -> str:
    """Describe a run in Markdown: models, folds and data versions, and its newest evaluation if there is one.

    Parameters
    ----------
    run
        The run.
    evaluations
        Its evaluations, the newest first.
    """
    config, label = run.config, run.config.label
    lines = [
        f"Config `{config.name}`: {', '.join(config.models)}; seeds {', '.join(map(str, config.seeds))}; "
        f"labels over {label.horizon} session(s) after a delay of {label.delay}."
    ]
    if run.versions:
        tables = ", ".join(f"{table} v{version}" for table, version in sorted(run.versions.items()))
        lines.append(f"Data: {tables}.")
    folds = run.read_table("folds")
    if folds is not None and folds.height:
        first, last = folds.select(pl.col("test_from").min(), pl.col("test_to").max()).row(0)
        trained = f"Trained for use on data up to {run.config.through}, without a test."
        tested = f"Test: {first} to {last}, {folds.height} fold(s)."
        lines.append(tested if run.config.through is None else trained)
    if evaluations:
        newest = evaluations[0]
        lines += [f"Evaluation `{newest.record.evaluation}`: {newest.record.assumptions}.", _ladder(newest)]
    return "\n\n".join(lines)


def describe_model(model: str, run: Run, evaluations: Sequence[StoredEvaluation]) -> str:
    """Describe one model of a run: its results in the newest evaluation if there is one."""
    text = f"Model `{model}` of the run `{run.run_id}`."
    if not evaluations:
        return text
    newest = evaluations[0]
    rows = newest.table("ladder").filter(pl.col("model") == model).iter_rows(named=True)
    results = "; ".join(f"at delay {row['delay']}, {_results(row, newest)}" for row in rows)
    return f"{text} Evaluation `{newest.record.evaluation}`: {results}." if results else text


def _ladder(evaluation: StoredEvaluation) -> str:
    """A Markdown table of the models at the first measured delay."""
    ladder = evaluation.table("ladder")
    delay, book = evaluation.record.delays[0], next(iter(evaluation.record.backtest.books))
    lines = [f"| model | IC at delay {delay} | net Sharpe, {book} |", "|---|---|---|"]
    for row in ladder.filter(pl.col("delay") == delay).iter_rows(named=True):
        lines.append(
            f"| {row['model']} | {_number(row['ic'], 4)} | {_number(row[f'{book}.sharpe_net'], 2)} |"
        )
    return "\n".join(lines)


def _results(row: dict[str, float | None], evaluation: StoredEvaluation) -> str:
    book = next(iter(evaluation.record.backtest.books))
    return f"IC {_number(row['ic'], 4)}, net Sharpe of {book} {_number(row[f'{book}.sharpe_net'], 2)}"


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def durations(events: Sequence[Event]) -> dict[str, float]:
    """Seconds that were spent on a run, by stage: what worked on it, without the pauses between sessions.

    Training counts each session from its start to its last finished task or its end. A session that was
    killed counts up to its last finished task. Evaluations, audits and explanations add up.

    Parameters
    ----------
    events
        Events of the run, oldest first.

    Returns
    -------
    dict of str to float
        ``seconds.training``, ``seconds.audit``, ``seconds.evaluation`` and ``seconds.explanation``; only
        stages that took place.
    """
    spent: dict[str, float] = {}
    for before, event in pairwise(events):
        in_session = isinstance(before, TrainingStarted | TaskDone)
        if in_session and isinstance(event, TaskDone | TrainingEnded):
            elapsed = (event.at - before.at).total_seconds()
            spent["seconds.training"] = spent.get("seconds.training", 0.0) + elapsed
    for event in events:
        for kind, stage in _STAGES:
            if isinstance(event, kind):
                spent[f"seconds.{stage}"] = spent.get(f"seconds.{stage}", 0.0) + event.seconds
    return {stage: round(seconds, 3) for stage, seconds in spent.items()}


def model_seconds(events: Sequence[Event], model: str) -> dict[int, float]:
    """Seconds of computing by fold that a model took, over all its seeds; empty if they were not recorded."""
    spent: dict[int, float] = {}
    for event in events:
        if isinstance(event, TaskDone) and event.model == model and event.seconds is not None:
            spent[event.fold] = spent.get(event.fold, 0.0) + event.seconds
    return spent


def began_and_ended(events: Sequence[Event], model: str | None = None) -> tuple[int | None, int | None]:
    """First and last moment of work, in milliseconds since 1970; None if none is recorded.

    Parameters
    ----------
    events
        Events of the run, oldest first.
    model
        Count only the training of this model; None counts every event.
    """
    own = [
        event
        for event in events
        if model is None or isinstance(event, TrainingStarted) or (_is_task(event, model))
    ]
    if not own or (model is not None and not any(_is_task(event, model) for event in own)):
        return None, None
    last = own[-1] if model is None else [event for event in own if _is_task(event, model)][-1]
    return _milliseconds(own[0]), _milliseconds(last)


def _is_task(event: Event, model: str) -> bool:
    return isinstance(event, TaskDone) and event.model == model


def _milliseconds(event: Event) -> int:
    return round(event.at.timestamp() * 1000)
