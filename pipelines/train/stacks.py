"""Stacks: all seeds of a model and fold, trained together (`models.fitting.stacked`), by default on a GPU.

A stack always holds all seeds of the config, because the dropout masks depend on the seeds in a stack. After
an interruption the whole stack is trained again and its missing tasks are committed, so that a config gives
the same forecasts with and without interruptions. A stack saves no snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from models.fitting.fit import fit_stacked
from models.fitting.stacked import can_stack
from pipelines.train.task import (
    Arrays,
    Key,
    Outcome,
    Task,
    learning_curve,
    outcome_of,
    to_tensors,
    translate_fit_errors,
)


def stacks_of(tasks: Sequence[Task], done: Collection[Key], stack_seeds: bool | None) -> list[list[Task]]:
    """Group the tasks that are trained together, without groups in which all tasks are done.

    Parameters
    ----------
    tasks
        All tasks of a run.
    done
        Keys of the tasks that are done.
    stack_seeds
        Setting of the config; None stacks on a GPU only.
    """
    groups: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        stack = task.device != "cpu" if stack_seeds is None else stack_seeds
        if stack and task.start is None and can_stack(task.registered, task.fit):
            groups.setdefault((task.model, task.fold.index), []).append(task)
    return [
        group for group in groups.values() if len(group) > 1 and any(task.key not in done for task in group)
    ]


def run_stacks(
    stacks: Sequence[Sequence[Task]], arrays: Arrays, done: Collection[Key]
) -> Iterator[tuple[Task, Outcome]]:
    """Train one stack after the other, and yield the outcomes of tasks that are not done."""
    for stack in stacks:
        for task, outcome in zip(stack, _run(stack, arrays), strict=True):
            if task.key not in done:
                yield task, outcome


def _run(stack: Sequence[Task], arrays: Arrays) -> list[Outcome]:
    first, seeds, started = stack[0], [task.seed for task in stack], time.monotonic()
    if first.device == "cpu":
        torch.set_num_threads(1)
    with translate_fit_errors(first, f"seeds {', '.join(map(str, seeds))}"), ExitStack() as files:
        data = to_tensors(arrays, first.inputs, first.device)
        models = fit_stacked(
            first.registered,
            first.settings,
            data,
            first.fold.train,
            first.fold.valid,
            fit_config=first.fit,
            seeds=seeds,
            on_epoch=[files.enter_context(learning_curve(task.curve)) for task in stack],
        )
        outcomes = [
            outcome_of(task, arrays, data, fitted) for task, fitted in zip(stack, models, strict=True)
        ]
    seconds = (time.monotonic() - started) / len(stack)
    return [replace(outcome, seconds=seconds) for outcome in outcomes]
