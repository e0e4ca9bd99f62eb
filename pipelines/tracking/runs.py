"""Runs in the tracking store: a parent per Peerglass run, a child per model, folds as steps of its metrics.

What is logged is what the run's folder holds, and nothing is logged twice: after five reports the store holds
the same as after one. Numbers of an evaluation are named after its id (``1a2b3c4d5e/delay_1.ic``), and its
settings are parameters of the parent under the same id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from pipelines.errors import TrackingError
from pipelines.lake.options import place
from pipelines.progress import Progress
from pipelines.run.completeness import describe_missing_of_model, missing_tasks
from pipelines.run.evaluations import StoredEvaluation, list_evaluations
from pipelines.run.provenance import FILE as PROVENANCE
from pipelines.run.provenance import TrainingStarted, read_provenance
from pipelines.run.record import Run
from pipelines.run.scores import read_scores
from pipelines.secrets import redact
from pipelines.tracking.store import (
    LAKE_TAG,
    RUN_TAG,
    VERSIONS_TAG,
    experiment_of,
    flatten,
    log_artifacts,
    log_metrics,
    log_parameters,
    store,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MODEL_TAG = "peerglass.model"
_ERROR_TAG = "peerglass.error"
_FILES = ("config.yaml", "report.html", "audit.json", PROVENANCE)
_FOLDERS = ("tables", "evaluations", "checkpoints")


@contextmanager
def tracked(run: Run, progress: Progress) -> Iterator[None]:
    """Track a run from its beginning to its end.

    The parent and a child per model exist as soon as the run begins. An error marks them as failed, with its
    sentence as the tag ``peerglass.error``. A store that cannot be reached at the beginning does not keep a
    run from being trained; one that cannot be reached at the end does not hide another error.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached at the end of a run that succeeded.
    """
    with progress.stage("track"):
        try:
            _begin(run)
        except TrackingError as error:
            progress.note(f"{error} The run goes on and is tracked at its end.")
    try:
        yield
    except BaseException as error:
        sentence = redact(" ".join(str(error).split())) or type(error).__name__
        try:
            log_run(run, failed=sentence)
        except TrackingError as untracked:
            progress.note(str(untracked))
        raise
    with progress.stage("track"):
        log_run(run)


def log_run(run: Run, failed: str | None = None) -> None:
    """Log what a run's folder holds, its audit, scores, evaluations and files; nothing is logged twice.

    The parent ends as ``FINISHED`` if all tasks are done and there was no error, a child if all tasks of its
    model are done; otherwise they end as ``FAILED`` and the tag ``peerglass.error`` says why.

    Parameters
    ----------
    run
        The run.
    failed
        The sentence of the error that ended it; None where there was none.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached.
    """
    missing = {model: _missing_of(run, model) for model in run.config.models}
    with store(run.config) as client:
        experiment = _experiment(client, run)
        parent = _run_of(client, experiment, run)
        _log_parent(client, parent, run)
        for model, lacking in missing.items():
            child = _run_of(client, experiment, run, model=model, parent=parent)
            _log_child(client, child, run, model)
            _end(client, child, None if lacking is None else f"Missing: {lacking}.")
        lacking_any = "; ".join(f"{model}: {what}" for model, what in missing.items() if what is not None)
        _end(client, parent, failed or (f"Missing: {lacking_any}." if lacking_any else None))


def log_audit(run: Run) -> None:
    """Log the audit in a run's folder with the run's parent, which is created if the run has none yet.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached.
    """
    with store(run.config) as client:
        experiment = _experiment(client, run)
        is_new = _find(client, experiment, run, None) is None
        parent = _run_of(client, experiment, run)
        log_parameters(client, parent, {"run_id": run.run_id})
        _log_audit(client, parent, run)
        path = run.folder / "audit.json"
        log_artifacts(client, parent, {path.name: path} if path.is_file() else {})
        if is_new:
            client.set_terminated(parent)


def _begin(run: Run) -> None:
    """Create the parent and a child per model, and mark them as running."""
    with store(run.config) as client:
        experiment = _experiment(client, run)
        parent = _run_of(client, experiment, run)
        children = [_run_of(client, experiment, run, model=m, parent=parent) for m in run.config.models]
        log_parameters(client, parent, {**_forecasting(run), "run_id": run.run_id})
        for key, value in _identity(run).items():
            client.set_tag(parent, key, value)
        for mlflow_run in (parent, *children):
            client.update_run(mlflow_run, status="RUNNING")


def _end(client: MlflowClient, mlflow_run: str, error: str | None) -> None:
    """Bring a run's status and error up to date; a run that ended before keeps the time at which it did."""
    known = client.get_run(mlflow_run)
    status = "FINISHED" if error is None else "FAILED"
    if error is not None:
        client.set_tag(mlflow_run, _ERROR_TAG, error[:5000])
    elif _ERROR_TAG in known.data.tags:
        client.delete_tag(mlflow_run, _ERROR_TAG)
    if known.info.status != status:
        client.set_terminated(mlflow_run, status=status)


def _log_parent(client: MlflowClient, parent: str, run: Run) -> None:
    evaluations = list_evaluations(run)
    parameters = {**_forecasting(run), "run_id": run.run_id}
    for one in evaluations:
        parameters |= flatten(_settings(one), f"evaluation.{one.record.evaluation}.")
    log_parameters(client, parent, parameters)
    tags = {**_identity(run), **_trained(run)}
    if evaluations:
        newest = evaluations[0].record
        tags |= {
            "evaluation": newest.evaluation,
            "evaluation_assumptions": newest.assumptions,
            "trials": str(newest.trials),
        }
    known = client.get_run(parent).data.tags
    for key, value in tags.items():
        if known.get(key) != value:
            client.set_tag(parent, key, value)
    _log_audit(client, parent, run)
    log_artifacts(client, parent, _files(run))


