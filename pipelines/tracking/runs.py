"""Log runs and nights in the tracking store: one MLflow run for each, and one child per model of a run.

The contents of the run's folder are logged, and nothing is logged twice: after five reports the store holds
the same as after one. Metrics of an evaluation have its id in their names (``1a2b3c4d5e/delay_1.ic``). Its
settings are parameters of the parent run under the same id. Metrics per fold have the fold as their step.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.columns import of_book
from pipelines.config.schema import Config
from pipelines.errors import TrackingError
from pipelines.format import IC, RATIO
from pipelines.lake.options import canonical_location
from pipelines.progress import Progress
from pipelines.run import provenance
from pipelines.run.completeness import describe_missing_of_model, missing_tasks
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import RecordedRun, read_scores
from pipelines.secrets import redact
from pipelines.tracking import store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_PARENT = "-"  # the model tag of the parent
_NOTE_TAG = "mlflow.note.content"  # the description on MLflow's page
_FILES = ("config.yaml", "report.html", "explorer.html", "audit.json", provenance.FILE)
_FOLDERS = ("tables", "evaluations", "checkpoints")
_SCORES = ("valid_ic", "valid_rank_ic", "pretrain_loss", "calibration_slope")


@contextmanager
def tracked(run: RecordedRun, progress: Progress) -> Iterator[None]:
    """Track a run while the ``with`` block works on it; an unreachable store never stops a training."""
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


def log_run(run: RecordedRun, failed: str | None = None) -> None:
    """Log what is in a run's folder once; ``FINISHED`` if all tasks are done and there was no error."""
    missing = {model: _missing_of(run, model) for model in run.config.models}
    for model, tasks in missing.items():
        if tasks is None:
            store.make_loadable(run, model)
    with store.open_store(run.config) as client:
        logged, texts = _Logged(client, run), dict[str, str]()
        logged.log_parent()
        for model, tasks in missing.items():
            text = logged.log_child(model)
            error = None if tasks is None else f"Missing: {tasks}."
            store.end_run(client, logged.get(model), error, began_and_ended(logged.events, model)[1])
            if tasks is None:
                texts[model] = text
        store.log_model_versions(client, logged.get(), run, texts)
        all_missing = "; ".join(f"{model}: {tasks}" for model, tasks in missing.items() if tasks is not None)
        error = failed or (f"Missing: {all_missing}." if all_missing else None)
        store.end_run(client, logged.get(), error, None if failed else began_and_ended(logged.events)[1])


def log_audit(run: RecordedRun) -> None:
    """Log the audit in a run's folder to the run's parent, which is created if it does not exist."""
    with store.open_store(run.config) as client:
        logged = _Logged(client, run)
        is_new = _PARENT not in logged.known
        parent = logged.get()
        store.log(client, parent, parameters={"run_id": run.run_id})
        logged.log_audit()
        path = run.folder / "audit.json"
        store.log_artifacts(client, parent.info.run_id, {path.name: path} if path.is_file() else {})
        if is_new:
            client.set_terminated(parent.info.run_id)


def _begin(run: RecordedRun) -> None:
    """Create the parent and one child per model, and mark them as running."""
    with store.open_store(run.config) as client:
        logged = _Logged(client, run)
        store.log(client, logged.get(), parameters=logged.settings, tags=logged.tags)
        log_datasets(client, logged.get(), run)
        for model in (_PARENT, *run.config.models):
            client.update_run(logged.get(model).info.run_id, status="RUNNING")


def _missing_of(run: RecordedRun, model: str) -> str | None:
    """Describe the tasks of a model that are not done; None if all are done."""
    folds = run.read_table("folds")
    if folds is None:
        return "every fold"
    numbers, seeds = folds["fold"].to_list(), run.config.seeds
    return describe_missing_of_model(
        model, missing_tasks([model], numbers, seeds, read_scores(run)), numbers, seeds
    )


