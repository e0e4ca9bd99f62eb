"""Measures the training of one model on one market, for `benchmarks/gpu_check.py`.

A sample is a firm-day: one firm on one date, with its window. The work of a step is counted in its first,
eager call: `FlopCounterMode` adds up the matrix products, and the bytes are those of all operations' inputs
and outputs. A share of a ceiling is the work per second divided by what the card reaches in a large matrix
product or copy. Compilation fuses operations, so its share of the copies is too high.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import stand_ins  # noqa: F401  (before anything that imports pydantic)
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from models.batch import PanelTensors
from models.fitted import EpochRecord
from models.fitting import graphs
from models.fitting.config import FitConfig
from models.fitting.graphs import WARM_UP
from models.fitting.loop import SingleSeed, most_firms, train_seeds
from models.fitting.memory import PEAK, date_bytes
from models.fitting.optimizer import AdamW
from models.fitting.stacked import StackedSeeds
from models.forecaster import Forecaster
from models.registry import MODELS

GROUPS, CHANNELS, CHARACTERISTICS, WINDOW = 12, 7, 40, 20
EPOCH = 8  # steps that are timed at once
NEURAL = tuple(name for name, entry in MODELS.items() if entry.kind == "neural")


@dataclass(frozen=True, slots=True)
class Cell:
    """What one row of the table measures."""

    model: str
    firms: int
    dates: int
    seeds: int
    how: str
    """``eager``, ``graph`` or ``compiled``."""
    precision: str = "bf16"


@dataclass(frozen=True, slots=True)
class Row:
    """Results of a cell; NaN where something was not measured."""

    milliseconds: float
    """Of a step."""
    kernels: float
    """Share of the time in which kernels run."""
    samples: float
    """Firm-days a second, over all seeds."""
    products: float
    """Floating-point operations of matrix products a second."""
    bytes: float
    """Bytes that operations read and write a second."""
    gib: float
    """Peak memory beside the panel."""
    estimate: float
    """Estimate of it from the shapes (`models.fitting.memory`), in GiB."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the card reaches: floating-point operations a second by type, and bytes a second."""

    products: dict[str, float]
    copies: float


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write; views move none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            self.bytes += sum({id(t): t.numel() * t.element_size() for t in tensors}.values())
        return out


def wait(device: str) -> None:
    """Wait until the device has finished its queued work."""
    if device != "cpu":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], device: str, times: int) -> float:
    """Median wall-clock seconds of a call, after one warm-up call."""
    work()
    taken = []
    for _ in range(times):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def ceilings(device: str, *, small: bool) -> Ceilings:
    """Measure large matrix products and a copy (read and written)."""
    n, size = (256, 2**22) if small else (8192, 2**30)
    products: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        rate = 2 * n**3 / seconds_of(partial(torch.matmul, a, b), device, 5)
        products["bf16" if dtype is torch.bfloat16 else "float32"] = rate
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Ceilings(products, 2 * size / seconds_of(lambda: target.copy_(source), device, 5))


@lru_cache(maxsize=2)
def panel(device: str, firms: int, sessions: int) -> PanelTensors:
    """Make a panel of random numbers; 5% of the firms are missing on each date."""
    rng = np.random.default_rng(0)
    shape = (sessions, firms)

    def normal(*size: int) -> Any:  # noqa: ANN401 (an array)
        return rng.standard_normal(size=size, dtype=np.float32)

    return PanelTensors.from_arrays(
        channels_TNC=normal(*shape, CHANNELS),
        characteristics_TNF=normal(*shape, CHARACTERISTICS),
        mask_TN=rng.random(shape, dtype=np.float32) < 0.95,
        group_TN=rng.integers(0, GROUPS, shape),
        target_TN=normal(*shape),
        window=WINDOW,
        n_groups=GROUPS,
        characteristic_names=("log_market_equity", *(f"c{k}" for k in range(1, CHARACTERISTICS))),
        device=device,
        complete=True,
    )


def built(model: str, data: PanelTensors, seed: int, *, dropout: bool = True) -> Forecaster:
    """Build the default model with a seed, on the data's device."""
    torch.manual_seed(seed)
    entry = MODELS[model]
    module = entry.build(entry.config(), data.shape)
    if not isinstance(module, Forecaster):
        sys.exit(f"{model} is not a neural network: choose one of {', '.join(NEURAL)}")
    return module.to(data.device).train(dropout)


