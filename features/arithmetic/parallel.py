"""Independent parts of an array worked on by several threads, with answers that depend on no thread.

The parts are runs of neighbouring firms that fit the processor's cache. Computed on all firms at once, each
step of a formula travels to main memory and back; computed on a few firms at a time, it stays in the cache.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Answer = TypeVar("Answer")

_CELLS = 3 * 2**15  # of a part: three quarters of a mebibyte as float64, so that several share a core's cache
_LINE = 16  # firms in a cache line of float32: parts share none
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt(3)
_THREAD_LIMITS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")  # what pools of processes set in their workers


def n_threads() -> int:
    """Give the number of threads to work on: the processor's, or fewer where the environment says so."""
    given = [int(os.environ[name]) for name in _THREAD_LIMITS if os.environ.get(name, "").isdigit()]
    return max(1, min([len(os.sched_getaffinity(0)), *given]))


@cache
def keep_freed_memory() -> None:
    """Have this process keep what it frees in blocks below 32 MiB, up to 512 MiB, where glibc allocates.

    By default glibc hands a freed block back to the system at once, so that each temporary array of a
    formula is fetched anew, zeroed page by page and, with several threads, under the lock of the address
    space: a sixth of the time of a pass over a panel (`benchmarks/features_speed.py`). Elsewhere than on
    Linux, and where the environment sets glibc's own MALLOC_ variables, nothing is changed.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        for parameter, size in ((_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**29), (_TOP_PAD, 2**26)):
            mallopt(parameter, size)


def firm_blocks(n_sessions: int, n_firms: int) -> list[slice]:
    """Split the firms into runs of neighbours that fit the cache, in order."""
    width = max(1, _CELLS // max(n_sessions, 1) // _LINE) * _LINE
    return [slice(start, min(start + width, n_firms)) for start in range(0, n_firms, width)]


def map_in_order(work: Callable[[slice], Answer], parts: list[slice]) -> Iterator[Answer]:
    """Do work on parts, several at a time, and give the answers in the order of the parts.

    Only a few answers are held at any time. An error in one part is raised when its turn comes.

    Parameters
    ----------
    work : callable
        Takes a part. Runs in threads, which pays where numpy or a compiled kernel does the work.
    parts : list of slice
        What to work on.

    Yields
    ------
    object
        ``work(part)``.
    """
    keep_freed_memory()
    workers = min(n_threads(), len(parts))
    if workers <= 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Answer]] = deque()
        for part in parts:
            # a thread starts with numpy's own error state: hand it the caller's
            waiting.append(pool.submit(contextvars.copy_context().run, work, part))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def for_each(work: Callable[[slice], None], parts: list[slice]) -> None:
    """Do work on parts, several at a time, each of which writes to its own place."""
    for _ in map_in_order(work, parts):
        pass
