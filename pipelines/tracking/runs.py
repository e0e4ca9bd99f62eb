"""Log runs and nights in the tracking store: one MLflow run for each, and one child per model of a run.

The contents of the run's folder are logged, and nothing is logged twice: after five reports the store holds
the same as after one. Metrics are those of `pipelines.tracking.figures`; those of the parent are of the model
that leads on validation. Every evaluation is in the table ``evaluations.json``, every fold in ``folds.json``.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from pipelines.columns import COLUMNS
from pipelines.config.load import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import DataError, TrackingError
from pipelines.lake.options import canonical_location
from pipelines.lake.schemas import schema
from pipelines.lake.versions import TableVersion
from pipelines.progress import Progress
from pipelines.run import provenance
from pipelines.run.completeness import describe_missing_of_model, missing_tasks
from pipelines.run.evaluations import StoredEvaluation, leader, list_evaluations, tradable_delay
from pipelines.run.record import RecordedRun, read_curves, read_scores
from pipelines.run.registration import registration_of
from pipelines.secrets import redact
from pipelines.tracking import figures, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Dataset
    from mlflow.entities import Run as MlflowRun

_PARENT = "-"  # the model tag of the parent
_FILES = ("config.yaml", "report.html", "explorer.html", "audit.json", provenance.FILE)
_FOLDERS = ("tables", "evaluations")
_SCORES = ("valid_rank_ic", "valid_ic", "pretrain_loss", "calibration_slope")
_ALWAYS: Final = (  # parameters that identify a run, whether or not they are the defaults
    *("source.kind", "features.set", "features.window", "label.horizon", "label.delay", "label.transform"),
    *("folds.scheme", "folds.train", "folds.valid", "folds.test", "seeds"),
)
_SECTIONS: Final = ("source", "quality", "universe", "features", "label", "folds", "fit", "seeds")
_SHOWN: Final = (  # columns of the table in a description
    *("valid_rank_ic", "ic", "ic_t", "sharpe_net", "annual_return_net", "max_drawdown_net", "turnover"),
)


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
        logged = _Logged(client, run)
        versions: dict[str, tuple[MlflowRun, str]] = {}
        logged.log_parent()
        for model, tasks in missing.items():
            text = logged.log_child(model)
            error = None if tasks is None else f"Missing: {tasks}."
            store.end_run(client, logged.get(model), error, began_and_ended(logged.events, model)[1])
            if tasks is None:
                versions[model] = logged.get(model), text
        store.log_model_versions(client, run, versions)
        all_missing = "; ".join(f"{model}: {tasks}" for model, tasks in missing.items() if tasks is not None)
        error = failed or (f"Missing: {all_missing}." if all_missing else None)
        store.end_run(client, logged.get(), error, None if failed else began_and_ended(logged.events)[1])


def log_audit(run: RecordedRun) -> None:
    """Log the audit in a run's folder to the run's parent, which is created if it does not exist."""
    with store.open_store(run.config) as client:
        logged = _Logged(client, run)
        is_new = _PARENT not in logged.known
        parent = logged.get()
        store.log(client, parent, parameters=logged.parameters)
        logged.log_audit()
        path = run.folder / "audit.json"
        store.log_artifacts(client, parent.info.run_id, {path.name: path} if path.is_file() else {})
        if is_new:
            client.set_terminated(parent.info.run_id)


def _begin(run: RecordedRun) -> None:
    """Create the parent and one child per model, and mark them as running."""
    with store.open_store(run.config) as client:
        logged = _Logged(client, run)
        store.log(client, logged.get(), parameters=logged.parameters, tags=logged.tags)
        log_inputs(client, logged.get(), logged.datasets)
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
        self._newest = self._evaluations[0] if self._evaluations else None
        self._scores, self.datasets = read_scores(run), lake_datasets(run.config, run.tables)
        self.figures = cache(self._figures)
        self._experiment = store.experiment_of(client, run.config)
        self.known = store.runs_by_model(client, self._experiment, run.run_id)

    def get(self, model: str = _PARENT) -> MlflowRun:
        """Return the MLflow run of a model, by default the parent, as it was found; create it if needed."""
        if model not in self.known:
            tags = {store.RUN_TAG: self._run.run_id, store.MODEL_TAG: model, **store.who_and_what()}
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
    def parameters(self) -> dict[str, object]:
        """Parameters of the parent."""
        return run_parameters(self._run.config) | {"models": ", ".join(self._run.config.models)}

    @property
    def tags(self) -> dict[str, str]:
        """Config hash, data versions and lake, which are set when the run starts."""
        return {
            "config_hash": self._run.run_id.rpartition("-")[2],
            store.VERSIONS_TAG: json.dumps(self._run.versions),
            store.LAKE_TAG: canonical_location(self._run.config.lake),
        }

    def log_parent(self) -> None:
        """Log parameters, figures of the leader, what has trained the run, durations, audit, data, files."""
        tags = self.tags | self._trained_by() | {store.NOTE_TAG: self._describe()}
        metrics: dict[str, float] = {}
        if self._newest is not None:
            record, model = self._newest.record, str(self._leader["model"])
            tags |= {"evaluation": record.evaluation, "trials": str(record.trials), "leader": model}
            tags["evaluation_assumptions"] = record.assumptions
            measured = replace(self._run, config=record.apply_to(self._run.config))
            tags["registered"] = registration_of(measured).state
            own = self.figures(model)
            metrics = {name: own[name] for name in figures.HEADLINE if name in own}
        metrics |= durations(self.events)
        evaluated = figures.evaluation_table(self._evaluations)
        made = {"folds.json": self._fold_table, "evaluations.json": evaluated}
        tables, shown = figures.shown_tables({name: one for name, one in made.items() if one.height})
        tags |= shown
        shown_now = {0: store.with_gone(metrics, self.get())}
        store.log(self._client, self.get(), parameters=self.parameters, tags=tags, metrics=shown_now)
        self.log_audit()
        log_inputs(self._client, self.get(), self.datasets)
        paths = [self._run.folder / name for name in _FILES]
        paths += [path for name in _FOLDERS for path in sorted((self._run.folder / name).rglob("*"))]
        store.log_artifacts(self._client, self.get().info.run_id, {**self._files(paths), **tables})

    def log_child(self, model: str) -> str:
        """Log a model's parameters, data, figures, histories and files; return its description."""
        child, text = self.get(model), self._describe_model(model)
        log_inputs(self._client, child, self.datasets)
        spent = model_seconds(self.events, model)
        numbers = self.figures(model) | ({"seconds.training": round(sum(spent.values()), 3)} if spent else {})
        parameters = model_parameters(self._run, model)
        tags = self._trained_by() | {store.NOTE_TAG: text}
        shown_now = {0: store.with_gone(numbers, child)}
        store.log(self._client, child, parameters=parameters, tags=tags, metrics=shown_now)
        epochs = figures.epoch_metrics(self._curves, model)
        for histories in (epochs, figures.by_fold(self._fold_table, model)):
            store.log(self._client, child, metrics=histories)
        folder = self._run.folder / "checkpoints" / model
        files = self._files(folder.rglob("*"), folder, f"{store.MODEL}/")
        store.log_artifacts(self._client, child.info.run_id, files)
        return text

    def log_audit(self) -> None:
        """Log the audit's worst verdict, which checks warned or failed, and how many there are of each."""
        table, worst = self._run.read_table("audit"), store.audit_verdict(self._run)
        if table is None or worst is None:
            return
        checks = {one: table.filter(pl.col("verdict") == one)["check"] for one in ("pass", "warn", "fail")}
        metrics = {f"audit.{verdict}": float(len(names)) for verdict, names in checks.items()}
        tags = {f"audit.{one}": ", ".join(checks[one]) or "none" for one in ("warn", "fail")}
        store.log(self._client, self.get(), tags={"audit": worst, **tags}, metrics={0: metrics})

    def _figures(self, model: str) -> dict[str, float]:
        """Metrics of a model: means of its validation scores, and its test in the newest evaluation."""
        own = self._scores.filter(pl.col("model") == model)
        means = own.select(pl.col(_SCORES).mean()).row(0, named=True)
        tested = {} if self._newest is None else figures.test_metrics(self._newest, model)
        validated = {name.replace("valid_", "valid.", 1): means[name] for name in _SCORES}
        every = {name: value for name, value in (validated | tested).items() if value is not None}
        return {name: every[name] for name in figures.HEADLINE if name in every} | every

    @cached_property
    def _curves(self) -> pl.DataFrame:
        return read_curves(self._run)

    @cached_property
    def _fold_table(self) -> pl.DataFrame:
        """Every model and fold (`figures.fold_table`)."""
        folds, models = self._run.read_table("folds"), self._run.config.models
        seconds = {model: model_seconds(self.events, model) for model in models}
        once = self._run.config.folds.scheme != "combinatorial"
        scores = self._scores.filter(pl.col("model").is_in(list(models)))
        known = pl.DataFrame() if folds is None else folds
        return figures.fold_table(known, scores, seconds, self._newest, tested_once=once)

    def _files(self, paths: Iterable[Path], root: Path | None = None, under: str = "") -> dict[str, Path]:
        """Whole files by their place among the artifacts."""
        root = root or self._run.folder
        files = {under + path.relative_to(root).as_posix(): path for path in sorted(paths) if path.is_file()}
        return {place: path for place, path in files.items() if ".partial" not in path.as_posix()}

    def _trained_by(self) -> dict[str, str]:
        """Tags that say which code, libraries and device have trained the run; none before it was trained."""
        trained = [event for event in self.events if isinstance(event, provenance.TrainingStarted)]
        if not trained:
            return {}
        used = [(one.environment.code, one.device) for one in trained]
        different = (", ".join(dict.fromkeys(values)) for values in zip(*used, strict=True))
        tags = dict(zip(("code", "device"), different, strict=True))
        tags["libraries"] = json.dumps(trained[-1].environment.libraries)
        return tags | store.commit_tags(trained[-1].environment.commit)

    @property
    def _leader(self) -> dict[str, Any]:
        """Row of the ladder of the model that leads on validation, at the shortest tradable delay."""
        assert self._newest is not None, "only an evaluation has a ladder"
        delay = tradable_delay(self._newest.record.delays)
        return leader(self._newest.table("ladder").filter(pl.col("delay") == delay))

    def _describe(self) -> str:
        """Describe the run in Markdown: models, data and test, the newest evaluation, how to reproduce it."""
        run, config, label = self._run, self._run.config, self._run.config.label
        start = f"t + {label.delay}" if label.delay else "t"
        span = f"from the close of {start} to that of t + {label.delay + label.horizon}"
        lines = [] if self._newest is None else self._result(self._newest)
        lines.append(
            f"{', '.join(f'`{model}`' for model in config.models)} of the config `{config.name}`, "
            f"seeds {', '.join(map(str, config.seeds))}. At the close of session t they forecast the return "
            f"{span} (label: {label.transform})."
        )
        tables = ", ".join(f"{table} v{version}" for table, version in sorted(run.versions.items()))
        lines.append(f"**Data.** {tables or 'None'}. {self._tested()}".rstrip())
        commit = self._trained_by().get(store.COMMIT_TAG)
        check_out = "" if commit is None else f"check out commit `{commit}`, and "
        lines.append(
            f"**Reproduce.** `peerglass report {run.run_id}` shows it again where the run's folder is. "
            f"Elsewhere, {check_out}call `peerglass run config.yaml` with the artifact of that name, on the "
            "same versions of the tables."
        )
        return "\n\n".join(lines)

    def _tested(self) -> str:
        """Say which dates are tested, in how many folds; nothing before folds are made."""
        config, folds = self._run.config, self._run.read_table("folds")
        if folds is None or not folds.height:
            return ""
        if config.through is not None:
            return f"Trained for use on data up to {config.through}, without a test."
        first, last = folds.select(pl.col("test_from").min(), pl.col("test_to").max()).row(0)
        many = f"{folds.height} fold{'s' if folds.height > 1 else ''}"
        return f"Test: {first} to {last}, {many} ({config.folds.scheme})."

    def _result(self, evaluation: StoredEvaluation) -> list[str]:
        """Paragraphs on an evaluation: the leader's figures, a table of all models, the assumptions."""
        record, best = evaluation.record, str(self._leader["model"])
        heads = [f"{COLUMNS[name].heading}" for name in _SHOWN]
        cells = [f"| {model} | {' | '.join(self._cells(model))} |" for model in self._run.config.models]
        rows = [f"| model | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|", *cells]
        return [
            f"`{best}` leads on validation. {figures.describe_result(evaluation, self.figures(best))}",
            "\n".join(rows),
            f"Evaluation `{record.evaluation}`: {record.assumptions}.",
        ]

    def _cells(self, model: str) -> list[str]:
        """Cells of a model's row in the table of the description."""
        own = self.figures(model)
        return [
            COLUMNS[name].text(own.get("valid.rank_ic" if name == "valid_rank_ic" else f"test.{name}"))
            for name in _SHOWN
        ]

    def _describe_model(self, model: str) -> str:
        """Describe one model of the run: its results in the newest evaluation if there is one."""
        result = self._tested()
        if self._newest is not None:
            result = figures.describe_result(self._newest, self.figures(model))
        return f"Model `{model}` of the run `{self._run.run_id}`. {result}".rstrip()


