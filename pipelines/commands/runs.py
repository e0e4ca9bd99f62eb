"""``peerglass runs``: what is known of the runs of an output folder, and removing what is no longer needed.

A run is summarised from its small files; no lake and no config is opened. What interrupted writes have left,
snapshots of ended trainings and replaced evaluations can always go. Whole runs and signal files go by name,
age or number, never while another run starts from them or a night refers to them.

The trial ledger stays, and with it the number of trials. Forecasts stay in the lake, which keeps the versions
that a removed run has read until ``peerglass lake vacuum --forget RUN``.
"""

import datetime as dt
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.columns import of_book
from pipelines.dataset.feature_store import FeatureStore, entries_of
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError, one_line
from pipelines.files import read_json
from pipelines.format import IC, RATIO, megabytes
from pipelines.lake.lake import Lake
from pipelines.lake.options import is_url
from pipelines.nightly.result import ModelVersion
from pipelines.results.signal_file import RECORD, MeasuredSignals, find_signals
from pipelines.run.evaluations import StoredEvaluation, leader, list_evaluations, tradable_delay
from pipelines.run.identity import Identity
from pipelines.run.locks import Locks, holder_of
from pipelines.run.provenance import AuditMade, TrainingStarted, read_provenance, sessions
from pipelines.run.record import RecordedRun, find_folder, open_run
from pipelines.run.registration import registration_of
from pipelines.terminal import text_table
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
    """What is known of a run or a measured file without opening it; unreadable: ``started`` is None."""

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
        signals = find_signals(str(folder), folder.parent) if (folder / RECORD).is_file() else None
        if signals is None:
            read = _read_run(known)
        else:
            made, names = signals.record.made_at, tuple(signals.record.signals)
            read = replace(known, started=made, state="signals", models=names)
        evaluations = list_evaluations(known)
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return known
    measured = _newest_figures(evaluations[0]) if evaluations else None
    return replace(read, evaluations=len(evaluations), measured=measured)


def _read_run(known: RunSummary) -> RunSummary:
    record = read_json(known.folder / "run.json")
    models = tuple(Identity.from_record(record["identity"]).settings["models"])
    done = planned = 0
    if trainings := sessions(read_provenance(known)):
        newest, finished = trainings[-1]
        done, planned = newest.done + finished, newest.planned
    state: State = "complete" if done >= planned else "incomplete"
    state = "running" if known.holder is not None else state if planned else "not trained"
    started = dt.datetime.fromisoformat(record["started_at"])
    return replace(known, started=started, state=state, done=done, planned=planned, models=models)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed; what is gone by now is 0."""
    if not path.is_dir() or path.is_symlink():
        with suppress(FileNotFoundError):
            return path.lstat().st_size
        return 0
    return sum(size_of(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)


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
    what, own = "file", dict[str, Any]()
    if isinstance(owner, RecordedRun):
        what, own = "run", _of_run(owner)
    else:
        own["record"] = owner.record.model_dump(mode="json")
    evaluations = [
        {
            **{"evaluation": one.evaluation, "made": one.made_at, "delays": list(one.delays)},
            **{"assumptions": one.assumptions, "incomplete": one.incomplete},
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
    events = read_provenance(run)
    audits = [None, *(event.verdict for event in events if isinstance(event, AuditMade))]
    commits = [None, *(event.environment.commit for event in events if isinstance(event, TrainingStarted))]
    spans = [f"{name}_{end}" for name in _SEGMENTS for end in ("from", "to")]
    libraries = dict(identity.libraries)
    named = {"lake": identity.lake, "device": identity.device, "code": identity.code, "libraries": libraries}
    return {
        "identity": named,
        "tables": dict(run.versions),
        "folds": [] if folds is None else folds.select("fold", *spans).to_dicts(),
        "audit": audits[-1],
        "commit": commits[-1],
        "registered": asdict(registration_of(run)),
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
            "registration": details["registered"]["sentence"],
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


_SNAPSHOT = re.compile(r"(?P<model>.+)-fold-(?P<fold>\d+)-seed-(?P<seed>\d+)(?:-\w+)?\.safetensors")
_PRUNED = ".pruned"
_FEATURES = "features"  # the default folder of the store, beside that of the runs


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed, or would be, of a run: file or folder, why it may go, and its bytes."""

    run_id: str
    path: Path
    reason: str
    size: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a prune removes and keeps, and removed runs whose data versions the lake still keeps."""

    removals: tuple[Removal, ...]
    kept: tuple[str, ...]
    forgettable: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all removals."""
        return sum(one.size for one in self.removals)


