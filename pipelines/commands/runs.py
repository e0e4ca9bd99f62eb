"""One line about every run of an output folder, from its small files; no lake and no config is opened."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.columns import of_book
from pipelines.errors import DataError
from pipelines.files import read_json
from pipelines.format import IC, RATIO, text_table
from pipelines.results.comparisons import leader, tradable_delay
from pipelines.results.signal_file import RECORD, MeasuredSignals, find_signals
from pipelines.run.evaluations import StoredEvaluation, list_evaluations
from pipelines.run.identity import Identity
from pipelines.run.locks import holder_of
from pipelines.run.provenance import FILE as PROVENANCE
from pipelines.run.provenance import AuditMade, TrainingStarted, read_provenance
from pipelines.run.record import RecordedRun
from pipelines.train.trials import Scope, count_trials

State = Literal["running", "complete", "incomplete", "not trained", "unreadable", "signals"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of the newest evaluation: of the model that leads on validation, or of the first signal."""

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
    started: dt.datetime | None = None
    state: State = "unreadable"
    done: int = 0
    planned: int = 0
    holder: str | None = None
    models: tuple[str, ...] = ()
    evaluations: int = 0
    measured: Measured | None = None
    size: int = 0


def summarise_runs(output: Path) -> list[RunSummary]:
    """Summarise the runs and measured signal files of a folder, the newest first, what is unreadable last."""
    oldest = dt.datetime.min.replace(tzinfo=dt.UTC)
    runs = [summarise(path.parent) for name in ("run.json", RECORD) for path in output.glob(f"*/{name}")]
    return sorted(runs, key=lambda run: (run.started or oldest, run.run_id), reverse=True)


def summarise(folder: Path) -> RunSummary:
    """Summarise the run, or the measured signals, in a folder."""
    known = RunSummary(folder.name, folder, holder=holder_of(folder), size=size_of(folder))
    try:
        read = _read_signals(known) if (folder / RECORD).is_file() else _read_run(known)
        evaluations = list_evaluations(known)
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return known
    measured = _newest_figures(evaluations[0]) if evaluations else None
    return replace(read, evaluations=len(evaluations), measured=measured)


def _read_run(known: RunSummary) -> RunSummary:
    record = read_json(known.folder / "run.json")
    models = tuple(Identity.from_record(record["identity"]).settings["models"])
    done, planned = _tasks(known.folder)
    state: State = "complete" if done >= planned else "incomplete"
    state = "running" if known.holder is not None else state if planned else "not trained"
    started = dt.datetime.fromisoformat(record["started_at"])
    return replace(known, started=started, state=state, done=done, planned=planned, models=models)


def _read_signals(known: RunSummary) -> RunSummary:
    measured = find_signals(str(known.folder), known.folder.parent)
    assert measured is not None, "the folder has a record"
    record = measured.record
    return replace(known, started=record.made_at, state="signals", models=tuple(record.signals))


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    return sum(one.lstat().st_size for one in path.rglob("*") if not one.is_dir())


_HEADS = (
    *("run", "started (UTC)", "state", "MB"),
    *("tested", "leader or first signal", "delay", "IC", "Sharpe net"),
)


def describe_runs(runs: Sequence[RunSummary]) -> str:
    """Describe runs for a terminal, one line each."""
    rows = []
    for run in runs:
        started = "" if run.started is None else f"{run.started.astimezone(dt.UTC):%Y-%m-%d %H:%M}"
        tasks = f" {run.done}/{run.planned}" if run.state in ("incomplete", "running") else ""
        figures, one = ("",) * 5, run.measured
        if one is not None:
            numbers = (IC.with_sign.text(one.ic, ""), RATIO.with_sign.text(one.sharpe_net, ""))
            figures = (f"{one.first} to {one.last}", one.model, str(one.delay), *numbers)
        rows.append((run.run_id, started, f"{run.state}{tasks}", megabytes(run.size), *figures))
    return "\n".join(text_table(rows, _HEADS, left=len(_HEADS), indent="")) if rows else "no runs"


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


def _newest_figures(evaluation: StoredEvaluation) -> Measured:
    """Return the figures of an evaluation for the model that leads on validation, or the first signal."""
    record, delay = evaluation.record, tradable_delay(evaluation.record.delays)
    row = leader(evaluation.table("ladder").filter(pl.col("delay") == delay))
    book = next(iter(record.backtest.books))
    return Measured(
        evaluation=record.evaluation,
        model=str(row["model"]),
        delay=delay,
        ic=row["ic"],
        book=book,
        sharpe_net=row[of_book(book, "sharpe_net")],
        first=record.first,
        last=record.last,
    )


