"""Attribution of a run: explain a sample of its test forecasts, and measure how far to trust the result."""

import time

import numpy as np
import polars as pl

from features.arrays import IntArray
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.explain.games import ModelExplanation, explain_models, explained_models, explained_on
from pipelines.explain.network_tables import NetworkStudy
from pipelines.explain.tables import explanation_tables, planted_edges, recovery_table, summary_line
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.completeness import require_test
from pipelines.run.identity import folders_digest
from pipelines.run.provenance import ExplanationMade, TaskDone, environment, read_provenance, record
from pipelines.run.record import RecordedRun


def explain(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Explain the models of a run, store the tables in its folder, and return one line per model."""
    require_test(run.config, run.run_id)
    names = explained_models(run.config)
    folds = plan_folds(dataset, run.config)
    truth = None  # of a simulated market: its planted edges
    if "truth_edges" in run.versions:
        truth = lake.read("truth_edges", version=run.versions["truth_edges"])
    tests = np.unique(np.concatenate([fold.test for fold in folds]))
    started = time.monotonic()
    tables: dict[str, list[pl.DataFrame]] = {}
    summary: list[str] = []
    with progress.stage("explain", total=len(names) * len(folds) * len(run.config.seeds)):
        for explanation in explain_models(run, dataset, folds, names, progress):
            own = _tables_of(explanation, run, dataset, truth, tests)
            for table, frame in own.items():
                tables.setdefault(table, []).append(frame)
            summary.append(summary_line(explanation.model, own))
    for table, frames in tables.items():
        run.write_table(f"explain_{table}", pl.concat(frames, how="diagonal"))
    if tables:
        event = ExplanationMade(
            environment=environment(),
            device=explained_on(run.config, dataset),
            settings=run.config.explain.model_dump(mode="json"),
            seconds=round(time.monotonic() - started, 1),
            explainer=_code(),
            tables=tuple(f"explain_{table}" for table in tables),
            summary=tuple(summary),
        )
        record(run, event)
    return "\n".join(summary) or (
        "Nothing to explain: the config has only baselines, or explain.models is empty."
    )


def _tables_of(
    explanation: ModelExplanation,
    run: RecordedRun,
    dataset: Dataset,
    truth: pl.DataFrame | None,
    tests: IntArray,
) -> dict[str, pl.DataFrame]:
    """All tables of a model, which begin with its name; its network is written as GraphML too."""
    seed, planted_NN = run.config.explain.seed, None
    tables: dict[str, pl.DataFrame] = {}
    if explanation.peers:
        study = NetworkStudy(explanation.model, explanation.peers, explanation.fits, dataset, seed)
        if truth is not None:
            sessions = np.array([part.session for part in explanation.peers])
            planted_NN = planted_edges(truth, dataset, sessions)
            tables["recovery"] = recovery_table(explanation, truth, dataset)
        tables |= study.tables(tests, planted_NN)
        run.write_text(f"networks/{explanation.model}.graphml", study.graphml())
    return tables | explanation_tables(explanation, dataset, planted_NN, seed)


def explain_if_new(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Explain the models of a run, or return the stored lines if `explain` would compute the same again."""
    kept = _current(run, explained_on(run.config, dataset))
    if kept is None:
        return explain(run, dataset, lake, progress)
    progress.note(
        f"The models were explained on {kept.at:%Y-%m-%d} with the same settings and code. "
        f"'peerglass explain {run.run_id}' explains them again."
    )
    return "\n".join(kept.summary)


def explanation_tasks(run: RecordedRun, dataset: Dataset) -> dict[str, int]:
    """Number of tasks that :func:`explain_if_new` would compute, by device."""
    device = explained_on(run.config, dataset)
    if _current(run, device) is not None:
        return {device: 0}
    return {device: len(explained_models(run.config)) * len(plan_folds(dataset, run.config))}


def _current(run: RecordedRun, device: str) -> ExplanationMade | None:
    """The run's explanation if no task has finished since, and all that it depends on is the same."""
    last = next(
        (one for one in reversed(read_provenance(run)) if isinstance(one, ExplanationMade | TaskDone)), None
    )
    if not isinstance(last, ExplanationMade) or not last.tables:
        return None
    now = environment()
    is_same = (
        last.settings == run.config.explain.model_dump(mode="json")
        and last.device == device
        and last.explainer == _code()
        and last.environment.model_copy(update={"commit": now.commit}) == now
        and all((run.folder / "tables" / f"{table}.parquet").is_file() for table in last.tables)
    )
    return last if is_same else None


def _code() -> str:
    """Digest of the code that explains; that of models and features is in the environment."""
    return folders_digest("models/explain", "pipelines/explain")
