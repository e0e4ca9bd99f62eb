"""The lake's tables as datasets of MLflow runs: one per table that a run read, with its Delta version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pipelines.lake.options import canonical_location
from pipelines.run.record import Run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

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
