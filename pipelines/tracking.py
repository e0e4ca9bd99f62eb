"""MLflow: one parent run per Peerglass run, one child per model, folds as the steps of its metrics."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pipelines.config import Config
from pipelines.errors import ConfigError, TrackingError
from pipelines.lake_options import place
from pipelines.runs import Run, git_commit
from pipelines.secrets import MASK, redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRACKED_LIBRARIES = ("torch", "numpy", "polars", "lightgbm", "scikit-learn", "shap", "mlflow", "deltalake")
RUN_TAG = "peerglass.run_id"
VERSIONS_TAG, LAKE_TAG = "table_versions", "lake"
_MODEL_TAG = "peerglass.model"
_STUDY_TAG, _VALUES_TAG = "peerglass.study", "peerglass.values"


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that numbers depend on."""
    return {name: version(name) for name in TRACKED_LIBRARIES}


def log_run(
    run: Run,
    *,
    device: str,
    folds: pl.DataFrame,
    ladder: pl.DataFrame,
    scores: pl.DataFrame,
    seconds: Mapping[str, float],
) -> None:
    """Log a run and its models; logging it again updates the same MLflow runs.

    Parameters
    ----------
    folds
        One row a fold, as in the report.
    ladder
        One row a model and delay: its numbers become metrics of the model's child run.
    scores
        model, fold, seed, valid_ic, valid_rank_ic, pretrain_loss (null without a pretraining).
    seconds
        Wall-clock time by stage.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached.
    """
    with _client(run.config) as client:
        experiment = _experiment(client, run.config, run.config.tracking.experiment or run.config.name)
        parent = _run_of(client, experiment, run, model=None, parent=None)
        _log_parameters(client, parent, {**_settings(run), "run_id": run.run_id})
        tags = {
            "config_hash": run.run_id.rpartition("-")[2],
            "git_commit": git_commit(),
            "device": device,
            VERSIONS_TAG: json.dumps(run.versions),
            LAKE_TAG: place(run.config.lake),
            "libraries": json.dumps(library_versions()),
        }
        for key, value in tags.items():
            client.set_tag(parent, key, value)
        _log_metrics(client, parent, {f"seconds.{stage}": spent for stage, spent in seconds.items()})
        _log_audit(client, parent, run)
        client.log_text(parent, folds.write_csv(), "folds.csv")
        client.log_text(parent, ladder.write_csv(), "ladder.csv")
        for name in ("config.yaml", "report.html"):
            if (run.folder / name).is_file():
                client.log_artifact(parent, str(run.folder / name))
        for name in ("tables", "checkpoints"):
            if (run.folder / name).is_dir():
                client.log_artifacts(parent, str(run.folder / name), name)
        for model in run.config.models:
            child = _run_of(client, experiment, run, model=model, parent=parent)
            _log_parameters(client, child, _flatten(run.config.as_written()["models"][model]))
            for row in ladder.filter(pl.col("model") == model).iter_rows(named=True):
                numbers = {
                    f"delay_{row['delay']}.{key}": value
                    for key, value in row.items()
                    if isinstance(value, float)
                }
                _log_metrics(client, child, numbers)
            own = scores.filter(pl.col("model") == model)
            per_task = ("valid_ic", "valid_rank_ic", "pretrain_loss")
            per_fold = own.group_by("fold").agg(pl.col(*per_task).mean()).sort("fold")
            for row in per_fold.iter_rows(named=True):
                numbers = {key: row[key] for key in per_task}
                _log_metrics(client, child, numbers, step=int(row["fold"]))
            client.set_terminated(child)
        client.set_terminated(parent)


class TrialLog:
    """The trials of one search in the tracking store, a run each, in the experiment ``<name>-tune``.

    Parameters
    ----------
    config
        Names the store.
    study
        Names the search.
    """

    def __init__(self, config: Config, study: str) -> None:
        self._config, self._study = config, study

    def finished(self) -> list[tuple[str, float | None]]:
        """Give the values (JSON) and score of every finished trial, oldest first; None: it diverged."""
        with _client(self._config) as client:
            experiment = _experiment(client, self._config, self._name)
            wanted = f"tags.`{_STUDY_TAG}` = '{self._study}'"
            rows: list[tuple[str, float | None]] = []
            token: str | None = None
            while True:
                page = client.search_runs(
                    [experiment], wanted, order_by=["attributes.start_time ASC"], page_token=token
                )
                rows += [
                    (run.data.tags[_VALUES_TAG], run.data.metrics.get("validation"))
                    for run in page
                    if run.info.status in ("FINISHED", "FAILED")
                ]
                token = page.token
                if not token:
                    return rows

    def add(self, number: int, values: Mapping[str, Any], score: float | None) -> None:
        """Record a finished trial."""
        with _client(self._config) as client:
            experiment = _experiment(client, self._config, self._name)
            tags = {_STUDY_TAG: self._study, _VALUES_TAG: json.dumps(values)}
            created = client.create_run(experiment, tags=tags, run_name=f"{self._study}-{number}")
            mlflow_run = str(created.info.run_id)
            _log_parameters(client, mlflow_run, values)
            if score is not None:
                _log_metrics(client, mlflow_run, {"validation": score})
            client.set_terminated(mlflow_run, status="FINISHED" if score is not None else "FAILED")

    @property
    def _name(self) -> str:
        return f"{self._config.tracking.experiment or self._config.name}-tune"


