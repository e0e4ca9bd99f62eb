"""Exactly one result per task on an engine that repeats, reorders, delays and loses what it is given."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import ConfigError, DivergedError
from pipelines.execution.protocol import (
    ATTEMPTS,
    Hear,
    Report,
    Ticket,
    lost,
    run_jobs,
)


class UnreliableEngine:
    """Delivers reports zero to three times, in any order, and calls some attempts lost that are not."""

    threads = 1

    def __init__(self, seed: int, *, losses: float) -> None:
        self._random, self._losses = random.Random(seed), losses  # noqa: S311 (no secret)
        self._mail: list[Report[int]] = []
        self.delivered: Counter[int] = Counter()
        self.submitted: list[Ticket] = []
        self.most_under_way = 0

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        return len(under_way) < 3

    def submit(self, ticket: Ticket, item: int) -> None:
        assert item == ticket.job * 10
        self.submitted.append(ticket)
        if self._random.random() < self._losses:
            if self._random.random() < 0.5:  # otherwise lost without a word
                self._mail.append(lost(ticket, "the machine is gone"))
            return
        if self._random.random() < 0.3:  # lost, as far as anybody knows; but its result comes later
            self._mail.append(lost(ticket, "no answer"))
        self._mail += [Report(ticket, f"log of {ticket}", item + 1)] * self._random.randint(1, 3)

    def wait(self, hear: Hear) -> Sequence[Report[int]]:
        self._random.shuffle(self._mail)
        count = self._random.randint(1, 3)
        reports, self._mail = self._mail[:count], self._mail[count:]
        for report in reports:
            hear(report.ticket, f"news of {report.ticket}")
            self.delivered[report.ticket.job] += report.error is None
        return reports


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), jobs=st.integers(0, 12), losses=st.sampled_from([0.0, 0.3, 0.8]))
def test_every_task_ends_exactly_once(seed: int, jobs: int, losses: float) -> None:
    engine = UnreliableEngine(seed, losses=losses)
    ended = list(run_jobs(engine, jobs, lambda job: job * 10))
    assert sorted(one.job for one in ended) == list(range(jobs))
    for one in ended:
        attempts = sum(ticket.job == one.job for ticket in engine.submitted)
        assert 1 <= attempts <= ATTEMPTS
        if one.error is None:
            assert one.result == one.job * 10 + 1
            assert "log of Ticket" in one.log
        else:
            assert attempts == ATTEMPTS
            assert isinstance(one.error, DivergedError)
            assert one.log.count("was lost") == ATTEMPTS
    if losses == 0.0 and jobs:
        assert any(one.error is None for one in ended)


def test_the_engine_of_this_test_does_what_it_says() -> None:
    """Otherwise the test above would prove nothing."""
    seen = Counter[str]()
    for seed in range(50):
        engine = UnreliableEngine(seed, losses=0.3)
        ended = list(run_jobs(engine, 12, lambda job: job * 10))
        seen["failed"] += sum(one.error is not None for one in ended)
        seen["delivered twice"] += sum(count > 1 for count in engine.delivered.values())
        seen["repeated"] += sum(ticket.attempt > 1 for ticket in engine.submitted)
        order = [one.job for one in ended]
        seen["reordered"] += order != sorted(order)
    assert min(seen[name] for name in ("failed", "delivered twice", "repeated", "reordered")) > 10, seen


class Scripted:
    """Answers each attempt with the next report of its task's script."""

    threads = 1

    def __init__(self, scripts: dict[int, list[Exception | int]]) -> None:
        self._scripts, self._open = scripts, list[Ticket]()
        self.attempts = Counter[int]()

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        return len(under_way) < 2

    def submit(self, ticket: Ticket, item: int) -> None:
        self._open.append(ticket)
        self.attempts[ticket.job] += 1
        assert len(self._open) <= 2

    def wait(self, hear: Hear) -> Sequence[Report[int]]:
        ticket = self._open.pop(0)
        answer = self._scripts[ticket.job].pop(0)
        return [
            Report(ticket, "", error=answer) if isinstance(answer, Exception) else Report(ticket, "", answer)
        ]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (OSError("the network is down"), ATTEMPTS),
        (MemoryError(), ATTEMPTS),
        (OSError(28, "No space left on device"), 1),
        (ConfigError("wrong"), 1),
        (ZeroDivisionError(), 1),
    ],
)
def test_only_errors_that_may_pass_are_repeated_and_the_others_are_computed(
    error: Exception, attempts: int
) -> None:
    engine = Scripted({0: [error] * ATTEMPTS, 1: [1], 2: [2], 3: [3]})
    ended = {one.job: one for one in run_jobs(engine, 4, lambda job: job)}
    failed = ended[0]
    assert failed.error is not None
    assert failed.error is error
    assert engine.attempts == {0: attempts, 1: 1, 2: 1, 3: 1}
    assert all(ended[job].error is None for job in (1, 2, 3))


