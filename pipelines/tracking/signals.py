"""Log the signals of a file in the tracking store: one run each in the experiment ``NAME-signals``.

Their metrics have the names of those of a model (`pipelines.tracking.figures`), so that both can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.run.evaluations import Evaluated, StoredEvaluation
from pipelines.tracking import figures, store
from pipelines.tracking.runs import digest_of, log_inputs, run_parameters, table_dataset

if TYPE_CHECKING:
    from mlflow.entities import Dataset

_FILES = ("config.yaml", "report.html", "signals.json")
_SECTIONS = ("source.", "quality.", "universe.", "label.")  # settings that the measurement of a signal reads


class MeasuredFile(Protocol):
    """What is recorded of the signals of a file."""

    @property
    def file(self) -> str:
        """Path of the file."""

    @property
    def rows(self) -> int:
        """Number of its rows."""

    @property
    def signals(self) -> Mapping[str, str]:
        """Signal -> digest of its values."""

    @property
    def tables(self) -> Mapping[str, tuple[int, int]]:
        """Lake table -> version and rows."""


class FileEvaluated(Evaluated, Protocol):
    """Measured signals: their folder, their config, and what is recorded of them."""

    @property
    def config(self) -> Config:
        """Config of the last measurement."""

    @property
    def record(self) -> Any:  # noqa: ANN401 (a `MeasuredFile`, which a pydantic model is by its fields)
        """Record of the file."""


def log_signals(measured: FileEvaluated, evaluation: StoredEvaluation) -> None:
    """Log an evaluation of signals; logging it again changes nothing."""
    config, record = measured.config, measured.record
    guard, cutoffs = evaluation.table("guard"), evaluation.read_table("cutoffs")
    files: dict[str, Path | bytes] = {
        name: measured.folder / name for name in _FILES if (measured.folder / name).is_file()
    }
    parameters = {name: value for name, value in run_parameters(config).items() if name.startswith(_SECTIONS)}
    with store.open_store(config) as client:
        name = f"{config.tracking.experiment or config.name}-signals"
        experiment = store.experiment_of(client, config, name)
        found = client.search_runs([experiment], f"tags.`{store.RUN_TAG}` = '{measured.run_id}'")
        known = {one.data.tags[store.MODEL_TAG]: one for one in reversed(found)}
        inputs = _inputs(config, record)
        for signal in evaluation.table("ladder")["model"].unique(maintain_order=True):
            tags = {store.RUN_TAG: measured.run_id, store.MODEL_TAG: signal}
            one = known.get(signal) or client.create_run(
                experiment, tags=tags | store.who_and_what(), run_name=signal
            )
            numbers, of_signal = figures.test_metrics(evaluation, signal), pl.col("signal") == signal
            own = guard.filter(of_signal)
            tables = {"guard.json": figures.as_json(own)}
            if cutoffs is not None:
                tables["cutoffs.json"] = figures.as_json(cutoffs.filter(of_signal))
            said = (
                f"Signal `{signal}` of `{record.file}` ({record.rows:,} rows). "
                f"{figures.describe_result(evaluation, numbers)}"
            )
            verdicts = [verdict for verdict in ("fail", "warn", "pass") if (own["verdict"] == verdict).any()]
            tags = {
                "evaluation": evaluation.record.evaluation,
                "evaluation_assumptions": evaluation.record.assumptions,
                "trials": str(evaluation.record.trials),
                "guard": verdicts[0] if verdicts else "skipped",
                store.NOTE_TAG: said,
                store.TABLES_TAG: json.dumps([{"path": place, "type": "table"} for place in tables]),
            }
            store.log(
                client,
                one,
                parameters={"file": record.file, "signal": record.signals[signal], **parameters},
                tags=tags | store.commit_tags(evaluation.record.commit),
                metrics={0: numbers},
            )
            of_file = (Path(record.file).name, record.signals[signal])
            log_inputs(client, one, {of_file: partial(_file, record, signal), **inputs}, "backtest")
            store.log_artifacts(client, one.info.run_id, {**files, **tables})
            store.end_run(client, one, None)


def _inputs(config: Config, record: MeasuredFile) -> dict[tuple[str, str], Callable[[], Dataset]]:
    """The lake's tables that the signals were measured on, the prices first."""
    versions = {table: version for table, (version, _) in record.tables.items()}
    tables = open_lake(config).with_table_ids(versions)
    ordered = sorted(tables.items(), key=lambda one: (one[0] != "prices", one[0]))
    return {(table, digest_of(at)): cache(partial(table_dataset, config, table, at)) for table, at in ordered}


def _file(record: MeasuredFile, signal: str) -> Dataset:
    """The signal's file as a dataset, with the digest of the signal's values."""
    from mlflow.entities import Dataset

    source, profile = json.dumps({"uri": record.file}), json.dumps({"num_rows": record.rows})
    return Dataset(Path(record.file).name, record.signals[signal], "local", source, profile=profile)
