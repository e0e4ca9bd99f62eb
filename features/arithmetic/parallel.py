"""Process independent blocks of an array in several threads, with results that do not depend on the threads.

A block is a range of adjacent firms that fits the processor's cache. With all firms at once, each step of a
formula would read from and write to main memory; with a few firms at a time, the data stay in the cache.
"""

import contextvars
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Answer = TypeVar("Answer")

_CELLS = 3 * 2**15  # per block: 0.75 MiB as float64, so that several arrays share a core's cache
_LINE = 16  # float32 values in a cache line: blocks share no cache line
_THREAD_LIMITS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")  # set by process pools in their workers


def n_cores() -> int:
    """Return the number of cores that this process may use; all of the machine's where that is not known."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def n_threads() -> int:
    """Return the number of threads to use: the number of cores, or fewer if the environment limits it."""
    limits = [int(os.environ[name]) for name in _THREAD_LIMITS if os.environ.get(name, "").isdigit()]
    return max(1, min([n_cores(), *limits]))


def firm_blocks(n_sessions: int, n_firms: int) -> list[slice]:
    """Split the firms into contiguous blocks that fit the cache, in order."""
    width = max(1, _CELLS // max(n_sessions, 1) // _LINE) * _LINE
    return [slice(start, min(start + width, n_firms)) for start in range(0, n_firms, width)]


def map_in_order(work: Callable[[slice], Answer], parts: list[slice]) -> Iterator[Answer]:
    """Apply a function to blocks, several at a time, and yield the results in the order of the blocks.

    Only a few results are held at any time. An error in a block is raised in that block's turn. The function
    runs in threads, which helps where numpy or a compiled kernel does the work.
    """
    workers = min(n_threads(), len(parts))
    if workers <= 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Answer]] = deque()
        for part in parts:
            # a new thread has numpy's default error state; pass on the caller's
            waiting.append(pool.submit(contextvars.copy_context().run, work, part))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def in_background(work: Callable[[], Answer]) -> Future[Answer]:
    """Start a computation in a thread beside the caller's; with one thread it is done before this returns.

    This helps where numpy or a compiled kernel does most of the work.
    """
    if n_threads() == 1:
        done: Future[Answer] = Future()
        done.set_result(work())
        return done
    pool = ThreadPoolExecutor(1)
    started = pool.submit(contextvars.copy_context().run, work)
    pool.shutdown(wait=False)  # the thread ends with the computation
    return started


def for_each(work: Callable[[slice], None], parts: list[slice]) -> None:
    """Apply a function to blocks, several at a time; each call writes its own part of an output."""
    for _ in map_in_order(work, parts):
        pass


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy's linear algebra use one thread in a ``with`` block.

    For many small matrices: with several threads, BLAS waits busily for each of them at every product, which
    takes up to 20 times the processor's time where other programs compute as well. The results of one thread
    also do not depend on the number of cores.
    """
    with _blas(len(sys.modules)).limit(limits=1):
        yield


@functools.lru_cache(maxsize=1)
def _blas(_modules: int) -> ThreadpoolController:
    """The loaded BLAS libraries. Finding them takes milliseconds, and importing a module can load one."""
    return ThreadpoolController().select(user_api="blas")
