"""Training as work for an engine: groups of tasks go out, and their outcomes and news come back.

A group is a single task, or a stack of seeds that are trained together (`pipelines.train.task`).
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models.fitted import EpochRecord
from models.forecaster import lags_of
from models.registry import model_entry
from pipelines.config.sections import EngineConfig
from pipelines.dataset.memory import task_need
from pipelines.execution.pool import open_engine
from pipelines.execution.protocol import Item, Report, Result, Tell, Work, run_jobs
from pipelines.files import write_bytes
from pipelines.progress import Progress
from pipelines.run.checkpoints import FileSnapshotStore, SavedSnapshot, read_snapshot
from pipelines.run.identity import code_digest
from pipelines.run.record import TaskKey
from pipelines.train.task import (
    Arrays,
    Outcome,
    Task,
    run_stack,
    run_task,
    stacks_of,
    translate_fit_errors,
)

Group = tuple[Task, ...]  # tasks that are computed together

_EVERY_SECONDS = 10.0  # at most one note about a training in this time


@dataclass(frozen=True, slots=True, eq=False)
class GroupItem:
    """What is sent to a worker for one group."""

    group: Group
    snapshots: Mapping[Path, bytes] = field(default_factory=dict)  # file -> content; empty at a fresh start
    threads: int = 1  # number of threads that a baseline may use; it changes no result


@dataclass(frozen=True, slots=True)
class Note:
    """News: a sentence about a task; of an epoch that has ended, with its seconds."""

    key: TaskKey
    sentence: str
    seconds: float | None = None


def work_on_arrays(
    call: Callable[[Arrays, Item, Tell], Result],
    arrays: Arrays,
    device: str,
    models: Collection[str],
    lags: int = 0,
) -> Work[Arrays, Item, Result]:
    """Describe tasks that read the arrays of one dataset to an engine."""
    memory = int(memory_need(arrays, models, lags))
    return Work(call, arrays, memory, device.partition(":")[0], code_digest, _without_files)


def memory_need(arrays: Arrays, models: Collection[str], lags: int = 0) -> float:
    """Bytes of a process that fits or explains one model at a time; a baseline reads ``lags`` days."""
    channels, characteristics = arrays.channels_TNC.shape[2], arrays.characteristics_TNF.shape[2]
    return task_need(models, arrays.universe_TN.size, channels, characteristics, lags)


def _without_files(arrays: Arrays) -> Arrays:
    """The arrays with the values of features that are in mapped files, instead of the files' paths."""
    channels_TNC, characteristics_TNF = map(np.asarray, (arrays.channels_TNC, arrays.characteristics_TNF))
    return replace(arrays, channels_TNC=channels_TNC, characteristics_TNF=characteristics_TNF)


def groups_of(planned: Sequence[Task], done: Collection[TaskKey], stack_seeds: bool | None) -> list[Group]:
    """Divide open tasks but ensembles into groups: single ones (threaded first beside a GPU), then stacks."""
    planned = [task for task in planned if model_entry(task.registered).kind != "ensemble"]
    stacks = stacks_of(planned, done, stack_seeds)
    stacked = {task.key for stack in stacks for task in stack}
    alone = [(task,) for task in planned if task.key not in done and task.key not in stacked]
    if any(task.device != "cpu" for task in planned):
        alone.sort(key=lambda group: not model_entry(group[0].registered).build.threaded)
    return [*alone, *(tuple(stack) for stack in stacks)]


def run_groups(
    groups: Sequence[Group],
    arrays: Arrays,
    execution: EngineConfig,
    prepare: Callable[[Group], GroupItem] = GroupItem,
    hear: Callable[[int, Any], None] = lambda *_: None,
    *,
    device: str,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Group, Report[tuple[Outcome, ...]]]]:
    """Train groups on the engine of a config, and yield each of them once, as it ends."""
    if not groups:
        return
    models, lags = {group[0].registered for group in groups}, [lags_of(group[0].options) for group in groups]
    work = work_on_arrays(train_group, arrays, device, models, max(lags))
    needs = [memory_need(arrays, [group[0].registered], own) for group, own in zip(groups, lags, strict=True)]
    devices = [group[0].device.partition(":")[0] for group in groups]
    with open_engine(execution, work, len(groups), needs, note=note, devices=devices) as engine:

        def item(job: int) -> GroupItem:
            return replace(prepare(groups[job]), threads=engine.threads)

        for ended in run_jobs(engine, len(groups), item, hear, devices):
            yield groups[ended.job], ended


def train_group(arrays: Arrays, item: GroupItem, tell: Tell) -> tuple[Outcome, ...]:
    """Train the tasks of a group. An unfinished training of a single task resumes from its snapshot."""
    first, started = item.group[0], time.monotonic()
    seeds = ", ".join(str(task.seed) for task in item.group)

    def report(task: Task, record: EpochRecord) -> None:
        said = f"epoch {record.epoch}, validation rank IC {record.valid_rank_ic:+.4f} of the target"
        tell(Note(task.key, said, record.seconds))

    def note(sentence: str) -> None:
        tell(Note(first.key, sentence))

    reports = [partial(report, task) for task in item.group]
    with translate_fit_errors(first, f"seeds {seeds}" if len(item.group) > 1 else f"seed {seeds}"):
        if len(item.group) > 1:
            outcomes = run_stack(item.group, arrays, reports, note)
        else:
            contents = dict(item.snapshots)

            def save(path: Path, content: bytes) -> None:
                contents[path] = content
                tell(SavedSnapshot(path, content))

            snapshots = FileSnapshotStore(first.snapshot, contents.get, save)
            outcomes = [run_task(first, arrays, snapshots, reports[0], note=note, threads=item.threads)]
    seconds = (time.monotonic() - started) / len(outcomes)
    return tuple(replace(outcome, seconds=seconds) for outcome in outcomes)


def group_item(group: Group) -> GroupItem:
    """Prepare a group for sending, with the newest snapshots in the run's folder."""
    if len(group) > 1:  # a stack saves no snapshots
        return GroupItem(group)
    newest = FileSnapshotStore(group[0].snapshot)
    contents = {path: read_snapshot(path) for path in (newest.path, newest.of_refit().path)}
    return GroupItem(group, {path: content for path, content in contents.items() if content is not None})


class News:
    """Handles the news of tasks in the parent: notes the progress of epochs, and stores snapshots."""

    def __init__(self, groups: Sequence[Group], progress: Progress) -> None:
        self._groups, self._progress = groups, progress
        self._told: dict[TaskKey, float] = {}  # when a training was noted, or when it began

    def __call__(self, job: int, content: Note | SavedSnapshot) -> None:
        """Handle the news of a group."""
        if isinstance(content, SavedSnapshot):
            (task,) = self._groups[job]
            own = FileSnapshotStore(task.snapshot)
            assert content.path in (own.path, own.of_refit().path), "a task sends its own snapshots"
            write_bytes(content.path, content.content)
            return
        if content.seconds is not None:
            now = time.monotonic()
            if now - self._told.setdefault(content.key, now - content.seconds) < _EVERY_SECONDS:
                return
            self._told[content.key] = now
        model, fold, seed = content.key
        self._progress.note(f"{model} fold {fold} seed {seed}: {content.sentence}")
