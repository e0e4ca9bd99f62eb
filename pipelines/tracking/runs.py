"""Log runs and nights in the tracking store: one MLflow run for each, and one child per model of a run.

The contents of the run's folder are logged, and nothing is logged twice: after five reports the store holds
the same as after one. Metrics of an evaluation have its id in their names (``1a2b3c4d5e/delay_1.ic``). Its
settings are parameters of the parent run under the same id. Metrics per fold have the fold as their step.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.columns import of_book
from pipelines.config.schema import Config
from pipelines.errors import TrackingError
from pipelines.format import IC, RATIO
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
    end_run,
    experiment_of,
    flatten,
    log_artifacts,
    log_metrics,
    log_parameters,
    log_tags,
    milliseconds,
    store,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_MODEL_TAG = "peerglass.model"
_PARENT = "-"  # the model tag of the parent
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
    """Log what is in a run's folder once; ``FINISHED`` if all tasks are done and there was no error."""
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
            end_run(client, child, None if tasks is None else f"Missing: {tasks}.", _ended(run, model))
            if tasks is None:
                texts[model] = text
        log_model_versions(client, parent, run, texts)
        all_missing = "; ".join(f"{model}: {tasks}" for model, tasks in missing.items() if tasks is not None)
        error = failed or (f"Missing: {all_missing}." if all_missing else None)
        end_run(client, parent, error, None if failed else _ended(run))


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


def _ended(run: Run, model: str | None = None) -> dt.datetime | None:
    """When the work on a run, or on one of its models, ended; None if unknown."""
    return began_and_ended(read_provenance(run), model)[1]


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
    used = [(one.environment.commit, one.environment.code, one.device) for one in trained]
    different = (", ".join(dict.fromkeys(values)) for values in zip(*used, strict=True))
    tags = dict(zip(("git_commit", "code", "device"), different, strict=True))
    return tags | {"libraries": json.dumps(trained[-1].environment.libraries)}


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
            start = None if began is None else milliseconds(began)
            name = self._run.run_id if model == _PARENT else model
            self.known[model] = self._client.create_run(
                self._experiment, start_time=start, tags=tags, run_name=name
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
        delay, book = newest.record.delays[0], next(iter(newest.record.backtest.books))
        rows = newest.table("ladder").filter(pl.col("delay") == delay).iter_rows(named=True)
        cells = [f"| {row['model']} | {' | '.join(_figures(row, newest))} |" for row in rows]
        heading = [f"| model | IC at delay {delay} | net Sharpe, {book} |", "|---|---|---|"]
        said = f"Evaluation `{newest.record.evaluation}`: {newest.record.assumptions}."
        lines += [said, "\n".join((*heading, *cells))]
    return "\n\n".join(lines)


def describe_model(model: str, run: Run, evaluations: Sequence[StoredEvaluation]) -> str:
    """Describe one model of a run: its results in the newest evaluation if there is one."""
    text = f"Model `{model}` of the run `{run.run_id}`."
    if not evaluations:
        return text
    newest, results = evaluations[0], []
    book = next(iter(newest.record.backtest.books))
    for row in newest.table("ladder").filter(pl.col("model") == model).iter_rows(named=True):
        ic, sharpe = _figures(row, newest)
        results.append(f"at delay {row['delay']}, IC {ic}, net Sharpe of {book} {sharpe}")
    return f"{text} Evaluation `{newest.record.evaluation}`: {'; '.join(results)}." if results else text


def _figures(row: Mapping[str, Any], evaluation: StoredEvaluation) -> tuple[str, str]:
    """IC and net Sharpe ratio of the main book in a row of the ladder."""
    sharpe = row[of_book(next(iter(evaluation.record.backtest.books)), "sharpe_net")]
    return IC.text(row["ic"], "unknown"), RATIO.text(sharpe, "unknown")


def durations(events: Sequence[Event]) -> dict[str, float]:
    """Seconds spent on a run by stage; a killed training counts up to its last finished task."""
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


def began_and_ended(
    events: Sequence[Event], model: str | None = None
) -> tuple[dt.datetime | None, dt.datetime | None]:
    """First and last moment of work, on a run or on one of its models; None if unknown."""
    own = [
        event for event in events if model is None or (isinstance(event, TaskDone) and event.model == model)
    ]
    starts = [event for event in events if isinstance(event, TrainingStarted)]
    return (min((*starts[:1], own[0]), key=lambda e: e.at).at, own[-1].at) if own else (None, None)


_SOURCE_TYPE = "delta_table"  # as MLflow's own class for Delta tables names it
_MAX_DIGEST = 36


def log_datasets(client: MlflowClient, mlflow_run: MlflowRun, run: Run) -> None:
    """Log the tables that a run reads as datasets, with a digest of Delta id and version."""
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


_CONFIG_TAG: Final = "peerglass.config"
_SESSION_TAG: Final = "peerglass.session"


class TrackedNight(BaseModel):
    """What the store is told about a night; tags may change later, files are relative to its nights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    session: dt.date
    ended_at: dt.datetime
    error: str | None = None
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    files: dict[str, str] = {}


def log_night(config: Config, night: TrackedNight, nights: Path) -> None:
    """Log a night. Logging it again changes only what has changed. A file that is gone is left out."""
    with store(config) as client:
        experiment = experiment_of(client, config, f"{config.tracking.experiment or config.name}-nightly")
        known = _run_of(client, experiment, night)
        mlflow_run = known.info.run_id
        log_tags(client, known, night.tags)
        log_parameters(client, known, {"config": night.config, "session": night.session.isoformat()})
        log_metrics(client, known, {0: night.metrics})
        paths = {place: nights / path for place, path in night.files.items()}
        log_artifacts(client, mlflow_run, {place: path for place, path in paths.items() if path.is_file()})
        end_run(client, known, night.error, night.ended_at)


def _run_of(client: MlflowClient, experiment: str, night: TrackedNight) -> MlflowRun:
    """Return the MLflow run of a night; created if it does not exist."""
    session = night.session.isoformat()
    query = f"tags.`{_CONFIG_TAG}` = '{night.config}' and tags.`{_SESSION_TAG}` = '{session}'"
    known = client.search_runs([experiment], query, max_results=1)
    if known:
        return known[0]
    tags = {_CONFIG_TAG: night.config, _SESSION_TAG: session}
    seconds = night.metrics.get("seconds", 0.0)
    began = milliseconds(night.ended_at - dt.timedelta(seconds=seconds))
    return client.create_run(experiment, start_time=began, tags=tags, run_name=session)
