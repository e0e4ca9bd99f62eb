"""Fitted models in MLflow's registry: one registered model per config, one version per run and model.

A version's source is the artifact folder with the checkpoints of all folds and seeds of the model
(safetensors and JSON). It is created when all tasks of the model are done. Only its description, its tags and
its aliases change later.

MLflow can load a version: ``mlflow.pyfunc.load_model("models:/NAME@champion")``. Beside the checkpoints there
are an ``MLmodel`` file, the names of the model's inputs, and a zip file with the code of Peerglass. A process
that loads the version needs Peerglass' dependencies and not Peerglass itself. Nothing is pickled. What is
loaded, and its input, is `pipelines.nightly.loaded`.
"""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pipelines
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.files import write_bytes
from pipelines.run.provenance import TrainingStarted, read_provenance
from pipelines.run.record import RecordedRun
from pipelines.tracking.store import VERSIONS_TAG, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_RUN: Final = "peerglass.run_id"
_MODEL: Final = "peerglass.model"


def log_model_versions(
    client: MlflowClient, parent: MlflowRun, run: RecordedRun, descriptions: Mapping[str, str]
) -> None:
    """Register the models of a run that have a description (all tasks are done), or update their texts."""
    if not descriptions:
        return
    name, facts = run.config.name, _facts(run)
    found = client.search_model_versions(f"name = '{name}' and tags.`{_RUN}` = '{run.run_id}'")
    if not found:
        _register(client, name)
    versions = {one.tags.get(_MODEL): one for one in found}
    for model, description in descriptions.items():
        known = versions.get(model)
        if known is None:
            source, parent_id = f"{parent.info.artifact_uri}/checkpoints/{model}", parent.info.run_id
            tags = {_RUN: run.run_id, _MODEL: model, **facts}
            client.create_model_version(name, source, parent_id, tags, description=description)
            continue
        if known.description != description:
            client.update_model_version(name, known.version, description)
        for key, value in facts.items():
            if known.tags.get(key) != value:
                client.set_model_version_tag(name, known.version, key, value)


def set_aliases(config: Config, named: Mapping[str, tuple[str, str] | None]) -> None:
    """Let aliases of a registered model name versions; one without a known version is removed."""
    name = config.name
    with store(config) as client:
        if not client.search_registered_models(f"name = '{name}'", max_results=1):
            return
        current = client.get_registered_model(name).aliases
        for alias, version in named.items():
            found: list[Any] = []
            if version is not None:
                run_id, model = version
                query = f"name = '{name}' and tags.`{_RUN}` = '{run_id}' and tags.`{_MODEL}` = '{model}'"
                found = client.search_model_versions(query, max_results=1)
            if found and current.get(alias) != str(found[0].version):
                client.set_registered_model_alias(name, alias, found[0].version)
            elif not found and alias in current:
                client.delete_registered_model_alias(name, alias)


def find_number(config: Config, number: int) -> tuple[str, str]:
    """Return the run id and the model of a version of a config's registered model."""
    with store(config) as client:
        found = client.search_model_versions(f"name = '{config.name}'")
        by_number = {int(one.version): one for one in found}
        if number not in by_number:
            known = ", ".join(map(str, sorted(by_number))) or "none"
            raise ConfigError(f"The registered model {config.name} has no version {number}; it has {known}.")
        tags = by_number[number].tags
    return tags[_RUN], tags[_MODEL]


def _facts(run: RecordedRun) -> dict[str, str]:
    """Tags that say what a version was made of: features, data versions, audit, and the last session seen."""
    facts = {VERSIONS_TAG: json.dumps(dict(sorted(run.versions.items()))), "audit": audit_verdict(run)}
    if run.identity is not None:
        features = run.identity.settings["features"]
        facts["features"] = json.dumps({key: features[key] for key in ("channels", "characteristics")})
    if run.config.folds.scheme == "live":
        facts["trained_through"] = run.config.folds.through.isoformat()
    return {key: value for key, value in facts.items() if value is not None}


def _register(client: MlflowClient, name: str) -> None:
    """Create the registered model if it does not exist."""
    from mlflow.exceptions import MlflowException

    text = (
        f"Models of the Peerglass config `{name}`. A version is one model of one run: a checkpoint per fold "
        "and seed."
    )
    try:
        client.create_registered_model(name, description=text)
    except MlflowException:
        if not client.search_registered_models(f"name = '{name}'", max_results=1):
            raise  # otherwise it exists


INPUTS: Final = "inputs.json"
"""Names of a version's inputs, beside its checkpoints."""
KEYS: Final = ("date", "ticker", "group", "in_universe")
"""Columns of the input that are not features."""
CHANNEL: Final = "channel."
"""Prefix of the channels among the columns of the input; a characteristic may have the same name."""
CHARACTERISTIC: Final = "characteristic."
"""Prefix of the characteristics."""
_LOADER: Final = "pipelines.nightly.loaded"
_CODE: Final = "code/peerglass.zip"
_PACKAGES: Final = ("features", "models", "backtest", "pipelines")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip file: the same code gives the same bytes


def make_loadable(run: RecordedRun, model: str) -> None:
    """Write what MLflow needs to load a model of a run into the folder of its checkpoints, once.

    The newest fold is loaded: a live run has one, and a walk-forward run is loaded as of its end. The code is
    that of this process, so it is written when the training has just ended.
    """
    folder = run.folder / "checkpoints" / model
    folds = run.read_table("folds")
    if (folder / "MLmodel").is_file() or folds is None or run.identity is None:
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
        for path in sorted(path for name in _PACKAGES for path in (root / name).rglob("*.py")):
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
