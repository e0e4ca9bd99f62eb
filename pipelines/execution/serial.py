"""The engine that computes tasks in the process of the command, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from pipelines.execution.protocol import Finished, Hear, Raised, Report, Ticket, Work

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
