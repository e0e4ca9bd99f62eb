"""Attribution of a run: explain a sample of its test forecasts, and measure how far to trust the result."""

from __future__ import annotations

import time

import numpy as np
import polars as pl

from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.device import resolve_device
from pipelines.explain.games import explain_models, explained_models
from pipelines.explain.network_study import NetworkStudy
from pipelines.explain.network_tables import graphml, network_tables
from pipelines.explain.recovery import planted_edges, recovery_table
from pipelines.explain.tables import explanation_tables, summary_line
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.completeness import require_test
from pipelines.run.provenance import ExplanationMade, environment, record
from pipelines.run.record import Run


def explain(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Explain the models of a run, store the tables in its folder, and return a summary.

    Parameters
    ----------
    run
        The run. The section ``explain`` of its config sets the sample and the number of permutations.
    dataset
        Dataset of the run.
    lake
        Lake of the run; the planted edges of a simulated market are read from it.
    progress
        Reports progress.

    Returns
    -------
    str
        One line per explained model.

    Raises
    ------
    ConfigError
        If the run has no test.
    DataError
        If a checkpoint is missing or corrupted.
    """
    require_test(run.config, run.run_id)
    names = explained_models(run.config)
    folds = plan_folds(dataset, run.config)
    truth = _planted(run, lake)
    started = time.monotonic()
    tables: dict[str, list[pl.DataFrame]] = {}
    summary: list[str] = []
    with progress.stage("explain", total=len(names) * len(folds) * len(run.config.seeds)):
        for explanation in explain_models(run, dataset, folds, names, progress):
            name = explanation.model
            planted_NN, of_model = None, {}
            if explanation.peers:
                study = NetworkStudy.of(
                    name, explanation.peers, explanation.fits, dataset, seed=run.config.explain.seed
                )
                sessions = np.array([part.session for part in explanation.peers])
                planted_NN = None if truth is None else planted_edges(truth, dataset, sessions)
                tests = np.unique(np.concatenate([fold.test for fold in folds]))
                of_model = network_tables(study, tests, planted_NN)
                run.write_text(f"networks/{name}.graphml", graphml(study))
            of_model |= explanation_tables(explanation, dataset, planted_NN)
            if truth is not None and explanation.peers:
                of_model["recovery"] = recovery_table(explanation, truth, dataset)
            for table, frame in of_model.items():
                tables.setdefault(table, []).append(frame)
            summary.append(summary_line(explanation))
    for table, frames in tables.items():
        run.write_table(f"explain_{table}", pl.concat(frames))
    if tables:
        event = ExplanationMade(
            environment=environment(),
            device=resolve_device(run.config.device),
            settings=run.config.explain.model_dump(mode="json"),
            seconds=round(time.monotonic() - started, 1),
        )
        record(run, event)
    return (
        "\n".join(summary)
        or "Nothing to explain: the config has no neural model, or explain.models is empty."
    )


def _planted(run: Run, lake: Lake) -> pl.DataFrame | None:
    """The planted edges of a simulated market; None on real data."""
    if "truth_edges" not in run.versions:
        return None
    return lake.read("truth_edges", version=run.versions["truth_edges"])
