"""What the engines have in common: a task goes out, and its outcome comes back to the parent.

The parent, the process of the command, alone reads and writes the lake and the run's folder: a worker gets
everything with the task, and sends everything back, so it needs no disk in common.

An engine may compute a task more than once, lose it, or deliver it twice, late or out of order.
:func:`run_jobs` makes one result of each task from that, because a task is a pure function of what is sent.
"""

import io
import os
import pickle
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from pipelines.errors import DivergedError, full_disk
from pipelines.plugins import blame

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)

Tell = Callable[[Any], None]  # sends news of a task to the parent; news may get lost


@dataclass(frozen=True, slots=True)
class Work(Generic[Shared, Item, Result]):
    """What is computed, for all tasks of one kind."""

    call: Callable[[Shared, Item, Tell], Result]
    """Computes one task; a function of a module, so that processes find it by name. It must not write to
    disk, and must return the same result for the same arguments."""
    shared: Shared  # what all tasks read; placed once per machine, its arrays are read-only views
    memory: int  # estimate of the memory that one task needs in addition to ``shared``, in bytes
    device: str  # device of the tasks that name none (`Ticket`): ``cpu`` or ``cuda``
    code: Callable[[], str]  # digest of the code that results depend on, equal on all machines
    portable: Callable[[Shared], Shared] | None = None
    """Returns ``shared`` without references to files of this machine, for workers that may be on another one;
    None if ``shared`` refers to no file."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One attempt at one task."""

    job: int
    attempt: int
    device: str = ""  # device that computes the task: ``cpu`` or ``cuda``; empty for that of the work


class LostError(Exception):
    """An attempt ended without an answer, because its process or its machine is gone."""


@dataclass(frozen=True, slots=True)
class Report(Generic[Result_co]):
    """How an attempt ended, or a task after its last one; ``log`` is what is kept of it for the user."""

    ticket: Ticket
    log: str
    outcome: Result_co | None = None
    error: Exception | None = None

    @property
    def job(self) -> int:
        """Number of the task."""
        return self.ticket.job

    @property
    def result(self) -> Result_co:
        """The result; raises the error of a task that has none."""
        if self.error is not None:
            raise self.error
        return cast("Result_co", self.outcome)


def lost(ticket: Ticket, reason: str) -> Report[Any]:
    """Return the report of an attempt that ended without an answer."""
    return Report(ticket, f"attempt {ticket.attempt} was lost: {reason}\n", error=LostError(reason))


Hear = Callable[[Ticket, Any], None]  # called in the parent with the news of an attempt


class TaskEngine(Protocol[Item_contra, Result_co]):
    """Computes tasks somewhere. Used as a context manager: leaving it ends everything that it started."""

    @property
    def threads(self) -> int:
        """Number of threads that a task of the processor may use; more than one only beside a GPU."""
        ...

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        """Whether another task of a device (`Ticket`) can be computed beside those that are under way."""
        ...

    def submit(self, ticket: Ticket, item: Item_contra) -> None:
        """Start an attempt."""
        ...

    def wait(self, hear: Hear) -> Sequence[Report[Result_co]]:
        """Wait for reports, and pass on news."""
        ...


def attempt(
    call: Callable[[Shared, Item, Tell], Result], shared: Shared, item: Item, ticket: Ticket, tell: Tell
) -> Report[Result]:
    """Compute one attempt in a worker. Its prints and warnings become part of its log."""
    started, printed = time.monotonic(), io.StringIO()
    result: Result | None = None
    failed: Exception | None = None
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            result = call(shared, item, tell)
        except Exception as error:
            traceback.print_exc()
            failed = _portable(blame(error) or error)
    where, seconds = f"process {os.getpid()} on {socket.gethostname()}", time.monotonic() - started
    log = f"attempt {ticket.attempt}, {where}, {seconds:.1f} s\n{printed.getvalue()}"
    return Report(ticket, log, result, failed)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, if it can be sent; otherwise its text."""
    error.add_note("".join(traceback.format_exception(error)))
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own bytes)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


ATTEMPTS = 3  # number of attempts at a task whose worker is lost, or that fails for a reason that may pass


def run_jobs(
    engine: TaskEngine[Item, Result],
    jobs: int,
    item: Callable[[int], Item],
    hear: Callable[[int, Any], None] = lambda *_: None,
    devices: Sequence[str] | None = None,
) -> Iterator[Report[Result]]:
    """Compute tasks on an engine and yield each exactly once, as soon as it has ended, with all of its logs.

    A task is repeated if its worker was lost or it raised OSError or MemoryError, whose cause may pass;
    another error would come again, and stops no other task. The next task starts before the caller gets a
    result. Tasks start in order, but none waits for one of another device (``devices``, None: that of the
    work).
    """
    waiting, attempts = deque(range(jobs)), Counter[int]()
    places = [""] * jobs if devices is None else devices
    under_way: dict[int, Ticket] = {}
    ended: set[int] = set()
    logs: dict[int, list[str]] = {job: [] for job in range(jobs)}

    def news(ticket: Ticket, content: Any) -> None:  # noqa: ANN401 (of any kind)
        if under_way.get(ticket.job) == ticket:
            hear(ticket.job, content)

    def start_waiting() -> None:
        full: set[str] = set()
        for job in list(waiting):
            device = places[job]
            if device in full or not engine.has_room(device, under_way.values()):
                full.add(device)
                if full == set(places):
                    return
                continue
            waiting.remove(job)
            attempts[job] += 1
            under_way[job] = Ticket(job, attempts[job], device)
            engine.submit(under_way[job], item(job))

    results: list[Report[Result]] = []
    while waiting or under_way or results:
        try:
            start_waiting()
        except BaseException:  # Ctrl-C, or an item that cannot be made
            yield from (one for one in results if one.error is None)  # they may have taken hours
            raise
        yield from results
        results.clear()
        if not under_way:
            continue
        reports = engine.wait(news) or [
            lost(ticket, "the engine has no trace of it") for ticket in under_way.values()
        ]
        for report in reports:
            job = report.ticket.job
            if job in ended:  # delivered twice, or an earlier attempt that was thought lost
                continue
            error = report.error
            if error is not None and under_way.get(job) != report.ticket:
                continue  # of an attempt that was given up
            under_way.pop(job, None)
            logs[job].append(report.log)
            may_pass = isinstance(error, LostError | OSError | MemoryError) and full_disk(error) is None
            if may_pass and attempts[job] < ATTEMPTS:
                waiting.appendleft(job)
                continue
            if isinstance(error, LostError):
                error = DivergedError(
                    f"The worker was lost in each of {attempts[job]} attempts (the last time: {error}). If "
                    "memory ran out, lower execution.workers; finished tasks are kept."
                )
            if job in waiting:
                waiting.remove(job)
            ended.add(job)
            results.append(replace(report, log="\n".join(logs[job]), error=error))
