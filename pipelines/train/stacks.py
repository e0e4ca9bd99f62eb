"""Seeds that are trained as one (`models.fitting.stacked`), on a GPU or where a config says so.

A stack is always all the seeds of the config. Dropout's masks depend on which seeds are together, so one that
was interrupted is trained again as a whole, and what is missing of it is committed: the same config gives the
same forecasts whatever interrupts it. A stack leaves no snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack

import torch

from models.fitting.fit import fit_stacked
from models.fitting.stacked import can_stack
from pipelines.train.execute import translate_fit_errors
from pipelines.train.task import Arrays, Key, Outcome, Task, learning_curve, outcome_of, to_tensors


def stacks_of(tasks: Sequence[Task], done: Collection[Key], wanted: bool | None) -> list[list[Task]]:
    """Group the tasks that are to be trained as one and of which something is not done yet.

    Parameters
    ----------
    tasks
        All tasks of a run.
    done
        Keys of those that are done.
    wanted
        ``stack_seeds`` of the config: None is on a GPU alone.
    """
    groups: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        on = task.device != "cpu" if wanted is None else wanted
        if on and task.start is None and can_stack(task.registered, task.fit):
            groups.setdefault((task.model, task.fold.index), []).append(task)
    return [
        group for group in groups.values() if len(group) > 1 and any(task.key not in done for task in group)
    ]


def run_stacks(
    stacks: Sequence[Sequence[Task]], arrays: Arrays, done: Collection[Key]
) -> Iterator[tuple[Task, Outcome]]:
    """Train stack after stack; give the outcomes that are not done yet."""
    for stack in stacks:
        for task, outcome in zip(stack, _run(stack, arrays), strict=True):
            if task.key not in done:
                yield task, outcome


def _run(stack: Sequence[Task], arrays: Arrays) -> list[Outcome]:
    one, seeds = stack[0], [task.seed for task in stack]
    if one.device == "cpu":
        torch.set_num_threads(1)
    with translate_fit_errors(one, f"seeds {', '.join(map(str, seeds))}"), ExitStack() as files:
        data = to_tensors(arrays, one.inputs, one.device)
        every = fit_stacked(
            one.registered,
            one.settings,
            data,
            one.fold.train,
            one.fold.valid,
            fit_config=one.fit,
            seeds=seeds,
            on_epoch=[files.enter_context(learning_curve(task.curve)) for task in stack],
        )
        return [outcome_of(task, arrays, data, fitted) for task, fitted in zip(stack, every, strict=True)]
