"""One line about every run of an output folder, from its small files; no lake and no config is opened."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.errors import DataError
from pipelines.results.comparisons import tradable_delay
from pipelines.results.signal_record import RECORD, MeasuredSignals, find_signals
from pipelines.run.evaluations import Evaluated, StoredEvaluation, list_evaluations
from pipelines.run.identity import Identity
from pipelines.run.locks import holder_of
from pipelines.run.provenance import FILE as PROVENANCE
from pipelines.run.provenance import AuditMade, TrainingStarted, read_provenance
from pipelines.run.record import Run
from pipelines.train.trials import Scope, count_trials

State = Literal["running", "complete", "incomplete", "not trained", "unreadable", "signals"]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder, whose evaluations are read without opening the run."""

    run_id: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Measured:
    """The newest evaluation of a run: figures of the model that leads on validation, or of the first signal.

    ``delay`` is the first that can be traded.
    """

    evaluation: str
    model: str
    delay: int
    ic: float | None
    book: str
    sharpe_net: float | None
    first: dt.date
    last: dt.date


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is known of a run or of a measured signal file without opening it.

    ``started`` is None if it is unreadable (damaged, or of an older version); ``done`` and ``planned`` count
    training tasks; ``holder`` is the process that holds the lock; ``size`` is in bytes.
    """

    run_id: str
    folder: Path
    started: dt.datetime | None
    state: State
    done: int
    planned: int
    holder: str | None
    models: tuple[str, ...]
    evaluations: int
    measured: Measured | None
    size: int


def summarise_runs(output: Path) -> list[RunSummary]:
    """Summarise the runs of an output folder, the one that was started last first."""
    return newest_first(summarise_run(path.parent) for path in output.glob("*/run.json"))


def newest_first(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Sort by the time of the start, the newest first; what is unreadable comes last."""
    oldest = dt.datetime.min.replace(tzinfo=dt.UTC)
    return sorted(runs, key=lambda run: (run.started or oldest, run.run_id), reverse=True)


def summarise_run(folder: Path) -> RunSummary:
    """Summarise the run in a folder. Raises the errors of `summarise_runs`."""
    holder, size = holder_of(folder), size_of(folder)
    try:
        record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        settings = Identity.from_record(record["identity"]).settings
        started = dt.datetime.fromisoformat(record["started_at"])
        models = tuple(settings["models"])
        evaluations = list_evaluations(RunFolder(folder.name, folder))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return RunSummary(folder.name, folder, None, "unreadable", 0, 0, holder, (), 0, None, size)
    done, planned = _tasks(folder)
    state: State = "complete" if planned and done >= planned else "incomplete"
    if holder is not None:
        state = "running"
    elif not planned:
        state = "not trained"
    measured = newest_figures(evaluations[0]) if evaluations else None
    return RunSummary(
        folder.name, folder, started, state, done, planned, holder, models, len(evaluations), measured, size
    )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    return sum(one.lstat().st_size for one in path.rglob("*") if not one.is_dir())


def describe_runs(runs: Iterable[RunSummary]) -> str:
    """Describe runs for a terminal, one line each."""
    rows = [
        (
            "run",
            "started (UTC)",
            "state",
            "MB",
            "tested",
            "leader or first signal",
            "delay",
            "IC",
            "Sharpe net",
        )
    ]
    for run in runs:
        started = "" if run.started is None else f"{run.started.astimezone(dt.UTC):%Y-%m-%d %H:%M}"
        state = (
            f"{run.state} {run.done}/{run.planned}" if run.state in ("incomplete", "running") else run.state
        )
        one = run.measured
        figures = ("", "", "", "", "")
        if one is not None:
            tested = f"{one.first} to {one.last}"
            figures = (tested, one.model, str(one.delay), _number(one.ic, 4), _number(one.sharpe_net, 2))
        rows.append((run.run_id, started, state, f"{run.size / 1e6:,.1f}", *figures))
    if len(rows) == 1:
        return "no runs"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def runs_json(runs: Iterable[RunSummary]) -> str:
    """Write summaries as JSON, with the fields of `RunSummary`."""
    return json.dumps([asdict(run) for run in runs], indent=1, default=str)


def _tasks(folder: Path) -> tuple[int, int]:
    """Tasks that are finished and planned, by the newest training of the run's provenance."""
    done = planned = 0
    path = folder / PROVENANCE
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            event = json.loads(line)
        except ValueError:  # the incomplete last line of a process that was killed
            continue
        if event["event"] == "training started":
            done, planned = int(event["done"]), int(event["planned"])
        elif event["event"] == "task done":
            done += 1
    return done, planned


