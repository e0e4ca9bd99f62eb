"""Tasks at once: as many as fit the memory, a sentence if they are fewer, and a refusal with a cure."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipelines.errors import DataError
from pipelines.machine import PROCESS, Machine, fit_workers, memory_of, this_machine

GIB = 2**30


def test_workers_are_as_many_as_fit_the_memory_together() -> None:
    needs = [1.0 * GIB, 6.0 * GIB, 2.0 * GIB, 3.0 * GIB]
    enough = Machine(64 * GIB, 11 * GIB)
    assert fit_workers(needs, 3, enough) == (3, None), "the three largest of the four"
    assert fit_workers(needs, 9, Machine(64 * GIB, 12 * GIB)) == (4, None)
    assert fit_workers(needs, 3, Machine(64 * GIB, 11 * GIB - 1)) == (
        2,
        "3 workers would need about 11.0 GiB beside the dataset, and 11.0 are available; 2 are used.",
    )
    workers, note = fit_workers(needs, 2, Machine(64 * GIB, 8.94 * GIB))
    assert workers == 1
    assert note is not None
    assert note.endswith("and 8.9 are available; 1 is used.")
    assert fit_workers(needs, 2, Machine(64 * GIB, 0.0))[0] == 1, "other programs may end"
    assert fit_workers(needs, 1, Machine(64 * GIB, 0.0)) == (1, None)
    assert fit_workers(needs[:1], 4, Machine(64 * GIB, 0.0)) == (1, None)


def test_a_task_that_the_machine_cannot_hold_is_refused_with_need_and_cure() -> None:
    held = memory_of(os.getpid())
    fits = Machine(held + 2 * GIB + 2**26, 0.0)  # this process may grow a little until it is measured again
    assert fit_workers([2 * GIB + PROCESS], 2, fits) == (1, None)
    with pytest.raises(DataError, match=r"One task .* needs about .* GiB .* ingest fewer firms") as caught:
        fit_workers([2 * GIB + PROCESS], 2, Machine(held + 2 * GIB - 2**26, 0.0))
    assert caught.value.exit_code == 3


def test_the_memory_of_a_process() -> None:
    code = "x = b'1' * 2**27; print(len(x), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        held = memory_of(process.pid)
        process.kill()
    if sys.platform == "linux":
        assert 2**27 < held < 2**27 + 2**26
    assert memory_of(process.pid) == 0.0


def test_this_machine_has_memory() -> None:
    machine = this_machine()
    assert 0.1 * GIB < machine.available <= machine.total
