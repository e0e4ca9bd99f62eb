"""Work on a panel in tiles of firms: small enough for the processor's cache, independent, on several threads.

Most features treat every firm by itself. Computed on all firms at once, each of their steps travels to main
memory and back; computed on a few firms at a time, the steps stay in the cache. A tile is a `Panel` of some
of the firms, so a feature's function need not know which it is given. What looks across firms
(`features.derived.market_return`, `group_mean`) asks for the whole panel behind the tile.

Results depend neither on the tiles nor on the number of threads: no number of one firm meets another's.

Shape suffixes: T sessions, N firms, n firms of a tile.
"""

from __future__ import annotations

import contextvars
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from features.panel import Panel

Answer = TypeVar("Answer")

_CELLS = 2**16  # of a tile: half a mebibyte as float64, so that several arrays share a core's cache
_LEAST_FIRMS = 16  # two cache lines a row, even in a panel of very many sessions
_THREAD_LIMITS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")  # what pools of processes set in their workers

_origins: WeakKeyDictionary[Panel, Panel] = WeakKeyDictionary()


def n_threads() -> int:
    """Give the number of threads to work on: the processor's, or fewer where the environment says so."""
    given = [int(os.environ[name]) for name in _THREAD_LIMITS if os.environ.get(name, "").isdigit()]
    return max(1, min([len(os.sched_getaffinity(0)), *given]))


def tiles(n_sessions: int, n_firms: int) -> list[slice]:
    """Cut the firms into runs of neighbours that fit the cache, in order."""
    width = max(_LEAST_FIRMS, _CELLS // max(n_sessions, 1) // 8 * 8)
    return [slice(start, min(start + width, n_firms)) for start in range(0, n_firms, width)]


def in_order(work: Callable[[slice], Answer], parts: list[slice]) -> Iterator[Answer]:
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
    for _ in in_order(work, parts):
        pass


def cut(panel: Panel, firms: slice, needs: frozenset[str] | None = None) -> Panel:
    """Take some of a panel's firms.

    Parameters
    ----------
    panel : Panel
        The data.
    firms : slice
        Which firms.
    needs : frozenset of str, optional
        The panel's fields (`Panel.fields`) that will be read and are worth copying together; all by default.
        The others are there as views, which are slower to read.

    Returns
    -------
    Panel
        A panel of these firms. `whole` leads back to the one that it was cut from.
    """

    def take(name: str, array_TN: npt.NDArray[Any]) -> npt.NDArray[Any]:
        part_Tn = array_TN[:, firms]
        if needs is None or name in needs or name == "raw_close":
            part_Tn = np.ascontiguousarray(part_Tn)
            part_Tn.setflags(write=False)
        return part_Tn

    changed: dict[str, Any] = {"tickers_N": panel.tickers_N[firms]}
    for field in fields(panel):
        value = getattr(panel, field.name)
        if field.name.endswith("_TN") and value is not None:
            changed[field.name] = take(field.name.removesuffix("_TN"), value)
        elif isinstance(value, Mapping):
            changed[field.name] = {key: take(f"{field.name}:{key}", array) for key, array in value.items()}
    tile = replace(panel, **changed)
    _origins[tile] = whole(panel)
    return tile


def whole(panel: Panel) -> Panel:
    """Give the panel that a tile was cut from, or the panel itself."""
    return _origins.get(panel, panel)
