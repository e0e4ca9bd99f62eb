"""Fitted models in MLflow's registry: one registered model per config, one version per run and model.

A version's source is the artifact folder with the checkpoints of all folds and seeds of the model
(safetensors and JSON). It is created when all tasks of the model are done. Only its description changes
later, when the run is measured again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.run.record import Run

if TYPE_CHECKING:
    from mlflow import MlflowClient

_RUN, _MODEL = "peerglass.run_id", "peerglass.model"


def log_model_version(client: MlflowClient, parent: str, run: Run, model: str, description: str) -> None:
    """Register a model of a run whose tasks are all done, or update the description of its version.

    Parameters
    ----------
    client
        Client of the store.
    parent
        MLflow run that holds the checkpoints as artifacts.
    run
        The run; its config's name is that of the registered model.
    model
        Entry of the config's ``models``.
    description
        Text of the version's page.
    """
    name = run.config.name
    _register(client, name)
    query = f"name = '{name}' and tags.`{_RUN}` = '{run.run_id}' and tags.`{_MODEL}` = '{model}'"
    known = client.search_model_versions(query, max_results=1)
    if known:
        if known[0].description != description:
            client.update_model_version(name, known[0].version, description)
        return
    artifacts = client.get_run(parent).info.artifact_uri
    client.create_model_version(
        name,
        source=f"{artifacts}/checkpoints/{model}",
        run_id=parent,
        tags={_RUN: run.run_id, _MODEL: model},
        description=description,
    )


def _register(client: MlflowClient, name: str) -> None:
    """Create the registered model if it does not exist."""
    from mlflow.exceptions import MlflowException

    if client.search_registered_models(f"name = '{name}'", max_results=1):
        return
    text = (
        f"Models of the Peerglass config `{name}`. A version is one model of one run, fitted walk-forward: a "
        "checkpoint per fold and seed."
    )
    try:
        client.create_registered_model(name, description=text)
    except MlflowException:
        if not client.search_registered_models(f"name = '{name}'", max_results=1):
            raise  # otherwise another process has created it a moment ago