def _identity(run: Run) -> dict[str, str]:
    """Tags of what a run is made of; they are there from its beginning."""
    return {
        "config_hash": run.run_id.rpartition("-")[2],
        VERSIONS_TAG: json.dumps(run.versions),
        LAKE_TAG: place(run.config.lake),
    }


def _forecasting(run: Run) -> dict[str, object]:
    """Settings that forecasts depend on, with every default filled in, and the source as it was written."""
    settings = {} if run.identity is None else run.identity.settings
    return flatten({**settings, "source": run.config.as_written()["source"]})


def _settings(evaluation: StoredEvaluation) -> Mapping[str, object]:
    """Everything that an evaluation was made with, as parameters."""
    record = evaluation.record
    return {
        **record.backtest.model_dump(mode="json"),
        "rates": record.rates,
        "label_delays": list(record.delays),
        "code": record.code,
    }


def _trained(run: Run) -> dict[str, str]:
    """Tags of the commits, code, devices and libraries that trained a run; none if nothing was recorded."""
    trained = [event for event in read_provenance(run) if isinstance(event, TrainingStarted)]
    if not trained:
        return {}
    return {
        "git_commit": ", ".join(dict.fromkeys(one.environment.commit for one in trained)),
        "code": ", ".join(dict.fromkeys(one.environment.code for one in trained)),
        "device": ", ".join(dict.fromkeys(one.device for one in trained)),
        "libraries": json.dumps(trained[-1].environment.libraries),
    }


def _files(run: Run) -> dict[str, Path]:
    """Place among the artifacts -> file, of everything in the run's folder that is logged."""
    paths = [run.folder / name for name in _FILES]
    paths += [path for name in _FOLDERS for path in sorted((run.folder / name).rglob("*"))]
    return {
        path.relative_to(run.folder).as_posix(): path
        for path in paths
        if path.is_file() and ".partial" not in path.as_posix()
    }


def _log_child(client: MlflowClient, child: str, run: Run, model: str) -> None:
    log_parameters(client, child, flatten(run.config.as_written()["models"][model]))
    numbers: dict[str, float] = {}
    for one in list_evaluations(run):
        rows = one.table("ladder").filter(pl.col("model") == model)
        for row in rows.iter_rows(named=True):
            name = f"{one.record.evaluation}/delay_{row['delay']}"
            numbers |= {f"{name}.{key}": value for key, value in row.items() if isinstance(value, float)}
    if numbers:
        log_metrics(client, child, {0: numbers})
    own = read_scores(run).filter(pl.col("model") == model)
    per_task = ("valid_ic", "valid_rank_ic", "pretrain_loss")
    per_fold = own.group_by("fold").agg(pl.col(*per_task).mean()).sort("fold")
    if per_fold.height:
        by_step = {row["fold"]: {key: row[key] for key in per_task} for row in per_fold.iter_rows(named=True)}
        log_metrics(client, child, by_step)


def _log_audit(client: MlflowClient, parent: str, run: Run) -> None:
    """Tag a run with its audit's verdict and count the verdicts."""
    table = run.read_table("audit")
    if table is None:
        return
    numbers = dict(table.group_by("verdict").len().iter_rows())
    worst = next((verdict for verdict in ("fail", "warn", "pass") if verdict in numbers), "skipped")
    verdicts = {f"audit.{check}": verdict for check, verdict in table.select("check", "verdict").iter_rows()}
    for key, verdict in {"audit": worst, **verdicts}.items():
        client.set_tag(parent, key, verdict)
    counted = {f"audit.{verdict}": float(numbers.get(verdict, 0)) for verdict in ("pass", "warn", "fail")}
    log_metrics(client, parent, {0: counted})


def _missing_of(run: Run, model: str) -> str | None:
    """Name the tasks of a model that are not done; None if all are."""
    folds = run.read_table("folds")
    if folds is None:
        return "every fold"
    numbers, seeds = folds["fold"].to_list(), run.config.seeds
    return describe_missing_of_model(
        model, missing_tasks([model], numbers, seeds, read_scores(run)), numbers, seeds
    )


def _experiment(client: MlflowClient, run: Run) -> str:
    return experiment_of(client, run.config, run.config.tracking.experiment or run.config.name)


def _find(client: MlflowClient, experiment: str, run: Run, model: str | None) -> str | None:
    wanted = f"tags.`{RUN_TAG}` = '{run.run_id}' and tags.`{_MODEL_TAG}` = '{model or '-'}'"
    found = client.search_runs([experiment], wanted, max_results=1)
    return str(found[0].info.run_id) if found else None


def _run_of(
    client: MlflowClient, experiment: str, run: Run, model: str | None = None, parent: str | None = None
) -> str:
    """The MLflow run of this Peerglass run (or of one of its models), created once."""
    known = _find(client, experiment, run, model)
    if known is not None:
        return known
    tags = {RUN_TAG: run.run_id, _MODEL_TAG: model or "-"}
    if parent is not None:
        tags["mlflow.parentRunId"] = parent
    created = client.create_run(experiment, tags=tags, run_name=model or run.run_id)
    return str(created.info.run_id)