def plan_prune(
    output: Path, names: Sequence[str], older_than: int | None, now: dt.datetime, *, keep: int | None = None
) -> Pruning:
    """Find what may be removed: runs by name, age in days, or number (``keep``) of newer ones, or both."""
    runs = summarise_runs(output)
    whole = _old_runs(runs, older_than, keep, now)
    for name in names:
        measured = find_signals(name, output)
        folder = find_folder(name, output) if measured is None else measured.folder
        whole[folder.absolute()] = "named"
    kept_for = _reasons_to_keep(runs, whole) if whole else {}
    removals: list[Removal] = []
    kept: list[str] = []
    gone: list[str] = []
    for run in runs:
        reason = whole.get(run.folder.absolute())
        if reason is None:
            removals += () if run.holder is not None else _leftovers(run)
        elif run.run_id in kept_for:
            kept.append(kept_for[run.run_id])
        else:
            removals.append(Removal(run.run_id, run.folder, reason, run.size))
            gone.append(run.run_id)
    removals += [
        Removal(path.name, path, "an interrupted removal", size_of(path))
        for path in output.glob(f".*{_PRUNED}")
    ]
    for entry, size in () if older_than is None else entries_of(output.parent / _FEATURES):
        used = max(path.stat().st_mtime for path in entry.iterdir())
        days = (now - dt.datetime.fromtimestamp(used, dt.UTC)).days
        if days >= (older_than or 0):
            removals.append(Removal(_FEATURES, entry, f"features used last {days} days ago", size))
    return Pruning(tuple(removals), tuple(kept), tuple(gone))


def _old_runs(
    runs: Sequence[RunSummary], older_than: int | None, keep: int | None, now: dt.datetime
) -> dict[Path, str]:
    """Folder -> why the run is old, by age, by the number of newer runs, or by both."""
    if older_than is None and keep is None:
        return {}
    found: dict[Path, str] = {}
    newer: Counter[tuple[bool, str]] = Counter()
    for run in runs:  # the one that was started last comes first
        if run.started is None:
            continue
        name, days = run.run_id.rpartition("-")[0], (now - run.started).days
        newest = newer[run.state == "signals", name]
        if days >= (older_than or 0) and newest >= (keep or 0):
            count = "" if keep is None else f", and {newest} runs of {name} are newer"
            found[run.folder.absolute()] = f"started {days} days ago{count}"
        newer[run.state == "signals", name] += 1
    return found


def apply_prune(planned: Pruning, notify: Callable[[str], None]) -> Pruning:
    """Remove what was planned, each run under its lock, and renamed first, so that no half of it stays."""
    removed: list[Removal] = []
    kept = list(planned.kept)
    for run_id in dict.fromkeys(one.run_id for one in planned.removals):
        own = [one for one in planned.removals if one.run_id == run_id]
        if run_id == _FEATURES:
            store = FeatureStore(own[0].path.parent, 0, "", notify)
            removed += [one for one in own if store.remove(one.path)]
            continue
        try:
            with Locks(wait=False, notify=notify) as locks:
                if not run_id.endswith(_PRUNED):
                    around = (own[0].path, *own[0].path.parents)
                    locks.lock_run(next(path for path in around if path.name == run_id))
                for one in own:
                    _remove(one.path)
                    removed.append(one)
        except DataError as error:
            kept.append(str(error))
    done = {one.run_id for one in removed}
    return Pruning(tuple(removed), tuple(kept), tuple(run for run in planned.forgettable if run in done))


def describe_pruning(pruning: Pruning, *, done: bool) -> str:
    """Describe a prune for a terminal."""
    verb = "removed" if done else "would remove"
    lines = [
        f"{verb} {one.path}  {megabytes(one.size)} MB  ({one.reason})"
        for one in sorted(pruning.removals, key=lambda one: str(one.path))
    ]
    lines += [f"kept: {sentence}" for sentence in pruning.kept]
    if not pruning.removals:
        lines.append("nothing to remove")
    else:
        lines.append(
            f"{len(pruning.removals)} removal(s), {megabytes(pruning.size)} MB; the trial ledger stays"
        )
        if not done:
            lines.append("nothing was removed: add --yes to remove it")
    if done and pruning.forgettable:
        forget = " ".join(f"--forget {run}" for run in pruning.forgettable)
        lines.append(
            "The lake keeps the data versions of these runs. To give them up: peerglass lake vacuum CONFIG "
            f"--keep-days DAYS {forget}"
        )
    return "\n".join(lines)


