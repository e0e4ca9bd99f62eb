"""Stacks: all seeds of a model and fold, trained together (`models.fitting.stacked`), by default on a GPU.

A stack always holds all seeds of the config, because the dropout masks depend on the seeds in a stack. After
an interruption the whole stack is trained again and its missing tasks are committed, so that a config gives
the same forecasts with and without interruptions. A stack saves no snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from models.fitted import OnEpoch
from models.fitting.fit import fit_stacked
from models.fitting.stacked import can_stack
from pipelines.train.task import Arrays, Key, Outcome, Task, outcome_of, to_tensors


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


def run_stack(stack: Sequence[Task], arrays: Arrays, on_epoch: Sequence[OnEpoch]) -> list[Outcome]:
    """Train the seeds of a stack together, and forecast the test once with each.

    Parameters
    ----------
    stack
        Tasks of one model and fold.
    arrays
        Arrays of the dataset.
    on_epoch
        For each seed, a function that is called with the record of each epoch.
    """
    first = stack[0]
    if first.device == "cpu":
        torch.set_num_threads(1)
    data = to_tensors(arrays, first.inputs, first.device)
    models = fit_stacked(
        first.registered,
        first.settings,
        data,
        first.fold.train,
        first.fold.valid,
        fit_config=first.fit,
        seeds=[task.seed for task in stack],
        on_epoch=on_epoch,
    )
    return [outcome_of(task, arrays, data, fitted) for task, fitted in zip(stack, models, strict=True)]
