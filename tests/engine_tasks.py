"""Tasks for the tests of engines: functions of a module, so that workers in other processes find them."""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines import plugins
from pipelines.execution.protocol import Tell, Work

Array = npt.NDArray[np.float64]


def code() -> str:
    """Digest of the code, the same everywhere."""
    return "one"


def work_on(call: Any, shared: Any = None, **changes: Any) -> Work[Any, Any, Any]:  # noqa: ANN401 (any task)
    """Describe small tasks to an engine."""
    return Work(**{"call": call, "shared": shared, "memory": 2**20, "device": "cpu", "code": code, **changes})


def total(shared: Array, item: int, tell: Tell) -> tuple[float, bool, int]:
    """Sum and multiply; say whether the shared array can be written to, and who computes."""
    tell(f"news of {item}")
    print(f"printed by {item}")
    warnings.warn(f"warned by {item}", stacklevel=1)
    return float(shared.sum()) * item, shared.flags.writeable, os.getpid()


def die_once(folder: str, item: int, tell: Tell) -> int:
    """Die like a process that runs out of memory, at the first attempt of item 1."""
    if item == 1 and _first(Path(folder) / "died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 10


def always_die(shared: None, item: int, tell: Tell) -> int:
    """Die at every attempt of item 1."""
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 10


def fail(folder: str, item: int, tell: Tell) -> int:
    """Raise an error that passes at item 1, and one that does not at item 2."""
    with (Path(folder) / f"attempts-{item}").open("a") as attempts:
        attempts.write(".")
    if item == 1 and _first(Path(folder) / "failed"):
        raise OSError("the network is down")
    if item == 2:
        raise ValueError("two is not allowed")
    return item * 10


def busy(shared: Array, item: int, tell: Tell) -> int:
    """Hold the interpreter's lock in compiled code for most of a minute, in steps of some seconds."""
    tell(os.getpid())
    started = time.monotonic()
    while time.monotonic() - started < 60:
        sum(range(10**8))
    return item


def where(shared: tuple[str, Array], item: int, tell: Tell) -> tuple[float, bool, str]:
    """Sum once a machine was killed; say whether the array can be written to, and which machine computes.

    Until a file ``killed-MACHINE`` exists, every task waits, so that there is one on the machine that is
    killed; that one waits for its end. After that, item 1 kills its process once, and item 2 raises an error.
    """
    import ray

    folder, array = shared
    node = str(ray.get_runtime_context().get_node_id())
    tell(node)
    print(f"printed by {item}")
    deadline = time.monotonic() + 600
    while not (killed := [path.name for path in Path(folder).glob("killed-*")]) or killed == [
        f"killed-{node}"
    ]:
        if time.monotonic() > deadline:
            raise TimeoutError("no machine was killed")
        time.sleep(0.05)
    die_once(folder, item, tell)
    if item == 2:
        raise ValueError("two is not allowed")
    return float(array.sum(dtype=np.float64)) * item, array.flags.writeable, node


def by_value(shared: tuple[str, Array]) -> tuple[str, Array]:
    """The array of `where` without the file that it is in."""
    return shared[0], np.asarray(shared[1])


def _first(path: Path) -> bool:
    """Whether this is the first call for a file, which is created."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def become_ready() -> None:
    """Leave a mark in this process."""
    os.environ["MADE_READY"] = str(os.getpid())


def made_ready(shared: None, item: int, tell: Tell) -> tuple[int, bool]:
    """The process, and whether it was made ready before its first task."""
    return os.getpid(), os.environ.get("MADE_READY") == str(os.getpid())


def new_pages(shared: None, item: int, tell: Tell) -> int:
    """Number of pages that a large object needs after equal ones were freed."""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytearray(b"x") * 2**26
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def seen_gpus(shared: None, item: int, tell: Tell) -> tuple[int, str | None]:
    """The process, and the GPUs that it sees. Item 3 raises an error, as of a broken GPU."""
    if item == 3:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


def leave_a_file() -> None:
    """Write the process's number into a file, whole at once."""
    path = Path(os.environ["LEFT_FILE"])
    partial = path.with_suffix(".partial")
    partial.write_text(str(os.getpid()))
    partial.rename(path)


def fail_loudly() -> None:
    """Print, warn and raise."""
    print("printed")
    warnings.warn("warned", stacklevel=1)
    raise RuntimeError("raised")


def plugins_of_a_worker(shared: None, item: int, tell: Tell) -> tuple[int, list[str]]:
    """Process and plugins of the worker."""
    return os.getpid(), plugins.loaded()
