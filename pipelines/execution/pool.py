"""The engine that a config names, and the one that computes tasks in processes of this machine.

Workers are fresh interpreters that run `pipelines.execution.worker`: a fork of a process with threads may
hang, and `multiprocessing` would import the user's script a second time. When the parent is gone, its end of
their socket closes and they end. `early_workers` starts them before their tasks are known.

Each GPU has one worker, which sees no other GPU and trains one network after the other.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, Generic, Self

from pipelines import plugins
from pipelines.config.sections import EngineConfig
from pipelines.device import Gpu, gpus_of
from pipelines.execution.protocol import Hear, Item, Report, Result, Shared, TaskEngine, Ticket, Work, lost
from pipelines.execution.worker import write_shared
from pipelines.machine import Machine, cores, fit_workers, memory_of, this_machine

_ROOT = str(Path(__file__).parents[2])
_START = (
    "import json, sys; root, path, pipe, parent, prepare, plugins = json.loads(sys.argv[1]); "
    "sys.path[:] = [root, *path]; from pipelines.execution.worker import main; "
    "sys.path[:] = path; main(pipe, parent, prepare, plugins)"
)
_LISTEN_SECONDS = 1.0  # an endless wait for a message hears no interrupt that another thread receives
_SMALL = 2**30  # bytes of a task; a worker keeps the memory that it has used, so after larger tasks it ends
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


def keep_freed(glibc: str) -> dict[str, str]:
    """Return variables of a version of glibc, by which freed memory is used again.

    By default each large tensor of a training step gets new pages, which the system fills with zeros first.
    An older glibc takes no size above 32 MiB, and with the second variable alone all of them get new pages.
    """
    largest = 2**30 if [int(n) for n in re.findall(r"\d+", glibc)] >= [2, 36] else 2**25
    return {"MALLOC_MMAP_THRESHOLD_": str(largest), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


_KEEP_FREED = keep_freed(platform.libc_ver()[1])  # unless the user has set them


class _Worker:
    """A worker process, and the attempt that it computes; None while it is idle."""

    def __init__(self, prepare: str = "", gpu: Gpu | None = None) -> None:
        self.ticket: Ticket | None = None
        self.gpu = gpu
        ours, theirs = Pipe()
        self.plugins = plugins.loaded()
        start = json.dumps([_ROOT, sys.path, theirs.fileno(), os.getpid(), prepare, self.plugins])
        self.process = subprocess.Popen(  # noqa: S603 (our own interpreter and code)
            [sys.executable, "-c", _START, start],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**_KEEP_FREED, **os.environ, **_ONE_THREAD, **({} if gpu is None else gpu.environment)},
        )
        theirs.close()
        self.connection = ours
        self.inbox: queue.SimpleQueue[tuple[_Worker, bytes | None]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_read, args=(self,), daemon=True)
        self._reader.start()

    def join_pool(self, shared: BinaryIO, inbox: queue.SimpleQueue[tuple[_Worker, bytes | None]]) -> None:
        """Give the process a shared object, and have its messages come to the inbox of a pool."""
        self.inbox = inbox
        try:
            self.connection.send_bytes(b"")
            reduction.send_handle(self.connection, shared.fileno(), self.process.pid)
        except OSError:  # the process is gone
            inbox.put((self, None))

    def end(self) -> None:
        """Kill the process, which holds nothing that is worth keeping."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.connection.close()


def _read(worker: _Worker) -> None:
    """Move the messages of a worker to its inbox, so that no worker waits for a busy parent."""
    while True:
        try:
            message = worker.connection.recv_bytes()
        except (EOFError, OSError):
            worker.inbox.put((worker, None))
            return
        worker.inbox.put((worker, message))


_early = SimpleNamespace(is_open=False, workers=list[_Worker]())  # waiting, within `early_workers`


@contextmanager
def early_workers() -> Iterator[Callable[..., None]]:
    """Yield a function that has workers wait, after ``module:function``, for pools in the ``with`` block."""

    def start(workers: int, prepare: str, gpus: Sequence[Gpu] = ()) -> None:
        wanted = [*gpus, *[None] * workers]
        for worker in _early.workers:
            if worker.gpu in wanted:
                wanted.remove(worker.gpu)
        _early.workers.extend(_Worker(prepare, gpu) for gpu in wanted)

    _early.is_open = True
    try:
        yield start
    finally:
        _early.is_open = False
        while _early.workers:
            _early.workers.pop().end()


@contextmanager
def in_own_process(function: str) -> Iterator[None]:
    """Call ``module:function`` in another process during the ``with`` block, whose end ends it."""
    worker = _Worker(function)
    try:
        yield
    finally:
        worker.end()


def memory_of_waiting() -> float:
    """Bytes that the workers hold that wait for a pool."""
    return sum(memory_of(worker.process.pid) for worker in _early.workers)


