"""`peerglass backtest FILE`: measure a user's signals, guard them against look-ahead, write a tear sheet.

The file is looked at before anything else, because most mistakes are in it. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import AuditError, ConfigError, DataError, TrackingError
from pipelines.progress import Progress

if TYPE_CHECKING:
    from pipelines.results.evaluate_signals import PreparedSignals
    from pipelines.results.signal_file import MeasuredSignals
    from pipelines.run.evaluations import StoredEvaluation

_SUFFIXES = (".csv", ".parquet", ".pq", ".txt", ".tsv", ".xlsx", ".xls", ".zip", ".gz")
_LOGGED = ("config.yaml", "report.html", "signals.json")
_SETTINGS = ("source.", "quality.", "universe.", "label.")  # those that the measurement of a signal reads


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """The options of ``peerglass backtest``."""

    overrides: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()  # columns of a file; empty for all
    as_of: str | None = None
    wait: bool = False
    as_json: bool = False
    force: bool = False  # passes a signal that fails the look-ahead guard
    sweep: str = ""  # grid of a sweep
    book: str | None = None  # that is swept; None for the first


def is_signal_file(target: str) -> bool:
    """Whether a target of ``peerglass backtest`` names a file rather than a run."""
    path = Path(target)
    return path.is_file() or path.suffix.lower() in _SUFFIXES


def file_of(name: str, output: Path) -> tuple[str, Path] | None:
    """Return file and config of signals that were measured before; None if the name is not theirs."""
    from pipelines.results.signal_file import find_signals

    measured = find_signals(name, output)
    if measured is None:
        return None
    if not Path(measured.record.file).is_file():
        raise DataError(
            f"{measured.run_id} was measured from {measured.record.file}, which is not there: run the "
            "command in the folder where it was measured, or measure the file under its new path."
        )
    return measured.record.file, measured.folder / "config.yaml"


def measure_file(
    target: str, config: Path | None, options: MeasureOptions, echo: Callable[[str], None]
) -> None:
    """Measure the signals of a file, print the summary, and log them."""
    progress, untracked = Progress(), None
    with prepared_file(target, config, options, progress) as prepared:
        from pipelines.results.evaluate_signals import measure_signals

        measured, evaluation = prepared.measured, measure_signals(prepared, progress)
        report = write_signal_report(measured, evaluation, progress)
        echo(describe_result(measured, evaluation, report, as_json=options.as_json))
        try:
            with progress.stage("track"):
                _log_signals(measured, evaluation)
        except TrackingError as error:  # less serious than a look-ahead, which ends the block
            untracked = error
    if untracked is not None:
        raise untracked


def _log_signals(measured: MeasuredSignals, evaluation: StoredEvaluation) -> None:
    """Log every signal as a run of the experiment ``NAME-signals``; doing it again changes nothing.

    The metrics have the names of those of a model (`pipelines.tracking.figures`), so both can be compared.
    """
    import polars as pl

    from pipelines.dataset.tables import open_lake
    from pipelines.tracking import figures, store
    from pipelines.tracking.runs import file_dataset, lake_datasets, log_inputs, run_parameters

    config, record = measured.config, measured.record
    guard, cutoffs = evaluation.table("guard"), evaluation.read_table("cutoffs")
    files = {name: measured.folder / name for name in _LOGGED if (measured.folder / name).is_file()}
    parameters = {name: value for name, value in run_parameters(config).items() if name.startswith(_SETTINGS)}
    versions = {table: version for table, (version, _) in record.tables.items()}
    datasets = lake_datasets(config, open_lake(config).with_table_ids(versions))
    with store.open_store(config) as client:
        experiment = store.experiment_of(client, config, "-signals")
        known = store.runs_by_model(client, experiment, measured.run_id)
        for signal in evaluation.table("ladder")["model"].unique(maintain_order=True):
            tags = {store.RUN_TAG: measured.run_id, store.MODEL_TAG: signal}
            one = known.get(signal) or client.create_run(
                experiment, tags=tags | store.who_and_what(), run_name=signal
            )
            numbers, of_signal = figures.test_metrics(evaluation, signal), pl.col("signal") == signal
            own = {"guard.json": guard.filter(of_signal)}
            if cutoffs is not None:
                own["cutoffs.json"] = cutoffs.filter(of_signal)
            tables, shown = figures.shown_tables(own)
            judged = set(own["guard.json"]["verdict"])
            said = f"Signal `{signal}` of `{record.file}` ({record.rows:,} rows)."
            tags = {
                "evaluation": evaluation.record.evaluation,
                "evaluation_assumptions": evaluation.record.assumptions,
                "trials": str(evaluation.record.trials),
                "guard": next((one for one in ("fail", "warn", "pass") if one in judged), "skipped"),
                store.NOTE_TAG: f"{said} {figures.describe_result(evaluation, numbers)}",
            }
            store.log(
                client,
                one,
                parameters={"file": record.file, "signal": record.signals[signal], **parameters},
                tags=tags | shown | store.commit_tags(evaluation.record.commit),
                metrics={0: store.with_gone(numbers, one)},
            )
            of_file = file_dataset(record.file, record.signals[signal], record.rows)
            log_inputs(client, one, of_file | datasets, "backtest")
            store.log_artifacts(client, one.info.run_id, {**files, **tables})
            store.end_run(client, one, None)


@contextmanager
def prepared_file(
    target: str, config: Path | None, options: MeasureOptions, progress: Progress
) -> Iterator[PreparedSignals]:
    """Read the signals of a file, place them on the market, and lock their folder inside the ``with`` block.

    A signal that fails the look-ahead guard is an error at the end of the block, when its results are stored
    and printed.
    """
    from pipelines.results.signal_file import find_columns

    path = Path(target)
    columns = find_columns(path, options.signals)
    if config is None:
        raise ConfigError(f"{target} is a file; add --config CONFIG with the lake, label and costs to use.")
    from pipelines.config.load import load_config

    settings = load_config(config, options.overrides, models=False)
    from pipelines.results.evaluate_signals import failed, lake_market, prepare_signals
    from pipelines.results.signal_file import read_signals
    from pipelines.run.locks import Locks

    with Locks(wait=options.wait, notify=progress.note) as locks:
        with progress.stage("signals"):
            table = read_signals(path, columns)
        prepared = prepare_signals(
            table, settings, lambda config: lake_market(config, progress, options.as_of), locks
        )
        yield prepared
    bad = failed(prepared.guard)
    if bad and not options.force:
        raise AuditError(
            f"look-ahead was found in {', '.join(bad)}; correct the signal, or add --force if there is an "
            "honest explanation."
        )


def write_signal_report(measured: MeasuredSignals, evaluation: StoredEvaluation, progress: Progress) -> Path:
    """Write the tear sheet of measured signals and return its path."""
    from pipelines.pages.report import render_report
    from pipelines.pages.report_data import signal_report

    with progress.stage("report"):
        return measured.write_report(render_report(signal_report(measured, evaluation)))


def report_signals(
    name: str, output: Path, evaluation_id: str | None, progress: Progress, *, wait: bool
) -> Path | None:
    """Write the tear sheet of signals that were measured before; None if the name is not theirs."""
    from pipelines.results.recount import recount
    from pipelines.results.signal_file import find_signals
    from pipelines.run.evaluations import find_evaluation, newest_evaluation
    from pipelines.run.locks import Locks

    measured = find_signals(name, output)
    if measured is None:
        return None
    with Locks(wait=wait, notify=progress.note) as locks:
        locks.lock_run(measured.folder)
        evaluation = newest_evaluation(measured)
        if evaluation_id is not None:
            evaluation = find_evaluation(measured, evaluation_id)
        if evaluation is None:
            raise DataError(
                f"{measured.folder} has no evaluation; measure {measured.record.file} again with "
                "'peerglass backtest FILE --config CONFIG'."
            )
        return write_signal_report(measured, recount(measured, evaluation), progress)


def describe_result(
    measured: MeasuredSignals, evaluation: StoredEvaluation, report: Path, *, as_json: bool
) -> str:
    """Return the summary or the JSON document of measured signals."""
    from pipelines.pages.describe import describe_signals, document
    from pipelines.pages.report_data import signal_report
    from pipelines.pages.verdict import judge_report

    verdict = judge_report(signal_report(measured, evaluation))
    if as_json:
        paths = {"folder": measured.folder, "report": report, "tables": evaluation.folder}
        return document(measured.run_id, evaluation, verdict.as_dict(), paths)
    summary = describe_signals(evaluation, evaluation.record.apply_to(measured.config))
    last = f"{measured.run_id}, evaluation {evaluation.record.evaluation}"
    return "\n".join((*measured.record.notes, summary, "", verdict.headline, last, str(report)))