def kernels_of(work: Callable[[], object]) -> float:
    """Seconds in which kernels run on the GPU while some work is done."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    return covered(kernel_spans(profiled.events())) / 1e6


def kernel_spans(events: Iterable[Any]) -> list[tuple[float, float]]:
    """Start and end of every kernel in a profile, in microseconds; copies and annotations are no kernels."""
    return [
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA"
        and not event.is_user_annotation
        and not event.name.startswith(("Memcpy", "Memset"))
    ]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def can_measure(cell: Cell) -> bool:
    """Whether a cell exists: shapes that depend on values are eager and of one seed."""
    return bool(MODELS[cell.model].build.stackable) or (cell.how == "eager" and cell.seeds == 1)


class Training:
    """Epochs of a cell, by the engine that a fit would use.

    Parameters
    ----------
    cell
        What is trained.
    data
        The panel.
    steps
        S, steps of an epoch.
    dropout
        Whether weights and activations are dropped.
    schedule
        Steps of the schedule of the learning rate.
    """

    def __init__(
        self, cell: Cell, data: PanelTensors, steps: int, *, dropout: bool = True, schedule: int = 10_000
    ) -> None:
        config = FitConfig(batch_dates=cell.dates, precision=cell.precision)  # type: ignore[arg-type]
        modules = [built(cell.model, data, seed, dropout=dropout) for seed in range(cell.seeds)]
        self.train = train = np.arange(data.window, len(data.listed_TN))
        seeds = range(cell.seeds)
        graphs.WARM_UP = 10**9 if cell.how == "eager" else WARM_UP
        self.engine: SingleSeed | StackedSeeds = (
            StackedSeeds(modules, data, config, seeds, train, compiled=cell.how == "compiled")
            if modules[0].stackable
            else SingleSeed(modules[0], data, config, 0, train)
        )
        self.optimizer = AdamW(self.engine.groups(), config, schedule)
        rng = np.random.default_rng(1)
        self.dates_KD = torch.as_tensor(rng.choice(train, size=(cell.seeds, steps * cell.dates)))

    def epoch(self) -> Tensor:
        """Losses and gradient norms [2, K, S] of an epoch, which always has the same dates."""
        return self.engine.epoch(self.dates_KD, self.optimizer)


def measure(cell: Cell, device: str, sessions: int, *, profiled: bool) -> Row:
    """Measure one cell."""
    data = panel(device, cell.firms, sessions)
    products, moved = _work(replace(cell, how="eager"), device, sessions)
    before = 0
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()  # what one stream has freed, another cannot use
    training = Training(cell, data, EPOCH)
    training.epoch()  # warms up, and records or compiles
    step = seconds_of(training.epoch, device, 3) / EPOCH
    kernels, gib = math.nan, math.nan
    if device != "cpu":
        gib = (torch.cuda.max_memory_reserved() - before) / 2**30
        kernels = kernels_of(training.epoch) / EPOCH / step if profiled else math.nan
    samples = cell.seeds * cell.dates * float(data.listed_TN.sum(dim=1).float().mean())
    each = date_bytes(training.engine.modules[0], FitConfig(), data.shape, most_firms(data, training.train))
    at_once = min(cell.dates, training.engine.dates_at_once)
    estimate = math.nan if each is None else PEAK * training.engine.seeds_at_once * at_once * each / 2**30
    return Row(1e3 * step, kernels, samples / step, products / step, moved / step, gib, estimate)


@lru_cache(maxsize=64)
def _work(cell: Cell, device: str, sessions: int) -> tuple[int, int]:
    """Operations of matrix products and bytes of a step."""
    training = Training(cell, panel(device, cell.firms, sessions), 1)
    with FlopCounterMode(display=False) as counter, Traffic() as traffic:
        training.epoch()
    return counter.get_total_flops(), traffic.bytes


def share_of_epoch(cell: Cell, device: str, sessions: int) -> float:
    """Share of an epoch, validation included, in which kernels run; NaN on a CPU."""
    data = panel(device, cell.firms, sessions)
    training = Training(cell, data, 1)
    held = len(training.train) // 6
    train, valid = training.train[:-held], training.train[-held + 3 :]
    profiler, seconds = profile(activities=[ProfilerActivity.CUDA]), list[float]()

    def look(record: EpochRecord) -> None:
        """The first epoch records the steps, the second is profiled, and the others are timed."""
        wait(device)
        if record.epoch == 0 and device != "cpu":
            profiler.start()
        elif record.epoch == 1 and device != "cpu":
            profiler.stop()
        elif record.epoch > 1:
            seconds.append(record.seconds)

    config = training.engine.config.model_copy(update={"epochs": 4, "patience": 9})
    train_seeds(training.engine, train, valid, config, on_epoch=[look])
    if device == "cpu":
        return math.nan
    return covered(kernel_spans(profiler.events())) / 1e6 / min(seconds)


def first_losses(cell: Cell, device: str, sessions: int, steps: int = 10) -> list[float]:
    """Losses of the first steps of a training without dropout, from weights in which every part matters."""
    data = panel(device, cell.firms, sessions)
    training = Training(cell, data, steps, dropout=False, schedule=steps)
    generator = torch.Generator().manual_seed(0)
    for parameter in training.engine.modules[0].parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.device)
    losses: list[float] = training.epoch()[0, 0].tolist()
    return losses
