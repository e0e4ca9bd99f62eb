"""Memory that a run needs, estimated before it starts, and the number of workers that it allows.

The characteristics are mapped files, which the kernel drops from memory when it is short, so they do not
count. What counts grows with the cells of the market (sessions x firms): prices and labels in
the main process, and the scaled channels and the model in each worker. The workers start when the dataset is
made. The bytes per cell were measured (docs/experiments/2026-11-23-growth.md).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.errors import DataError

_GIB = 2**30
_PROCESS = 0.5 * _GIB  # interpreter, libraries, and buffers of fixed size
_BUILD = 206  # bytes per cell while the dataset is made; 188 of them already while prices become a panel
_MARKET = 85  # bytes per cell of the panel and the universe
_TASK = 12  # bytes per cell of targets, universe and groups in a worker
_BINNED = 1  # byte per cell and characteristic of LightGBM's bins
_GRADIENTS = 13  # bytes per cell of LightGBM's labels, scores, gradients and row numbers
_SAMPLE = 2.6 * 8 * 200_000  # bytes per characteristic of the rows from which LightGBM chooses its bins
_WITHOUT_WINDOWS = frozenset(("ridge", "lightgbm"))  # their tasks hold no scaled channels


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory of a machine in bytes: all of it, and what is free or can be freed."""

    total: float
    available: float


@dataclass(frozen=True, slots=True)
class Need:
    """Memory in bytes: while the dataset is made, then of the main process and of each worker."""

    build: float
    main: float
    worker: float

    def peak(self, workers: int) -> float:
        """Memory of all processes; one worker is the main process itself."""
        tasks = self.worker - _PROCESS if workers == 1 else workers * self.worker
        return max(self.build, self.main + tasks)


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


def estimate_need(config: Config, cells: int) -> Need:
    """Estimate the memory of training a config on a market of so many cells (sessions x firms)."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS

    features = config.features
    channels = len(CHANNELS if features.channels is None else features.channels)
    labels = 8 * (len(config.label.delays) + len(config.label.shorter_horizons))
    names = CHARACTERISTICS if features.characteristics is None else features.characteristics
    models = {registry_name(config, model) for model in config.models}
    return Need(
        build=_PROCESS + cells * _BUILD,
        main=_PROCESS + cells * (_MARKET + labels + 4 * channels),
        worker=task_need(models, cells, channels, len(names)),
    )


def task_need(models: Collection[str], cells: int, channels: int, characteristics: int) -> float:
    """Estimate the memory of a process that fits or explains one model at a time, beside the arrays.

    Parameters
    ----------
    models
        Names in the registry; the one that needs most decides.
    cells
        Sessions times firms.
    channels, characteristics
        Numbers of both.

    Returns
    -------
    float
        Bytes.
    """
    tasks: list[float] = [cells * (_TASK + (4 * channels if set(models) - _WITHOUT_WINDOWS else 0))]
    if "lightgbm" in models:
        bins = cells * (_TASK + _GRADIENTS + _BINNED * characteristics)
        tasks.append(bins + _SAMPLE * characteristics)
    return _PROCESS + max(tasks)


def fit_workers(config: Config, cells: int, machine: Machine) -> tuple[int, str | None]:
    """Choose the number of workers whose memory is available.

    Parameters
    ----------
    config
        The configuration; ``execution.workers`` is the most that are used.
    cells
        Sessions times firms, or the rows of the prices.
    machine
        The memory.

    Returns
    -------
    workers : int
        At least 1. One worker starts even if other programs use the memory now, because they may end.
    note : str or None
        A sentence if that is fewer than the config has.

    Raises
    ------
    DataError
        If one worker needs more memory than the machine has.
    """
    need = estimate_need(config, cells)
    if need.peak(1) > machine.total:
        raise DataError(
            f"Training on {cells / 1e6:,.1f} million prices needs about {need.peak(1) / _GIB:.1f} GiB of "
            f"memory with one worker, and this machine has {machine.total / _GIB:.1f}; ingest fewer firms "
            "or years, list fewer features.channels, leave out lightgbm, or use a larger machine."
        )
    asked = 1 if config.execution.engine == "serial" else config.execution.workers
    workers = next((n for n in range(asked, 1, -1) if need.peak(n) <= machine.available), 1)
    if workers == asked:
        return workers, None
    used = f"{workers} {'is' if workers == 1 else 'are'} used"
    return workers, (
        f"{asked} workers would need about {need.peak(asked) / _GIB:.1f} GiB of memory, "
        f"and {machine.available / _GIB:.1f} are available; {used}."
    )
