"""Open the engine that a config names."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from pipelines.config.sections import EngineConfig
from pipelines.device import Gpu, gpus_of
from pipelines.execution.pool import PoolEngine, memory_of_waiting
from pipelines.execution.protocol import Finished, Hear, Raised, Report, TaskEngine, Ticket, Work
from pipelines.machine import Machine, cores, fit_workers, this_machine

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def open_engine(
    config: EngineConfig,
    work: Work[Shared, Item, Result],
    jobs: int,
    needs: Sequence[float] | None = None,
    *,
    note: Callable[[str], None] = lambda _: None,
    devices: Sequence[str] | None = None,
) -> Iterator[TaskEngine[Item, Result]]:
    """Open an engine for a number of tasks; everything that it starts ends with the ``with`` block.

    ``pool`` computes as many tasks at once as fit the memory of this machine: one on each GPU, and others on
    the processor. It computes in this process if there is nothing to share out: one worker, one task, or the
    tasks of a single GPU. ``devices`` are those of the tasks (`run_jobs`); None if all have that of the work.
    """
    if config.engine == "ray":
        from pipelines.execution.ray import RayEngine

        with RayEngine(config, work, max(1, min(config.workers, jobs))) as on_ray:
            yield on_ray
        return
    each = [float(work.memory)] * jobs if needs is None else list(needs)
    places = [work.device] * jobs if devices is None else list(devices)
    most = 1 if config.engine == "serial" else config.workers
    workers, gpus, fewer = share_out(each, places, gpus_of(work.device)[:most], most, _machine())
    if fewer is not None:
        note(fewer)
    if workers + len(gpus) <= 1:
        yield SerialEngine(work)
    else:
        with PoolEngine(work, workers, gpus) as pool:
            yield pool


def places_of(devices: Sequence[str], gpus: Sequence[Gpu], most: int) -> tuple[int, tuple[Gpu, ...]]:
    """Choose how many tasks of the processor are computed at once, and the GPUs that compute the others.

    Each GPU counts as one of at most ``most`` tasks. If both kinds wait, one of them is left to the processor
    where there is more than one. ``devices`` are those of the tasks.
    """
    here = sum(device == "cpu" for device in devices)
    used = tuple(gpus[: min(max(1, most - bool(here)), len(devices) - here)])
    return min(here, most - len(used)), used


def share_out(
    needs: Sequence[float], devices: Sequence[str], gpus: Sequence[Gpu], most: int, machine: Machine
) -> tuple[int, tuple[Gpu, ...], str | None]:
    """As `places_of`, with as many tasks of the processor as fit the memory beside the GPUs' processes.

    Returns a note as well, if these are fewer than wanted (`fit_workers`).
    """
    workers, used = places_of(devices, gpus, most)
    if not workers:
        return workers, used, None
    here = [need for need, device in zip(needs, devices, strict=True) if device == "cpu"]
    there = [need for need, device in zip(needs, devices, strict=True) if device != "cpu"]
    beside = Machine(machine.total, machine.available - sum(sorted(there, reverse=True)[: len(used)]))
    workers, fewer = fit_workers(here, most - len(used), beside)
    return workers, used, fewer


def _machine() -> Machine:
    """The memory of this machine; what waiting workers hold is available to them."""
    machine = this_machine()
    return Machine(machine.total, machine.available + memory_of_waiting())


class SerialEngine(Generic[Shared, Item, Result]):
    """Computes a task while the parent waits for it. Prints, warnings and Ctrl-C act as in any function."""

    def __init__(self, work: Work[Shared, Item, Result]) -> None:
        self.threads = 1 if work.device == "cpu" else cores()
        self._work = work
        self._submitted: list[tuple[Ticket, Item]] = []

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        """Whether no task is computed."""
        return not under_way

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
