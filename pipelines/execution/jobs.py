"""One result for each task, whatever an engine repeats, loses, delays or reorders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pipelines.errors import DivergedError, full_disk
from pipelines.execution.protocol import Engine, Finished, Lost, Raised, Ticket

ATTEMPTS = 3
"""Number of attempts at a task whose worker is lost, or that fails for a reason that may pass."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Completed(Generic[Result]):
    """A task and its result; ``log`` describes all of its attempts."""

    job: int
    result: Result
    log: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that has no result after its last attempt; ``log`` describes all of its attempts."""

    job: int
    error: Exception
    log: str


def run_jobs(
    engine: Engine[Item, Result],
    jobs: int,
    item: Callable[[int], Item],
    hear: Callable[[int, Any], None] = lambda *_: None,
) -> Iterator[Completed[Result] | Failed]:
    """Compute tasks on an engine and yield each of them exactly once, as soon as it has ended.

    An attempt is repeated if its worker was lost, or if it raised OSError or MemoryError, whose cause may
    pass. Every other error would come again, because a task is a pure function: it is not repeated. A task
    that fails does not stop the others. The next task starts before the caller gets a result, so that no
    worker is idle while the caller uses it.

    Parameters
    ----------
    engine
        Computes the attempts.
    jobs
        Number of tasks.
    item
        Task -> what is sent to the worker. Called at the start of every attempt.
    hear
        Called with the news of a task, only while the attempt that sends them is the newest.

    Yields
    ------
    Completed or Failed
    """
    waiting, attempts = deque(range(jobs)), Counter[int]()
    under_way: dict[int, Ticket] = {}
    ended: set[int] = set()
    logs: dict[int, list[str]] = {job: [] for job in range(jobs)}

    def news(ticket: Ticket, content: Any) -> None:  # noqa: ANN401 (of any kind)
        if under_way.get(ticket.job) == ticket:
            hear(ticket.job, content)

    def start_waiting() -> None:
        while waiting and len(under_way) < engine.slots:
            job = waiting.popleft()
            attempts[job] += 1
            under_way[job] = Ticket(job, attempts[job])
            engine.submit(under_way[job], item(job))

    results: list[Completed[Result] | Failed] = []
    while waiting or under_way or results:
        try:
            start_waiting()
        except BaseException:  # Ctrl-C, or an item that cannot be made
            yield from (one for one in results if isinstance(one, Completed))  # they may have taken hours
            raise
        yield from results
        results.clear()
        if not under_way:
            continue
        reports = engine.wait(news) or [
            Lost(ticket, "the engine has no trace of it") for ticket in under_way.values()
        ]
        for report in reports:
            job = report.ticket.job
            if job in ended:  # delivered twice, or an earlier attempt that was thought lost
                continue
            if isinstance(report, Finished):
                logs[job].append(report.log)
                ended.add(job)
                under_way.pop(job, None)
                if job in waiting:
                    waiting.remove(job)
                results.append(Completed(job, report.result, "\n".join(logs[job])))
            elif under_way.get(job) == report.ticket:
                del under_way[job]
                logs[job].append(_describe(report))
                if attempts[job] < ATTEMPTS and _may_pass(report):
                    waiting.appendleft(job)
                else:
                    ended.add(job)
                    results.append(Failed(job, _error(report, attempts[job]), "\n".join(logs[job])))


def _may_pass(report: Raised | Lost) -> bool:
    """Whether a repetition may succeed."""
    if isinstance(report, Lost):
        return True
    return isinstance(report.error, OSError | MemoryError) and full_disk(report.error) is None


def _describe(report: Raised | Lost) -> str:
    if isinstance(report, Raised):
        return report.log
    return f"attempt {report.ticket.attempt} was lost: {report.reason}\n"


def _error(report: Raised | Lost, attempts: int) -> Exception:
    if isinstance(report, Raised):
        return report.error
    return DivergedError(
        f"The worker was lost in each of {attempts} attempts (the last time: {report.reason}). If memory ran "
        "out, lower execution.workers; finished tasks are kept."
    )