def run_parameters(config: Config) -> dict[str, object]:
    """Settings of a config that identify it or differ from the defaults, without those of single models."""
    written = store.flatten(config.as_written())
    changed = config.model_dump(mode="json", include=set(_SECTIONS), exclude_defaults=True)
    names = dict.fromkeys((*_ALWAYS, *store.flatten(changed)))
    names.pop("label.extra_delays", None)  # an evaluation's
    return {name: written[name] for name in names if name in written and not _maps_columns(name, written)}


def _maps_columns(name: str, written: Mapping[str, object]) -> bool:
    """Whether a setting says how a source's files are read, which the full config shows."""
    section, _, rest = name.partition(".")
    nested = "." in rest and not rest.startswith("market.")
    return section == "source" and (nested or isinstance(written[name], list | dict))


def model_parameters(run: RecordedRun, model: str) -> dict[str, object]:
    """Parameters of a model's run: those of the whole run, with the settings of ``fit`` that it reads."""
    read = {f"fit.{name}" for name in run.identity.settings["models"][model]["fit"]}
    common = {
        name: value
        for name, value in run_parameters(run.config).items()
        if not name.startswith("fit.") or ".".join(name.split(".")[:2]) in read
    }
    own = store.flatten(run.config.as_written()["models"][model])
    return common | {"model": registry_name(run.config, model)} | own


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
_TYPES: Final[Mapping[type[pl.DataType], str]] = {
    pl.Date: "datetime",
    pl.Datetime: "datetime",
    pl.String: "string",
    pl.Int64: "long",
    pl.Boolean: "boolean",
}