def log_audit(run: Run) -> None:
    """Log the audit in a run's folder with the run's parent, which is created if the run has none yet.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached.
    """
    with _client(run.config) as client:
        name = run.config.tracking.experiment or run.config.name
        parent = _run_of(client, _experiment(client, run.config, name), run, model=None, parent=None)
        _log_parameters(client, parent, {"run_id": run.run_id})
        _log_audit(client, parent, run)
        client.set_terminated(parent)


def _log_audit(client: MlflowClient, parent: str, run: Run) -> None:
    """Tag a run with its audit's verdict, count the verdicts, and attach the evidence."""
    table = run.read_table("audit")
    if table is None:
        return
    numbers = dict(table.group_by("verdict").len().iter_rows())
    worst = next((verdict for verdict in ("fail", "warn", "pass") if verdict in numbers), "skipped")
    client.set_tag(parent, "audit", worst)
    for check, verdict in table.select("check", "verdict").iter_rows():
        client.set_tag(parent, f"audit.{check}", verdict)
    counted = {f"audit.{verdict}": float(numbers.get(verdict, 0)) for verdict in ("pass", "warn", "fail")}
    _log_metrics(client, parent, counted)
    client.log_artifact(parent, str(run.folder / "audit.json"))


@contextmanager
def _client(config: Config) -> Iterator[MlflowClient]:
    """A client of the config's tracking store; its failures become one sentence."""
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # read at import; table creation is not news
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # its own 7 take four minutes to say no
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = config.tracking.uri
    if MASK in uri:
        raise ConfigError(
            f"tracking.uri {uri} has lost its secret, which no file keeps: write a reference such as "
            "${MLFLOW_PASSWORD} in place of *** in the config.yaml of the run, and set that variable."
        )
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    try:
        yield MlflowClient(tracking_uri=uri)
    except (MlflowException, OSError) as error:
        reason = redact(" ".join(str(error).split()))[:300]  # before it is cut, so that no part stays
        raise TrackingError(
            f"The tracking store {uri} cannot be used ({reason}); start it or change tracking.uri. "
            "Forecasts and results are kept."
        ) from None


def _experiment(client: MlflowClient, config: Config, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    local = config.tracking.uri.startswith("sqlite:")
    location = Path(config.tracking.artifacts).resolve().as_uri() if local else None
    return str(client.create_experiment(name, artifact_location=location))


def _run_of(client: MlflowClient, experiment: str, run: Run, model: str | None, parent: str | None) -> str:
    """The MLflow run of this Peerglass run (or of one of its models), created once."""
    wanted = f"tags.`{RUN_TAG}` = '{run.run_id}' and tags.`{_MODEL_TAG}` = '{model or '-'}'"
    found = client.search_runs([experiment], wanted, max_results=1)
    if found:
        return str(found[0].info.run_id)
    tags = {RUN_TAG: run.run_id, _MODEL_TAG: model or "-"}
    if parent is not None:
        tags["mlflow.parentRunId"] = parent
    created = client.create_run(experiment, tags=tags, run_name=model or run.run_id)
    return str(created.info.run_id)


def _log_parameters(client: MlflowClient, mlflow_run: str, values: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    known = client.get_run(mlflow_run).data.params
    new = [Param(key, str(value)[:6000]) for key, value in values.items() if key not in known]
    for start in range(0, len(new), 100):
        client.log_batch(mlflow_run, params=new[start : start + 100])


def _log_metrics(client: MlflowClient, mlflow_run: str, values: Mapping[str, float], step: int = 0) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    finite = {
        key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)
    }
    client.log_batch(mlflow_run, metrics=[Metric(key, value, now, step) for key, value in finite.items()])


def _settings(run: Run) -> dict[str, Any]:
    """What forecasts depend on, and where the data came from."""
    forecasting = {} if run.identity is None else run.identity.settings
    return _flatten({**forecasting, "source": run.config.without_secrets()["source"]})


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