Details = Mapping[str, Any]
_SEGMENTS = ("train", "valid", "test")


def collect_details(owner: RecordedRun | MeasuredSignals) -> Details:
    """Collect what is recorded of a run (last audit, commit of the last training) or of a signal file."""
    counted = count_trials(owner.folder.parent, Scope.of(owner.config))
    own = (
        _of_run(owner) if isinstance(owner, RecordedRun) else {"record": owner.record.model_dump(mode="json")}
    )
    what = "run" if isinstance(owner, RecordedRun) else "file"
    evaluations = [
        {
            "evaluation": one.evaluation,
            "made": one.made_at,
            "delays": list(one.delays),
            "assumptions": one.assumptions,
            "incomplete": one.incomplete,
        }
        for one in (evaluation.record for evaluation in list_evaluations(owner))
    ]
    of_owner = sum(owner.run_id in runs for runs in counted.rows["runs"])
    return {
        "summary": asdict(summarise(owner.folder)),
        **own,
        "evaluations": evaluations,
        "trials": {f"of_this_{what}": of_owner, "in_ledger": counted.trials},
        "files": {path.name: size_of(path) for path in sorted(owner.folder.iterdir())},
    }


def _of_run(run: RecordedRun) -> dict[str, Any]:
    identity, folds = run.identity, run.read_table("folds")
    assert identity is not None, "an opened run has recorded its identity"
    events = read_provenance(run)
    audits = [event.verdict for event in events if isinstance(event, AuditMade)]
    commits = [event.environment.commit for event in events if isinstance(event, TrainingStarted)]
    spans = [f"{name}_{end}" for name in _SEGMENTS for end in ("from", "to")]
    libraries = dict(identity.libraries)
    named = {"lake": identity.lake, "device": identity.device, "code": identity.code, "libraries": libraries}
    return {
        "identity": named,
        "tables": dict(run.versions),
        "folds": [] if folds is None else folds.select("fold", *spans).to_dicts(),
        "audit": audits[-1] if audits else None,
        "commit": commits[-1] if commits else None,
    }


def describe_details(details: Details) -> str:
    """Describe a run or a measured signal file for a terminal; its entries have at least 50 kB."""
    summary, trials, record = details["summary"], details["trials"], details.get("record")
    started, names = f"{summary['started']:%Y-%m-%d %H:%M:%S} UTC", ", ".join(summary["models"])
    facts = {"folder": f"{Path(summary['folder']).absolute()}  ({megabytes(summary['size'])} MB)"}
    facts |= {} if summary["holder"] is None else {"locked": f"by {summary['holder']}"}
    if record is None:
        kind, what, identity, versions = "run", "run", details["identity"], details["tables"]
        facts |= {
            "started": f"{started}; {summary['state']}, {summary['done']} of {summary['planned']} tasks",
            "models": names,
            "lake": identity["lake"],
            "versions": ", ".join(f"{table} {version}" for table, version in versions.items()),
            "code": f"{identity['code']}, commit {details['commit'] or 'unknown'}, on {identity['device']}",
            "audit": details["audit"] or "none",
        }
    else:
        kind, what = "signals", "file"
        facts |= {
            "measured": started,
            "file": f"{record['file']}, {record['rows']:,} rows",
            "signals": names,
            "lake": record["lake"],
            "versions": ", ".join(f"{table} {version}" for table, (version, _) in record["tables"].items()),
            "code": f"commit {record['commit']}",
        }
    facts["trials"] = f"{trials[f'of_this_{what}']} of this {what}; {trials['in_ledger']} count with others"
    lines = [f"{kind} {summary['run_id']}", *text_table(facts.items(), left=2)]
    for fold in details.get("folds", ()):
        spans = (
            f"{one} {fold[f'{one}_from']} to {fold[f'{one}_to']}" if fold[f"{one}_from"] else f"no {one}"
            for one in _SEGMENTS
        )
        lines.append(f"  fold {fold['fold']:<4} {'  '.join(spans)}")
    lines += (
        f"  evaluation {one['evaluation']}  {one['made']:%Y-%m-%d %H:%M}  {one['assumptions']}"
        for one in details["evaluations"]
    )
    lines += (f"  {megabytes(n):>8} MB  {name}" for name, n in details["files"].items() if n >= 50_000)
    return "\n".join(lines)


def megabytes(size: int) -> str:
    """Write bytes as megabytes with one decimal."""
    return f"{size / 1e6:,.1f}"