Datasets = dict[tuple[str, str], Callable[[], "Dataset"]]  # (name, digest) -> what makes the dataset


def lake_datasets(config: Config, tables: Mapping[str, TableVersion]) -> Datasets:
    """Tables of a config's lake as datasets, the prices first."""
    ordered = sorted(tables.items(), key=lambda one: (one[0] != "prices", one[0]))
    digests = {table: f"{at.id[:8]}-v{at.version}" for table, at in ordered}
    return {
        (table, digests[table]): cache(partial(_dataset, config, table, at, digests[table]))
        for table, at in ordered
    }


def _dataset(config: Config, table: str, at: TableVersion, digest: str) -> Dataset:
    """A table as a dataset: Delta id and version, columns, rows, and of prices the sessions."""
    from mlflow.entities import Dataset

    lake, profile = open_lake(config), dict[str, int | str]()
    with suppress(DataError):  # a vacuum has removed the version
        profile["num_rows"] = lake.count(table, at.version)
        if table == "prices":
            days = lake.read(table, at.version, ["date"], ordered=False)["date"].unique()
            profile |= {"sessions": len(days), "from": str(days.min()), "to": str(days.max())}
    types = schema(table).create_empty().schema
    columns = [
        {"name": name, "type": _TYPES.get(dtype.base_type(), "double")} for name, dtype in types.items()
    ]
    path = f"{canonical_location(config.lake)}/{table}"
    source = {"path": path, "delta_table_version": at.version, "delta_table_id": at.id}
    described = (json.dumps(one) for one in (source, {"mlflow_colspec": columns}, profile))
    return Dataset(table, digest, _SOURCE_TYPE, *described)


def file_dataset(file: str, digest: str, rows: int) -> Datasets:
    """One column of a user's file as a dataset, with the digest of its values."""
    from mlflow.entities import Dataset

    name, source, profile = Path(file).name, json.dumps({"uri": file}), json.dumps({"num_rows": rows})
    return {(name, digest): lambda: Dataset(name, digest, "local", source, profile=profile)}


def log_inputs(
    client: MlflowClient, mlflow_run: MlflowRun, datasets: Datasets, context: str = "walk-forward"
) -> None:
    """Log the datasets that a run, as it was read, lacks."""
    from mlflow.entities import DatasetInput, InputTag

    logged = [] if mlflow_run.inputs is None else mlflow_run.inputs.dataset_inputs
    known = {(one.dataset.name, one.dataset.digest) for one in logged}
    tag = InputTag("mlflow.data.context", context)
    new = [DatasetInput(make(), [tag]) for key, make in datasets.items() if key not in known]
    if new:
        client.log_inputs(mlflow_run.info.run_id, datasets=new)