class _Logged:
    """A Peerglass run in the store: the parent and one child per model, which are found by one search."""

    def __init__(self, client: MlflowClient, run: RecordedRun) -> None:
        self._client, self._run = client, run
        self.events, self._evaluations = provenance.read_provenance(run), list_evaluations(run)
        name = run.config.tracking.experiment or run.config.name
        self._experiment = store.experiment_of(client, run.config, name)
        found = client.search_runs([self._experiment], f"tags.`{store.RUN_TAG}` = '{run.run_id}'")
        self.known = {
            one.data.tags[store.MODEL_TAG]: one for one in reversed(found)
        }  # the newest comes first

    def get(self, model: str = _PARENT) -> MlflowRun:
        """Return the MLflow run of a model, by default the parent, as it was found; create it if needed."""
        if model not in self.known:
            tags = {store.RUN_TAG: self._run.run_id, store.MODEL_TAG: model}
            if model != _PARENT:
                tags["mlflow.parentRunId"] = self.get().info.run_id
            # a run that is tracked only at its end began earlier; MLflow cannot change the time of a start
            began = began_and_ended(self.events)[0]
            self.known[model] = self._client.create_run(
                self._experiment,
                start_time=None if began is None else store.milliseconds(began),
                tags=tags,
                run_name=self._run.run_id if model == _PARENT else model,
            )
        return self.known[model]

    @property
    def settings(self) -> dict[str, object]:
        """Settings that forecasts depend on, with every default filled in, the source as in the config."""
        source = self._run.config.as_written()["source"]
        return {
            **store.flatten({**self._run.identity.settings, "source": source}),
            "run_id": self._run.run_id,
        }

    @property
    def tags(self) -> dict[str, str]:
        """Config hash, data versions and lake, which are set when the run starts."""
        return {
            "config_hash": self._run.run_id.rpartition("-")[2],
            store.VERSIONS_TAG: json.dumps(self._run.versions),
            store.LAKE_TAG: canonical_location(self._run.config.lake),
        }

    def log_parent(self) -> None:
        """Log settings, evaluations, what has trained the run, durations, audit, data and files."""
        parameters, tags = self.settings, self.tags | {_NOTE_TAG: self.describe()}
        for record in (one.record for one in self._evaluations):
            settings = record.backtest.model_dump(mode="json")
            settings |= {"rates": record.rates, "label_delays": list(record.delays), "code": record.code}
            parameters |= store.flatten(settings, f"evaluation.{record.evaluation}.")
        trained = [event for event in self.events if isinstance(event, provenance.TrainingStarted)]
        if trained:
            used = [(one.environment.commit, one.environment.code, one.device) for one in trained]
            different = (", ".join(dict.fromkeys(values)) for values in zip(*used, strict=True))
            tags |= zip(("git_commit", "code", "device"), different, strict=True)
            tags["libraries"] = json.dumps(trained[-1].environment.libraries)
        if self._evaluations:
            newest = self._evaluations[0].record
            tags |= {"evaluation": newest.evaluation, "trials": str(newest.trials)}
            tags["evaluation_assumptions"] = newest.assumptions
        store.log(
            self._client, self.get(), parameters=parameters, tags=tags, metrics={0: durations(self.events)}
        )
        self.log_audit()
        log_datasets(self._client, self.get(), self._run)
        paths = [self._run.folder / name for name in _FILES]
        paths += [path for name in _FOLDERS for path in sorted((self._run.folder / name).rglob("*"))]
        files = {path.relative_to(self._run.folder).as_posix(): path for path in paths if path.is_file()}
        whole = {place: path for place, path in files.items() if ".partial" not in path.as_posix()}
        store.log_artifacts(self._client, self.get().info.run_id, whole)

    def log_child(self, model: str) -> str:
        """Log a model's settings, data, results by evaluation, and scores and seconds by fold; say of it."""
        child, text, numbers = self.get(model), self.describe_model(model), dict[str, float | None]()
        log_datasets(self._client, child, self._run)
        for one in self._evaluations:
            for row in one.table("ladder").filter(pl.col("model") == model).iter_rows(named=True):
                name = f"{one.record.evaluation}/delay_{row['delay']}"
                numbers |= {f"{name}.{key}": value for key, value in row.items() if isinstance(value, float)}
        parameters = store.flatten(self._run.config.as_written()["models"][model])
        store.log(self._client, child, parameters=parameters, tags={_NOTE_TAG: text}, metrics={0: numbers})
        scores = read_scores(self._run).filter(pl.col("model") == model)
        means = scores.group_by("fold").agg(pl.col(_SCORES).mean()).sort("fold")
        by_fold = {row["fold"]: {key: row[key] for key in _SCORES} for row in means.iter_rows(named=True)}
        seconds = model_seconds(self.events, model)
        for metrics in (by_fold, {fold: {"seconds.training": spent} for fold, spent in seconds.items()}):
            store.log(self._client, child, metrics=metrics)
        return text

    def log_audit(self) -> None:
        """Log the verdicts of the audit, and how many checks passed, warned and failed."""
        table, worst = self._run.read_table("audit"), store.audit_verdict(self._run)
        if table is None or worst is None:
            return
        tags = {f"audit.{check}": verdict for check, verdict in table.select("check", "verdict").iter_rows()}
        counts = {one: float((table["verdict"] == one).sum()) for one in ("pass", "warn", "fail")}
        metrics = {f"audit.{verdict}": count for verdict, count in counts.items()}
        store.log(self._client, self.get(), tags={"audit": worst, **tags}, metrics={0: metrics})

    def describe(self) -> str:
        """Describe the run in Markdown: models, folds, data versions, and its newest evaluation, if any."""
        run, config, label = self._run, self._run.config, self._run.config.label
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
            trained = f"Trained for use on data up to {config.through}, without a test."
            tested = f"Test: {first} to {last}, {folds.height} fold(s)."
            lines.append(tested if config.through is None else trained)
        if self._evaluations:
            record = self._evaluations[0].record
            delay, book = record.delays[0], next(iter(record.backtest.books))
            cells = [
                f"| {row['model']} | {ic} | {sharpe} |"
                for row, ic, sharpe in self._figures(pl.col("delay") == delay)
            ]
            heading = [f"| model | IC at delay {delay} | net Sharpe, {book} |", "|---|---|---|"]
            said = f"Evaluation `{record.evaluation}`: {record.assumptions}."
            lines += [said, "\n".join((*heading, *cells))]
        return "\n\n".join(lines)

    def describe_model(self, model: str) -> str:
        """Describe one model of the run: its results in the newest evaluation if there is one."""
        text = f"Model `{model}` of the run `{self._run.run_id}`."
        if not self._evaluations:
            return text
        record = self._evaluations[0].record
        results = [
            f"at delay {row['delay']}, IC {ic}, net Sharpe of {next(iter(record.backtest.books))} {sharpe}"
            for row, ic, sharpe in self._figures(pl.col("model") == model)
        ]
        return f"{text} Evaluation `{record.evaluation}`: {'; '.join(results)}." if results else text

    def _figures(self, wanted: pl.Expr) -> Iterator[tuple[dict[str, Any], str, str]]:
        """Rows of the newest ladder, with IC and net Sharpe ratio of the main book in words."""
        newest = self._evaluations[0]
        sharpe = of_book(next(iter(newest.record.backtest.books)), "sharpe_net")
        for row in newest.table("ladder").filter(wanted).iter_rows(named=True):
            yield row, IC.text(row["ic"], "unknown"), RATIO.text(row[sharpe], "unknown")


