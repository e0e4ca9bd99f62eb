"""Access to the tracking store (MLflow): its client, logging without repetition, and its registry.

The registry has one registered model per config and forecaster (``CONFIG.MODEL``), and in it one version per
run, created when all tasks of the model are done. Its source is the folder ``model`` of the model's run: the
checkpoints (safetensors and JSON), an ``MLmodel`` file, the names of the inputs, and a zip file with the code
of Peerglass, so that ``mlflow.pyfunc.load_model`` needs Peerglass' dependencies alone. What is loaded is
`pipelines.nightly.loaded`.
"""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import io
import json
import logging
import math
import os
import platform
import sqlite3
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pipelines
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, TrackingError
from pipelines.files import replacing, write_bytes
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location
from pipelines.lake.upkeep import RecordedVersions, recorded_by_runs, recorded_in_lake
from pipelines.run.provenance import TrainingStarted, read_provenance
from pipelines.run.record import RecordedRun
from pipelines.secrets import MASK, redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

RUN_TAG, MODEL_TAG = "peerglass.run_id", "peerglass.model"
VERSIONS_TAG, LAKE_TAG = "table_versions", "lake"
NOTE_TAG: Final = "mlflow.note.content"  # the description on MLflow's page
COMMIT_TAG: Final = "mlflow.source.git.commit"
MODEL: Final = "model"  # folder of a model's files among the artifacts of its run
_MANIFEST, _FILE = "manifest.json", "sqlite:///"
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"  # values of MLflow's own pages
_ERROR_TAG = "peerglass.error"
_STUDY_TAG, _VALUES_TAG = "peerglass.study", "peerglass.values"
_VARIABLES = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # read at import; hides messages on new tables
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # the default of 7 takes four minutes to fail
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is the command's result
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # stderr shows our own progress
}
_LOCKED_SECONDS = 10.0  # wait for another process that writes to SQLite; a write takes milliseconds


@contextmanager
def open_store(config: Config) -> Iterator[MlflowClient]:
    """Open a client of the config's tracking store, which may be gone, locked, damaged or too old."""
    for variable, value in _VARIABLES.items():
        os.environ.setdefault(variable, value)
    for name in ("alembic", "mlflow"):  # they may have been imported earlier with another level
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it prints errors that are raised
    from alembic.util import CommandError
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = config.tracking.uri
    if MASK in uri:
        raise ConfigError(
            f"tracking.uri is {uri} because secrets are not stored with a run; replace *** in the "
            "config.yaml of the run by a reference such as ${MLFLOW_PASSWORD}, and set that variable."
        )
    try:
        if uri.startswith(_FILE):
            _create_database(uri.removeprefix(_FILE))
        yield MlflowClient(tracking_uri=uri)
    except ModuleNotFoundError as error:  # a database's driver, which is imported by name
        cure = "'.[postgres]'" if uri.startswith("postgres") else str(error.name)
        raise ConfigError(
            f"The tracking store {redact(uri)} needs the Python package {error.name}, which is not "
            f"installed; run: pip install {cure}"
        ) from None
    except (MlflowException, OSError, SQLAlchemyError, CommandError, sqlite3.Error) as error:
        reason = redact(" ".join(str(error).split()))[:300]  # mask first: a truncated secret is not found
        cure = "start it or change tracking.uri"
        if uri.startswith(_FILE):
            cure = (
                "end the process that locks the file, or move a damaged file away, so that a new one is "
                "made, or change tracking.uri"
            )
        raise TrackingError(
            f"The tracking store {uri} cannot be used ({reason}); {cure}. Forecasts and results are kept."
        ) from None


def _create_database(file: str) -> None:
    """Create an SQLite store atomically, and check one that exists, before MLflow tries for minutes."""
    from filelock import FileLock
    from mlflow import MlflowClient

    name, query, _ = file.partition("?")
    path = Path(name.removeprefix("file:"))
    path.parent.mkdir(parents=True, exist_ok=True)
    if query or path.name == ":memory:":  # not a plain file
        return
    if path.exists():
        with closing(sqlite3.connect(path, timeout=_LOCKED_SECONDS)) as database:
            database.execute("SELECT count(*) FROM sqlite_master")
            database.execute("BEGIN IMMEDIATE")
        return
    path = path.absolute()
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return
        with replacing(path) as partial:
            MlflowClient(tracking_uri=f"sqlite:///{partial}").search_experiments(max_results=1)