def test_an_error_that_passes_leaves_a_result() -> None:
    engine = Scripted({0: [OSError("busy"), 7]})
    (one,) = run_jobs(engine, 1, lambda job: job)
    assert one.error is None
    assert one.result == 7


def test_news_of_an_attempt_that_was_given_up_are_not_heard() -> None:
    class Late:
        threads = 1

        def __init__(self) -> None:
            self.tickets: list[Ticket] = []

        def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
            return not under_way

        def submit(self, ticket: Ticket, item: int) -> None:
            self.tickets.append(ticket)

        def wait(self, hear: Hear) -> Sequence[Report[int]]:
            for ticket in self.tickets:
                hear(ticket, ticket.attempt)
            ticket = self.tickets[-1]
            return [lost(ticket, "gone")] if ticket.attempt == 1 else [Report(ticket, "", 0)]

    heard: list[tuple[int, int]] = []
    assert len(list(run_jobs(Late(), 1, lambda job: job, lambda *news: heard.append(news)))) == 1
    assert heard == [(0, 1), (0, 2)]


def test_the_next_task_has_started_when_a_result_is_given() -> None:
    """A caller that is busy with a result leaves no worker idle."""
    engine = Scripted({0: [0], 1: [1], 2: [2], 3: [3]})
    started = [sum(engine.attempts.values()) for _ in run_jobs(engine, 4, lambda job: job)]
    assert started == [3, 4, 4, 4]


@pytest.mark.parametrize("error", [RuntimeError("no such file"), KeyboardInterrupt()])
def test_a_result_is_given_before_an_error_at_the_start_of_the_next_task(error: BaseException) -> None:
    """A task may have taken hours: what cannot start after it does not lose it."""

    def item(job: int) -> int:
        if job == 2:
            raise error
        return job

    jobs = run_jobs(Scripted({0: [10], 1: [11]}), 3, item)
    first = next(jobs)
    assert first.error is None
    assert first.result == 10
    with pytest.raises(type(error)):
        next(jobs)


class TwoDevices:
    """Has room for two tasks of the processor and one of the GPU; the oldest attempt ends first."""

    threads = 1

    def __init__(self) -> None:
        self._open = list[Ticket]()
        self.submitted = list[tuple[int, str]]()

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        return sum(ticket.device == device for ticket in under_way) < {"cpu": 2, "cuda": 1}[device]

    def submit(self, ticket: Ticket, item: int) -> None:
        self._open.append(ticket)
        self.submitted.append((ticket.job, ticket.device))

    def wait(self, hear: Hear) -> Sequence[Report[int]]:
        ticket = self._open.pop(0)
        return [Report(ticket, "", ticket.job)]


def test_no_task_waits_for_an_earlier_one_of_another_device() -> None:
    engine, devices = TwoDevices(), ["cpu", "cpu", "cpu", "cuda", "cuda", "cpu"]
    ended = [one.job for one in run_jobs(engine, 6, lambda job: job, devices=devices)]
    assert sorted(ended) == list(range(6))
    assert engine.submitted[:3] == [(0, "cpu"), (1, "cpu"), (3, "cuda")]
    assert engine.submitted == [(0, "cpu"), (1, "cpu"), (3, "cuda"), (2, "cpu"), (5, "cpu"), (4, "cuda")]