def newest_figures(evaluation: StoredEvaluation) -> Measured:
    """Return the figures of an evaluation for the model that leads on validation, or the first signal."""
    record, ladder = evaluation.record, evaluation.table("ladder")
    delay = tradable_delay(record.delays)
    at_delay = ladder.filter(pl.col("delay") == delay)
    ranked = at_delay.filter(pl.col("valid_rank_ic").cast(pl.Float64).is_finite()).sort(
        "valid_rank_ic", descending=True
    )
    leader = (ranked if ranked.height else at_delay).row(0, named=True)
    book = next(iter(record.backtest.books))
    return Measured(
        evaluation=record.evaluation,
        model=str(leader["model"]),
        delay=delay,
        ic=leader["ic"],
        book=book,
        sharpe_net=leader[f"{book}.sharpe_net"],
        first=record.first,
        last=record.last,
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:+.{digits}f}"


Details = Mapping[str, Any]


def run_details(run: Run) -> Details:
    """Collect what is recorded of a run.

    The audit is the last verdict and the commit that of the last training.
    """
    assert run.identity is not None, "an opened run has recorded its identity"
    counted = count_trials(run.folder.parent, Scope.of(run.config))
    events = read_provenance(run)
    audits = [event.verdict for event in events if isinstance(event, AuditMade)]
    commits = [event.environment.commit for event in events if isinstance(event, TrainingStarted)]
    folds = run.read_table("folds")
    segments = [f"{name}_{end}" for name in ("train", "valid", "test") for end in ("from", "to")]
    return {
        "summary": asdict(summarise_run(run.folder)),
        "identity": {
            "lake": run.identity.lake,
            "device": run.identity.device,
            "code": run.identity.code,
            "libraries": dict(run.identity.libraries),
        },
        "tables": dict(run.versions),
        "folds": [] if folds is None else folds.select("fold", *segments).to_dicts(),
        "evaluations": evaluation_rows(run),
        "trials": {
            "of_this_run": counted.rows.filter(pl.col("runs").list.contains(run.run_id)).height,
            "in_ledger": counted.trials,
        },
        "audit": audits[-1] if audits else None,
        "commit": commits[-1] if commits else None,
        "files": {path.name: size_of(path) for path in sorted(run.folder.iterdir())},
    }


def evaluation_rows(run: Evaluated) -> list[dict[str, Any]]:
    """Id, time, delays and assumptions of the evaluations in a folder, newest first."""
    return [
        {
            "evaluation": one.record.evaluation,
            "made": one.record.made_at,
            "delays": list(one.record.delays),
            "assumptions": one.record.assumptions,
            "incomplete": one.record.incomplete,
        }
        for one in list_evaluations(run)
    ]


def describe_details(details: Details) -> str:
    """Describe a run for a terminal."""
    summary, identity, trials = details["summary"], details["identity"], details["trials"]
    state = f"{summary['state']}, {summary['done']} of {summary['planned']} tasks"
    lines = [
        f"run {summary['run_id']}",
        f"  folder    {Path(summary['folder']).absolute()}  ({megabytes(summary['size'])} MB)",
        f"  started   {summary['started']:%Y-%m-%d %H:%M:%S} UTC; {state}",
        f"  models    {', '.join(summary['models'])}",
        f"  lake      {identity['lake']}",
        f"  versions  {', '.join(f'{table} {version}' for table, version in details['tables'].items())}",
        f"  code      {identity['code']}, commit {details['commit'] or 'unknown'}, on {identity['device']}",
        f"  audit     {details['audit'] or 'none'}",
        f"  trials    {trials['of_this_run']} of this run; {trials['in_ledger']} count with others",
    ]
    if summary["holder"] is not None:
        lines.insert(3, f"  locked    by {summary['holder']}")
    for fold in details["folds"]:
        spans = "  ".join(
            f"{one} {fold[f'{one}_from']} to {fold[f'{one}_to']}" if fold[f"{one}_from"] else f"no {one}"
            for one in ("train", "valid", "test")
        )
        lines.append(f"  fold {fold['fold']:<4} {spans}")
    return "\n".join([*lines, *content_lines(details)])


def content_lines(details: Details) -> list[str]:
    """Describe the evaluations of a folder and its entries of at least 50 kB, one line each."""
    return [
        *(
            f"  evaluation {one['evaluation']}  {one['made']:%Y-%m-%d %H:%M}  {one['assumptions']}"
            for one in details["evaluations"]
        ),
        *(f"  {megabytes(size):>8} MB  {name}" for name, size in details["files"].items() if size >= 50_000),
    ]


def details_json(details: Details) -> str:
    """Write details as JSON."""
    return json.dumps(details, indent=1, default=str)


def megabytes(size: int) -> str:
    """Write bytes as megabytes with one decimal."""
    return f"{size / 1e6:,.1f}"


def summarise_signals(output: Path) -> list[RunSummary]:
    """Summarise the measured signal files of an output folder, in the order of their names.

    Their state is ``signals``, their models are the signals, and they have no training tasks.
    """
    return [_summarise_folder(path.parent) for path in sorted(output.glob(f"*/{RECORD}"))]


def signal_details(measured: MeasuredSignals) -> Details:
    """Collect what is recorded of a measured signal file."""
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
