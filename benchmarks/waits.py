"""Where training reads values back to the host, by operation and line of code.

A few steps and a validation of a model with default options run under torch's profiler, in the training loop,
and the operations that return values to the host are counted: `item` (`_local_scalar_dense`), `nonzero`,
boolean masks as indices, `equal`, and copies to the host. On a GPU each of them waits for all work before it.
On a CPU nothing waits, but the same lines are counted. The column "reads" says what is read. Tensors that are
kept on the host whatever the device cost no wait on a GPU either; `tests/models/fitting/test_waits.py` checks
that on a mock device. The totals of torch's profile are higher on a CPU, where the fused step of AdamW reads
its step counts.

On a GPU, steps are recorded once and replayed (`models.fitting.graphs`), so only those before the recording
are listed. For what share of an epoch kernels run, see `benchmarks/gpu_check.py`.

    python benchmarks/waits.py                                 temporal_transformer and temporal_peer on a CPU
    python benchmarks/waits.py --device cuda --models temporal_peer --firms 3000 --sessions 1000
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from gpu_measure import built, panel
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from features.arrays import IntArray
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.loop import Engine, SingleSeed, train_seeds
from models.fitting.stacked import StackedSeeds

ROOT = Path(__file__).resolve().parents[1]
READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_consecutive")
PROFILED = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal")
HOST = {
    ("models/batch.py", "batch"): "the dates and the universe, which are kept on the host",
    ("models/fitting/loop.py", "_chosen"): "the universe, which is kept on the host",
    ("models/fitting/loop.py", "most_firms"): "the universe, which is kept on the host",
    ("models/peers/others.py", "attention_to_others"): "whether weights vanished, which only CPUs look at",
    ("models/fitting/optimizer.py", "step"): "the number of steps, which on a GPU is used there",
}
"""Functions that read tensors which are on the host whatever the device, and what these are."""
ASKED_FOR = {
    ("models/fitting/loop.py", "train_seeds"): "losses and norms, once an epoch; targets, once",
    ("models/fitting/loop.py", "validate"): "forecasts of validation, once an epoch",
}
"""Functions that read values of the device where they are needed, once an epoch."""

Place = tuple[str, str, int]


class Reads(TorchDispatchMode):
    """Counts the operations that return values to the host, by name and line of this repository."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        self.found: Counter[tuple[str, Place]] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        masks = [one for one in tree_leaves(args[1:2]) if isinstance(one, Tensor) and one.dtype == torch.bool]
        by_mask = name in {"index", "index_put", "index_put_", "_index_put_impl_"} and bool(masks)
        to_host = (
            name == "_to_copy" and args[0].device.type != "cpu" and "cpu" in str(kwargs.get("device", ""))
        )
        if name in READS or by_mask or to_host:
            self.found[name + (" by a mask" if by_mask else " to the host" if to_host else ""), place()] += 1
        return func(*args, **kwargs)


def place() -> Place:
    """File, function and line of the repository that called the current operation."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / "models"):
            return path.relative_to(ROOT).as_posix(), frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back
    return "torch", "", 0


def rows(model: str, data: PanelTensors, config: FitConfig, steps: int) -> Iterator[str]:
    """Rows of the table of one model."""
    sessions = np.arange(30, len(data.listed_TN))
    train, valid = sessions[: steps * config.batch_dates], sessions[-2 * config.batch_dates :]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if data.device.type == "cuda" else [])]
    with profile(activities=activities) as profiled, Reads() as reads:
        train_seeds(engine(model, data, config, train), train, valid, config)
    totals = Counter({one.key: one.count for one in profiled.key_averages() if one.key in PROFILED})
    copies = sum(one.count for one in profiled.key_averages() if "Memcpy DtoH" in one.key)
    listed = ", ".join(f"{name} {count}" for name, count in totals.most_common())
    yield f"\n{model}: {steps} steps and validation"
    yield f"torch's profile: {listed}, copies to the host {copies}\n"
    yield "| operation | line | times a step | reads |"
    yield "|---|---|---|---|"
    for (name, (file, function, line)), count in reads.found.most_common():
        what = HOST.get((file, function)) or ASKED_FOR.get((file, function)) or "**values of the device**"
        yield f"| {name} | {file}:{line} {function} | {count / steps:.2f} | {what} |"


def engine(model: str, data: PanelTensors, config: FitConfig, train: IntArray) -> Engine:
    """A model with default options, ready to be trained."""
    module = built(model, data, seed=0)
    if data.device.type != "cpu" and module.stackable:
        return StackedSeeds([module], data, config, (0,), train)
    return SingleSeed(module, data, config, 0, train)


def main() -> None:
    """Print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=["temporal_transformer", "temporal_peer"])
    parser.add_argument("--sessions", type=int, default=160, help="sessions of the panel, from 100")
    parser.add_argument("--firms", type=int, default=200, help="firms of the panel")
    parser.add_argument("--steps", type=int, default=2, help="training steps")
    parser.add_argument("--dates", type=int, default=4, help="dates of a step")
    given = parser.parse_args()
    needed = 30 + (given.steps + 2) * given.dates
    if given.sessions < needed:
        parser.error(f"--sessions is {given.sessions}: give at least {needed}, for training and validation")
    data = panel(given.device, given.firms, given.sessions)
    for model in given.models:
        for row in rows(model, data, FitConfig(epochs=1, batch_dates=given.dates), given.steps):
            print(row)


if __name__ == "__main__":
    main()