_STAGES = {
    provenance.AuditMade: "audit",
    provenance.EvaluationMade: "evaluation",
    provenance.ExplanationMade: "explanation",
}


def durations(events: Sequence[provenance.Event]) -> dict[str, float]:
    """Seconds spent on a run by stage; a killed training counts up to its last finished task."""
    spent: dict[str, float] = defaultdict(float)
    for before, event in pairwise(events):
        in_session = isinstance(before, provenance.TrainingStarted | provenance.TaskDone)
        if in_session and isinstance(event, provenance.TaskDone | provenance.TrainingEnded):
            spent["seconds.training"] += (event.at - before.at).total_seconds()
    for event in events:
        if isinstance(event, provenance.AuditMade | provenance.EvaluationMade | provenance.ExplanationMade):
            spent[f"seconds.{_STAGES[type(event)]}"] += event.seconds
    return {stage: round(seconds, 3) for stage, seconds in spent.items()}


def model_seconds(events: Sequence[provenance.Event], model: str) -> dict[int, float]:
    """Seconds of computing by fold that a model took, over all its seeds; empty if they were not recorded."""
    spent: dict[int, float] = defaultdict(float)
    for event in events:
        if isinstance(event, provenance.TaskDone) and event.model == model and event.seconds is not None:
            spent[event.fold] += event.seconds
    return spent


def began_and_ended(
    events: Sequence[provenance.Event], model: str | None = None
) -> tuple[dt.datetime | None, dt.datetime | None]:
    """First and last moment of work, on a run or on one of its models; None if unknown."""
    own = [
        event
        for event in events
        if model is None or (isinstance(event, provenance.TaskDone) and event.model == model)
    ]
    starts = [event for event in events if isinstance(event, provenance.TrainingStarted)]
    return (min((*starts[:1], own[0]), key=lambda e: e.at).at, own[-1].at) if own else (None, None)


_SOURCE_TYPE = "delta_table"  # as MLflow's own class for Delta tables names it
_MAX_DIGEST = 36


def log_datasets(client: MlflowClient, mlflow_run: MlflowRun, run: RecordedRun) -> None:
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
    own = {"config": night.config, "session": night.session.isoformat()}
    tags = {f"peerglass.{key}": value for key, value in own.items()}
    with store.open_store(config) as client:
        experiment = store.experiment_of(
            client, config, f"{config.tracking.experiment or config.name}-nightly"
        )
        query = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        began = store.milliseconds(night.ended_at - dt.timedelta(seconds=night.metrics.get("seconds", 0.0)))
        found = client.search_runs([experiment], query, max_results=1) or [
            client.create_run(experiment, start_time=began, tags=tags, run_name=own["session"])
        ]
        store.log(client, found[0], parameters=own, tags=night.tags, metrics={0: night.metrics})
        files = {place: nights / path for place, path in night.files.items() if (nights / path).is_file()}
        store.log_artifacts(client, found[0].info.run_id, files)
        store.end_run(client, found[0], night.error, night.ended_at)