def experiment_of(client: MlflowClient, config: Config, suffix: str = "") -> str:
    """Return the id of an experiment; a new one is marked as machine learning, so MLflow does not ask."""
    from mlflow.exceptions import MlflowException

    name = f"{config.tracking.experiment or config.name}{suffix}"
    existing = client.get_experiment_by_name(name)
    if existing is not None and existing.lifecycle_stage == "deleted":
        raise TrackingError(
            f"The experiment {name} in the tracking store {config.tracking.uri} was deleted; restore it with "
            f"'mlflow experiments restore --experiment-id {existing.experiment_id}', or name another one in "
            "tracking.experiment. Forecasts and results are kept."
        )
    if existing is not None:
        return str(existing.experiment_id)
    local = config.tracking.uri.startswith("sqlite:")
    location = Path(config.tracking.artifacts).resolve().as_uri() if local else None
    try:
        return str(client.create_experiment(name, artifact_location=location, tags={_KIND_TAG: _KIND}))
    except MlflowException:
        created = client.get_experiment_by_name(name)  # by another process, a moment ago
        if created is None:
            raise
        return str(created.experiment_id)


def runs_by_model(client: MlflowClient, experiment: str, run_id: str) -> dict[str, MlflowRun]:
    """Return the newest MLflow run of each model of a Peerglass run, or of each signal of a file."""
    found = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run_id}'")
    return {one.data.tags[MODEL_TAG]: one for one in reversed(found)}


def track_trial(
    config: Config, search: str, number: int, values: Mapping[str, Any], score: float | None
) -> None:
    """Log a finished trial of a search as a run of ``<name>-tune``; without a score it has failed."""
    with open_store(config) as client:
        experiment = experiment_of(client, config, "-tune")
        tags = {_STUDY_TAG: search, _VALUES_TAG: json.dumps(values)}
        created = client.create_run(experiment, tags=tags, run_name=f"{search}-{number}")
        log(client, created, parameters=values, metrics={0: {"validation": score}})
        client.set_terminated(created.info.run_id, status="FINISHED" if score is not None else "FAILED")


def log(
    client: MlflowClient,
    mlflow_run: MlflowRun,
    *,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
    metrics: Mapping[int, Mapping[str, float | None]] = MappingProxyType({}),
) -> None:
    """Log what a run, as it was read, lacks: parameters, tags, and the metrics of each step.

    A metric without a finite value is NaN if it had one before, because MLflow cannot remove it.
    """
    from mlflow.entities import Metric, Param, RunTag

    known, run_id, now = mlflow_run.data, mlflow_run.info.run_id, int(time.time() * 1000)
    if len(metrics) == 1:  # the latest value is then the value of that step
        logged = {(key, step): value for step in metrics for key, value in known.metrics.items()}
    else:
        keys = {key for values in metrics.values() for key in values} & set(known.metrics)
        logged = {
            (key, one.step): one.value for key in keys for one in client.get_metric_history(run_id, key)
        }
    wanted = {
        (key, step): float(value) if value is not None and math.isfinite(value) else math.nan
        for step, values in metrics.items()
        for key, value in values.items()
    }
    client.log_batch(
        run_id,
        [
            Metric(key, value, now, step)
            for (key, step), value in wanted.items()
            if not _equal(value, logged.get((key, step), math.nan))
        ],
        [Param(key, str(value)[:6000]) for key, value in parameters.items() if key not in known.params],
        [RunTag(key, value) for key, value in tags.items() if known.tags.get(key) != value],
    )


