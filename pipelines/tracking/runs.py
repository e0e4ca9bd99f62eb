"""Log runs in the tracking store: one MLflow run per Peerglass run, with one child run per model.

The contents of the run's folder are logged, and nothing is logged twice: after five reports the store holds
the same as after one. Metrics of an evaluation have its id in their names (``1a2b3c4d5e/delay_1.ic``). Its
settings are parameters of the parent run under the same id. Metrics per fold have the fold as their step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from pipelines.errors import TrackingError
from pipelines.lake.options import canonical_location
from pipelines.progress import Progress
from pipelines.run.completeness import describe_missing_of_model, missing_tasks
from pipelines.run.evaluations import StoredEvaluation, list_evaluations
from pipelines.run.provenance import FILE as PROVENANCE
from pipelines.run.provenance import (
    AuditMade,
    EvaluationMade,
    Event,
    ExplanationMade,
    TaskDone,
    TrainingEnded,
    TrainingStarted,
    read_provenance,
)
from pipelines.run.record import Run, read_scores
from pipelines.secrets import redact
from pipelines.tracking.model_versions import audit_verdict, log_model_versions, make_loadable
from pipelines.tracking.store import (
    LAKE_TAG,
    RUN_TAG,
    VERSIONS_TAG,
    experiment_of,
    flatten,
    log_artifacts,
    log_metrics,
    log_parameters,
    log_tags,
    store,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_MODEL_TAG = "peerglass.model"
_PARENT = "-"  # the model tag of the parent
_ERROR_TAG = "peerglass.error"
_NOTE_TAG = "mlflow.note.content"  # the description on MLflow's page
_FILES = ("config.yaml", "report.html", "explorer.html", "audit.json", PROVENANCE)
_FOLDERS = ("tables", "evaluations", "checkpoints")


@contextmanager
def tracked(run: Run, progress: Progress) -> Iterator[None]:
    """Track a run while the ``with`` block works on it; an error marks its MLflow runs as failed.

    If the store cannot be reached at the beginning, the run is trained anyway; after an error, that error is
    raised all the same.
    """
    with progress.stage("track"):
        try:
            _begin(run)
        except TrackingError as error:
            progress.note(f"{error} The run continues and is tracked at its end.")
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
    """Log the audit, scores, evaluations and files in a run's folder; nothing is logged twice.

    The status is ``FINISHED`` if all tasks (a child: those of its model) are done and there was no error.
    """
    missing = {model: _missing_of(run, model) for model in run.config.models}
    for model, tasks in missing.items():
        if tasks is None:
            make_loadable(run, model)
    with store(run.config) as client:
        runs = _Runs(client, run)
        parent = runs.get()
        _log_parent(client, parent, run)
        evaluations, texts = list_evaluations(run), dict[str, str]()
        for model, tasks in missing.items():
            child = runs.get(model)
            text = describe_model(model, run, evaluations)
            _log_child(client, child, run, model, text)
            _end(client, child, None if tasks is None else f"Missing: {tasks}.", _ended(run, model))
            if tasks is None:
                texts[model] = text
        log_model_versions(client, parent, run, texts)
        all_missing = "; ".join(f"{model}: {tasks}" for model, tasks in missing.items() if tasks is not None)
        error = failed or (f"Missing: {all_missing}." if all_missing else None)
        _end(client, parent, error, None if failed else _ended(run))


def log_audit(run: Run) -> None:
    """Log the audit in a run's folder to the run's parent, which is created if it does not exist."""
    with store(run.config) as client:
        runs = _Runs(client, run)
        is_new = _PARENT not in runs.known
        parent = runs.get()
        log_parameters(client, parent, {"run_id": run.run_id})
        _log_audit(client, parent, run)
        path = run.folder / "audit.json"
        log_artifacts(client, parent.info.run_id, {path.name: path} if path.is_file() else {})
        if is_new:
            client.set_terminated(parent.info.run_id)


def _begin(run: Run) -> None:
    """Create the parent and one child per model, and mark them as running."""
    with store(run.config) as client:
        runs = _Runs(client, run)
        parent = runs.get()
        children = [runs.get(model) for model in run.config.models]
        log_parameters(client, parent, {**_forecasting(run), "run_id": run.run_id})
        log_datasets(client, parent, run)
        log_tags(client, parent, _identity(run))
        for one in (parent, *children):
            client.update_run(one.info.run_id, status="RUNNING")


def _ended(run: Run, model: str | None = None) -> int | None:
    """When the work on a run, or on one of its models, ended: milliseconds since 1970, None if unknown."""
    return began_and_ended(read_provenance(run), model)[1]


def _end(client: MlflowClient, known: MlflowRun, error: str | None, at: int | None = None) -> None:
    """Update the status and error of an MLflow run. A run with unchanged status keeps its end time.

    ``at`` is the end time in milliseconds since 1970; None for now.
    """
    mlflow_run = known.info.run_id
    status = "FINISHED" if error is None else "FAILED"
    if error is not None:
        client.set_tag(mlflow_run, _ERROR_TAG, error[:5000])
    elif _ERROR_TAG in known.data.tags:
        client.delete_tag(mlflow_run, _ERROR_TAG)
    if known.info.status != status:
        client.set_terminated(mlflow_run, status=status, end_time=at)


def _log_parent(client: MlflowClient, parent: MlflowRun, run: Run) -> None:
    evaluations = list_evaluations(run)
    parameters = {**_forecasting(run), "run_id": run.run_id}
    for one in evaluations:
        parameters |= flatten(_settings(one), f"evaluation.{one.record.evaluation}.")
    log_parameters(client, parent, parameters)
    tags = {**_identity(run), **_trained(run), _NOTE_TAG: describe_run(run, evaluations)}
    if evaluations:
        newest = evaluations[0].record
        tags |= {
            "evaluation": newest.evaluation,
            "evaluation_assumptions": newest.assumptions,
            "trials": str(newest.trials),
        }
    log_tags(client, parent, tags)
    _log_audit(client, parent, run)
    log_metrics(client, parent, {0: durations(read_provenance(run))})
    log_datasets(client, parent, run)
    log_artifacts(client, parent.info.run_id, _files(run))


def _identity(run: Run) -> dict[str, str]:
    """Tags with the config hash, the data versions and the lake, which are set when the run starts."""
    return {
        "config_hash": run.run_id.rpartition("-")[2],
        VERSIONS_TAG: json.dumps(run.versions),
        LAKE_TAG: canonical_location(run.config.lake),
    }


def _forecasting(run: Run) -> dict[str, object]:
    """Settings that forecasts depend on, with every default filled in, and the source as in the config."""
    settings = {} if run.identity is None else run.identity.settings
    return flatten({**settings, "source": run.config.as_written()["source"]})


def _settings(evaluation: StoredEvaluation) -> Mapping[str, object]:
    """Settings and code of an evaluation, as parameters."""
    record = evaluation.record
    return {
        **record.backtest.model_dump(mode="json"),
        "rates": record.rates,
        "label_delays": list(record.delays),
        "code": record.code,
    }


def _trained(run: Run) -> dict[str, str]:
    """Tags with the commits, code, devices and libraries that trained a run; empty before training."""
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
    """Artifact path -> file, for all files of the run's folder that are logged."""
    paths = [run.folder / name for name in _FILES]
    paths += [path for name in _FOLDERS for path in sorted((run.folder / name).rglob("*"))]
    return {
        path.relative_to(run.folder).as_posix(): path
        for path in paths
        if path.is_file() and ".partial" not in path.as_posix()
    }


