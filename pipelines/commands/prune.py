"""Removing what is no longer needed from an output folder.

Three kinds of files can always go: what interrupted writes have left, snapshots of trainings that have ended,
and evaluations that a newer one with the same settings has replaced. Whole runs and measured signal files go
by name, age or number, and never while another run starts from them or a night refers to them. Entries of the
feature store beside the output folder go by age, and are computed again if they are needed.

The trial ledger is a table of the output folder and not of its runs, so the number of trials, which deflated
Sharpe ratios use, stays the same. Forecasts stay in the lake, and the lake keeps the versions that a removed
run has read, until ``peerglass lake vacuum --forget RUN`` gives them up.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.commands.runs import RunSummary, megabytes, size_of, summarise_runs
from pipelines.dataset.feature_store import FeatureStore, entries_of
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.files import read_json
from pipelines.lake.lake import Lake
from pipelines.lake.options import is_url
from pipelines.lake.storage import one_line
from pipelines.nightly.result import ModelVersion
from pipelines.results.signal_file import RECORD, find_signals
from pipelines.run.checkpoints import checkpoint_exists
from pipelines.run.evaluations import list_evaluations
from pipelines.run.locks import Locks
from pipelines.run.record import find_folder, open_run

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
    """Find what may be removed; nothing is changed.

    Whole runs go by name, by age in days (entries of the feature store too), or if more than ``keep`` newer
    runs have their config's name; with an age and a number, both must apply.
    """
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
        settings = one.record.backtest.model_dump_json() + str((one.record.delays, one.record.rates))
        if settings in newest:
            reason = f"replaced by evaluation {newest[settings]} with the same settings"
            yield Removal(run.run_id, one.folder, reason, size_of(one.folder))
        newest.setdefault(settings, one.record.evaluation)


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
            lake = open_lake(open_run(str(run.folder)).config) if is_url(where) else Lake(where)
            if lake.root not in read:
                referred |= {name: f"{name} {reason}." for name, reason in referred_runs(lake).items()}
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


def referred_runs(lake: Lake) -> Mapping[str, str]:
    """Return the runs that the nights of a lake refer to, each with the reason to keep it after its id."""
    reasons = reversed([*_with_alias(lake), *_scored(lake)])  # the first reason of a run counts
    return dict(reasons)


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
