"""Measured signal files beside the runs of an output folder: a line of the list, and everything about one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipelines.errors import DataError
from pipelines.inventory.details import Details, content_lines, evaluation_rows, megabytes
from pipelines.inventory.summaries import RunSummary, newest_figures, size_of
from pipelines.results.signal_record import RECORD, MeasuredSignals, find_signals
from pipelines.run.evaluations import list_evaluations
from pipelines.run.locks import holder_of
from pipelines.train.trials import Scope, count_trials


def summarise_signals(output: Path) -> list[RunSummary]:
    """Summarise the measured signal files of an output folder, in the order of their names.

    Their state is ``signals``, their models are the signals, and they have no training tasks.
    """
    return [_summarise_folder(path.parent) for path in sorted(output.glob(f"*/{RECORD}"))]


def signal_details(measured: MeasuredSignals) -> Details:
    """Collect what is recorded of a measured signal file.

    Returns
    -------
    mapping
        ``summary`` (`pipelines.inventory.summaries.RunSummary`), ``record``
        (`pipelines.results.signal_record.SignalRecord`), ``evaluations`` (newest first), ``trials`` (of this
        file, and all that count against it), ``files`` (entry of the folder -> bytes).
    """
    counted = count_trials(measured.folder.parent, Scope.of(measured.config))
    return {
        "summary": asdict(_summarise(measured)),
        "record": measured.record.model_dump(mode="json"),
        "evaluations": evaluation_rows(measured),
        "trials": {
            "of_this_file": sum(measured.run_id in runs for runs in counted.rows["runs"]),
            "in_ledger": counted.trials,
        },
        "files": {path.name: size_of(path) for path in sorted(measured.folder.iterdir())},
    }


def describe_signal_details(details: Details) -> str:
    """Describe a measured signal file for a terminal."""
    summary, record, trials = details["summary"], details["record"], details["trials"]
    tables = ", ".join(f"{table} {version}" for table, (version, _) in record["tables"].items())
    lines = [
        f"signals {summary['run_id']}",
        f"  folder    {Path(summary['folder']).absolute()}  ({megabytes(summary['size'])} MB)",
        f"  measured  {summary['started']:%Y-%m-%d %H:%M:%S} UTC",
        f"  file      {record['file']}, {record['rows']:,} rows",
        f"  signals   {', '.join(summary['models'])}",
        f"  lake      {record['lake']}",
        f"  versions  {tables}",
        f"  code      commit {record['commit']}",
        f"  trials    {trials['of_this_file']} of this file; {trials['in_ledger']} count with others",
    ]
    return "\n".join([*lines, *content_lines(details)])


def _summarise_folder(folder: Path) -> RunSummary:
    try:
        measured = find_signals(str(folder), folder.parent)
        assert measured is not None, "the folder has a record"
        return _summarise(measured)
    except DataError:
        holder, size = holder_of(folder), size_of(folder)
        return RunSummary(folder.name, folder, None, "unreadable", 0, 0, holder, (), 0, None, size)


def _summarise(measured: MeasuredSignals) -> RunSummary:
    folder, evaluations = measured.folder, list_evaluations(measured)
    return RunSummary(
        run_id=measured.run_id,
        folder=folder,
        started=measured.record.made_at,
        state="signals",
        done=0,
        planned=0,
        holder=holder_of(folder),
        models=tuple(measured.record.signals),
        evaluations=len(evaluations),
        measured=newest_figures(evaluations[0]) if evaluations else None,
        size=size_of(folder),
    )
