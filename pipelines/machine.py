"""The memory and cores of this machine, and how many tasks at once it has room for."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import DataError

GIB = 2**30
PROCESS = 0.5 * GIB  # interpreter, libraries, and buffers of fixed size
CURE = (
    "ingest fewer firms or years, list fewer features.channels, leave out lightgbm, or use a larger machine."
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory of a machine in bytes: all of it, and what is free or can be freed."""

    total: float
    available: float


def this_machine() -> Machine:
    """Read the memory of this machine, within the limit of its control group."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # not Linux: what is free is not known
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return Machine(total, total)
    lines = (line.split() for line in meminfo.read_text().splitlines())
    kib = {name.rstrip(":"): float(value) for name, value, *_ in lines}
    total, available = 1024 * kib["MemTotal"], 1024 * kib["MemAvailable"]
    group = Path("/sys/fs/cgroup")
    try:
        limit = float((group / "memory.max").read_text())  # "max" where there is none
        free = limit - float((group / "memory.current").read_text())
    except (OSError, ValueError):
        return Machine(total, available)
    return Machine(min(total, limit), min(available, free))


def cores() -> int:
    """Number of cores that this process may use, within the limit of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, round(float(quota) / float(period))))  # "max" where there is no limit
    except (OSError, ValueError):
        return allowed


def memory_of(pid: int) -> float:
    """Bytes that a process holds, without mapped files; 0 if that is not known, as outside Linux."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):  # another system, or the process is gone
        return 0.0
    return float(os.sysconf("SC_PAGE_SIZE") * (int(resident) - int(shared)))


def fit_workers(needs: Sequence[float], most: int, machine: Machine) -> tuple[int, str | None]:
    """How many tasks of these ``needs``, in bytes, fit the memory at once (at least 1), and a note if few."""
    largest = sorted(needs, reverse=True)[:most]
    alone = memory_of(os.getpid()) + max(0.0, largest[0] - PROCESS)
    if alone > machine.total:
        raise DataError(
            f"One task beside the dataset needs about {alone / GIB:.1f} GiB of memory, and this machine has "
            f"{machine.total / GIB:.1f}; {CURE}"
        )
    fitting = (n for n in range(len(largest), 1, -1) if sum(largest[:n]) <= machine.available)
    workers = next(fitting, 1)
    if workers == len(largest):
        return workers, None
    used = f"{workers} {'is' if workers == 1 else 'are'} used"
    return workers, (
        f"{len(largest)} workers would need about {sum(largest) / GIB:.1f} GiB beside the dataset, "
        f"and {machine.available / GIB:.1f} are available; {used}."
    )
