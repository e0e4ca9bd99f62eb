"""Fitted models in MLflow's registry: one registered model per config, one version per run and model.

A version's source is the artifact folder with the checkpoints of all folds and seeds of the model
(safetensors and JSON), which MLflow can load (`pipelines.tracking.loadable`). It is created when all tasks of
the model are done. Only its description, its tags and its aliases change later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.run.record import Run
from pipelines.tracking.store import VERSIONS_TAG, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

_RUN: Final = "peerglass.run_id"
_MODEL: Final = "peerglass.model"


def log_model_versions(
    client: MlflowClient, parent: MlflowRun, run: Run, descriptions: Mapping[str, str]
) -> None:
    """Register the models of a run whose tasks are all done, or update the texts of their versions.

    Parameters
    ----------
    client
        Client of the store.
    parent
        MLflow run that holds the checkpoints as artifacts.
    run
        The run; its config's name is that of the registered model.
    descriptions
        Entry of the config's ``models`` -> text of its version's page.
    """
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
            client.create_model_version(
                name,
                source=f"{parent.info.artifact_uri}/checkpoints/{model}",
                run_id=parent.info.run_id,
                tags={_RUN: run.run_id, _MODEL: model, **facts},
                description=description,
            )
            continue
        if known.description != description:
            client.update_model_version(name, known.version, description)
        for key, value in facts.items():
            if known.tags.get(key) != value:
                client.set_model_version_tag(name, known.version, key, value)


def set_aliases(config: Config, named: Mapping[str, tuple[str, str] | None]) -> None:
    """Let aliases of a config's registered model name versions; other aliases stay as they are.

    Parameters
    ----------
    config
        Names the store and the registered model.
    named
        Alias -> run id and model of its version. The alias is removed if there is none, or if the store does
        not have the version.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached.
    """
    name = config.name
    with store(config) as client:
        if not client.search_registered_models(f"name = '{name}'", max_results=1):
            return
        current = client.get_registered_model(name).aliases
        for alias, version in named.items():
            found = None if version is None else _find(client, name, *version)
            if found is None:
                if alias in current:
                    client.delete_registered_model_alias(name, alias)
            elif current.get(alias) != str(found.version):
                client.set_registered_model_alias(name, alias, found.version)


def find_number(config: Config, number: int) -> tuple[str, str]:
    """Return the run id and the model of a version of a config's registered model.

    Raises
    ------
    ConfigError
        If there is no such version.
    TrackingError
        If the tracking store cannot be reached.
    """
    with store(config) as client:
        found = client.search_model_versions(f"name = '{config.name}'")
        by_number = {int(one.version): one for one in found}
        if number not in by_number:
            known = ", ".join(map(str, sorted(by_number))) or "none"
            raise ConfigError(f"The registered model {config.name} has no version {number}; it has {known}.")
        tags = by_number[number].tags
    return tags[_RUN], tags[_MODEL]


def _facts(run: Run) -> dict[str, str]:
    """Tags that say what a version was made of: features, data versions, audit, and the last session seen."""
    facts = {VERSIONS_TAG: json.dumps(dict(sorted(run.versions.items())))}
    if run.identity is not None:
        features = run.identity.settings["features"]
        facts["features"] = json.dumps({key: features[key] for key in ("channels", "characteristics")})
    audit = run.read_table("audit")
    if audit is not None:
        present = set(audit["verdict"])
        facts["audit"] = next((one for one in ("fail", "warn", "pass") if one in present), "skipped")
    if run.config.folds.scheme == "live":
        facts["trained_through"] = run.config.folds.through.isoformat()
    return facts


def _find(client: MlflowClient, name: str, run_id: str, model: str) -> ModelVersion | None:
    query = f"name = '{name}' and tags.`{_RUN}` = '{run_id}' and tags.`{_MODEL}` = '{model}'"
    found = client.search_model_versions(query, max_results=1)
    return found[0] if found else None


def _register(client: MlflowClient, name: str) -> None:
    """Create the registered model if it does not exist."""
    from mlflow.exceptions import MlflowException

    if client.search_registered_models(f"name = '{name}'", max_results=1):
        return
    text = (
        f"Models of the Peerglass config `{name}`. A version is one model of one run: a checkpoint per fold "
        "and seed."
    )
    try:
        client.create_registered_model(name, description=text)
    except MlflowException:
        if not client.search_registered_models(f"name = '{name}'", max_results=1):
            raise  # otherwise another process has created it a moment ago