def _leftovers(run: RunSummary) -> Iterable[Removal]:
    """Files of a run that can always go."""
    from pipelines.run.checkpoints import checkpoint_exists  # imports torch

    folder = run.folder
    for path in folder.rglob("*.partial"):
        if not any(part.endswith(".partial") for part in path.relative_to(folder).parts[:-1]):
            yield Removal(run.run_id, path, "an interrupted write", size_of(path))
    for path in (folder / "snapshots").glob("*.safetensors"):
        task = _SNAPSHOT.fullmatch(path.name)
        if task is not None and checkpoint_exists(
            folder / "checkpoints" / task["model"] / f"fold-{task['fold']}-seed-{task['seed']}"
        ):
            yield Removal(run.run_id, path, "a snapshot of a training that has ended", size_of(path))
    if run.state == "unreadable":
        return
    newest: dict[str, str] = {}
    for one in list_evaluations(run):
        record = one.record
        files = (record.rates, record.borrow_fees, record.indices, record.factors)
        settings = record.backtest.model_dump_json() + str((record.delays, *files))
        if settings in newest:
            reason = f"replaced by evaluation {newest[settings]} with the same settings"
            yield Removal(run.run_id, one.folder, reason, size_of(one.folder))
        newest.setdefault(settings, record.evaluation)


def _reasons_to_keep(runs: Sequence[RunSummary], whole: Collection[Path]) -> dict[str, str]:
    """Run -> a sentence that says why it stays although it was asked for."""
    unknown, referred, starts, own = (dict[str, str]() for _ in range(4))
    read: set[str] = set()
    for run in runs:
        if run.folder.is_symlink():
            own[run.run_id] = f"{run.run_id} is a link to another folder; remove it yourself."
        if run.holder is not None:
            own[run.run_id] = f"{run.run_id} is being written by {run.holder}."
        if run.state in ("unreadable", "signals"):
            continue  # it names no lake, or no night refers to it
        identity = read_json(run.folder / "run.json")["identity"]
        if run.folder.absolute() not in whole:  # it stays, and with it the runs that its models start from
            bases = [
                str(one["init_from"]) for one in identity["settings"]["models"].values() if "init_from" in one
            ]
            starts |= {
                name: f"{name} is what {run.run_id} starts from (init_from); name both." for name in bases
            }
        try:
            where = str(identity["lake"])
            lake = open_lake(open_run(str(run.folder), models=False).config) if is_url(where) else Lake(where)
            if lake.root not in read:
                reasons = reversed([*_with_alias(lake), *_scored(lake)])  # the first reason of a run counts
                referred |= {name: f"{name} {reason}." for name, reason in reasons}
            read.add(lake.root)
        except (ConfigError, DataError, OSError) as error:
            why = f"its lake cannot be read ({one_line(error)})"
            unknown[run.run_id] = f"{run.run_id}: {why}, so it is unknown whether a night refers to it."
    return {**unknown, **referred, **starts, **own}


def _remove(path: Path) -> None:
    if (path / "run.json").is_file() or (path / RECORD).is_file():
        path = path.rename(path.with_name(f".{path.name}{_PRUNED}"))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _with_alias(lake: Lake) -> Iterator[tuple[str, str]]:
    """Return the runs with an alias, present ones first."""
    rows = lake.rows("promotions", ["config", "number", "alias", "version"]).sort("number")
    newest = rows.group_by("config", "alias", maintain_order=True).last()
    for is_now, changes in ((True, newest), (False, rows)):
        for config, alias, version in changes.select("config", "alias", "version").iter_rows():
            if version is not None:
                reason = f"{'is' if is_now else 'was'} the {alias} of {config}"
                yield ModelVersion.parse(version).run_id, reason


def _scored(lake: Lake) -> Iterator[tuple[str, str]]:
    columns = [("signals", "version"), ("nights", "version"), ("nights", "challenger")]
    nights = pl.concat(
        lake.rows(table, ["config", "session", column]).rename({column: "version"}).drop_nulls("version")
        for table, column in columns
    ).unique()
    key = ["config", "version"]
    last = nights.group_by(key).agg(pl.len(), pl.col("session").max()).sort(key)
    for config, version, count, session in last.iter_rows():
        scored = f"scored {count} night{'' if count == 1 else 's'} of {config}, the last one {session}"
        yield ModelVersion.parse(version).run_id, scored