def _log_child(client: MlflowClient, child: MlflowRun, run: Run, model: str, text: str) -> None:
    log_parameters(client, child, flatten(run.config.as_written()["models"][model]))
    log_datasets(client, child, run)
    log_tags(client, child, {_NOTE_TAG: text})
    numbers: dict[str, float] = {}
    for one in list_evaluations(run):
        rows = one.table("ladder").filter(pl.col("model") == model)
        for row in rows.iter_rows(named=True):
            name = f"{one.record.evaluation}/delay_{row['delay']}"
            numbers |= {f"{name}.{key}": value for key, value in row.items() if isinstance(value, float)}
    if numbers:
        log_metrics(client, child, {0: numbers})
    own = read_scores(run).filter(pl.col("model") == model)
    per_task = ("valid_ic", "valid_rank_ic", "pretrain_loss", "calibration_slope")
    per_fold = own.group_by("fold").agg(pl.col(*per_task).mean()).sort("fold")
    if per_fold.height:
        by_step = {row["fold"]: {key: row[key] for key in per_task} for row in per_fold.iter_rows(named=True)}
        log_metrics(client, child, by_step)
    seconds = model_seconds(read_provenance(run), model)
    if seconds:
        log_metrics(client, child, {fold: {"seconds.training": value} for fold, value in seconds.items()})