def _equal(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


def with_gone(numbers: Mapping[str, float], mlflow_run: MlflowRun) -> dict[str, float | None]:
    """Add None for what a run, as it was read, shows of an older evaluation and ``numbers`` lack."""
    gone = (name for name in mlflow_run.data.metrics if name.startswith("test."))
    return {**dict.fromkeys(gone), **numbers}


def end_run(client: MlflowClient, known: MlflowRun, error: str | None, at: dt.datetime | None = None) -> None:
    """Update status and error of a run; one with unchanged status keeps the time of its end (None: now)."""
    mlflow_run = known.info.run_id
    status = "FINISHED" if error is None else "FAILED"
    if error is not None:
        log(client, known, tags={_ERROR_TAG: error[:5000]})
    elif _ERROR_TAG in known.data.tags:
        client.delete_tag(mlflow_run, _ERROR_TAG)
    if known.info.status != status:
        client.set_terminated(mlflow_run, status=status, end_time=None if at is None else milliseconds(at))


def who_and_what() -> dict[str, str]:
    """MLflow's own tags of a new run: the user, and the command or the script that makes the run."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    program, *arguments = sys.argv or [""]
    if Path(program).name in ("peerglass", "__main__.py"):
        # up to the first option, because its value may be secret
        words = ["peerglass", *takewhile(lambda word: not word.startswith("-"), arguments)]
        program = redact(" ".join(words))
    tags = {"user": user, "source.name": program or "<console>", "source.type": "LOCAL"}
    return {f"mlflow.{key}": value for key, value in tags.items()}


def commit_tags(commit: str) -> dict[str, str]:
    """MLflow's tags of a commit as `pipelines.run.record.git_commit` says it; none outside git."""
    if commit == "unknown":
        return {}
    dirty = str(commit.endswith("-dirty")).lower()
    return {COMMIT_TAG: commit.removesuffix("-dirty"), "mlflow.source.git.dirty": dirty}


def milliseconds(at: dt.datetime) -> int:
    """A time as MLflow has it, since 1970."""
    return round(at.timestamp() * 1000)


def log_artifacts(client: MlflowClient, mlflow_run: str, files: Mapping[str, Path | str]) -> None:
    """Upload files (artifact path -> file or text), except those that ``manifest.json`` lists unchanged."""
    with TemporaryDirectory() as folder:
        uploaded: dict[str, str] = {}
        if any(one.path == _MANIFEST for one in client.list_artifacts(mlflow_run)):
            text = Path(client.download_artifacts(mlflow_run, _MANIFEST, folder)).read_bytes()
            with suppress(ValueError):  # damaged: all files are uploaded again
                uploaded = json.loads(text)
        digests = {
            place: hashlib.sha256(one.encode() if isinstance(one, str) else one.read_bytes()).hexdigest()
            for place, one in files.items()
        }
        new = [place for place, value in digests.items() if uploaded.get(place) != value]
        for place in new:
            one, parent = files[place], str(PurePosixPath(place).parent)
            if isinstance(one, str):
                client.log_text(mlflow_run, one, place)
            else:
                client.log_artifact(mlflow_run, str(one), None if parent == "." else parent)
        if new:
            listed = json.dumps({**uploaded, **digests}, indent=1, sort_keys=True)
            client.log_text(mlflow_run, listed, _MANIFEST)


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def versions_in_use(config: Config, lake: Lake, folders: Iterable[Path]) -> RecordedVersions:
    """Return the versions of a lake's tables that a vacuum must keep, wherever they are recorded."""
    try:
        in_store = recorded_in_store(config, lake.root)
    except TrackingError as error:
        raise TrackingError(f"Nothing was removed, because runs in the store may need it: {error}") from None
    return in_store | recorded_in_lake(lake) | recorded_by_runs(lake, [Path(config.output), *folders])


def recorded_in_store(config: Config, root: str) -> RecordedVersions:
    """Versions that all runs of the tracking store have recorded; an unreadable record is an error."""
    uri = config.tracking.uri
    if uri.startswith(_FILE):
        path = uri.removeprefix(_FILE).partition("?")[0].removeprefix("file:")
        if not Path(path).is_file():
            return set()
    recorded: set[tuple[str, int, str]] = set()
    with open_store(config) as client:
        for run in _runs(client):
            tags = run.data.tags
            if LAKE_TAG in tags and tags[LAKE_TAG] != canonical_location(root):
                continue
            name = tags.get(RUN_TAG, run.info.run_id)
            try:
                versions = json.loads(tags[VERSIONS_TAG])
                recorded |= {(str(table), int(version), name) for table, version in versions.items()}
            except (ValueError, TypeError, AttributeError):
                raise TrackingError(
                    f"The tag {VERSIONS_TAG} of the run {name} in the tracking store {uri} cannot be read, "
                    "so it is unknown which versions the run needs; correct or delete that run in the store."
                ) from None
    return recorded


def _runs(client: MlflowClient) -> list[MlflowRun]:
    """All runs of the store that have recorded versions."""
    from mlflow import utils

    def every(search: Callable[..., Any]) -> list[Any]:
        page: Any = utils.get_results_from_paginated_fn
        return list(page(lambda most, token: search(max_results=most, page_token=token), 1000))

    ids = [str(one.experiment_id) for one in every(client.search_experiments)]
    recorded = partial(client.search_runs, ids, f"tags.`{VERSIONS_TAG}` LIKE '%'")
    return every(recorded) if ids else []


def registered_model(config_name: str, model: str) -> str:
    """Name of the registered model of one forecaster of a config: ``CONFIG.MODEL``."""
    return f"{config_name}.{model}"


def log_model_versions(
    client: MlflowClient, run: RecordedRun, complete: Mapping[str, tuple[MlflowRun, str]]
) -> None:
    """Register the models of a run whose tasks are done (model -> its run, text), or update their texts."""
    if not complete:
        return
    facts = _facts(run)
    found = client.search_model_versions(f"tags.`{RUN_TAG}` = '{run.run_id}'")
    versions = {one.name: one for one in found}
    for model, (mlflow_run, description) in complete.items():
        name = registered_model(run.config.name, model)
        known = versions.get(name)
        if known is None:
            _register(client, name, run.config.name, model)
            source = f"{mlflow_run.info.artifact_uri}/{MODEL}"
            tags = {RUN_TAG: run.run_id, MODEL_TAG: model, **facts}
            client.create_model_version(name, source, mlflow_run.info.run_id, tags, description=description)
            continue
        if known.description != description:
            client.update_model_version(name, known.version, description)
        for key, value in facts.items():
            if known.tags.get(key) != value:
                client.set_model_version_tag(name, known.version, key, value)


def set_aliases(config: Config, named: Mapping[str, tuple[str, str] | None]) -> None:
    """Let aliases (alias -> run and model) name versions; one without a known version is removed."""
    wanted: dict[tuple[str, str], str] = {}
    with open_store(config) as client:
        for alias, version in named.items():
            if version is None:
                continue
            run_id, model = version
            name = registered_model(config.name, model)
            query = f"name = '{name}' and tags.`{RUN_TAG}` = '{run_id}'"
            for one in client.search_model_versions(query, max_results=1):
                wanted[name, alias] = str(one.version)
        prefix = registered_model(config.name, "")
        current = {
            (one.name, alias): str(version)
            for one in client.search_registered_models(f"name LIKE '{prefix}%'")
            if one.name.startswith(prefix)  # in LIKE, an underscore is any character
            for alias, version in one.aliases.items()
            if alias in named
        }
        for name, alias in current.keys() - wanted.keys():
            client.delete_registered_model_alias(name, alias)
        for (name, alias), number in wanted.items():
            if current.get((name, alias)) != number:
                client.set_registered_model_alias(name, alias, number)


def find_registered(config: Config, name: str, number: int) -> tuple[str, str]:
    """Return the run id and the model of a version of a registered model of the config."""
    with open_store(config) as client:
        found = client.search_model_versions(f"name = '{name}'")
        by_number = {int(one.version): one for one in found}
        if number not in by_number:
            known = ", ".join(map(str, sorted(by_number))) or "none"
            raise ConfigError(f"The registered model {name} has no version {number}; it has {known}.")
        tags = by_number[number].tags
    return tags[RUN_TAG], tags[MODEL_TAG]


def _facts(run: RecordedRun) -> dict[str, str]:
    """Tags that say what a version was made of: data versions, audit, and the last session seen."""
    versions, through = dict(sorted(run.versions.items())), run.config.through
    facts = {VERSIONS_TAG: json.dumps(versions), "audit": audit_verdict(run), "trained_through": through}
    return {key: str(value) for key, value in facts.items() if value is not None}


def _register(client: MlflowClient, name: str, config_name: str, model: str) -> None:
    """Create the registered model if it does not exist."""
    from mlflow.exceptions import MlflowException

    text = (
        f"The model `{model}` of the Peerglass config `{config_name}`. A version is that of one run: a "
        "checkpoint per fold and seed."
    )
    with suppress(MlflowException):  # it exists; if it does not, its version cannot be created either
        client.create_registered_model(name, description=text)


INPUTS: Final = "inputs.json"  # names of a version's inputs, beside its checkpoints
KEYS: Final = ("date", "ticker", "group", "in_universe")  # columns of the input that are not features
CHANNEL: Final = "channel."  # prefix of channels in the input; characteristics share their names
CHARACTERISTIC: Final = "characteristic."  # prefix of the characteristics
_LOADER: Final = "pipelines.nightly.loaded"
_CODE: Final = "code/peerglass.zip"
_PACKAGES: Final = ("features", "models", "backtest", "pipelines")
_KINDS: Final = ("*.py", "*.yaml")  # some modules read a data file when they are imported
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip file: the same code gives the same bytes


def make_loadable(run: RecordedRun, model: str) -> None:
    """Write what MLflow needs to load a model of a run beside its checkpoints, once, as of its last fold."""
    folder = run.folder / "checkpoints" / model
    folds = run.read_table("folds")
    if (folder / "MLmodel").is_file() or folds is None:
        return
    from mlflow.models import Model  # its module pyfunc, which would write the flavor, warns when imported

    features = run.identity.settings["features"]
    inputs = {
        "model": model,
        "run_id": run.run_id,
        "fold": int(folds["fold"].to_list()[-1]),
        "seeds": list(run.config.seeds),
        "window": run.config.features.window,
        "channels": [f"{CHANNEL}{name}" for name in features["channels"]],
        "characteristics": [f"{CHARACTERISTIC}{name}" for name in features["characteristics"]],
    }
    write_bytes(folder / INPUTS, json.dumps(inputs, indent=1).encode())
    write_bytes(folder / _CODE, _zipped_code())
    started = [event for event in read_provenance(run) if isinstance(event, TrainingStarted)]
    libraries = sorted(started[-1].environment.libraries.items()) if started else []
    requirements = "".join(f"{name}=={version}\n" for name, version in libraries)
    write_bytes(folder / "requirements.txt", requirements.encode())
    described = Model(signature=_signature(inputs))
    python = platform.python_version()
    described.add_flavor("python_function", loader_module=_LOADER, python_version=python, code=_CODE)
    write_bytes(folder / "MLmodel", described.to_yaml().encode())  # last: its presence says that all is there


def _signature(inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401 (MLflow has no types)
    """Signature of a version: one row per session and firm, see `pipelines.nightly.loaded`."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    kinds = {"date": "datetime", "ticker": "string", "group": "string", "in_universe": "boolean"}
    columns: list[ColSpec | TensorSpec]
    columns = [ColSpec(kinds[name], name, required=name != "group") for name in KEYS]
    columns += [ColSpec("double", name) for name in (*inputs["channels"], *inputs["characteristics"])]
    answer: list[ColSpec | TensorSpec]
    answer = [ColSpec("datetime", "date"), ColSpec("string", "ticker"), ColSpec("double", "signal")]
    return ModelSignature(Schema(columns), Schema(answer))


@cache
def _zipped_code() -> bytes:
    """The code of this process, which is the same for all models of a run."""
    root = Path(pipelines.__file__).parents[1]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        paths = (path for name in _PACKAGES for kind in _KINDS for path in (root / name).rglob(kind))
        for path in sorted(paths):
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), date_time=_EPOCH)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()


def audit_verdict(run: RecordedRun) -> str | None:
    """Return the worst verdict of a run's last audit; None if none was made."""
    table = run.read_table("audit")
    if table is None:
        return None
    present = set(table["verdict"])
    return next((one for one in ("fail", "warn", "pass") if one in present), "skipped")