class PoolEngine(Generic[Shared, Item, Result]):
    """Processes that share arrays: ``workers`` with a thread each (more beside GPUs), and one per GPU."""

    def __init__(self, work: Work[Shared, Item, Result], workers: int, gpus: Sequence[Gpu] = ()) -> None:
        self.workers, self.gpus = workers, tuple(gpus)
        beside = (cores() - len(self.gpus)) // workers if self.gpus and workers else 1
        self.threads = max(1, beside)
        self._work = work
        self._inbox: queue.SimpleQueue[tuple[_Worker, bytes | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        self._shared = write_shared((self._work.call, self._work.shared))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            is_small = worker.gpu is None and self._work.memory <= _SMALL
            if _early.is_open and worker.ticket is None and is_small:
                _early.workers.append(worker)
            else:
                worker.end()
        self._workers.clear()
        self._shared.close()

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        """Whether a process for this device is free."""
        on_cpu = self._is_cpu(device)
        busy = sum(self._is_cpu(ticket.device) == on_cpu for ticket in under_way)
        return busy < (self.workers if on_cpu else len(self.gpus))

    def _is_cpu(self, device: str) -> bool:
        return (device or self._work.device) == "cpu"

    def submit(self, ticket: Ticket, item: Item) -> None:
        """Give the task to an idle worker, or to a new one."""
        places = self._places(ticket.device)
        worker = next((one for one in self._workers if one.ticket is None and one.gpu in places), None)
        if worker is None:
            taken = {one.gpu for one in self._workers}
            gpu = next(gpu for gpu in places if gpu is None or gpu not in taken)
            known = plugins.loaded()
            fit = [one for one in _early.workers if one.gpu == gpu and one.plugins == known]
            worker = _early.workers.pop(_early.workers.index(fit[0])) if fit else _Worker(gpu=gpu)
            worker.join_pool(self._shared, self._inbox)
            self._workers.append(worker)
        worker.ticket = ticket
        try:
            worker.connection.send_bytes(pickle.dumps((ticket, item), protocol=5))
        except OSError:  # the worker is gone; its reader reports it
            return

    def wait(self, hear: Hear) -> Sequence[Report[Result]]:
        """Wait until a task ends or its worker is lost."""
        while any(worker.ticket is not None for worker in self._workers):
            try:
                worker, message = self._inbox.get(timeout=_LISTEN_SECONDS)
            except queue.Empty:
                continue
            if worker not in self._workers:  # its end was noticed twice
                continue
            if message is None:
                ticket = self._remove(worker)
                if ticket is not None:
                    return [lost(ticket, _ending(worker.process.returncode))]
                continue
            is_report, content = pickle.loads(message)  # noqa: S301 (sent by our own process)
            if is_report:
                worker.ticket = None
                if worker.gpu is not None and content.error is not None:
                    self._remove(worker)  # what an error has left on the GPU ends with the process
                return [content]
            if worker.ticket is not None:
                hear(worker.ticket, content)
        return []

    def _places(self, device: str) -> tuple[Gpu | None, ...]:
        return (None,) if self._is_cpu(device) else self.gpus

    def _remove(self, worker: _Worker) -> Ticket | None:
        """Remove a worker that is gone, and return the attempt that it leaves."""
        worker.end()
        self._workers.remove(worker)
        return worker.ticket


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"its process ended with exit code {returncode}"
    name = signal.Signals(-returncode).name
    return f"its process was ended by {name}" + (
        ", as the system does when memory runs out" if name == "SIGKILL" else ""
    )


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
    """Open an engine; a pool has room for what fits the memory, and for a single task this process."""
    if config.engine == "ray":
        from pipelines.execution.ray import RayEngine

        on_cluster = config.workers is None and config.address is not None
        with RayEngine(config, work, max(1, jobs if on_cluster else min(config.at_once, jobs))) as on_ray:
            yield on_ray
        return
    each = [float(work.memory)] * jobs if needs is None else list(needs)
    places = [work.device] * jobs if devices is None else list(devices)
    most = 1 if config.engine == "serial" else config.at_once
    here = this_machine()
    free = Machine(here.total, here.available + memory_of_waiting())  # what waiting workers hold is theirs
    workers, gpus, fewer = share_out(each, places, gpus_of(work.device)[:most], most, free)
    if fewer is not None:
        note(fewer)
    if workers + len(gpus) <= 1:
        yield SerialEngine(work)
    else:
        with PoolEngine(work, workers, gpus) as pool:
            yield pool


def share_out(
    needs: Sequence[float], devices: Sequence[str], gpus: Sequence[Gpu], most: int, machine: Machine
) -> tuple[int, tuple[Gpu, ...], str | None]:
    """Share tasks out: those of the processor at once, and GPUs, each of which counts as one of ``most``.

    Those of the processor fit the memory beside the GPUs'; a note says if they are fewer for that.
    """
    here = [need for need, device in zip(needs, devices, strict=True) if device == "cpu"]
    there = [need for need, device in zip(needs, devices, strict=True) if device != "cpu"]
    used = tuple(gpus[: min(max(1, most - bool(here)), len(there))])
    if not min(len(here), most - len(used)):
        return 0, used, None
    beside = Machine(machine.total, machine.available - sum(sorted(there, reverse=True)[: len(used)]))
    workers, fewer = fit_workers(here, most - len(used), beside)
    return workers, used, fewer


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
            log = f"attempt {ticket.attempt}: {type(error).__name__}: {error}\n"
            return [Report(ticket, log, error=error)]
        return [Report(ticket, f"attempt {ticket.attempt}, {time.monotonic() - started:.1f} s\n", result)]