def _log_audit(client: MlflowClient, parent: MlflowRun, run: Run) -> None:
    """Tag a run with the verdicts of its audit, and log how many checks passed, warned and failed."""
    table, worst = run.read_table("audit"), audit_verdict(run)
    if table is None or worst is None:
        return
    numbers = dict(table.group_by("verdict").len().iter_rows())
    verdicts = {f"audit.{check}": verdict for check, verdict in table.select("check", "verdict").iter_rows()}
    log_tags(client, parent, {"audit": worst, **verdicts})
    counted = {f"audit.{verdict}": float(numbers.get(verdict, 0)) for verdict in ("pass", "warn", "fail")}
    log_metrics(client, parent, {0: counted})


def _missing_of(run: Run, model: str) -> str | None:
    """Describe the tasks of a model that are not done; None if all are done."""
    folds = run.read_table("folds")
    if folds is None:
        return "every fold"
    numbers, seeds = folds["fold"].to_list(), run.config.seeds
    return describe_missing_of_model(
        model, missing_tasks([model], numbers, seeds, read_scores(run)), numbers, seeds
    )


class _Runs:
    """The MLflow runs of a Peerglass run, found by one search: the parent, and one child per model."""

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self._client, self._run = client, run
        name = run.config.tracking.experiment or run.config.name
        self._experiment = experiment_of(client, run.config, name)
        found = client.search_runs([self._experiment], f"tags.`{RUN_TAG}` = '{run.run_id}'")
        self.known = {one.data.tags[_MODEL_TAG]: one for one in reversed(found)}  # the newest comes first

    def get(self, model: str = _PARENT) -> MlflowRun:
        """Return the MLflow run of a model, by default the parent, as it was found; create it if needed."""
        if model not in self.known:
            tags = {RUN_TAG: self._run.run_id, _MODEL_TAG: model}
            if model != _PARENT:
                tags["mlflow.parentRunId"] = self.get().info.run_id
            # a run that is tracked only at its end began earlier; MLflow cannot change the time of a start
            began = began_and_ended(read_provenance(self._run))[0]
            name = self._run.run_id if model == _PARENT else model
            self.known[model] = self._client.create_run(
                self._experiment, start_time=began, tags=tags, run_name=name
            )
        return self.known[model]


_STAGES = ((AuditMade, "audit"), (EvaluationMade, "evaluation"), (ExplanationMade, "explanation"))


def describe_run(run: Run, evaluations: Sequence[StoredEvaluation]) -> str:
    """Describe a run in Markdown: models, folds, data versions, and its newest evaluation if it has one."""
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
    """Seconds that were spent on a run, by stage, without the pauses between sessions.

    A training session that was killed counts up to its last finished task.
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
    """First and last moment of work, on a run or on one of its models, in milliseconds since 1970.

    None if unknown.
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


_SOURCE_TYPE = "delta_table"  # as MLflow's own class for Delta tables names it
_MAX_DIGEST = 36


def log_datasets(client: MlflowClient, mlflow_run: MlflowRun, run: Run) -> None:
    """Log the tables that a run reads as its datasets, except those that are logged already.

    A dataset has the table's name. Its digest is made of the first characters of the table's Delta id and of
    its version (``1f0c9a2b-v7``), so that two runs on the same data show the same digest. Its source holds
    the path, the version and the whole id, in the form that MLflow's ``DeltaDatasetSource`` reads.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = mlflow_run.inputs
    logged = [] if inputs is None else inputs.dataset_inputs
    known = {(one.dataset.name, one.dataset.digest) for one in logged}
    root = canonical_location(run.config.lake)
    new = []
    for table, at in sorted(run.tables.items()):
        digest = f"{at.id[:8]}-v{at.version}"[:_MAX_DIGEST]
        if (table, digest) in known:
            continue
        source = {"path": f"{root}/{table}", "delta_table_version": at.version, "delta_table_id": at.id}
        dataset = Dataset(table, digest, _SOURCE_TYPE, json.dumps(source))
        new.append(DatasetInput(dataset, [InputTag("mlflow.data.context", "walk-forward")]))
    if new:
        client.log_inputs(mlflow_run.info.run_id, datasets=new)
