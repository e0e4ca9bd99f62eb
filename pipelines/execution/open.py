"""Open the engine that a config names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from pipelines.config.sections import EngineConfig
from pipelines.execution.pool import PoolEngine, memory_of_waiting
from pipelines.execution.protocol import Finished, Hear, Raised, Report, TaskEngine, Ticket, Work
from pipelines.machine import Machine, fit_workers, this_machine

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def open_engine(
    config: EngineConfig,
    work: Work[Shared, Item, Result],
    jobs: int,
    needs: Sequence[float] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[TaskEngine[Item, Result]]:
    """Open an engine for a number of tasks; everything that it starts ends with the ``with`` block.

    ``pool`` computes as many tasks at once as fit the memory of this machine. It computes in this process if
    there is nothing to share out: one worker, one task, or a GPU.
    """
    if config.engine == "ray":
        from pipelines.execution.ray import RayEngine

        with RayEngine(config, work, max(1, min(config.workers, jobs))) as on_ray:
            yield on_ray
        return
    one = config.engine == "serial" or work.device != "cpu"
    each = [float(work.memory)] * jobs if needs is None else needs
    workers, fewer = fit_workers(each, 1 if one else config.workers, _machine()) if jobs else (1, None)
    if fewer is not None:
        note(fewer)
    if workers == 1:
        yield SerialEngine(work)
    else:
        with PoolEngine(work, workers) as pool:
            yield pool


def _machine() -> Machine:
    """The memory of this machine; what waiting workers hold is available to them."""
    machine = this_machine()
    return Machine(machine.total, machine.available + memory_of_waiting())


class SerialEngine(Generic[Shared, Item, Result]):
    """Computes a task while the parent waits for it. Prints, warnings and Ctrl-C act as in any function."""

    slots = 1

    def __init__(self, work: Work[Shared, Item, Result]) -> None:
        self._work = work
        self._submitted: list[tuple[Ticket, Item]] = []

    def submit(self, ticket: Ticket, item: Item) -> None:
        """Keep the task for `wait`."""
        self._submitted.append((ticket, item))

    def wait(self, hear: Hear) -> Sequence[Report[Result]]:
        """Compute the oldest submitted task."""
        if not self._submitted:
            return []
        ticket, item = self._submitted.pop(0)
        started = time.monotonic()
        try:
            result = self._work.call(self._work.shared, item, lambda news: hear(ticket, news))
        except Exception as error:
            return [Raised(ticket, error, f"attempt {ticket.attempt}: {type(error).__name__}: {error}\n")]
        return [Finished(ticket, result, f"attempt {ticket.attempt}, {time.monotonic() - started:.1f} s\n")]
